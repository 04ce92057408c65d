//! What the cluster's GPUs can serve and have room for, kept up to date from the `GpuNodes`, and from the Nodes that NVIDIA's
//! device plugin serves. A GpuNode whose status cannot be read adds nothing and stops nothing; one that is not served, or
//! whose spec cannot be read, has no room.

mod index;

use crate::recent::{Guess, Recent};
use futures::StreamExt;
use index::Index;
use kerf_core::contract::{Demand, RequestDocument, Revisions, Slices};
use kerf_core::kind::Kind;
use kerf_core::policy::Supply;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kerf_runtime::shutdown::CancellationToken;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How many `GpuNodes` or Nodes are read at a time. Each has some ten KiB of JSON and takes ten times that while it is read, which stays
/// with the process.
const PAGE: u32 = 5;

/// The supply, or nothing until the `GpuNodes` were read once, less what is wanted already. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LiveSupply {
    replica: Arc<str>,
    supply: watch::Receiver<Option<Arc<Supply>>>,
    recent: Arc<Mutex<Recent>>,
    news: watch::Receiver<()>,
}

/// The supply at one time.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The supply, less what is known to be wanted; the empty one while nothing is known.
    pub supply: Supply,
    /// What other replicas may have admitted; `None` where there are no others.
    pub guess: Option<Guess>,
    /// Whether pods are counted twice that were promised something a moment ago.
    pub is_behind: bool,
    /// How long the extender has told of no new pod.
    pub calm: Duration,
    /// How long it took lately until the extender told of a pod that was admitted here.
    pub delay: Duration,
    admissions: u64,
}

impl Seen {
    /// What is left of the supply for a pod that wants these, if other replicas admit as many pods as this one.
    pub fn by_guess(&self, wanted: &Slices<u32>) -> Option<Supply> {
        self.guess.as_ref().map(|guess| self.supply.wanted(guess.pending(wanted)))
    }
}

impl LiveSupply {
    /// The supply now.
    pub fn current(&self, now: Instant) -> Seen {
        let mut recent = lock(&self.recent);
        recent.pass(now);
        // A word is in force once its specs are here: under its lock, the supply is none of before it.
        let supply = self.supply.borrow().clone().unwrap_or_default();
        let supply = Supply::clone(&supply).holding(recent.held()).wanted(recent.pending());
        let (guess, is_behind) = (recent.guess(now), recent.is_behind(now));
        let (calm, delay) = (recent.calm(now), recent.delay(now));
        Seen { supply, guess, is_behind, calm, delay, admissions: recent.version() }
    }

    /// Tells when the supply or the demand is another.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.clone()
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
    news: watch::Sender<()>,
}

impl Publisher {
    /// What pods wait for, by the extender's word; `None` while there is none.
    pub fn demand(&self, demand: Option<Demand>) {
        lock(&self.recent).published(demand, tokio::time::Instant::now().into_std());
        self.news.send_replace(());
    }

    /// What the nodes have now, by specs of these revisions.
    pub fn supply(&self, supply: Supply, revisions: Revisions) {
        self.supply.send_replace(Some(Arc::new(supply)));
        lock(&self.recent).shown(revisions, tokio::time::Instant::now().into_std());
        self.news.send_replace(());
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
    let (news, heard) = watch::channel(());
    let live = LiveSupply { replica: replica.into(), supply: receiver, recent: recent.clone(), news: heard };
    (Publisher { supply: sender, recent, news }, live)
}

/// Follows the `GpuNodes` and the Nodes until `stop`.
pub(crate) async fn follow(client: Client, publisher: Publisher, stop: CancellationToken) {
    let config = watcher::Config::default().page_size(PAGE);
    let gpu_nodes = watcher(Api::<GpuNode>::all(client.clone()), config.clone()).default_backoff();
    let nodes = watcher(Api::<Machine>::all(client), config).default_backoff();
    let (mut gpu_nodes, mut nodes) = (pin!(gpu_nodes), pin!(nodes));
    let mut index = Index::default();
    let mut told = String::new();
    loop {
        let changed = tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = gpu_nodes.next() => event.map(|event| index.take(event)).map_err(|error| {
                tracing::warn!(%error, "watch of GpuNodes broke, it is begun again");
            }),
            Some(event) = nodes.next() => event.map(|event| index.take_node(event)).or_else(|error| {
                tracing::warn!(%error, "watch of Nodes broke, it is begun again; static nodes are as they were known last");
                Ok(index.nodes_unknown())
            }),
            else => return,
        };
        if let (Ok(true), Some(supply)) = (changed, index.supply()) {
            let largest = largest(&supply);
            if largest != told {
                tracing::info!(nodes = index.nodes(), largest, "supply");
                told = largest;
            }
            publisher.supply(supply, index.revisions.clone());
        }
    }
}

/// The largest size of each kind, for the log.
fn largest(supply: &Supply) -> String {
    let size = |kind: &Kind| Some(format!("{kind}: {}", supply.largest(*kind)?));
    Kind::ALL.iter().filter_map(size).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
