//! Pods and processes that make a cluster's metrics interesting: on MIG instances and on shares, pending,
//! under a quota.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kerf_nvml_mock::{MockControl, Model, Process};

use crate::cluster::{Cluster, ClusterOptions, NodeSpec, root, sized_pod};
use crate::random::Random;

/// A policy for the pods' namespace and one for all others, with quotas. They come before the shipped one.
const POLICY: &str = "apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: team}
spec: {extends: default, match: {namespaces: [default]}, quota: {memoryGb: 400, slices: 40}}
---
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: others}
spec: {extends: default, quota: {slices: 4}}
---
";

/// A process id above the kernel's limit, so that no process of this machine has it.
const FIRST_PID: u32 = 1 << 30;

/// The largest number of pods that come and go.
const MOST: usize = 8;

/// The pods that keep their MIG instances.
const DETECTORS: [(&str, &str); 2] = [("detector-a", "10Gi"), ("detector-b", "20Gi")];

#[derive(Debug, Default)]
pub struct Load {
    /// Pods that come and go, the oldest first.
    pods: VecDeque<String>,
    created: u32,
}

impl Load {
    /// A cluster of an H100 in MIG mode and a T4, whose agents probe the GPUs often. The policy is written
    /// into `folder`.
    pub fn cluster(folder: &Path) -> anyhow::Result<ClusterOptions> {
        let node = |name: &str, model| NodeSpec {
            agent_flags: vec!["--resync=2s".to_owned()],
            ..NodeSpec::new(name, model, 1)
        };
        let mut options =
            ClusterOptions::without_controller_manager(vec![node("h", Model::H100), node("t", Model::T4)]);
        options.policy = Some(policy(folder)?);
        Ok(options)
    }

    /// Creates two pods on MIG instances, one on a share, and one that no node has capacity for.
    pub async fn create(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let running = DETECTORS.map(|(name, size)| sized_pod(name, size, "hardware"));
        for pod in running.into_iter().chain([sized_pod("share", "4Gi", "none")]) {
            let name = pod.metadata.name.clone().unwrap_or_default();
            cluster.create(&pod).await?;
            cluster.running(&name).await?;
        }
        cluster.create(&sized_pod("whole", "80Gi", "hardware")).await?;
        Ok(())
    }

    /// Creates a pod on an instance or on a share, deletes the oldest of too many, and changes the processes'
    /// utilization.
    pub async fn step(&mut self, cluster: &Cluster, random: &mut Random) -> anyhow::Result<()> {
        let draw = random.draw() >> 33;
        let name = format!("job-{}", self.created);
        let (size, isolation) = if draw.is_multiple_of(3) { ("4Gi", "none") } else { ("10Gi", "hardware") };
        cluster.create(&sized_pod(&name, size, isolation)).await?;
        self.created += 1;
        self.pods.push_back(name);
        let oldest = if self.pods.len() > MOST { self.pods.pop_front() } else { None };
        // As on a real node, a pod's processes end before its slice becomes free.
        self.run_processes(cluster, 20 + self.created % 30 * 2).await?;
        if let Some(oldest) = oldest {
            cluster.delete(&oldest).await?;
        }
        Ok(())
    }

    /// How many pods [`Load::step`] has created.
    #[must_use]
    pub fn created(&self) -> u32 {
        self.created
    }

    /// Runs a process on each MIG instance that a pod holds, and one on the T4, with a utilization of about
    /// `percent`.
    pub async fn run_processes(&self, cluster: &Cluster, percent: u32) -> anyhow::Result<()> {
        let [h100, t4] = cluster.nodes() else { anyhow::bail!("not the cluster of this load") };
        let status = cluster.gpu_node(h100.name()).await?.read_status()?.context("the H100 has no status")?;
        let lives = |pod: &str| {
            DETECTORS.iter().any(|(name, _)| *name == pod) || self.pods.iter().any(|name| name == pod)
        };
        let held =
            status.slices.iter().filter(|s| s.holder.as_ref().is_some_and(|holder| lives(&holder.pod)));
        let held: Vec<&str> = held.filter_map(|slice| Some(slice.device.as_ref()?.as_str())).collect();
        let gpus = h100.gpus()?;
        let instances = gpus.gpus.iter().flat_map(|gpu| &gpu.instances);
        let held = instances.filter(|instance| instance.compute.iter().any(|c| held.contains(&&*c.uuid)));
        let mut control = MockControl::new();
        for (number, instance) in (0_u32..).zip(held) {
            let busy = (percent + 15 * number) % 100;
            let process =
                Process::on_instance(FIRST_PID + number, 0, instance.id, 2000 + u64::from(busy) * 60);
            control = control.process(process.busy(busy));
        }
        h100.control(&control)?;
        t4.control(&MockControl::new().process(Process::on_gpu(FIRST_PID, 0, 500).busy(percent)))
    }
}

fn policy(folder: &Path) -> anyhow::Result<PathBuf> {
    let shipped = std::fs::read_to_string(root().join("policies/default.yaml"))?;
    let path = folder.join("policy.yaml");
    std::fs::write(&path, format!("{POLICY}{shipped}"))?;
    Ok(path)
}
