//! Runs cargo and the programs that it has built, with their output unchanged.

use std::process::{Command, ExitStatus};
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, what: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let mut cargo = command(workspace);
    cargo.args(arguments);
    step(what, &mut cargo)
}

pub fn run_built(
    workspace: &Workspace,
    profile: &str,
    name: &str,
    arguments: &[String],
) -> anyhow::Result<()> {
    let status = Command::new(workspace.built(profile, name)).args(arguments).status();
    succeeded(name, status.with_context(|| format!("failed to start {name}"))?)
}

pub fn step(what: &str, command: &mut Command) -> anyhow::Result<()> {
    eprintln!("xtask: {what}");
    let began = Instant::now();
    let status = command.status().with_context(|| format!("failed to start: {what}"))?;
    succeeded(what, status)?;
    eprintln!("xtask: {what}: done in {} s", began.elapsed().as_secs());
    Ok(())
}

pub fn command(workspace: &Workspace) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace.root());
    cargo
}

/// The same command at a lower priority, so that it uses only cores that are idle.
pub fn yielding(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "15"]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

fn succeeded(what: &str, status: ExitStatus) -> anyhow::Result<()> {
    if !status.success() {
        bail!("{what} failed ({status})");
    }
    Ok(())
}
