//! A pod that wants the GPU for itself.

use anyhow::ensure;

use super::scene::Scene;
use crate::job::{Ask, Job};

pub async fn waits_for_the_shares(scene: &Scene<'_>) -> anyhow::Result<String> {
    let share = Job::new("whole-before", Ask::Share(10));
    scene.run(std::slice::from_ref(&share)).await?;
    let whole = Job::new("whole", Ask::Whole);
    scene.create(&whole).await?;
    let reason = scene.pods.event(&whole.name, "nodes are available").await?;
    scene.work_on(std::slice::from_ref(&share)).await?;
    ensure!(
        scene.pods.phase(&whole.name).await? == "Pending",
        "the whole GPU was given away with a share on it"
    );
    scene.pods.api().delete(&share.name, &kube::api::DeleteParams::default()).await?;
    let seen = scene.expect(&whole).await?;
    Ok(format!("it waited ({reason}), then it saw {seen}"))
}
