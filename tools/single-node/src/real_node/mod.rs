//! A real node on this machine: containerd, the kubelet, and the real agent with the machine's GPUs or
//! simulated ones.
//!
//! It takes root and the machine's cgroups. Its mounts are private ([`enter`]), and the kernel settings that
//! the kubelet changes can be restored ([`kernel`]).
//! Of the GPUs, only settings that pods' shares need are changed.

mod agent;
mod bare;
mod containerd;
pub mod kernel;
mod kubelet;
mod leftovers;
mod network;
mod options;
mod private;
mod processes;
mod runtime_handler;
mod settings;
mod versions;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use kerf_tests::cluster::{Cluster, wait};
use kerf_tests::control_plane::ControlPlane;
use kerf_tests::process::{Child, Program};

use containerd::Setup;

pub use agent::simulated_gpus;
pub use bare::BareNode;
pub use containerd::{search_path, socket as containerd_socket};
pub use leftovers::{Leftovers, is_alive};
pub use network::service_addresses;
pub use options::{Gpus, Places, RealNodeOptions};
pub use private::{MPS_CGROUP, enter};
pub use processes::Process;
pub use runtime_handler::{NVIDIA, RuntimeHandler};
pub use settings::GpuSettings;
pub use versions::versions;

/// Timeout for one part of the node.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A running node. Fields are dropped in this order: users of a part end before it.
pub struct RealNode {
    options: RealNodeOptions,
    agent: Child,
    leave: Program,
    kubelet: Child,
    containerd: Child,
}

impl RealNode {
    /// Starts everything and waits until the agent serves the node. `progress` gets a text for each step.
    pub async fn start(
        cluster: &Cluster,
        options: RealNodeOptions,
        mut progress: impl FnMut(&str),
    ) -> anyhow::Result<Self> {
        options.places.create()?;
        let setup = Setup { handlers: &options.handlers, ..Setup::default() };
        let containerd = containerd::start(&options.places, &setup).await?;
        announce(cluster.plane(), &options.handlers).await?;
        progress("containerd serves, and has the image");
        let kubelet = kubelet::start(cluster.plane(), &options.name, &options.places)?;
        node_ready(cluster.plane(), &options.name).await.with_context(|| kubelet.log_tail())?;
        progress("the node is Ready");
        let program = agent::program(cluster, &options).await?;
        let leave = agent::leaving(program.clone(), &options);
        let agent = program.spawn()?;
        let node = Self { options, agent, leave, kubelet, containerd };
        serves(cluster.plane(), &node.options.name).await.with_context(|| node.agent.log_tail())?;
        progress("the agent serves the node");
        node.named(cluster).await.with_context(|| node.kubelet.log_tail())?;
        progress("kerf's names are in the node's status");
        Ok(node)
    }

    /// Waits until the kubelet has reported kerf's names to the API server, still without devices.
    async fn named(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let named = async || {
            let node = node(cluster.plane(), &self.options.name).await?;
            let status = node.and_then(|node| node.status).unwrap_or_default();
            let names = status.allocatable.unwrap_or_default();
            Ok(names.keys().any(|name| name.starts_with("nvidia.com/gpu-")))
        };
        wait(TIMEOUT, "kerf's names in the node's status", named).await
    }

    /// Kills the agent's process and starts it again, as after a crash.
    pub fn restart_agent(&mut self) -> anyhow::Result<()> {
        Ok(self.agent.restart()?)
    }

    /// Kills the kubelet's process and starts it again.
    pub fn restart_kubelet(&mut self) -> anyhow::Result<()> {
        Ok(self.kubelet.restart()?)
    }

    /// Deletes all pods, runs the agent's `leave`, which ends the MPS daemons, and stops the rest in order.
    pub async fn stop(mut self, cluster: &Cluster) -> anyhow::Result<()> {
        // The kubelet and the agent still run, because they must end the pods and free their slices.
        let gone = delete_pods(cluster.plane()).await;
        self.agent.terminate(Duration::from_secs(10))?;
        let left = self.leave.spawn()?;
        let left = ended(left).await;
        self.kubelet.terminate(Duration::from_secs(5))?;
        self.containerd.terminate(Duration::from_secs(10))?;
        gone.and(left)
    }
}

/// Waits until the agent serves a node's GPUs.
pub async fn serves(plane: &ControlPlane, node: &str) -> anyhow::Result<()> {
    let nodes = Api::<GpuNode>::all(plane.client());
    let ready = async || {
        let Some(node) = nodes.get_opt(node).await? else { return Ok(false) };
        Ok(node.read_status()?.is_some_and(|status| status.is_ready() && !status.gpus.is_empty()))
    };
    wait(TIMEOUT, "the agent to serve the node", ready).await
}

async fn node(plane: &ControlPlane, name: &str) -> anyhow::Result<Option<Node>> {
    Ok(Api::<Node>::all(plane.client()).get_opt(name).await?)
}

async fn node_ready(plane: &ControlPlane, name: &str) -> anyhow::Result<()> {
    let ready = async || {
        let status = node(plane, name).await?.and_then(|node| node.status).unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
    };
    wait(TIMEOUT, "the kubelet to be ready", ready).await
}

async fn announce(plane: &ControlPlane, handlers: &[RuntimeHandler]) -> anyhow::Result<()> {
    for handler in handlers {
        handler.announce(plane).await?;
    }
    Ok(())
}

/// Deletes all pods through the kubelet. [`Leftovers`] kills what the kubelet does not end.
async fn delete_pods(plane: &ControlPlane) -> anyhow::Result<()> {
    let pods = Api::<Pod>::all(plane.client());
    for pod in pods.list(&ListParams::default()).await? {
        let own =
            Api::<Pod>::namespaced(plane.client(), pod.metadata.namespace.as_deref().unwrap_or("default"));
        own.delete(pod.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default()).await?;
    }
    let none = async || Ok(pods.list(&ListParams::default()).await?.items.is_empty());
    wait(Duration::from_secs(45), "the kubelet to end all pods", none).await
}

/// Waits until a program has ended successfully.
async fn ended(mut child: Child) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        if let Some(status) = child.exited()? {
            anyhow::ensure!(status.success(), "{} failed ({status}):\n{}", child.name(), child.log_tail());
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!("{} has not ended after {TIMEOUT:?}:\n{}", child.name(), child.log_tail())
}
