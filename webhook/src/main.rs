//! `kerf-webhook`: see the library.
#![forbid(unsafe_code)]

use clap::Parser;
use kerf_runtime::{shutdown, telemetry};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = kerf_webhook::args::Args::parse();
    telemetry::init(&args.log)?;
    kerf_webhook::app::run(args, shutdown::on_signals()?).await
}
