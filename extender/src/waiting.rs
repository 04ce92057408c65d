//! Pods that no node could serve, and at which nodes they looked.
//!
//! kube-scheduler looks at a refused pod again when a Pod or a Node changes, but room for slices comes and goes without
//! either: without a nudge a pod may wait minutes beside a free slice. So the pods that may now have room are called.
//!
//! A call may fail. Then the pod waits on, and is called again later and later: one that cannot be called is in nobody's way.

use crate::ask::Ask;
use hashbrown::HashMap;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most pods that are remembered; beyond it the longest waiting are left to the scheduler's own rounds.
const MOST: usize = 10_000;
/// After so long a pod is called again that could not be called; after twice as long the next time, and so on.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it becomes twice as long.
const DOUBLINGS: u32 = 6;

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
    /// How often it could not be called.
    pub failures: u32,
}

/// A pod that was called, until it is known that it was.
#[derive(Debug)]
struct Called {
    waiter: Waiter,
    node: NodeName,
    /// When it waits again, where it could not be called.
    again: Option<Instant>,
}

/// The pods that wait, the longest waiting first, and the nodes that changed since they were looked at.
#[derive(Debug, Default)]
pub struct Waiting {
    pods: VecDeque<Waiter>,
    changed: BTreeSet<NodeName>,
    called: HashMap<PodUid, Called>,
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
        self.keep(Waiter { uid, key, ask, offered, held_back, failures: 0 });
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
        self.called.remove(uid);
    }

    /// A pod is called, because there is room on a node.
    pub fn call(&mut self, waiter: Waiter, node: &NodeName) {
        let called = Called { waiter, node: node.clone(), again: None };
        self.called.insert(called.waiter.uid.clone(), called);
    }

    /// A pod was called.
    pub fn was_called(&mut self, uid: &PodUid) {
        self.called.remove(uid);
    }

    /// A pod could not be called. If nothing has become of it meanwhile, it waits again after a pause.
    pub fn was_not_called(&mut self, uid: &PodUid, now: Instant) {
        let Some(called) = self.called.get_mut(uid) else { return };
        called.again = Some(now + PAUSE * 2_u32.pow(called.waiter.failures.min(DOUBLINGS)));
        called.waiter.failures = called.waiter.failures.saturating_add(1);
    }

    /// Lets those wait again that could not be called a while ago, each as if its node had changed.
    pub fn call_again(&mut self, now: Instant) {
        let due: Vec<Called> = self
            .called
            .extract_if(|_, called| called.again.is_some_and(|at| at <= now))
            .map(|(_, called)| called)
            .collect();
        for Called { waiter, node, .. } in due {
            self.changed(&node);
            self.keep(waiter);
        }
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
