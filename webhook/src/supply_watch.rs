//! What the cluster's GPUs can serve and have room for, kept up to date from the `GpuNodes`. A GpuNode whose status cannot be
//! read adds nothing and stops nothing; one that is not served, or whose spec cannot be read, has no room.

use crate::recent::Recent;
use futures::StreamExt;
use kerf_core::contract::{Demand, GpuNodeSpec, RequestDocument};
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::policy::{Supply, SupplyIndex};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::shutdown::CancellationToken;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// How many `GpuNodes` are read at a time. Each has some ten KiB of JSON and takes ten times that while it is read, which stays
/// with the process.
const PAGE: u32 = 5;

/// The supply, or nothing until the `GpuNodes` were read once, less what is wanted already. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LiveSupply {
    replica: Arc<str>,
    supply: watch::Receiver<Option<Arc<Supply>>>,
    recent: Arc<Mutex<Recent>>,
}

/// The supply at one time.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The supply, less what is known to be wanted; the empty one while nothing is known.
    pub supply: Supply,
    /// What is left of it if other replicas admit as many pods as this one; `None` where there are no others.
    pub less: Option<Supply>,
    admissions: u64,
}

impl LiveSupply {
    /// The supply now.
    pub fn current(&self, now: Instant) -> Seen {
        let supply = self.supply.borrow().clone().unwrap_or_default();
        let mut recent = lock(&self.recent);
        let less = recent.guess(now).map(|pending| supply.wanted(pending));
        Seen { supply: supply.wanted(recent.pending(now)), less, admissions: recent.version() }
    }

    /// The name of this replica of the webhook.
    pub fn replica(&self) -> &str {
        &self.replica
    }

    /// Counts an admission that was decided by what was seen. False, and it is not counted, if others came between: what was
    /// free may be theirs.
    pub fn admit(&self, document: &RequestDocument, seen: &Seen, now: Instant) -> bool {
        let mut recent = lock(&self.recent);
        let holds = recent.version() == seen.admissions;
        if holds {
            recent.admitted(document, now);
        }
        holds
    }

    /// Waits until the `GpuNodes` were read once. Nobody will read them if this is an error.
    pub async fn known(&mut self) -> Result<(), watch::error::RecvError> {
        self.supply.wait_for(Option::is_some).await.map(drop)
    }
}

/// The writing end of a [`LiveSupply`].
#[derive(Debug, Clone)]
pub(crate) struct Publisher {
    supply: watch::Sender<Option<Arc<Supply>>>,
    recent: Arc<Mutex<Recent>>,
}

impl Publisher {
    /// What pods wait for, by the extender's word; `None` while there is none.
    pub fn demand(&self, demand: Option<Demand>) {
        lock(&self.recent).published(demand);
    }

    /// What the nodes have now.
    pub fn supply(&self, supply: Supply) {
        self.supply.send_replace(Some(Arc::new(supply)));
    }
}

fn lock(recent: &Mutex<Recent>) -> MutexGuard<'_, Recent> {
    // Nothing panics while it holds the lock.
    recent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The supply of the replica of this name, and its writing end.
pub(crate) fn channel(replica: &str) -> (Publisher, LiveSupply) {
    let (sender, receiver) = watch::channel(None);
    let recent = Arc::new(Mutex::new(Recent::of(replica)));
    let live = LiveSupply { replica: replica.into(), supply: receiver, recent: recent.clone() };
    (Publisher { supply: sender, recent }, live)
}

/// Follows the `GpuNodes` until `stop`.
pub(crate) async fn follow(client: Client, publisher: Publisher, stop: CancellationToken) {
    let config = watcher::Config::default().page_size(PAGE);
    let events = watcher(Api::<GpuNode>::all(client), config).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut index = GpuIndex::default();
    let mut told = String::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                if index.take(event) {
                    let supply = index.nodes.supply();
                    let largest = largest(&supply);
                    if largest != told {
                        tracing::info!(nodes = index.nodes.nodes(), largest, "supply");
                        told = largest;
                    }
                    publisher.supply(supply);
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

/// The nodes whose status can be read.
#[derive(Debug, Default)]
struct GpuIndex {
    nodes: SupplyIndex,
    /// The nodes of a list that is not complete yet.
    listed: BTreeSet<NodeName>,
    /// Why the others cannot be read: each reason is logged once.
    unreadable: BTreeMap<NodeName, String>,
}

impl GpuIndex {
    /// Takes an event, and says whether the supply may be another now. What a list shows is told when it is complete.
    fn take(&mut self, event: Event<GpuNode>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(node) => {
                self.listed.insert(node.name());
                self.show(&node);
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.nodes.retain(|name| listed.contains(name));
                self.unreadable.retain(|name, _| listed.contains(name));
                true
            }
            Event::Apply(node) => self.show(&node),
            Event::Delete(node) => {
                self.unreadable.remove(&node.name());
                self.nodes.remove(&node.name())
            }
        }
    }

    fn show(&mut self, node: &GpuNode) -> bool {
        let name = node.name();
        let spec = node.read_spec();
        match node.read_status() {
            Ok(status) => {
                self.unreadable.remove(&name);
                let Some(status) = status else { return self.nodes.remove(&name) };
                let open = spec.is_ok() && status.is_ready();
                let spec = spec.unwrap_or_else(|_| GpuNodeSpec::default());
                self.nodes.show(name, &spec, &status, open)
            }
            Err(error) => {
                let reason = error.to_string();
                if self.unreadable.get(&name) != Some(&reason) {
                    tracing::warn!(node = %name, reason, "GpuNode counts as no supply");
                    self.unreadable.insert(name.clone(), reason);
                }
                self.nodes.remove(&name)
            }
        }
    }
}

#[cfg(test)]
mod tests;
