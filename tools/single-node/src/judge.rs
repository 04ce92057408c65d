//! `judge`: checks with the real kubelet the rules that the stand-in kubelet keeps.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use kerf_tests::cluster::wait;
use kerf_tests::control_plane;
use kerf_tests::kubelet_rules::{JudgedKubelet, judge as judge_rules, plugin};
use kube::Client;

use crate::args::Args;
use crate::order::Order;
use crate::running_node::RunningNode;

/// The kubelet's default sync interval.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

/// How long a killed kubelet may take to serve again.
const TIMEOUT: Duration = Duration::from_mins(1);

struct RealKubelet<'a> {
    client: Client,
    /// The kubelet's folder, as a path outside of the node's mount namespace.
    folder: PathBuf,
    args: &'a Args,
}

#[tonic::async_trait(?Send)]
impl JudgedKubelet for RealKubelet<'_> {
    fn node(&self) -> &str {
        &self.args.name
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
        SYNC_INTERVAL
    }

    async fn restart(&self) -> anyhow::Result<()> {
        let sockets = [self.device_plugins().join("kubelet.sock"), self.pod_resources()];
        let made = || {
            sockets
                .clone()
                .map(|socket| fs::metadata(socket).map(|file| (file.ino(), file.ctime_nsec())).ok())
        };
        // The socket's inode and change time are compared, because either shows that it belongs to the restarted
        // kubelet.
        let before = made();
        Order::RestartKubelet.give(self.args).await?;
        let serves = async || {
            let new = made().iter().zip(&before).all(|(now, before)| now.is_some() && now != before);
            for socket in sockets.clone().into_iter().filter(|_| new) {
                plugin::channel(socket).await?;
            }
            Ok(new)
        };
        wait(TIMEOUT, "the kubelet to serve again", serves).await
    }
}

/// Checks every selected rule with the node's kubelet; fails if one does not hold.
pub async fn judge(args: &Args) -> anyhow::Result<()> {
    let kubelet = RealKubelet {
        client: control_plane::client(&RunningNode::read(args)?.kubeconfig).await?,
        folder: args.places().kubelet(),
        args,
    };
    let broken = judge_rules(&kubelet, &args.rules, |text| println!("{text}")).await?;
    ensure!(broken.is_empty(), "{} rules do not hold:\n{}", broken.len(), broken.join("\n"));
    println!("judge: the real kubelet keeps every rule that the stand-in keeps");
    Ok(())
}
