//! Detects conflicting managers of the node's GPUs. kerf does not fight them: it reports which they are with a remedy,
//! and cuts nothing new.
//!
//! Only an active manager counts, not one that might become active:
//!
//! | manager | counts as present by | not enough |
//! |---|---|---|
//! | NVIDIA's device plugin | a socket of it that answers ([`sockets`]) | labels: see [`labels`] |
//! | MIG manager | label `nvidia.com/mig.config` if it is deployed, or an ongoing change ([`labels`]) | `gpu.deploy.mig-manager` alone |
//! | DRA driver | a ResourceSlice of `gpu.nvidia.com` for this node ([`slices`]) | the driver's DeviceClasses |

pub(crate) mod before;
mod labels;
mod slices;
mod sockets;
pub(crate) mod upgrade;

pub(crate) use labels::may_order_mig;

use k8s_openapi::api::core::v1::Node;
use kerf_core::names::NodeName;
use kube::{Api, Client};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Poll interval for the sockets, and for the API server after a failure.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Poll interval for the API server. It is long, because each node of the cluster sends two reads in each interval.
const API_POLL_INTERVAL: Duration = Duration::from_mins(1);

const TIMEOUT: Duration = Duration::from_secs(5);

/// NVIDIA's DRA driver for GPUs. Its sibling `compute-domain.nvidia.com` allocates none.
pub(crate) const DRA_DRIVER: &str = "gpu.nvidia.com";

/// A program that may manage a node's GPUs besides kerf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// NVIDIA's device plugin, which offers the GPUs to the kubelet under the same names.
    DevicePlugin,
    /// NVIDIA's MIG manager, which clears a GPU before it cuts it.
    MigManager,
    /// NVIDIA's DRA driver, which allocates GPUs to pods by claims.
    DraDriver,
}

impl Who {
    /// The remedy for an admin.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::DevicePlugin => {
                "Keep its DaemonSet off this node (with the GPU Operator: label the node \
                 nvidia.com/gpu.deploy.device-plugin=false), or take the node from kerf."
            }
            Self::MigManager => {
                "Label the node nvidia.com/gpu.deploy.mig-manager=false, or take the node from kerf. To remove \
                 nvidia.com/mig.config does not help: GPU Operator sets it to all-disabled again."
            }
            Self::DraDriver => {
                "Keep its kubelet plugin off this node (or install it with resources.gpus.enabled=false), or take the \
                 node from kerf."
            }
        }
    }
}

/// The name that messages use.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DevicePlugin => "NVIDIA's device plugin",
            Self::MigManager => "NVIDIA's MIG manager",
            Self::DraDriver => "NVIDIA's DRA driver",
        })
    }
}

/// A conflicting manager of this node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    pub who: Who,
    /// The evidence. The text stays the same as long as the facts do.
    pub evidence: String,
    /// The text of [`Who::remedy`].
    pub remedy: &'static str,
}

impl Other {
    fn new(who: Who, evidence: String) -> Self {
        Self { who, evidence, remedy: who.remedy() }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} manages GPUs of this node: {}. {}", self.who, self.evidence, self.remedy)
    }
}

/// Polls for conflicting managers.
pub struct ConflictPoller {
    client: Client,
    node: NodeName,
    plugin_folder: PathBuf,
    /// How long the device plugin's sockets must be missing before it counts as gone.
    timeout: Duration,
    by_socket: Option<Other>,
    by_label: Option<Other>,
    by_slice: Option<Other>,
    /// When its sockets were last seen.
    live_at: Instant,
    ask_at: Instant,
}

impl ConflictPoller {
    /// Polls on `node`, with the kubelet's folder of device plugin sockets. NVIDIA's plugin counts as gone once its
    /// sockets were missing for `timeout`. Until then the evidence from `before` this process counts.
    #[must_use]
    pub fn new(
        (client, node): (Client, NodeName),
        plugin_folder: PathBuf,
        timeout: Duration,
        before: Option<String>,
    ) -> Self {
        let now = Instant::now();
        let by_socket = before.map(|evidence| Other::new(Who::DevicePlugin, evidence));
        let (by_label, by_slice) = (None, None);
        Self {
            client,
            node,
            plugin_folder,
            timeout,
            by_socket,
            by_label,
            by_slice,
            live_at: now,
            ask_at: now,
        }
    }

    /// Reports the conflicting managers until `stop`: once at the start, even if there are none, and then on each
    /// change.
    pub async fn watch(mut self, others: watch::Sender<Vec<Other>>, stop: CancellationToken) {
        let mut reported = None;
        while let Some(found) = stop.run_until_cancelled(self.poll()).await {
            if reported.as_ref() != Some(&found) {
                log(reported.as_deref().unwrap_or_default(), &found);
                others.send_replace(found.clone());
                reported = Some(found);
            }
            stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await;
        }
    }

    async fn poll(&mut self) -> Vec<Other> {
        let sockets = sockets::live(&self.plugin_folder).await;
        // After a failure `ask_at` stays, so that the next poll asks again.
        if Instant::now() >= self.ask_at && self.ask().await {
            self.ask_at = Instant::now() + API_POLL_INTERVAL;
        }
        self.observe_sockets(&sockets);
        [&self.by_socket, &self.by_label, &self.by_slice].into_iter().flatten().cloned().collect()
    }

    /// Updates the evidence of sockets. A kubelet that restarts empties the folder, and a plugin that is rolled out or
    /// reloaded is away for longer. Both come back, and what kerf allocated meanwhile would be allocated twice.
    fn observe_sockets(&mut self, live: &[String]) {
        if !live.is_empty() {
            self.live_at = Instant::now();
            let evidence = format!("its sockets answer: {}", live.join(", "));
            self.by_socket = Some(Other::new(Who::DevicePlugin, evidence));
        } else if self.live_at.elapsed() >= self.timeout {
            self.by_socket = None;
        }
    }

    /// Asks the API server, and returns whether it answered. Without an answer the earlier result stays.
    async fn ask(&mut self) -> bool {
        let nodes = Api::<Node>::all(self.client.clone());
        let label = answer(labels::found(&nodes, &self.node)).await;
        let slice = answer(slices::found(&self.client, &self.node)).await;
        let answered = label.is_some() && slice.is_some();
        self.by_label = label.unwrap_or_else(|| self.by_label.take());
        self.by_slice = slice.unwrap_or_else(|| self.by_slice.take());
        answered
    }
}

async fn answer<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Option<T> {
    match tokio::time::timeout(TIMEOUT, call).await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(error)) => {
            tracing::debug!(%error, "failed to read the evidence of other GPU managers");
            None
        }
        Err(_) => None,
    }
}

fn log(before: &[Other], now: &[Other]) {
    for other in now.iter().filter(|other| !before.contains(other)) {
        tracing::warn!(who = %other.who, evidence = other.evidence, remedy = other.remedy, "conflicting GPU manager found");
    }
    for other in before.iter().filter(|other| !now.iter().any(|o| o.who == other.who)) {
        tracing::info!(who = %other.who, "conflicting GPU manager is gone");
    }
}

#[cfg(test)]
mod tests;
