//! Builds what a task runs, Go programs beside Rust ones, and nothing else.

mod crates;
mod progress;

use std::thread;
use std::time::Instant;

use anyhow::anyhow;

pub use self::crates::Crates;
pub use self::progress::{Lane, Progress};
use crate::tools::{self, Purpose};
use crate::workspace::Workspace;

pub fn demo(workspace: &Workspace) -> anyhow::Result<()> {
    const PACKAGES: &[&str] = &[
        "kerf",
        "kerf-demo",
        "kerf-extender",
        "kerf-node-agent",
        "kerf-nvml-mock",
        "kerf-tests",
        "kerf-webhook",
    ];
    const BINARIES: &[&str] = &[
        "die_with_parent",
        "kerf",
        "kerf-extender",
        "kerf-node-agent",
        "kerf-webhook",
        "kerf_demo",
        "mps_control_stand_in",
    ];
    let flags = ["--lib"].into_iter().chain(BINARIES.iter().flat_map(|name| ["--bin", name]));
    both(workspace, &Crates::new(PACKAGES, flags.collect()), Purpose::Demo)
}

pub fn scheduler_bench(workspace: &Workspace) -> anyhow::Result<()> {
    const PACKAGES: &[&str] = &["kerf", "kerf-bench", "kerf-extender", "kerf-tests", "kerf-webhook"];
    const BINARIES: &[&str] = &["die_with_parent", "kerf", "kerf-extender", "kerf-webhook", "kerf_bench"];
    let flags = ["--release"].into_iter().chain(BINARIES.iter().flat_map(|name| ["--bin", name]));
    both(workspace, &Crates::new(PACKAGES, flags.collect()), Purpose::Demo)
}

pub fn benches(workspace: &Workspace) -> anyhow::Result<()> {
    const PACKAGES: &[&str] = &[
        "kerf",
        "kerf-bench",
        "kerf-cdi-hook",
        "kerf-extender",
        "kerf-node-agent",
        "kerf-nvml-mock",
        "kerf-tests",
        "kerf-webhook",
    ];
    both(workspace, &Crates::new(PACKAGES, vec!["--release"]), Purpose::Tests)
}

pub fn everything(
    workspace: &Workspace,
    flags: &[&'static str],
    environment: &'static [(&'static str, &'static str)],
) -> anyhow::Result<()> {
    both(workspace, &Crates::new(&[], flags.to_vec()).with_environment(environment), Purpose::Tests)
}

/// Downloads everything first, so that network time and processor time are reported separately. Then cargo and Go share
/// the cores: each starts as many compilers as there are cores, and the kernel divides them.
fn both(workspace: &Workspace, crates: &Crates, purpose: Purpose) -> anyhow::Result<()> {
    let tools = tools::missing(workspace, purpose)?;
    let began = Instant::now();
    let (units, packages) = side_by_side(|| crates.count(workspace), || tools.count(workspace))?;
    eprintln!("xtask: dependencies found and downloaded in {} s", began.elapsed().as_secs());

    let began = Instant::now();
    Progress::show(|progress| {
        progress.expect(Lane::Rust, units);
        progress.expect(Lane::Go, packages);
        side_by_side(|| crates.build(workspace, progress), || tools.build(workspace, progress))
    })?;
    eprintln!("xtask: built in {} s", began.elapsed().as_secs());
    Ok(())
}

/// Runs both to their ends. If both fail, the first one's error is returned.
fn side_by_side<A, B: Send>(
    first: impl FnOnce() -> anyhow::Result<A>,
    second: impl FnOnce() -> anyhow::Result<B> + Send,
) -> anyhow::Result<(A, B)> {
    thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        let second = second.join().map_err(|_| anyhow!("a build panicked"))?;
        Ok((first?, second?))
    })
}
