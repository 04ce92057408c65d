//! The process behind `up`: it is the parent of all programs, which end with it, and ends them in order when it is told to.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use kerf_tests::cluster::{Cluster, ClusterOptions, root};
use kerf_tests::control_plane::ControlPlaneOptions;
use kerf_tests::real_node::{self, GpuSettings, Gpus, RealNode, RealNodeOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Args;
use crate::standing::Standing;

/// Holds a node. Its mount namespace must be made before there is a second thread.
pub fn hold(args: &Args) -> anyhow::Result<()> {
    real_node::enter(&args.places())?;
    tokio::runtime::Runtime::new()?.block_on(held(args))
}

async fn held(args: &Args) -> anyhow::Result<()> {
    let begun = Instant::now();
    let say = |text: &str| println!("[{:6.2} s] {text}", begun.elapsed().as_secs_f64());
    let mut end = signal(SignalKind::terminate()).context("failed to listen for the end")?;
    let mut again = signal(SignalKind::hangup()).context("failed to listen for the kubelet's restart")?;
    let gpus = args.gpus()?;
    if let Gpus::Real { nvml, mps_control } = &gpus {
        println!("NVML is {}, the MPS daemon {}", nvml.display(), mps_control.display());
    }
    for version in real_node::versions() {
        println!("{version}");
    }
    let settings = (!args.simulated).then(GpuSettings::read).transpose()?;
    let mut options = ClusterOptions::new(Vec::new());
    // Pods come alone, and without an account.
    options.control_plane = ControlPlaneOptions::without_controller_manager();
    options.policy = Some(policies(args)?);
    let cluster = Cluster::start(options, say).await?;
    let options = RealNodeOptions { name: args.name.clone(), places: args.places(), gpus };
    let mut node = RealNode::start(&cluster, options, say).await?;
    let kubeconfig = cluster.plane().kubeconfig().to_owned();
    println!("the node is up: export KUBECONFIG={}", kubeconfig.display());
    Standing { kubeconfig }.write(args)?;
    loop {
        tokio::select! {
            _ = end.recv() => break,
            _ = again.recv() => node.restart_kubelet()?,
        }
    }
    let stopped = node.stop(&cluster).await;
    say("the node has ended");
    cluster.stop().await?;
    say("the control plane has ended");
    stopped?;
    settings.map_or(Ok(()), |settings| settings.unchanged())
}

/// The policy for pods that is shipped, and one for the node: shares by MPS and no other kind, and no mode of the GPU is
/// switched (`modeChange` is `never` unless it is said).
fn policies(args: &Args) -> anyhow::Result<PathBuf> {
    let folder = args.state.join("policies");
    fs::create_dir_all(&folder).context("failed to create the policies' folder")?;
    let shipped = root().join("policies/default.yaml");
    fs::copy(&shipped, folder.join("90-default.yaml"))
        .with_context(|| format!("failed to copy {}", shipped.display()))?;
    let name = &args.name;
    let text = format!(
        "apiVersion: kerf.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: shared-by-mps}}\nspec:\n  match: \
         {{names: [{name}]}}\n  gpus:\n  - kinds: [mps]\n"
    );
    fs::write(folder.join("10-node.yaml"), text).context("failed to write the node's policy")?;
    Ok(folder)
}
