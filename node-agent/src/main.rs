//! `kerf-node-agent`.
#![forbid(unsafe_code)]

use clap::Parser as _;
use kerf_node_agent::{app, args::Args};
use kerf_runtime::{shutdown, telemetry};

// One thread besides NVML's: the agent waits, mostly, and shares its node with the pods that pay for it.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    telemetry::init(&args.log)?;
    app::run(args, shutdown::on_signals()?).await
}
