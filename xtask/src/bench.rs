//! `cargo xtask bench`: measurements with optimised programs, of which no more is built than they need.

use crate::workspace::Workspace;
use crate::{build, cargo};

/// The measurements that need no cluster: their crate is small.
const WITHOUT_A_CLUSTER: [&str; 2] = ["packing", "decide"];

/// Builds what the named measurement needs and runs it.
pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    let name = arguments.first().map(String::as_str);
    if name.is_some_and(|name| WITHOUT_A_CLUSTER.contains(&name)) {
        let flags = ["build", "--release", "--locked", "--package", "kerf-packing-bench"];
        cargo::run(workspace, "building the bench of packing", &flags)?;
        return cargo::run_built(workspace, "release", "kerf_packing_bench", arguments);
    }
    build::everything(workspace, &["--release"])?;
    cargo::run_built(workspace, "release", "kerf_bench", arguments)
}
