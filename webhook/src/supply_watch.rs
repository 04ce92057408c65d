//! What the cluster's GPUs can serve, kept up to date from the `GpuNodes`. A GpuNode whose status cannot be read adds
//! nothing and stops nothing.

use futures::StreamExt;
use kerf_core::contract::{GpuNodeStatus, GpuStatus};
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::policy::Supply;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::shutdown::CancellationToken;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The supply, or nothing until the `GpuNodes` were read once. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LiveSupply(watch::Receiver<Option<Arc<Supply>>>);

impl LiveSupply {
    /// The supply now; the empty one while nothing is known.
    pub fn current(&self) -> Arc<Supply> {
        self.0.borrow().clone().unwrap_or_default()
    }

    /// Waits until the `GpuNodes` were read once. Nobody will read them if this is an error.
    pub async fn known(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.wait_for(Option::is_some).await.map(drop)
    }
}

/// The writing end of a [`LiveSupply`].
pub(crate) type Publisher = watch::Sender<Option<Arc<Supply>>>;

/// A supply and its writing end.
pub(crate) fn channel() -> (Publisher, LiveSupply) {
    let (publisher, receiver) = watch::channel(None);
    (publisher, LiveSupply(receiver))
}

/// Follows the `GpuNodes` until `stop`.
pub(crate) async fn follow(client: Client, publisher: Publisher, stop: CancellationToken) {
    let events = watcher(Api::<GpuNode>::all(client), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut index = GpuIndex::default();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                if index.take(event) {
                    let supply = index.supply();
                    tracing::info!(nodes = index.nodes.len(), largest = largest(&supply), "supply");
                    publisher.send_replace(Some(Arc::new(supply)));
                }
            }
            Some(Err(error)) => tracing::warn!(%error, "watch of GpuNodes broke, it is begun again"),
            None => return,
        }
    }
}

/// The largest size of each kind, for the log.
fn largest(supply: &Supply) -> String {
    let size = |kind: &Kind| Some(format!("{kind}: {}", supply.largest(*kind)?));
    Kind::ALL.iter().filter_map(size).collect::<Vec<_>>().join(", ")
}

/// The GPUs of each node whose status can be read.
#[derive(Debug, Default)]
struct GpuIndex {
    nodes: BTreeMap<NodeName, Vec<GpuStatus>>,
    /// The nodes of a list that is not complete yet.
    listed: BTreeMap<NodeName, Vec<GpuStatus>>,
    /// Why the others cannot be read: each reason is logged once.
    unreadable: BTreeMap<NodeName, String>,
    is_complete: bool,
}

impl GpuIndex {
    /// Takes an event, and says whether the supply may be another now.
    fn take(&mut self, event: Event<GpuNode>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(node) => {
                if let Some(gpus) = self.read(&node) {
                    self.listed.insert(node.name(), gpus);
                }
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let is_first = !std::mem::replace(&mut self.is_complete, true);
                let before = std::mem::replace(&mut self.nodes, listed);
                is_first || before != self.nodes
            }
            Event::Apply(node) => match self.read(&node) {
                Some(gpus) => self.nodes.insert(node.name(), gpus.clone()).as_ref() != Some(&gpus),
                None => self.nodes.remove(&node.name()).is_some(),
            },
            Event::Delete(node) => {
                self.unreadable.remove(&node.name());
                self.nodes.remove(&node.name()).is_some()
            }
        }
    }

    fn read(&mut self, node: &GpuNode) -> Option<Vec<GpuStatus>> {
        match node.read_status() {
            Ok(status) => {
                self.unreadable.remove(&node.name());
                Some(status?.gpus)
            }
            Err(error) => {
                let reason = error.to_string();
                if self.unreadable.get(&node.name()) != Some(&reason) {
                    tracing::warn!(node = %node.name(), reason, "GpuNode counts as no supply");
                    self.unreadable.insert(node.name(), reason);
                }
                None
            }
        }
    }

    fn supply(&self) -> Supply {
        let status = |gpus: &Vec<GpuStatus>| GpuNodeStatus { gpus: gpus.clone(), ..GpuNodeStatus::default() };
        let statuses: Vec<GpuNodeStatus> = self.nodes.values().map(status).collect();
        Supply::of(&statuses)
    }
}

#[cfg(test)]
mod tests;
