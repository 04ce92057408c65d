//! A node with five simulated GPUs: its files, a stand-in kubelet, and the agent as a process that is
//! restarted whenever it ends.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kerf_nvml_mock::{MigMode, MockConfig, MockControl, MockFiles, MockState, Model, NvmlCode, Strike};

use crate::cluster::agent_program;
use crate::control_plane::ControlPlane;
use crate::kubelet::{KubeletOptions, NodeTemplate, StandInKubelet};
use crate::process::Child;

/// GPUs by index: one that is cut, also into compute instances; one whose MIG mode is switched; one of the
/// generation whose mode switch needs a reset; one without MIG. No pod uses the fifth.
pub(super) const CUT: u32 = 0;
pub(super) const SWITCHED: u32 = 1;
pub(super) const AMPERE: u32 = 2;
pub(super) const SHARED: u32 = 3;

/// A driver that supports memory limits.
const DRIVER: &str = "615.10.01";

/// The signal of a process that was killed.
const KILLED: i32 = 9;

pub(super) struct Node {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    pub(super) kubelet: Arc<StandInKubelet>,
    files: MockFiles,
    control: MockControl,
    agent: Child,
    /// Whether the current or last fault was a mismatch of NVML's library and the driver.
    was_mismatched: bool,
}

impl Node {
    /// Registers the node, and starts the kubelet and an agent that checks everything once per `period` and
    /// gets these flags.
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

    /// The state of the GPUs, as the simulated NVML reports it.
    pub(super) fn state(&self) -> anyhow::Result<MockState> {
        Ok(MockState::load(&self.files.state)?)
    }

    /// The file with that state.
    pub(super) fn state_file(&self) -> PathBuf {
        self.files.state.clone()
    }

    /// Changes the faults and delays of the GPUs.
    pub(super) fn control(&mut self, change: impl FnOnce(&mut MockControl)) -> anyhow::Result<()> {
        change(&mut self.control);
        let faults = &self.control.faults;
        let mismatch = Strike::Code(NvmlCode::LIB_RM_VERSION_MISMATCH);
        // The agent may exit after the fault was cleared.
        self.was_mismatched =
            faults.iter().any(|fault| fault.strike == mismatch) || self.was_mismatched && faults.is_empty();
        Ok(self.control.write(&self.files.control)?)
    }

    pub(super) fn cdi_dir(&self) -> PathBuf {
        self.dir.join("cdi")
    }

    pub(super) fn mps_dir(&self) -> PathBuf {
        self.dir.join("mps")
    }

    /// Makes `/proc` show a process as one of a pod's containers.
    pub(super) fn show_process(&self, pid: u32, pod_uid: &str) -> anyhow::Result<()> {
        let folder = proc_dir(&self.dir).join(pid.to_string());
        write_file(&folder.join("cgroup"), &format!("0::/kubepods/besteffort/pod{pod_uid}/main\n"))?;
        write_file(&folder.join("comm"), "train\n")
    }

    pub(super) fn agent_id(&self) -> u32 {
        self.agent.id()
    }

    pub(super) fn restart_agent(&mut self) -> anyhow::Result<()> {
        Ok(self.agent.restart()?)
    }

    pub(super) fn kill_agent(&mut self) -> anyhow::Result<()> {
        Ok(self.agent.kill()?)
    }

    /// How the agent ended; `None` while it runs. The text is empty for an expected end: the agent was
    /// killed, or it exited to be restarted because NVML's library did not match the driver.
    pub(super) fn agent_ended(&mut self) -> anyhow::Result<Option<String>> {
        let Some(status) = self.agent.exited()? else { return Ok(None) };
        let expected = status.signal() == Some(KILLED) || self.was_mismatched;
        Ok(Some(if expected { String::new() } else { format!("the agent ended by itself: {status}") }))
    }

    pub(super) fn agent_log(&self) -> PathBuf {
        self.agent.log().to_owned()
    }

    /// Writes a line into the agent's log, so that its reader sees what was done to the agent.
    pub(super) fn note(&self, line: &str) {
        use std::io::Write as _;
        let log = std::fs::OpenOptions::new().append(true).open(self.agent.log());
        // A failure is ignored, because only people read the line.
        let _ = log.and_then(|mut log| writeln!(log, "# {line}"));
    }

    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.agent.terminate(Duration::from_secs(5))?;
        self.kubelet.stop().await;
        // Stand-ins for MPS daemons outlive the agent, so their folders are removed, which makes them exit.
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
        // A T4 retires pages while the others remap rows, so the agent makes other calls for it.
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
    let period = format!("{}ms", period.as_millis());
    let program = agent_program(plane, name, dir, files)
        .await?
        .args(["--resync", &period, "--call-timeout", &period, "--recover-after", &period])
        .args(["--log", "info,kerf_node_agent=debug", "--mps-shared-shm"])
        .args(flags)
        .arg("--proc-dir")
        .arg(proc_dir(dir));
    Ok(program.spawn()?)
}
