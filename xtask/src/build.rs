//! Builds all that a run needs, the Go programs beside the Rust ones.

use std::thread;

use anyhow::anyhow;

use crate::workspace::Workspace;
use crate::{cargo, tools};

/// Builds the control plane's programs and, at the same time, the workspace with these flags.
pub fn everything(workspace: &Workspace, flags: &[&str]) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let tools = scope.spawn(|| tools::ensure(workspace));
        let arguments: Vec<&str> =
            ["build", "--workspace", "--locked"].iter().chain(flags).copied().collect();
        let built = cargo::run(workspace, "building kerf", &arguments);
        let tools = tools.join().map_err(|_| anyhow!("building the control plane's programs panicked"))?;
        built.and(tools)
    })
}
