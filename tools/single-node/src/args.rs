//! The command line of `single_node`, and the paths and GPUs that follow from it.

use std::env;
use std::path::{Path, PathBuf};

use crate::real_node::{Gpus, Places};
use clap::{Parser, ValueEnum};
use kerf_nvml_mock::{MigMode, MockConfig, Model};

/// Where container images of GPU machines keep the driver's files.
pub const DRIVER: &str = "/usr/local/nvidia";

/// A step. Each ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Starts everything, and prints how long each part took and what runs.
    Up,
    /// Runs pods on the GPU, scene by scene, and checks what they see and what becomes of them.
    Test,
    /// Measures what sharing costs through kerf, and beside it by hand.
    Bench,
    /// Checks the kubelet against the rules of the tests' stand-in, and restarts it. Runs between `up` and `down`.
    Judge,
    /// Ends everything and removes its files.
    Down,
    /// `up`, `test` and `down`.
    All,
    /// Holds the node until it gets an order to end. `up` starts it.
    #[value(hide = true)]
    Hold,
}

/// Brings up a node with a real GPU, runs pods on it, takes it down.
#[derive(Debug, Clone, Parser)]
pub struct Args {
    pub step: Step,
    /// The folder of the node's files; it must not be there before `up`, and `down` removes it.
    #[arg(long, default_value = "/var/lib/kerf-gpu-node")]
    pub state: PathBuf,
    /// The folder of its sockets; removed by `down`.
    #[arg(long, default_value = "/run/kerf-gpu-node")]
    pub run: PathBuf,
    /// The node's name.
    #[arg(long, default_value = "gpu-node")]
    pub name: String,
    /// Install kerf by its chart, as pods; `up`, `test`, `down` and `all` take it. Without it its programs are started
    /// by hand.
    #[arg(long)]
    pub chart: bool,
    /// `test` plays the scenes whose names contain one of these words; by default all.
    #[arg(long, value_delimiter = ',')]
    pub scenes: Vec<String>,
    /// The technologies that `bench` measures, as `kerf bench sharing` names them.
    #[arg(long, value_delimiter = ',', default_value = "mps,mps-limited,time-slicing")]
    pub technologies: Vec<String>,
    /// `bench` skips the same clients started by hand.
    #[arg(long)]
    pub without_by_hand: bool,
    /// The folder for the results of `bench`; by default it is below the node's folder.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Further flags of `bench` for `kerf bench sharing`.
    #[arg(last = true)]
    pub flags: Vec<String>,
    /// A simulated GPU, for a machine without one: pods then check all but CUDA.
    #[arg(long)]
    pub simulated: bool,
    /// How many GPUs are simulated.
    #[arg(long, default_value_t = 1, requires = "simulated")]
    pub gpus: u32,
    /// How many of them are in MIG mode. `test` then plays the scene `mixed` and no other.
    #[arg(long, default_value_t = 0, requires = "simulated", conflicts_with = "chart")]
    pub mig: u32,
    /// Of the scene `mixed`: how many pods have to run.
    #[arg(long, default_value_t = 30)]
    pub pods: u32,
    /// Of the scene `mixed`: the number that what is created and deleted, and in which order, depends on.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// NVML, where it is neither in /usr/local/nvidia/lib64 nor where the loader looks.
    #[arg(long)]
    pub nvml: Option<PathBuf>,
    /// `nvidia-cuda-mps-control`, where it is neither in `PATH` nor in /usr/local/nvidia/bin.
    #[arg(long)]
    pub mps_control: Option<PathBuf>,
    /// A Python with `PyTorch`, in /usr or /opt, which pods mount from the machine.
    #[arg(long, default_value = "/opt/torch/.venv/bin/python3")]
    pub python: PathBuf,
    /// The driver's libraries, as pods' `LD_LIBRARY_PATH`.
    #[arg(long, default_value = "/usr/local/nvidia/lib64")]
    pub libraries: PathBuf,
    /// `judge` checks only the rules whose sentence contains these words.
    #[arg(long, default_value = "")]
    pub rules: String,
}

impl Args {
    pub fn places(&self) -> Places {
        Places::new(&self.state, &self.run)
    }

    /// The GPUs that the node's agent serves.
    pub fn gpus(&self) -> anyhow::Result<Gpus> {
        if self.simulated {
            let shared = self.gpus.saturating_sub(self.mig);
            let gpus = MockConfig::new().seed(&self.name).gpus(Model::H200, self.mig, MigMode::Enabled);
            return Ok(Gpus::Simulated(gpus.gpus(Model::H200, shared, MigMode::Disabled)));
        }
        Ok(Gpus::Real { nvml: self.nvml(), mps_control: self.mps_control()? })
    }

    /// The path of NVML, or its bare name if the usual folder lacks it, so that the loader searches for it.
    pub fn nvml(&self) -> PathBuf {
        let name = "libnvidia-ml.so.1";
        let usual = Path::new(DRIVER).join("lib64").join(name);
        self.nvml.clone().unwrap_or(if usual.is_file() { usual } else { name.into() })
    }

    /// The path of `nvidia-cuda-mps-control`: the flag's, or the first in `PATH` or in the driver's folder.
    pub fn mps_control(&self) -> anyhow::Result<PathBuf> {
        let name = "nvidia-cuda-mps-control";
        let path = env::var_os("PATH").unwrap_or_default();
        let usual = env::split_paths(&path).chain([Path::new(DRIVER).join("bin")]);
        let found = || usual.map(|folder| folder.join(name)).find(|path| path.is_file());
        let found = self.mps_control.clone().or_else(found);
        found.ok_or_else(|| {
            anyhow::anyhow!("{name} is neither in PATH nor in {DRIVER}/bin: set --mps-control")
        })
    }
}
