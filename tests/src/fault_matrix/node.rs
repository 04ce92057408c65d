//! One node with four simulated GPUs: its files, a stand-in kubelet, and the agent as a process that is started again
//! whenever it has ended.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kerf_nvml_mock::{MigMode, MockConfig, MockControl, MockFiles, MockState, Model, NvmlCode, Strike};

use crate::binaries;
use crate::cluster::{self, NAMESPACE};
use crate::control_plane::ControlPlane;
use crate::kubelet::{KubeletOptions, NodeTemplate, StandInKubelet};
use crate::process::Child;

/// GPUs by index: one that is cut, also in compute instances; one whose MIG mode is switched; one of the generation whose
/// mode takes a reset; one without MIG.
pub(super) const CUT: u32 = 0;
pub(super) const SWITCHED: u32 = 1;
pub(super) const AMPERE: u32 = 2;
pub(super) const SHARED: u32 = 3;

/// A driver that has memory limits.
const DRIVER: &str = "615.10.01";

/// `SIGKILL`, as a process's end tells it.
const KILLED: i32 = 9;

/// A running node.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    pub(super) kubelet: Arc<StandInKubelet>,
    files: MockFiles,
    control: MockControl,
    agent: Child,
    /// Whether the fault of now, or the last one, was that NVML's library is not the driver's.
    was_mismatched: bool,
}

impl Node {
    /// Registers the node and starts kubelet and agent, which looks at everything once in `period` and has these flags too.
    pub(super) async fn start(
        plane: &ControlPlane,
        name: &str,
        period: Duration,
        flags: &[OsString],
    ) -> anyhow::Result<Self> {
        let dir = plane.dir().join(name);
        let files = MockFiles::in_folder(dir.join("nvml"));
        std::fs::create_dir_all(dir.join("nvml")).context("failed to create the node's folder")?;
        gpus(name).write(&files.config)?;
        write_file(&proc_dir(&dir).join("sys/kernel/random/boot_id"), "boot-1\n")?;
        let kubelet = StandInKubelet::start(KubeletOptions {
            register_node: Some(NodeTemplate::default()),
            ..KubeletOptions::new(name, plane.client(), &dir)
        });
        let kubelet = Arc::new(kubelet.await?);
        let agent = spawn(plane, name, &dir, &files, period, flags).await?;
        Ok(Self {
            name: name.to_owned(),
            dir,
            kubelet,
            files,
            control: MockControl::new(),
            agent,
            was_mismatched: false,
        })
    }

    /// What is cut, by the simulated NVML's own account.
    pub(super) fn state(&self) -> anyhow::Result<MockState> {
        Ok(MockState::load(&self.files.state)?)
    }

    /// Where that account is.
    pub(super) fn state_file(&self) -> PathBuf {
        self.files.state.clone()
    }

    /// Changes what happens to the GPUs.
    pub(super) fn control(&mut self, change: impl FnOnce(&mut MockControl)) -> anyhow::Result<()> {
        change(&mut self.control);
        let faults = &self.control.faults;
        let mismatch = Strike::Code(NvmlCode::LIB_RM_VERSION_MISMATCH);
        // The agent may end after the fault was taken back.
        self.was_mismatched =
            faults.iter().any(|fault| fault.strike == mismatch) || self.was_mismatched && faults.is_empty();
        Ok(self.control.write(&self.files.control)?)
    }

    /// Where the agent's CDI specifications are.
    pub(super) fn cdi_dir(&self) -> PathBuf {
        self.dir.join("cdi")
    }

    /// Where its MPS daemons are.
    pub(super) fn mps_dir(&self) -> PathBuf {
        self.dir.join("mps")
    }

    /// Says that a process is one of a pod's containers, as `/proc` does.
    pub(super) fn show_process(&self, pid: u32, pod_uid: &str) -> anyhow::Result<()> {
        let folder = proc_dir(&self.dir).join(pid.to_string());
        write_file(&folder.join("cgroup"), &format!("0::/kubepods/besteffort/pod{pod_uid}/main\n"))?;
        write_file(&folder.join("comm"), "train\n")
    }

    /// The agent's process.
    pub(super) fn agent_id(&self) -> u32 {
        self.agent.id()
    }

    /// Kills the agent and starts it again.
    pub(super) fn restart_agent(&mut self) -> anyhow::Result<()> {
        Ok(self.agent.restart()?)
    }

    /// Kills the agent.
    pub(super) fn kill_agent(&mut self) -> anyhow::Result<()> {
        Ok(self.agent.kill()?)
    }

    /// How the agent ended, in words; `None` while it runs, nothing for one that was killed or whose NVML library is not the
    /// driver's, for that one ends in order to be started again.
    pub(super) fn agent_ended(&mut self) -> anyhow::Result<Option<String>> {
        let Some(status) = self.agent.exited()? else { return Ok(None) };
        let expected = status.signal() == Some(KILLED) || self.was_mismatched;
        Ok(Some(if expected { String::new() } else { format!("the agent ended by itself: {status}") }))
    }

    /// The agent's log.
    pub(super) fn agent_log(&self) -> PathBuf {
        self.agent.log().to_owned()
    }

    /// Writes a line into the agent's log, so that its reader knows what was done to it.
    pub(super) fn note(&self, line: &str) {
        use std::io::Write as _;
        let log = std::fs::OpenOptions::new().append(true).open(self.agent.log());
        // For people only.
        let _ = log.and_then(|mut log| writeln!(log, "# {line}"));
    }

    /// Ends agent and kubelet.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.agent.terminate(Duration::from_secs(5))?;
        self.kubelet.stop().await;
        // The stand-ins for MPS daemons, which outlive the agent, end when their folders are gone.
        let removed = std::fs::remove_dir_all(self.mps_dir());
        drop(removed);
        Ok(())
    }
}

fn gpus(name: &str) -> MockConfig {
    let gpus = MockConfig::new().seed(name);
    MockConfig { driver_version: DRIVER.to_owned(), ..gpus }
        .gpus(Model::H100, 2, MigMode::Enabled)
        .gpus(Model::A100Gb80, 1, MigMode::Enabled)
        .gpus(Model::L4, 1, MigMode::Disabled)
        // It retires pages where the others remap rows, which the agent asks of it by calls of their own.
        .gpus(Model::T4, 1, MigMode::Disabled)
}

fn proc_dir(dir: &Path) -> PathBuf {
    dir.join("proc")
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("failed to write {}", path.display()))
}

async fn spawn(
    plane: &ControlPlane,
    name: &str,
    dir: &Path,
    files: &MockFiles,
    period: Duration,
    flags: &[OsString],
) -> anyhow::Result<Child> {
    let account = plane.kubeconfig_for_service_account_on_node(NAMESPACE, "kerf-node-agent", name).await?;
    let library = kerf_nvml_mock::library_path().context("build the workspace first: the mock is missing")?;
    let period = format!("{}ms", period.as_millis());
    let mut program = plane
        .program(&format!("kerf-node-agent-{name}"), binaries::ours("kerf-node-agent")?)
        .args(["--node", name, "--admin-address", "127.0.0.1:0"])
        .args(["--resync", &period, "--call-timeout", &period, "--recover-after", &period])
        .args(["--log", "info,kerf_node_agent=debug", "--mps-shared-shm", "--nvml"])
        .arg(library)
        .args(cluster::agent_folders(dir)?)
        .args(flags)
        .arg("--proc-dir")
        .arg(proc_dir(dir))
        .arg("--kubeconfig")
        .arg(account);
    for (key, value) in files.env() {
        program = program.env(key, value);
    }
    Ok(program.spawn()?)
}
