//! A GPU node with the real agent as a process.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use kerf_core::keys;
use kerf_nvml_mock::{MockControl, MockFiles, MockState};

use super::stand_in_node::folder;
use super::{NAMESPACE, NodeSpec, StandInNode};
use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::kubelet::{PodProcesses, StandInKubelet};
use crate::process::{Child, Program};

/// Flags that give the agent its own folders below `dir`. They are for GPUs without device files, and use the
/// stand-in for `nvidia-cuda-mps-control`.
fn agent_folders(dir: &Path) -> anyhow::Result<Vec<OsString>> {
    let folders = [
        ("--kubelet-dir", ""),
        ("--device-plugin-dir", "device-plugins"),
        ("--state-dir", "state"),
        ("--cdi-dir", "cdi"),
        ("--mps-dir", "mps"),
    ];
    let flags = folders.into_iter().flat_map(|(flag, below)| [flag.into(), dir.join(below).into_os_string()]);
    let mps = ["--mps-control".into(), binaries::ours("mps_control_stand_in")?.into_os_string()];
    // A private mount namespace takes root, which the tests do not require.
    let shared = (!rustix::process::geteuid().is_root()).then(|| "--mps-shared-shm".into());
    Ok(flags.chain(["--no-device-access".into()]).chain(mps).chain(shared).collect())
}

/// The agent's program for a node, with the simulated NVML of `files` and with its own folders below `dir`.
pub async fn agent_program(
    plane: &ControlPlane,
    node: &str,
    dir: &Path,
    files: &MockFiles,
) -> anyhow::Result<Program> {
    // The agent has exactly the rights that deploy/ gives, so that a missing right fails a test.
    let account = plane.kubeconfig_for_service_account_on_node(NAMESPACE, "kerf-node-agent", node).await?;
    let library = kerf_nvml_mock::library_path()
        .context("the simulated NVML is not built: run `cargo build --workspace`")?;
    let program = plane
        .program(&format!("kerf-node-agent-{node}"), binaries::ours("kerf-node-agent")?)
        .args(["--node", node, "--admin-address", "127.0.0.1:0", "--kubeconfig"])
        .arg(account)
        .arg("--nvml")
        .arg(library)
        .args(agent_folders(dir)?);
    Ok(files.env().into_iter().fold(program, |program, (key, value)| program.env(key, value)))
}

/// The flags with which a node's agent finds the extender's replicas. The agent's token is written to
/// `token`.
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

pub struct GpuServer {
    node: StandInNode,
    agent: Child,
    token: PathBuf,
}

impl GpuServer {
    /// Registers the node, and starts the kubelet and an agent that dials these addresses of the extender.
    pub(super) async fn start(
        plane: &ControlPlane,
        mut spec: NodeSpec,
        extenders: &[SocketAddr],
    ) -> anyhow::Result<Self> {
        spec.labels.insert(format!("{}/managed", keys::GROUP), "true".to_owned());
        let flags = std::mem::take(&mut spec.agent_flags);
        let node = StandInNode::start(plane, spec, PodProcesses::default()).await?;
        let dir = folder(plane, node.name());
        let token = dir.join("extender-token");
        let program = agent_program(plane, node.name(), &dir, node.files())
            .await?
            .args(flags)
            .args(extender_flags(plane, extenders, node.name(), &token).await?)
            // Tests wait for the status, so the agent writes it more often than by default.
            .arg("--status-interval=100ms");
        Ok(Self { node, agent: program.spawn()?, token })
    }

    #[must_use]
    pub fn node(&self) -> &StandInNode {
        &self.node
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// The slices on the node's GPUs, as the simulated NVML reports them.
    pub fn gpus(&self) -> anyhow::Result<MockState> {
        self.node.gpus()
    }

    /// Sets faults, delays or processes of the node's GPUs.
    pub fn control(&self, control: &MockControl) -> anyhow::Result<()> {
        self.node.control(control)
    }

    #[must_use]
    pub fn kubelet(&self) -> &StandInKubelet {
        self.node.kubelet()
    }

    pub fn agent(&mut self) -> &mut Child {
        &mut self.agent
    }

    /// The file with the token that the agent sends whenever it dials the extender.
    #[must_use]
    pub fn token(&self) -> &Path {
        &self.token
    }

    #[must_use]
    pub fn agent_log(&self) -> String {
        self.agent.log_tail()
    }

    /// Ends the agent before the kubelet, because it calls the kubelet.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.agent.terminate(Duration::from_secs(5))?;
        self.node.stop().await;
        Ok(())
    }
}
