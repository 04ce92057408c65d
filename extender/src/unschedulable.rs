//! Unschedulable pods, and the nodes that the scheduler offered them.
//!
//! kube-scheduler retries a refused pod when a Pod or a Node changes, but slices become free without such a change. A
//! pod could then be pending for minutes beside a free slice. So the extender requeues the pods that may have room now.
//!
//! Pods of one template that were offered the same nodes have room if one of them has. So only the longest pending pod
//! of such a group is checked.
//!
//! A pod keeps its turn until it has a place or is gone. The scheduler retries pods in its own order, and those that
//! failed often come later. If a turn ended with each try, pods that came later would overtake such a pod again and
//! again.
//!
//! A requeue may fail. The pod is then requeued again, after pauses that grow, so that it does not block other pods.

use crate::objects::ask::Ask;
use hashbrown::HashMap;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most pods that are remembered. Beyond it the last ones are forgotten, and the scheduler retries them on its own.
const POD_LIMIT: usize = 10_000;
/// The first pause after a failed requeue; it doubles with each failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How many times the pause doubles.
const DOUBLINGS: u32 = 6;

/// A pod's turn. The earlier its first refusal, the lower the number.
pub type Turn = u64;

/// A pod that is pending for room.
#[derive(Debug, Clone)]
struct PendingPod {
    uid: PodUid,
    key: PodKey,
    group: u64,
    /// How many requeues of the pod have failed.
    failures: u32,
}

/// What decides where a pod may have room.
#[derive(Debug, Clone)]
pub struct Search {
    pub ask: Ask,
    /// The nodes that the scheduler offered. Room on other nodes is of no use to the pod.
    pub offered: Arc<BTreeSet<NodeName>>,
    /// Whether its namespace's quota was full. Then the pod may have room without any change of a node.
    pub held_back: bool,
}

/// Pods with the same request that were offered the same nodes.
#[derive(Debug)]
struct Group {
    search: Search,
    turns: BTreeSet<Turn>,
}

/// A pod that is being requeued, until the result is known.
#[derive(Debug)]
struct Called {
    pending: PendingPod,
    search: Search,
    node: NodeName,
    /// When the pod is in line again, if the requeue failed.
    again: Option<Instant>,
}

/// The pending pods, and the nodes that changed since the last check.
#[derive(Debug, Default)]
pub struct Unschedulable {
    pods: BTreeMap<Turn, PendingPod>,
    turns: HashMap<PodUid, Turn>,
    /// The turns of pods that were refused and have no place yet, even while a filter decides about them.
    firsts: HashMap<PodUid, Turn>,
    groups: HashMap<u64, Group>,
    /// The groups of each request's text.
    by_request: HashMap<Arc<str>, Vec<u64>>,
    /// The highest number so far of a turn or a group.
    last: u64,
    changed: BTreeSet<NodeName>,
    called: HashMap<PodUid, Called>,
    /// Whether the pods that a former leader refused were taken over.
    has_adopted: bool,
}

impl Unschedulable {
    /// Whether the pods that a former leader refused are still to be taken over. From then on they count as such.
    pub fn adopt(&mut self) -> bool {
        !std::mem::replace(&mut self.has_adopted, true)
    }

