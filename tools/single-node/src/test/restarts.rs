//! Kills the agent and the kubelet while pods work.

use super::scene::Scene;
use crate::job::{Ask, Job};
use crate::order::Order;

pub async fn of_agent_and_kubelet(scene: &Scene<'_>) -> anyhow::Result<String> {
    let share = |name: &str| Job::new(format!("restarts-{name}"), Ask::Share(10)).trying(1);
    let mut jobs = vec![share("first"), share("second")];
    scene.run(&jobs).await?;
    for (order, name) in [(Order::RestartAgent, "after-agent"), (Order::RestartKubelet, "after-kubelet")] {
        order.give(scene.args).await?;
        let next = share(name);
        scene.run(std::slice::from_ref(&next)).await?;
        jobs.push(next);
        scene.work_on(&jobs).await?;
        scene.held_by(&jobs).await?;
    }
    Ok("pods worked on, their holders stayed known, and new pods ran after each".to_owned())
}
