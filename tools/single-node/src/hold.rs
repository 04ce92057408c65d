//! The process behind `up`: the parent of all programs. They end with it, and a signal makes it end them in
//! order.

use std::time::Instant;

use crate::real_node::{self, GpuSettings, Gpus, RealNode, RealNodeOptions};
use anyhow::Context as _;
use kerf_tests::cluster::{Cluster, ClusterOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::Args;
use crate::chart::Installed;
use crate::running_node::RunningNode;
use crate::{lent, node_policy, order};

/// Holds a node. It enters its mount namespace first, because a process with several threads cannot.
pub fn hold(args: &Args) -> anyhow::Result<()> {
    real_node::enter(&args.places())?;
    tokio::runtime::Runtime::new()?.block_on(held(args))
}

async fn held(args: &Args) -> anyhow::Result<()> {
    let begun = Instant::now();
    let say = |text: &str| println!("[{:6.2} s] {text}", begun.elapsed().as_secs_f64());
    let mut end = signal(SignalKind::terminate()).context("failed to listen for the end")?;
    let gpus = args.gpus()?;
    if let Gpus::Real { nvml, mps_control } = &gpus {
        println!("NVML is {}, the MPS daemon {}", nvml.display(), mps_control.display());
    }
    for version in real_node::versions() {
        println!("{version}");
    }
    // They are compared after the end, because a node must not change the GPUs' settings.
    let settings = (!args.simulated).then(GpuSettings::read).transpose()?;
    if args.chart {
        installed(args, &gpus, &mut end, say).await?;
    } else {
        by_hand(args, gpus, &mut end, say).await?;
    }
    settings.map_or(Ok(()), |settings| settings.unchanged())
}

/// Starts kerf's programs as processes.
async fn by_hand(args: &Args, gpus: Gpus, end: &mut Signal, say: impl Fn(&str)) -> anyhow::Result<()> {
    let mut options = ClusterOptions::new(Vec::new());
    options.policy = Some(node_policy::folder(args)?);
    let cluster = Cluster::start(options, &say).await?;
    let options = RealNodeOptions {
        name: args.name.clone(),
        places: args.places(),
        gpus,
        handlers: vec![lent::handler(args)],
    };
    let mut node = RealNode::start(&cluster, options, &say).await?;
    let orders = order::listen(args)?;
    let kubeconfig = cluster.plane().kubeconfig().to_owned();
    println!("the node is up: export KUBECONFIG={}", kubeconfig.display());
    RunningNode { kubeconfig, policies: Some(cluster.policy_file().to_owned()) }.write(args)?;
    tokio::select! {
        _ = end.recv() => {}
        // A failed order ends the node too, so that the error reaches the log.
        failed = order::obey(&orders, &mut node) => failed?,
    }
    let stopped = node.stop(&cluster).await;
    say("the node has ended");
    cluster.stop().await?;
    say("the control plane has ended");
    stopped
}

/// Installs kerf by its chart.
async fn installed(args: &Args, gpus: &Gpus, end: &mut Signal, say: impl Fn(&str)) -> anyhow::Result<()> {
    let node = Installed::start(args, gpus, &say).await?;
    let kubeconfig = node.kubeconfig();
    println!("the node is up: export KUBECONFIG={}", kubeconfig.display());
    RunningNode { kubeconfig, policies: None }.write(args)?;
    end.recv().await;
    node.stop(&say).await?;
    say("everything has ended");
    Ok(())
}
