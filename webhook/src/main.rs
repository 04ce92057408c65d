//! The program `kerf-webhook`, which is made of this crate's library.
#![forbid(unsafe_code)]

use clap::Parser;
use kerf_runtime::{shutdown, telemetry};

// One thread suffices: an answer takes some ten microseconds if everything that it reads is in a core's caches, and ten
// times that otherwise.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = kerf_webhook::args::Args::parse();
    telemetry::init(&args.log)?;
    kerf_webhook::app::run(args, shutdown::on_signals()?).await
}
