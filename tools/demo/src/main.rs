//! The demo: pods ask for GPU memory and run on slices that are cut for them, on a real local control plane
//! with simulated GPUs. Every claim is checked. Run it by `cargo xtask demo`.
#![forbid(unsafe_code)]

mod checks;
mod clock;
mod recording;
mod screen;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kerf_tests::cluster::{Cluster, ClusterOptions};

/// Shows a pod's whole way, from request to running, on a local control plane.
#[derive(Debug, Parser)]
struct Args {
    /// Leave the cluster up at the end, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Write what is printed as an animated SVG.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let result = tokio::select! {
        result = run(&args) => result,
        // Leaving the other branch drops the cluster, which kills its programs.
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("stopped by Ctrl-C; everything is down")),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    // Returning the error would print a backtrace; the text alone says what is wrong.
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

async fn run(args: &Args) -> anyhow::Result<()> {
    let screen = screen::Screen::new();
    screen.title("A real control plane, three GPU nodes, kerf's three programs and a scheduler of its own");
    let nodes = ClusterOptions::demo_nodes()
        .into_iter()
        .map(kerf_tests::cluster::NodeSpec::running_commands)
        .collect();
    let cluster = Cluster::start(ClusterOptions::new(nodes), |step| screen.step(step)).await?;
    let result = story::tell(&cluster, &screen).await;
    match result {
        Ok(last_line) => {
            if args.keep {
                keep(&cluster, &screen).await?;
            }
            cluster.stop().await?;
            screen.say(&last_line);
            if let Some(path) = &args.record {
                screen.write_recording(path)?;
            }
            Ok(())
        }
        Err(error) => {
            screen.step(&format!("logs are kept in {}", cluster.plane().dir().display()));
            Err(error)
        }
    }
}

async fn keep(cluster: &Cluster, screen: &screen::Screen) -> anyhow::Result<()> {
    let kubectl = kerf_tests::binaries::tool("kubectl")?;
    screen.title("The cluster stays up until Ctrl-C. In another terminal:");
    screen.say(&format!("  export KUBECONFIG={}", cluster.plane().kubeconfig().display()));
    screen.say(&format!("  {} get gpunodes,pods -o wide", kubectl.display()));
    tokio::signal::ctrl_c().await?;
    Ok(())
}
