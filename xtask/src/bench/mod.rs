//! `cargo xtask bench`: runs measurements with optimised programs, and builds only what each of them needs.

pub mod explore;
mod forging;
mod mutants;
mod planted;
mod sources;

use std::process::Command;

use crate::workspace::Workspace;
use crate::{build, cargo, shipped};

/// The measurements that need no cluster. They have a crate of their own, which is small and soon built.
const WITHOUT_A_CLUSTER: [&str; 4] = ["packing", "decide", "policy", "offers"];

/// The measurements that run the programs as they ship, because they measure what the programs cost while they wait.
const AS_SHIPPED: [&str; 2] = ["agent", "admission"];

const REBOOTS: &str = "node::reboot_churn_tests::ten_thousand_reboots_restarts_and_repartitions";

pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    let name = arguments.first().map(String::as_str);
    if name.is_some_and(|name| WITHOUT_A_CLUSTER.contains(&name)) {
        let flags = ["build", "--release", "--locked", "--package", "kerf-packing-bench"];
        cargo::run(workspace, "building the bench of packing", &flags)?;
        return cargo::run_built(workspace, "release", "kerf_packing_bench", arguments);
    }
    if name == Some("reboots") {
        let test = ["test", "--release", "--locked", "--package", "kerf-node-agent", "--lib"];
        let of_it = ["--", "--exact", "--ignored", "--nocapture", REBOOTS];
        return cargo::run(workspace, "reboots of the agent's node", &[&test[..], &of_it[..]].concat());
    }
    if name == Some("forging") {
        return forging::run(workspace, arguments);
    }
    if name == Some("mutants") {
        return mutants::run(workspace, &arguments[1..]);
    }
    if name == Some("explore") {
        return explore::run(workspace, arguments);
    }
    let is_shipped = name.is_some_and(|name| AS_SHIPPED.contains(&name));
    if is_shipped || name == Some("scheduler") {
        let folder =
            if is_shipped { shipped::folder(workspace)? } else { shipped::scheduler_bench(workspace)? };
        let mut bench = Command::new(folder.join("kerf_bench"));
        return cargo::step("measuring", bench.args(arguments));
    }
    build::benches(workspace)?;
    cargo::run_built(workspace, "release", "kerf_bench", arguments)
}
