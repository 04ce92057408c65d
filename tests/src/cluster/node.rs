//! One GPU node with the real agent as a process.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use kerf_core::keys;
use kerf_nvml_mock::{MockControl, MockState};

use super::stand_in_node::folder;
use super::{NAMESPACE, NodeSpec, StandInNode};
use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::kubelet::{PodProcesses, StandInKubelet};
use crate::process::Child;

/// The agent's flags for folders of its own on a node whose folder is `dir`, for GPUs that have no device files, and with the
/// stand-in for `nvidia-cuda-mps-control`.
pub fn agent_folders(dir: &Path) -> anyhow::Result<Vec<OsString>> {
    let folders = [
        ("--kubelet-dir", ""),
        ("--device-plugin-dir", "device-plugins"),
        ("--state-dir", "state"),
        ("--cdi-dir", "cdi"),
        ("--mps-dir", "mps"),
    ];
    let flags = folders.into_iter().flat_map(|(flag, below)| [flag.into(), dir.join(below).into_os_string()]);
    let mps = ["--mps-control".into(), binaries::ours("mps_control_stand_in")?.into_os_string()];
    // A mount namespace of their own takes root, which nobody needs for the tests.
    let shared = (!rustix::process::geteuid().is_root()).then(|| "--mps-shared-shm".into());
    Ok(flags.chain(["--no-device-access".into()]).chain(mps).chain(shared).collect())
}

/// The flags by which a node's agent finds the extender's replicas at these addresses, with its token in a file.
pub(super) async fn extender_flags(
    plane: &ControlPlane,
    extenders: &[SocketAddr],
    node: &str,
    token: &Path,
) -> anyhow::Result<Vec<OsString>> {
    std::fs::write(token, plane.agent_token(NAMESPACE, "kerf-node-agent", node).await?)?;
    let extenders = extenders.iter().map(|extender| format!("--extender={extender}").into());
    Ok(extenders.chain(["--extender-token".into(), token.into()]).collect())
}

/// A running node with kerf's agent.
pub struct GpuServer {
    node: StandInNode,
    agent: Child,
    token: PathBuf,
}

impl GpuServer {
    /// Registers the node and starts kubelet and agent, which dials the extender's replicas at these addresses.
    pub(super) async fn start(
        plane: &ControlPlane,
        mut spec: NodeSpec,
        extenders: &[SocketAddr],
    ) -> anyhow::Result<Self> {
        spec.labels.insert(format!("{}/managed", keys::GROUP), "true".to_owned());
        let flags = std::mem::take(&mut spec.agent_flags);
        let node = StandInNode::start(plane, spec, PodProcesses::default()).await?;
        let account = plane.kubeconfig_for_service_account_on_node(NAMESPACE, "kerf-node-agent", node.name());
        let library = kerf_nvml_mock::library_path()
            .context("the simulated NVML is not built: cargo build --workspace")?;
        let token = folder(plane, node.name()).join("extender-token");
        let mut program = plane
            .program(&format!("kerf-node-agent-{}", node.name()), binaries::ours("kerf-node-agent")?)
            .arg("--kubeconfig")
            .arg(account.await?)
            .args(["--node", node.name(), "--admin-address", "127.0.0.1:0", "--nvml"])
            .arg(library)
            .args(agent_folders(&folder(plane, node.name()))?)
            .args(flags)
            .args(extender_flags(plane, extenders, node.name(), &token).await?)
            // Nobody waits for it but a test.
            .arg("--status-interval=100ms");
        for (key, value) in node.files().env() {
            program = program.env(key, value);
        }
        Ok(Self { node, agent: program.spawn()?, token })
    }

    /// The node without its agent.
    #[must_use]
    pub fn node(&self) -> &StandInNode {
        &self.node
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// What is cut on the node's GPUs, by the simulated NVML's own account.
    pub fn gpus(&self) -> anyhow::Result<MockState> {
        self.node.gpus()
    }

    /// Lets faults, delays or processes happen to the node's GPUs.
    pub fn control(&self, control: &MockControl) -> anyhow::Result<()> {
        self.node.control(control)
    }

    /// The node's kubelet.
    #[must_use]
    pub fn kubelet(&self) -> &StandInKubelet {
        self.node.kubelet()
    }

    /// The agent's process.
    pub fn agent(&mut self) -> &mut Child {
        &mut self.agent
    }

    /// The file of the token that the agent sends to the extender whenever it dials.
    #[must_use]
    pub fn token(&self) -> &Path {
        &self.token
    }

    /// The end of the agent's log.
    #[must_use]
    pub fn agent_log(&self) -> String {
        self.agent.log_tail()
    }

    /// Ends agent and kubelet.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.agent.terminate(Duration::from_secs(5))?;
        self.node.stop().await;
        Ok(())
    }
}
