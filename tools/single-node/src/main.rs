//! Runs a whole node with a real GPU on one machine: control plane, kerf's programs, containerd and the
//! kubelet. Each step ends by itself. `docs/gpu-node.md` describes its use.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod chart;
mod clock;
mod container_log;
mod distribution;
mod down;
mod driver;
mod hold;
mod job;
mod judge;
mod lent;
mod node_policy;
mod order;
mod real_node;
mod running_node;
mod seen;
mod tenant;
mod test;
mod up;

use std::process::ExitCode;

use args::{Args, Step};
use clap::Parser as _;

fn main() -> ExitCode {
    let Err(error) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    // Returning the error would print a backtrace; the text alone says what is wrong.
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> anyhow::Result<()> {
    match args.step {
        Step::Up => up::up(args),
        Step::Test => test(args),
        Step::Bench => bench::bench(args),
        Step::Judge => tokio::runtime::Runtime::new()?.block_on(judge::judge(args)),
        Step::Down => down::down(args),
        Step::All => all(args),
        Step::Hold => hold::hold(args),
    }
}

/// Runs all steps in order. A node whose test failed is ended too, but keeps its files.
fn all(args: &Args) -> anyhow::Result<()> {
    let tested = up::up(args).and_then(|()| test(args));
    let down = if tested.is_ok() { down::down(args) } else { down::end(args) };
    tested.and(down)
}

fn test(args: &Args) -> anyhow::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(test::test(args))
}
