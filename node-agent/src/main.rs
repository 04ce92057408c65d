//! The program `kerf-node-agent`, which serves one node.
#![forbid(unsafe_code)]

use clap::Parser as _;
use kerf_node_agent::mps::launch;
use kerf_node_agent::{app, args::Args};
use kerf_runtime::{shutdown, telemetry};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    // An MPS daemon starts as a process of this program that then becomes the daemon. That needs a single thread, so it
    // comes before the runtime.
    if launch::is_asked() {
        return Ok(launch::become_daemon());
    }
    run().map(|()| ExitCode::SUCCESS)
}

// One thread besides NVML's: the agent mostly waits, and it shares the node with the pods that pay for it.
#[tokio::main(flavor = "current_thread")]
async fn run() -> anyhow::Result<()> {
    let args = Args::parse();
    telemetry::init(&args.log)?;
    app::run(args, shutdown::on_signals()?).await
}
