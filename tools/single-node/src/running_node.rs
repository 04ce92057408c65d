//! The files by which one step finds what another left: the holder's process, and the kubeconfig of its API
//! server.

use std::fs;
use std::path::PathBuf;

use crate::real_node::is_alive;
use anyhow::{Context as _, bail};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::args::Args;

/// Written once the node is up.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunningNode {
    /// The kubeconfig of an administrator.
    pub kubeconfig: PathBuf,
    /// The policy folder of webhook and extender; `None` if the chart put the policies into a ConfigMap.
    pub policies: Option<PathBuf>,
}

impl RunningNode {
    /// Called by the holder, once the node is up.
    pub fn write(&self, args: &Args) -> anyhow::Result<()> {
        // Renaming the complete file makes sure that no step reads half of it.
        let unfinished = args.state.join("node.unfinished");
        fs::write(&unfinished, serde_json::to_vec(self)?).context("failed to write node.json")?;
        fs::rename(unfinished, args.state.join("node.json")).context("failed to write node.json")
    }

    /// Reads the file of a node that is up; otherwise the error names the remedy.
    pub fn read(args: &Args) -> anyhow::Result<Self> {
        let Ok(text) = fs::read(args.state.join("node.json")) else {
            bail!("no node is up in {}: run `single_node up`", args.state.display());
        };
        serde_json::from_slice(&text).context("failed to read node.json")
    }

    pub fn is_written(args: &Args) -> bool {
        args.state.join("node.json").is_file()
    }
}

/// The file with the holder's process id.
pub fn pid_file(args: &Args) -> PathBuf {
    args.state.join("holder.pid")
}

/// The file with the holder's output.
pub fn log_file(args: &Args) -> PathBuf {
    args.state.join("holder.log")
}

/// The holder's process, if it is alive. The command line is checked too, because the kernel reuses process
/// ids.
pub fn holder(args: &Args) -> Option<Pid> {
    let text = fs::read_to_string(pid_file(args)).ok()?;
    let id = text.trim().parse().ok()?;
    let arguments = fs::read(format!("/proc/{id}/cmdline")).ok()?;
    let ours = arguments.split(|byte| *byte == 0).any(|word| word == b"hold");
    Pid::from_raw(id).filter(|id| ours && is_alive(*id))
}