    /// Adds a pod that all `offered` nodes refused, or that its namespace's quota held back.
    pub fn refused(&mut self, uid: &PodUid, key: &PodKey, ask: &Ask, offered: &[&str], held_back: bool) {
        self.looked_at(uid);
        let same = |set: &BTreeSet<NodeName>| {
            set.len() == offered.len() && offered.iter().all(|name| set.contains(*name))
        };
        let group = self.group_of(ask, same).unwrap_or_else(|| {
            let offered = Arc::new(offered.iter().map(|name| NodeName::new(*name)).collect());
            self.add_group(Search { ask: ask.clone(), offered, held_back })
        });
        let turn = self.firsts.get(uid).copied().unwrap_or_else(|| self.next_turn());
        self.firsts.insert(uid.clone(), turn);
        let pending = PendingPod { uid: uid.clone(), key: key.clone(), group, failures: 0 };
        self.keep(turn, pending, held_back);
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

    /// Puts a pod in line.
    fn keep(&mut self, turn: Turn, pending: PendingPod, held_back: bool) {
        if let Some(group) = self.groups.get_mut(&pending.group) {
            group.search.held_back = held_back;
            group.turns.insert(turn);
        }
        self.turns.insert(pending.uid.clone(), turn);
        self.pods.insert(turn, pending);
        if self.pods.len() > POD_LIMIT
            && let Some((&last, _)) = self.pods.last_key_value()
            && let Some((pending, _)) = self.remove(last)
        {
            self.firsts.remove(&pending.uid);
        }
    }

    /// Removes a pod from the line. A group ends with its last pod.
    fn remove(&mut self, turn: Turn) -> Option<(PendingPod, Search)> {
        let pending = self.pods.remove(&turn)?;
        self.turns.remove(&pending.uid);
        let group = self.groups.get_mut(&pending.group)?;
        group.turns.remove(&turn);
        let search = group.search.clone();
        if group.turns.is_empty() {
            self.groups.remove(&pending.group);
            if let Some(groups) = self.by_request.get_mut(&search.ask.text) {
                groups.retain(|group| *group != pending.group);
                if groups.is_empty() {
                    self.by_request.remove(&search.ask.text);
                }
            }
        }
        Some((pending, search))
    }

    /// The pending pods, longest pending first, each with whether its quota was full.
    pub fn pods(&self) -> impl Iterator<Item = (&PodUid, bool)> {
        self.pods.values().map(|pending| (&pending.uid, self.groups[&pending.group].search.held_back))
    }

    /// Whether a pod is pending and the scheduler has offered it this node.
    #[must_use]
    pub fn was_offered(&self, uid: &PodUid, node: &NodeName) -> bool {
        let pending = self.turns.get(uid).and_then(|turn| self.pods.get(turn));
        pending.is_some_and(|pending| self.groups[&pending.group].search.offered.contains(node))
    }

    /// Forgets a pod that has a place or is gone.
    pub fn forget(&mut self, uid: &PodUid) {
        self.looked_at(uid);
        self.firsts.remove(uid);
    }

    /// Takes a pod out of line while a filter decides about it. It keeps its turn in case it is refused again.
    pub fn looked_at(&mut self, uid: &PodUid) {
        if let Some(turn) = self.turns.get(uid).copied() {
            self.remove(turn);
        }
        self.called.remove(uid);
    }

    /// The turn of a pod, if it is in line.
    #[must_use]
    pub fn turn_of(&self, uid: &PodUid) -> Option<Turn> {
        self.turns.get(uid).copied()
    }

    /// The longest pending pod of each group.
    pub fn first_of_each(&self) -> impl Iterator<Item = Turn> {
        self.groups.values().filter_map(|group| group.turns.first().copied())
    }

    /// The next pod in the same group after this turn.
    #[must_use]
    pub fn next_of(&self, turn: Turn) -> Option<Turn> {
        let group = self.groups.get(&self.pods.get(&turn)?.group)?;
        group.turns.range(turn + 1..).next().copied()
    }

    /// The pod of a turn, and what it searches for.
    #[must_use]
    pub fn search(&self, turn: Turn) -> Option<(&PodUid, &Search)> {
        let pending = self.pods.get(&turn)?;
        Some((&pending.uid, &self.groups.get(&pending.group)?.search))
    }

    /// Records whether the quota was full at the last check of a turn's group.
    pub fn note_held_back(&mut self, turn: Turn, held_back: bool) {
        if let Some(group) = self.pods.get(&turn).and_then(|pending| self.groups.get_mut(&pending.group)) {
            group.search.held_back = held_back;
        }
    }

    /// Begins to requeue a pod, because a node has room. Returns its identity and its request.
    pub fn call(&mut self, turn: Turn, node: &NodeName) -> Option<(PodUid, PodKey, Ask)> {
        let (pending, search) = self.remove(turn)?;
        let called = (pending.uid.clone(), pending.key.clone(), search.ask.clone());
        self.called.insert(pending.uid.clone(), Called { pending, search, node: node.clone(), again: None });
        Some(called)
    }

    /// Ends a requeue that succeeded.
    pub fn was_called(&mut self, uid: &PodUid) {
        self.called.remove(uid);
    }

    /// Ends a requeue that failed. If the pod was not refused or removed meanwhile, it is in line again after a pause.
    pub fn was_not_called(&mut self, uid: &PodUid, now: Instant) {
        let Some(called) = self.called.get_mut(uid) else { return };
        called.again = Some(now + RETRY_INTERVAL * 2_u32.pow(called.pending.failures.min(DOUBLINGS)));
        called.pending.failures = called.pending.failures.saturating_add(1);
    }

    /// Puts pods whose pause is over back in line, each as if its node had changed.
    pub fn call_again(&mut self, now: Instant) {
        let due: Vec<Called> = self
            .called
            .extract_if(|_, called| called.again.is_some_and(|at| at <= now))
            .map(|(_, called)| called)
            .collect();
        for Called { pending, search, node, .. } in due {
            self.changed(&node);
            let held_back = search.held_back;
            let same = self.group_of(&search.ask, |offered| *offered == *search.offered);
            let group = same.unwrap_or_else(|| self.add_group(search));
            // It goes behind the others, because a pod that cannot be called must not keep them from free slices.
            let turn = self.next_turn();
            self.keep(turn, PendingPod { group, ..pending }, held_back);
        }
    }

    /// Records that a node has changed.
    pub fn changed(&mut self, node: &NodeName) {
        if !self.changed.contains(node) {
            self.changed.insert(node.clone());
        }
    }

    /// Takes the nodes that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
#[path = "unschedulable_tests.rs"]
mod tests;
