//! Pods that no node could serve, and at which nodes they looked.
//!
//! kube-scheduler looks at a refused pod again when a Pod or a Node changes, but room for slices comes and goes without
//! either: without a nudge a pod may wait minutes beside a free slice. So the pods that may now have room are called.
//!
//! Room for one pod of a template that the scheduler offered the same nodes is room for any: the longest waiting one looks for all.
//!
//! A pod keeps its turn until it has a place or is gone. The scheduler tries pods again in an order of its own, those that failed often
//! later than others, so a turn that ended with each try would let pods that came later pass again and again.
//!
//! A call may fail. Then the pod waits on, and is called again later and later: one that cannot be called is in nobody's way.

use crate::ask::Ask;
use hashbrown::HashMap;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most pods that are remembered; beyond it those that came last are left to the scheduler's own rounds.
const MOST: usize = 10_000;
/// After so long a pod is called again that could not be called; after twice as long the next time, and so on.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it becomes twice as long.
const DOUBLINGS: u32 = 6;

/// A pod's turn: who was refused earlier for the first time has a lower number.
pub type Turn = u64;

/// A pod that waits for room.
#[derive(Debug, Clone)]
struct Waiter {
    uid: PodUid,
    key: PodKey,
    group: u64,
    /// How often it could not be called.
    failures: u32,
}

/// What decides where a pod may have room.
#[derive(Debug, Clone)]
pub struct Search {
    /// What it asks for.
    pub ask: Ask,
    /// The nodes that the scheduler offered. What room others have is of no use to it.
    pub offered: Arc<BTreeSet<NodeName>>,
    /// Whether its namespace's quota was full, so that it may find room where nothing changed.
    pub held_back: bool,
}

/// Pods that wait for the same.
#[derive(Debug)]
struct Group {
    search: Search,
    turns: BTreeSet<Turn>,
}

/// A pod that was called, until it is known that it was.
#[derive(Debug)]
struct Called {
    waiter: Waiter,
    search: Search,
    node: NodeName,
    /// When it waits again, where it could not be called.
    again: Option<Instant>,
}

/// The pods that wait, and the nodes that changed since they were looked at.
#[derive(Debug, Default)]
pub struct Waiting {
    pods: BTreeMap<Turn, Waiter>,
    turns: HashMap<PodUid, Turn>,
    /// The turns of pods that were refused and have no place yet, also while they are looked at.
    firsts: HashMap<PodUid, Turn>,
    groups: HashMap<u64, Group>,
    /// The groups of each request.
    by_request: HashMap<Arc<str>, Vec<u64>>,
    /// The highest number of a turn or a group.
    last: u64,
    changed: BTreeSet<NodeName>,
    called: HashMap<PodUid, Called>,
}

impl Waiting {
    /// A pod was refused by all `offered` nodes, or held back by its namespace's quota.
    pub fn refused(&mut self, uid: PodUid, key: PodKey, ask: Ask, offered: &[&str], held_back: bool) {
        self.looked_at(&uid);
        let same = |set: &BTreeSet<NodeName>| {
            set.len() == offered.len() && offered.iter().all(|name| set.contains(*name))
        };
        let group = self.group_of(&ask, same).unwrap_or_else(|| {
            let offered = Arc::new(offered.iter().map(|name| NodeName::new(*name)).collect());
            self.add_group(Search { ask, offered, held_back })
        });
        let turn = self.firsts.get(&uid).copied().unwrap_or_else(|| self.next_turn());
        self.firsts.insert(uid.clone(), turn);
        self.keep(turn, Waiter { uid, key, group, failures: 0 }, held_back);
    }

    fn next_turn(&mut self) -> Turn {
        self.last += 1;
        self.last
    }

    fn group_of(&self, ask: &Ask, is_offered: impl Fn(&BTreeSet<NodeName>) -> bool) -> Option<u64> {
        let is_same = |group: &&u64| {
            let search = &self.groups[*group].search;
            search.ask.facts == ask.facts && is_offered(&search.offered)
        };
        self.by_request.get(&ask.text)?.iter().find(is_same).copied()
    }

    fn add_group(&mut self, search: Search) -> u64 {
        self.last += 1;
        self.by_request.entry(search.ask.text.clone()).or_default().push(self.last);
        self.groups.insert(self.last, Group { search, turns: BTreeSet::new() });
        self.last
    }

