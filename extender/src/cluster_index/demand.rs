//! What pods wait for: those that were admitted, have been promised nothing yet, and could be now.
//!
//! A pod that its namespace's quota keeps back, or that is not to be scheduled yet, takes nothing, however much room comes. Were
//! it counted, others would be sent elsewhere for its sake, and the room would stay empty.

use super::ClusterIndex;
use super::budget::Budget;
use crate::ask::Ask;
use crate::pod::KnownPod;
use hashbrown::{HashMap, HashSet};
use kerf_core::contract::{Demand, Revisions, Slices};
use kerf_core::names::{NodeName, PodUid};
use kerf_core::policy::{Charge, SupplyIndex};
use std::collections::{BTreeMap, VecDeque};

/// What was seen of pods that ask for slices.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The pods that may still wait.
    pods: HashMap<PodUid, Wish>,
    /// How many pods ever came.
    count: u64,
    /// The slices of all pods that ever came, by the replica that admitted them.
    arrived: BTreeMap<String, Slices<u64>>,
    /// Who admitted the last [`Demand::LATELY`] pods.
    lately: VecDeque<String>,
}

/// What a pod waits for.
#[derive(Debug)]
struct Wish {
    /// Which of all pods that ever came it is.
    number: u64,
    slices: Slices<u32>,
    /// What its quota is charged at least.
    charge: Charge,
}

impl Seen {
    /// The pods that may still wait.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    /// A pod is shown for the first time.
    pub fn arrived(&mut self, uid: &PodUid, ask: &Ask) {
        let slices = ask.document.slices();
        if let Some(by) = ask.document.admitted_by() {
            self.admitted(by, &slices);
        }
        self.count += 1;
        let wish = Wish { number: self.count, slices, charge: Charge::least(&ask.document) };
        self.pods.insert(uid.clone(), wish);
    }

    fn admitted(&mut self, by: &str, slices: &Slices<u32>) {
        let arrived = self.arrived.entry(by.to_owned()).or_default();
        for (name, count) in slices {
            *arrived.entry(*name).or_default() += u64::from(*count);
        }
        self.lately.push_back(by.to_owned());
        if self.lately.len() > Demand::LATELY
            && let Some(gone) = self.lately.pop_front().filter(|gone| !self.lately.contains(gone))
        {
            self.arrived.remove(&gone);
        }
    }
}

impl ClusterIndex {
    /// What pods wait for now. A pod waits until its promise is written: before that nobody else can count it as promised.
    pub fn demand(&mut self) -> Demand {
        let pods = &self.pods;
        let lives =
            |uid: &PodUid| pods.get(uid).is_some_and(|pod| pod.node.is_none() && !pod.ended && !pod.deleting);
        self.demand.pods.retain(|uid, _| lives(uid));
        let mut pending = Slices::new();
        for (name, count) in self.wishes().into_iter().flat_map(|wish| &wish.slices) {
            let all: &mut u32 = pending.entry(*name).or_default();
            *all = all.saturating_add(*count);
        }
        let arrived = self.demand.arrived.clone();
        let revisions = Some(self.revisions());
        Demand { pending, arrived, held: self.static_held(), revisions, ..Demand::of(self.epoch) }
    }

    /// What those pods wish that may be promised something, and of whom no written promise tells.
    fn wishes(&self) -> Vec<&Wish> {
        let unwritten = self.demand.pods.iter().filter(|(uid, _)| !self.is_written(uid));
        let unwritten = unwritten.filter_map(|(uid, wish)| Some((uid, self.pods.get(uid)?, wish)));
        let mut wishes: Vec<_> = unwritten.filter(|(_, pod, _)| !pod.gated).collect();
        if self.quotas.is_limited() {
            self.leave_to_quotas(&mut wishes);
        }
        wishes.into_iter().map(|(_, _, wish)| wish).collect()
    }

    /// Leaves out those that quotas keep back: of pods that may have some of what is left, those that came last. What pods are
    /// promised is charged already.
    fn leave_to_quotas(&self, wishes: &mut Vec<(&PodUid, &KnownPod, &Wish)>) {
        let held_back = self.waiting.pods().filter(|waiter| waiter.held_back).map(|waiter| &waiter.uid);
        let held_back: HashSet<&PodUid> = held_back.collect();
        let mut budget = Budget::of(&self.quotas);
        wishes.sort_unstable_by_key(|(_, _, wish)| wish.number);
        wishes.retain(|(uid, pod, wish)| {
            self.place_of(uid).is_some() || !held_back.contains(uid) && budget.admits(pod, wish.charge)
        });
    }

    /// Whether a promise to a pod is written, or needs no writing.
    fn is_written(&self, uid: &PodUid) -> bool {
        let node = self.places.get(uid).and_then(|place| self.nodes.get(place));
        self.statics.promised(uid).is_some()
            || node.is_some_and(|node| node.spec.as_ref().is_ok_and(|spec| spec.is_committed(uid)))
    }

    fn revisions(&self) -> Revisions {
        let revision = |(name, node): (&NodeName, &super::node::IndexedNode)| {
            let revision = node.spec.as_ref().ok()?.committed().revision;
            (revision > 0).then(|| (name.clone(), revision))
        };
        self.nodes.iter().filter_map(revision).collect()
    }

    /// Tells `supply` what the nodes have now, promises that are not written yet included.
    pub fn show_supply(&self, supply: &mut SupplyIndex) {
        supply.retain(|name: &NodeName| self.nodes.contains_key(name));
        supply.retain_shut(|name| self.shut.contains(name));
        for (name, node) in &self.nodes {
            if let (Some(spec), Ok(status)) = (node.working(), &node.status) {
                let open = node.serving().is_ok();
                supply.show(name.clone(), spec, status, open);
            } else {
                supply.remove(name);
                supply.claim(name.clone());
            }
        }
        supply.retain_static(|name| self.is_static(name));
        for name in self.statics.names().filter(|name| self.is_static(name)) {
            supply.show_static(name.clone(), self.static_node(name.as_str()).cloned());
        }
        for name in &self.shut {
            supply.show_shut(name.clone(), true);
        }
    }
}

#[cfg(test)]
#[path = "demand_tests.rs"]
mod tests;
