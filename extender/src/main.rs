//! The `kerf-extender` binary: reads flags, starts logging and runs the extender.
#![forbid(unsafe_code)]

use clap::Parser;
use kerf_extender::args::ExtenderArgs;
use kerf_runtime::{shutdown, telemetry};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = ExtenderArgs::parse();
    telemetry::init(&args.log)?;
    Box::pin(kerf_extender::app::run(args, shutdown::on_signals()?)).await
}