    /// A pod waits for its turn.
    fn keep(&mut self, turn: Turn, waiter: Waiter, held_back: bool) {
        if let Some(group) = self.groups.get_mut(&waiter.group) {
            group.search.held_back = held_back;
            group.turns.insert(turn);
        }
        self.turns.insert(waiter.uid.clone(), turn);
        self.pods.insert(turn, waiter);
        if self.pods.len() > MOST
            && let Some((&last, _)) = self.pods.last_key_value()
            && let Some((waiter, _)) = self.remove(last)
        {
            self.firsts.remove(&waiter.uid);
        }
    }

    /// A pod waits no longer. A group ends with its last pod.
    fn remove(&mut self, turn: Turn) -> Option<(Waiter, Search)> {
        let waiter = self.pods.remove(&turn)?;
        self.turns.remove(&waiter.uid);
        let group = self.groups.get_mut(&waiter.group)?;
        group.turns.remove(&turn);
        let search = group.search.clone();
        if group.turns.is_empty() {
            self.groups.remove(&waiter.group);
            if let Some(groups) = self.by_request.get_mut(&search.ask.text) {
                groups.retain(|group| *group != waiter.group);
                if groups.is_empty() {
                    self.by_request.remove(&search.ask.text);
                }
            }
        }
        Some((waiter, search))
    }

    /// The pods that wait, and whether their quota was full, the longest waiting first.
    pub fn pods(&self) -> impl Iterator<Item = (&PodUid, bool)> {
        self.pods.values().map(|waiter| (&waiter.uid, self.groups[&waiter.group].search.held_back))
    }

    /// Whether a pod waits that the scheduler has offered a node.
    #[must_use]
    pub fn was_offered(&self, uid: &PodUid, node: &NodeName) -> bool {
        let waiter = self.turns.get(uid).and_then(|turn| self.pods.get(turn));
        waiter.is_some_and(|waiter| self.groups[&waiter.group].search.offered.contains(node))
    }

    /// A pod has a place or is gone.
    pub fn forget(&mut self, uid: &PodUid) {
        self.looked_at(uid);
        self.firsts.remove(uid);
    }

    /// A pod is being looked at. If it is refused again it has its turn still.
    pub fn looked_at(&mut self, uid: &PodUid) {
        if let Some(turn) = self.turns.get(uid).copied() {
            self.remove(turn);
        }
        self.called.remove(uid);
    }

    /// The turn of a pod, if it waits.
    #[must_use]
    pub fn turn_of(&self, uid: &PodUid) -> Option<Turn> {
        self.turns.get(uid).copied()
    }

    /// The longest waiting pod of each group.
    pub fn first_of_each(&self) -> impl Iterator<Item = Turn> {
        self.groups.values().filter_map(|group| group.turns.first().copied())
    }

    /// The pod that waits next in the group of this turn's.
    #[must_use]
    pub fn next_of(&self, turn: Turn) -> Option<Turn> {
        let group = self.groups.get(&self.pods.get(&turn)?.group)?;
        group.turns.range(turn + 1..).next().copied()
    }

    /// Whose turn it is, and what it waits for.
    #[must_use]
    pub fn search(&self, turn: Turn) -> Option<(&PodUid, &Search)> {
        let waiter = self.pods.get(&turn)?;
        Some((&waiter.uid, &self.groups.get(&waiter.group)?.search))
    }

    /// Notes whether the quota was full for the pods of a turn's group when they were looked at.
    pub fn note_held_back(&mut self, turn: Turn, held_back: bool) {
        if let Some(group) = self.pods.get(&turn).and_then(|waiter| self.groups.get_mut(&waiter.group)) {
            group.search.held_back = held_back;
        }
    }

    /// A pod is called, because there is room on a node. Its name, and what it asks for.
    pub fn call(&mut self, turn: Turn, node: &NodeName) -> Option<(PodUid, PodKey, Ask)> {
        let (waiter, search) = self.remove(turn)?;
        let called = (waiter.uid.clone(), waiter.key.clone(), search.ask.clone());
        self.called.insert(waiter.uid.clone(), Called { waiter, search, node: node.clone(), again: None });
        Some(called)
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
        for Called { waiter, search, node, .. } in due {
            self.changed(&node);
            let held_back = search.held_back;
            let same = self.group_of(&search.ask, |offered| *offered == *search.offered);
            let group = same.unwrap_or_else(|| self.add_group(search));
            // Behind the others, for whoever cannot be called is not to keep them from what is free.
            let turn = self.next_turn();
            self.keep(turn, Waiter { group, ..waiter }, held_back);
        }
    }

    /// Something changed at a node.
    pub fn changed(&mut self, node: &NodeName) {
        if !self.changed.contains(node) {
            self.changed.insert(node.clone());
        }
    }

    /// The nodes that changed since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
