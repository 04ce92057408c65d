//! `kerf-webhook`: see the library.
#![forbid(unsafe_code)]

use clap::Parser;
use kerf_runtime::{shutdown, telemetry};

// One thread: an answer takes some ten microseconds where all that it touches is in a core's caches, and ten times that where
// it is not.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = kerf_webhook::args::Args::parse();
    telemetry::init(&args.log)?;
    kerf_webhook::app::run(args, shutdown::on_signals()?).await
}
