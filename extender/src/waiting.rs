//! Pods that no node could serve, and at which nodes they looked.
//!
//! kube-scheduler looks at a refused pod again when a Pod or a Node changes, but room for slices comes and goes without
//! either: without a nudge a pod may wait minutes beside a free slice. So the pods that may now have room are told.

use crate::ask::Ask;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The most pods that are remembered; beyond it the longest waiting are left to the scheduler's own rounds.
const MOST: usize = 10_000;

/// A pod that waits for room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace and name.
    pub key: PodKey,
    /// What it asks for.
    pub ask: Ask,
    /// The nodes that the scheduler offered. What room others have is of no use to it. Shared between pods.
    pub offered: Arc<BTreeSet<NodeName>>,
    /// Whether its namespace's quota was full, so that it may find room where nothing changed.
    pub held_back: bool,
}

/// The pods that wait, the longest waiting first, and the nodes that changed since they were looked at.
#[derive(Debug, Default)]
pub struct Waiting {
    pods: VecDeque<Waiter>,
    changed: BTreeSet<NodeName>,
}

impl Waiting {
    /// A pod was refused by all `offered` nodes, or held back by its namespace's quota.
    pub fn refused(&mut self, uid: PodUid, key: PodKey, ask: Ask, offered: &[&str], held_back: bool) {
        self.forget(&uid);
        let same = |set: &BTreeSet<NodeName>| {
            set.len() == offered.len() && offered.iter().all(|name| set.contains(*name))
        };
        let shared = self.pods.back().map(|w| w.offered.clone()).filter(|set| same(set));
        let offered = shared.unwrap_or_else(|| Arc::new(offered.iter().map(|n| NodeName::new(*n)).collect()));
        self.keep(Waiter { uid, key, ask, offered, held_back });
    }

    /// A pod goes on waiting, behind the others.
    pub fn keep(&mut self, waiter: Waiter) {
        if self.pods.len() >= MOST {
            self.pods.pop_front();
        }
        self.pods.push_back(waiter);
    }

    /// The pods that wait, the longest waiting first.
    pub fn pods(&self) -> impl Iterator<Item = &Waiter> {
        self.pods.iter()
    }

    /// A pod waits no longer.
    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.retain(|w| w.uid != *uid);
    }

    /// Something changed at a node.
    pub fn changed(&mut self, node: &NodeName) {
        if !self.changed.contains(node) {
            self.changed.insert(node.clone());
        }
    }

    /// The waiting pods and the changed nodes, to be looked at; both are empty afterwards.
    pub fn take(&mut self) -> (VecDeque<Waiter>, BTreeSet<NodeName>) {
        let changed = std::mem::take(&mut self.changed);
        let pods = if changed.is_empty() { VecDeque::new() } else { std::mem::take(&mut self.pods) };
        (pods, changed)
    }
}
