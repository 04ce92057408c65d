//! The options of a real node, and the paths of its files.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Context as _;
use kerf_nvml_mock::MockConfig;

use super::RuntimeHandler;

/// How long a removal is retried.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(3);

pub struct RealNodeOptions {
    pub name: String,
    pub places: Places,
    pub gpus: Gpus,
    /// Handlers of its containerd beside the default.
    pub handlers: Vec<RuntimeHandler>,
}

/// The GPUs that the agent serves.
#[derive(Debug, Clone)]
pub enum Gpus {
    Real {
        /// NVML: a path, or a name that the loader finds.
        nvml: PathBuf,
        mps_control: PathBuf,
    },
    /// Simulated GPUs, with the stand-in for `nvidia-cuda-mps-control`.
    Simulated(MockConfig),
}

/// The folders of a node.
#[derive(Debug, Clone)]
pub struct Places {
    state: PathBuf,
    run: PathBuf,
}

impl Places {
    /// Files are in `state`. Sockets are in `run`, whose path must be short.
    pub fn new(state: impl Into<PathBuf>, run: impl Into<PathBuf>) -> Self {
        Self { state: state.into(), run: run.into() }
    }

    /// The folder of all files on disk.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The folder of sockets and of the MPS daemons' folders.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// The folder that the kubelet sees as `/var/lib/kubelet`.
    #[must_use]
    pub fn kubelet(&self) -> PathBuf {
        self.state.join("kubelet")
    }

    /// The logs of pods' containers, as the kubelet names them.
    #[must_use]
    pub fn pod_logs(&self) -> PathBuf {
        self.state.join("pod-logs")
    }

    /// CDI specifications, which the agent writes and containerd reads.
    #[must_use]
    pub fn cdi(&self) -> PathBuf {
        self.state.join("cdi")
    }

    /// The folder of the agent's checkpoint.
    #[must_use]
    pub fn agent(&self) -> PathBuf {
        self.state.join("agent")
    }

    /// The files of simulated GPUs.
    #[must_use]
    pub fn nvml(&self) -> PathBuf {
        self.state.join("nvml")
    }

    /// The MPS daemons' pipes and shared memory.
    #[must_use]
    pub fn mps(&self) -> PathBuf {
        self.run.join("mps")
    }

    /// Folders of this node that are mounted over paths for which programs have no flag.
    #[must_use]
    pub fn over(&self) -> [(PathBuf, &'static Path); 6] {
        [
            (self.kubelet(), Path::new("/var/lib/kubelet")),
            // The sockets of containerd's shims.
            (self.run.join("shims"), Path::new("/run/containerd")),
            // Links to the pods' logs.
            (self.state.join("container-logs"), Path::new("/var/log/containers")),
            // These belong to an agent in a container.
            (self.cdi(), Path::new("/var/run/cdi")),
            (self.state.join("record"), Path::new("/var/lib/kerf")),
            (self.run.join("kerf"), Path::new("/run/kerf")),
        ]
    }

    pub fn create(&self) -> anyhow::Result<()> {
        let own = [self.pod_logs(), self.cdi(), self.agent(), self.mps(), self.state.join("cni")];
        let over = self.over().into_iter().map(|(own, _)| own);
        for folder in own.into_iter().chain(over) {
            fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        }
        Ok(())
    }

    /// Removes all folders. It retries, because programs that were just killed may still write.
    pub fn remove(&self) -> anyhow::Result<()> {
        for folder in [&self.state, &self.run] {
            remove(folder).with_context(|| format!("failed to remove {}", folder.display()))?;
        }
        Ok(())
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) if begun.elapsed() < REMOVAL_TIMEOUT => thread::sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
}
