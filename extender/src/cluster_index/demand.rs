//! What pods wait for: those that were admitted and have been promised nothing yet.

use super::ClusterIndex;
use crate::ask::Ask;
use hashbrown::HashMap;
use kerf_core::contract::{Demand, Slices};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::policy::SupplyIndex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What was seen of pods that ask for slices.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The slices of pods that may still wait.
    pods: HashMap<PodUid, Arc<Slices<u32>>>,
    /// The slices of all pods that ever came, by the replica that admitted them.
    arrived: BTreeMap<String, Slices<u64>>,
    /// Who admitted the last [`Demand::LATELY`] pods.
    lately: VecDeque<String>,
}

impl Seen {
    /// A pod is shown for the first time.
    pub fn arrived(&mut self, uid: &PodUid, ask: &Ask) {
        let slices = ask.document.slices();
        if let Some(by) = ask.document.admitted_by() {
            self.admitted(by, &slices);
        }
        self.pods.insert(uid.clone(), Arc::new(slices));
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
        let held = self.static_held();
        let Self { pods, places, nodes, statics, .. } = self;
        let lives =
            |uid: &PodUid| pods.get(uid).is_some_and(|pod| pod.node.is_none() && !pod.ended && !pod.deleting);
        self.demand.pods.retain(|uid, _| lives(uid));
        let mut demand = Demand { arrived: self.demand.arrived.clone(), held, ..Demand::of(self.epoch) };
        let is_promised = |uid: &PodUid| {
            let node = places.get(uid).and_then(|place| nodes.get(place));
            statics.promised(uid).is_some()
                || node.is_some_and(|node| node.spec.as_ref().is_ok_and(|spec| spec.is_committed(uid)))
        };
        let waiting = self.demand.pods.iter().filter(|(uid, _)| !is_promised(uid));
        for (name, count) in waiting.flat_map(|(_, slices)| slices.iter()) {
            let all = demand.pending.entry(*name).or_default();
            *all = all.saturating_add(*count);
        }
        let revision = |(name, node): (&NodeName, &super::node::IndexedNode)| {
            let revision = node.spec.as_ref().ok()?.committed().revision;
            (revision > 0).then(|| (name.clone(), revision))
        };
        demand.revisions = Some(nodes.iter().filter_map(revision).collect());
        demand
    }

    /// The pods that have been refused and wait, but for those whose quota is full or that are expected somewhere.
    #[must_use]
    pub fn refused_pods(&self) -> Vec<(PodUid, PodKey, Ask)> {
        let waiters = self.waiting.pods().filter(|waiter| !waiter.held_back && self.may_wait(&waiter.uid));
        waiters.map(|waiter| (waiter.uid.clone(), waiter.key.clone(), waiter.ask.clone())).collect()
    }

    /// Whether a pod has nothing yet, and is expected nowhere.
    #[must_use]
    pub fn may_wait(&self, uid: &PodUid) -> bool {
        self.place_of(uid).is_none() && !self.is_posting(uid) && self.expected_on(uid).is_none()
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
