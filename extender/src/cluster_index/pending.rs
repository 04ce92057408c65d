//! Why pods are pending. For metrics alone: no decision reads it.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::metrics::PendingReason;
use crate::pod::{Counted, KnownPod};
use hashbrown::HashMap;
use kerf_core::names::PodUid;
use std::sync::Arc;

/// A pod that is pending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its UID.
    pub uid: PodUid,
    /// By what it is counted.
    pub counted: Counted,
    /// Why.
    pub reason: PendingReason,
}

impl ClusterIndex {
    /// The admitted pods that are not bound yet.
    pub fn pending(&mut self) -> Vec<Pending> {
        let unasked = self.unasked();
        let held_back: HashMap<&PodUid, bool> =
            self.waiting.pods().map(|waiter| (&waiter.uid, waiter.held_back)).collect();
        let reason = |pod: &KnownPod| {
            let uid = &pod.uid;
            if pod.gated {
                return PendingReason::Gated;
            }
            if self.place_of(uid).is_some() || self.is_posting(uid) {
                return PendingReason::Reserved;
            }
            match held_back.get(uid) {
                Some(true) => PendingReason::Quota,
                Some(false) => PendingReason::Full,
                // It is expected on a node, or was not asked about.
                None => unasked.get(uid).copied().unwrap_or(PendingReason::Room),
            }
        };
        let pods = self.demand.pods().filter_map(|uid| self.pods.get(uid));
        let pods = pods.filter(|pod| pod.node.is_none() && !pod.ended && !pod.deleting);
        pods.map(|pod| Pending { uid: pod.uid.clone(), counted: pod.counted, reason: reason(pod) }).collect()
    }

    /// Those about which the scheduler did not ask, or not since there may be room for them. Nodes are asked once for all
    /// pods of a template.
    fn unasked(&mut self) -> HashMap<PodUid, PendingReason> {
        let mut chances: HashMap<Arc<str>, Option<(Ask, PendingReason)>> = HashMap::new();
        let mut found = HashMap::new();
        for KnownPod { uid, request, facts, .. } in self.not_asked_about() {
            let Some(text) = request else { continue };
            let chance = chances.entry(text).or_insert_with_key(|text| {
                let ask = Ask::read(Some(text)).ok()?;
                let chance = self.chance(&uid, &ask);
                Some((ask, chance))
            });
            let Some((ask, chance)) = chance.clone() else { continue };
            let is_within = self.within_quota(&ask.of(facts)).is_ok();
            found.insert(uid, if is_within { chance } else { PendingReason::Quota });
        }
        found
    }

    fn chance(&mut self, uid: &PodUid, ask: &Ask) -> PendingReason {
        let has_room = self.open_nodes().iter().any(|name| self.cost(name.as_str(), uid, ask).is_ok());
        if has_room {
            PendingReason::Room
        } else if self.may_be_served(uid, ask) {
            PendingReason::Full
        } else {
            PendingReason::Never
        }
    }
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
