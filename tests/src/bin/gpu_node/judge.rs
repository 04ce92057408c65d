//! `judge`: the rules that the stand-in kubelet keeps, shown by the real one.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kerf_tests::cluster::wait;
use kerf_tests::control_plane;
use kerf_tests::kubelet_rules::{JudgedKubelet, judge as judge_rules, plugin};
use kube::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::args::Args;
use crate::standing::{Standing, holder};

/// The kubelet's default.
const TICK: Duration = Duration::from_secs(10);

/// How long a killed kubelet may take to serve again.
const PATIENCE: Duration = Duration::from_mins(1);

/// The kubelet of a node that is up.
struct RealKubelet {
    name: String,
    client: Client,
    /// Its folder, outside of the node's mount namespace.
    folder: PathBuf,
    holder: Pid,
}

#[tonic::async_trait(?Send)]
impl JudgedKubelet for RealKubelet {
    fn node(&self) -> &str {
        &self.name
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    fn device_plugins(&self) -> PathBuf {
        self.folder.join("device-plugins")
    }

    fn pod_resources(&self) -> PathBuf {
        self.folder.join("pod-resources/kubelet.sock")
    }

    fn tick(&self) -> Duration {
        TICK
    }

    /// The holder is the kubelet's parent, so it is the holder that starts it again.
    async fn restart(&self) -> anyhow::Result<()> {
        let sockets = [self.device_plugins().join("kubelet.sock"), self.pod_resources()];
        let made = || {
            sockets
                .clone()
                .map(|socket| fs::metadata(socket).map(|file| (file.ino(), file.ctime_nsec())).ok())
        };
        let before = made();
        kill_process(self.holder, Signal::HUP).context("failed to tell the holder to restart the kubelet")?;
        let serves = async || {
            let new = made().iter().zip(&before).all(|(now, before)| now.is_some() && now != before);
            for socket in sockets.clone().into_iter().filter(|_| new) {
                plugin::channel(socket).await?;
            }
            Ok(new)
        };
        wait(PATIENCE, "the kubelet to serve again", serves).await
    }
}

/// Holds the node's kubelet to the rules; fails if one does not hold.
pub async fn judge(args: &Args) -> anyhow::Result<()> {
    let kubelet = RealKubelet {
        name: args.name.clone(),
        client: control_plane::client(&Standing::read(args)?.kubeconfig).await?,
        folder: args.places().kubelet(),
        holder: holder(args).context("nobody holds the node: run `gpu_node up`")?,
    };
    let broken = judge_rules(&kubelet, &args.rules, |text| println!("{text}")).await?;
    ensure!(broken.is_empty(), "{} rules do not hold:\n{}", broken.len(), broken.join("\n"));
    println!("judge: the real kubelet keeps every rule that the stand-in keeps");
    Ok(())
}
