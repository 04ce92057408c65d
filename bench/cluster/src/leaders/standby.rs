//! How long no pod is bound when the leader ends, and whether another leads when the API server stalls, under a steady
//! load of pods.

use std::time::{Duration, Instant};

use kerf_core::testing::node_status;
use kerf_tests::cluster::{unguarded, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::gpu_nodes::{Manner, NodeObject, SimulatedAgents};
use kerf_tests::leaders::{Blow, Leaders};
use rustix::process::Signal;

use super::load::Load;
use crate::report::{Figure, print};

/// The default of the extender.
const LEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// More than a Lease, so that a leader that was frozen or cut off comes back to another one.
const ABSENCE_DELAY: Duration = Duration::from_secs(15);
/// What a replica that was started needs to have its watches and the agents' streams, and what the pods need that were
/// left waiting.
const SETTLE_DELAY: Duration = Duration::from_secs(10);
const STALL_DELAY: Duration = Duration::from_secs(3);
const STALL_INTERVAL: Duration = Duration::from_secs(57);
const TIMEOUT: Duration = Duration::from_mins(1);

/// Strikes in each way, then stalls the API server so often, once a minute.
pub async fn run(stalls: u32) -> anyhow::Result<Vec<Figure>> {
    let mut scene = Scene::start().await?;
    let mut figures = Vec::new();
    for blow in Blow::ALL {
        let bar = if blow == Blow::Terminated { 1.0 } else { LEASE_TIMEOUT.as_secs_f64() + 2.0 };
        let longest = scene.strike(blow).await?;
        print(&format!("# {blow:?}: no pod was bound for {longest:.2?}"));
        figures.push(without_a_bound_pod(&format!("{blow:?}"), longest, bar));
    }
    if stalls > 0 {
        let (longest, leaders) = scene.stall(stalls).await?;
        figures.push(without_a_bound_pod("stalls of 3 s", longest, STALL_DELAY.as_secs_f64() + 2.0));
        figures.push(Figure::at_most("leaders that followed in stalls of 3 s", f64::from(leaders), 0.0));
    }
    let left = scene.end().await?;
    figures.push(Figure::at_most("pods that were never bound", f64::from(left), 0.0));
    Ok(figures)
}

fn without_a_bound_pod(when: &str, longest: Duration, bar: f64) -> Figure {
    Figure::at_most(&format!("longest time without a bound pod, s: {when}"), longest.as_secs_f64(), bar)
}

struct Scene {
    plane: ControlPlane,
    leaders: Leaders,
    load: Load,
    _agents: SimulatedAgents,
}

impl Scene {
    async fn start() -> anyhow::Result<Self> {
        let mut plane = unguarded(ControlPlaneOptions::without_controller_manager()).await?;
        NodeObject::new("node").create(&plane.client(), node_status(&["H100-80GB"; 16])).await?;
        let flag = format!("--lease-duration={}s", LEASE_TIMEOUT.as_secs());
        let leaders = Leaders::start(&plane, &[&flag]).await?;
        let agents = leaders.simulate_agents(&plane, Manner::default());
        for replica in &leaders.replicas {
            replica.logs("agent connected", 0).await?;
        }
        leaders.start_scheduler(&mut plane, "kerf-scheduler").await?;
        let load = Load::start(&plane.client());
        Ok(Self { plane, leaders, load, _agents: agents })
    }

    /// The longest time without a bound pod from the blow on.
    async fn strike(&mut self, blow: Blow) -> anyhow::Result<Duration> {
        self.is_calm().await?;
        let began = Instant::now();
        self.leaders.strike(blow, ABSENCE_DELAY).await?;
        tokio::time::sleep(SETTLE_DELAY).await;
        Ok(self.load.longest_gap(began))
    }

    /// The longest time without a bound pod, and how many leaders have followed.
    async fn stall(&mut self, stalls: u32) -> anyhow::Result<(Duration, u32)> {
        self.is_calm().await?;
        let (began, before) = (Instant::now(), self.leaders.transitions().await?);
        for stall in 1..=stalls {
            self.plane.child("kube-apiserver")?.signal(Signal::STOP)?;
            tokio::time::sleep(STALL_DELAY).await;
            self.plane.child("kube-apiserver")?.signal(Signal::CONT)?;
            tokio::time::sleep(STALL_INTERVAL).await;
            let longest = self.load.longest_gap(began);
            print(&format!("# stall {stall} of {stalls}: no pod was bound for {longest:.2?} at most"));
        }
        Ok((self.load.longest_gap(began), self.leaders.transitions().await?.abs_diff(before)))
    }

    /// Waits until pods are bound as fast as they come.
    async fn is_calm(&self) -> anyhow::Result<()> {
        tokio::time::sleep(SETTLE_DELAY).await;
        let is_calm = async || Ok(self.load.waiting() <= 2);
        wait(TIMEOUT, "all pods to be bound but the last", is_calm).await
    }

    /// Ends everything in order; how many pods were not bound.
    async fn end(mut self) -> anyhow::Result<u32> {
        self.load.stop();
        // A timeout is no error here, because the pods that are left are counted.
        let _ = wait(TIMEOUT, "the last pods to be bound", async || Ok(self.load.waiting() == 0)).await;
        let left = self.load.waiting();
        self.leaders.stop()?;
        self.plane.stop().await?;
        Ok(u32::try_from(left)?)
    }
}
