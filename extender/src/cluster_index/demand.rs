//! What pods wait for: those that were admitted and have been promised nothing yet.

use super::ClusterIndex;
use crate::ask::Ask;
use hashbrown::HashMap;
use kerf_core::contract::{Demand, Slices};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use kerf_core::policy::SupplyIndex;
use std::sync::Arc;

/// What was seen of pods that ask for slices.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The slices of pods that may still wait.
    pods: HashMap<PodUid, Arc<Slices<u32>>>,
    /// The slices of all pods that ever came.
    arrived: Slices<u64>,
}

impl Seen {
    /// A pod is shown for the first time.
    pub fn arrived(&mut self, uid: &PodUid, ask: &Ask) {
        let slices = ask.document.slices();
        for (name, count) in &slices {
            *self.arrived.entry(*name).or_default() += u64::from(*count);
        }
        self.pods.insert(uid.clone(), Arc::new(slices));
    }
}

impl ClusterIndex {
    /// What pods wait for now.
    pub fn demand(&mut self) -> Demand {
        let Self { pods, places, .. } = self;
        let lives =
            |uid: &PodUid| pods.get(uid).is_some_and(|pod| pod.node.is_none() && !pod.ended && !pod.deleting);
        self.demand.pods.retain(|uid, _| lives(uid));
        let mut demand = Demand { arrived: self.demand.arrived.clone(), ..Demand::of(self.epoch) };
        let waiting = self.demand.pods.iter().filter(|(uid, _)| !places.contains_key(*uid));
        for (name, count) in waiting.flat_map(|(_, slices)| slices.iter()) {
            let all = demand.pending.entry(*name).or_default();
            *all = all.saturating_add(*count);
        }
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
        !self.places.contains_key(uid) && !self.posting.contains(uid) && self.expected_on(uid).is_none()
    }

    /// Tells `supply` what the nodes have now, promises that are not written yet included.
    pub fn show_supply(&self, supply: &mut SupplyIndex) {
        supply.retain(|name: &NodeName| self.nodes.contains_key(name));
        for (name, node) in &self.nodes {
            match (node.working(), &node.status) {
                (Some(spec), Ok(status)) => {
                    let open = node.serving() != Err(Refusal::AgentNotReady);
                    supply.show(name.clone(), spec, status, open);
                }
                _ => drop(supply.remove(name)),
            }
        }
    }
}

#[cfg(test)]
#[path = "demand_tests.rs"]
mod tests;
