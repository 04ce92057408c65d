//! The files by which one step finds what another has left: who holds the node, and how its API server is reached.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kerf_tests::real_node::is_alive;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::args::Args;

/// What is told of a node once it is up.
#[derive(Debug, Serialize, Deserialize)]
pub struct Standing {
    /// An administrator's.
    pub kubeconfig: PathBuf,
    /// The folder of policies that webhook and extender read; none where the chart has made a ConfigMap of them.
    pub policies: Option<PathBuf>,
}

impl Standing {
    /// Told by the holder.
    pub fn write(&self, args: &Args) -> anyhow::Result<()> {
        let unfinished = args.state.join("standing.unfinished");
        fs::write(&unfinished, serde_json::to_vec(self)?).context("failed to tell that the node is up")?;
        fs::rename(unfinished, args.state.join("standing.json")).context("failed to tell that the node is up")
    }

    /// Of a node that is up; else the remedy.
    pub fn read(args: &Args) -> anyhow::Result<Self> {
        let Ok(text) = fs::read(args.state.join("standing.json")) else {
            bail!("no node is up in {}: run `gpu_node up`", args.state.display());
        };
        serde_json::from_slice(&text).context("failed to read standing.json")
    }

    /// Whether the node is up.
    pub fn is_told(args: &Args) -> bool {
        args.state.join("standing.json").is_file()
    }
}

/// Where the holder's process is noted.
pub fn pid_file(args: &Args) -> PathBuf {
    args.state.join("holder.pid")
}

/// Where the holder writes what it does.
pub fn log_file(args: &Args) -> PathBuf {
    args.state.join("holder.log")
}

/// The process that holds the node, if it lives: by its number and by what it is, for numbers are used again.
pub fn holder(args: &Args) -> Option<Pid> {
    let text = fs::read_to_string(pid_file(args)).ok()?;
    let id = text.trim().parse().ok()?;
    let arguments = fs::read(format!("/proc/{id}/cmdline")).ok()?;
    let ours = arguments.split(|byte| *byte == 0).any(|word| word == b"hold");
    Pid::from_raw(id).filter(|id| ours && is_alive(*id))
}
