//! The kinds that a pod's policy prefers to the one that it gets, and why nodes do not serve them. The result is for
//! people only.

use super::node_objects::NodeObjects;
use super::scheduling::Scheduling;
use crate::destinations::is_tainted_for;
use crate::objects::ask::Ask;
use hashbrown::HashSet;
use k8s_openapi::api::core::v1::Toleration;
use kerf_core::contract::PassedKind;
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::packing::{KindPlan, SchedulerVerdict};

/// What the scheduler's request offered.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'o> {
    pub nodes: &'o [&'o str],
    /// Whether these are all nodes that pass its own checks. They are not for a nominated pod: the scheduler offers its
    /// node alone.
    pub is_complete: bool,
    pub tolerated: &'o [Toleration],
}

impl Scheduling<'_> {
    /// The preferred kinds that are passed over for a pod that this plan serves.
    pub fn passed(&mut self, ask: &Ask, chosen: &KindPlan, offer: Offer<'_>) -> Vec<PassedKind> {
        let preferred = chosen.preferred(&ask.document);
        if preferred.is_empty() {
            return Vec::new();
        }
        let offered: HashSet<&str> = offer.nodes.iter().copied().collect();
        preferred.iter().map(|(kind, plan)| self.count_passed(ask, *kind, plan, &offered, offer)).collect()
    }

    fn count_passed(
        &mut self,
        ask: &Ask,
        kind: Kind,
        plan: &KindPlan,
        offered: &HashSet<&str>,
        offer: Offer<'_>,
    ) -> PassedKind {
        let mut passed = PassedKind::new(kind);
        let verdict = |name: &NodeName| match offered.contains(name.as_str()) {
            true => Some(SchedulerVerdict::Offered),
            false if !offer.is_complete => None,
            false if is_tainted(self.objects, name, offer.tolerated) => Some(SchedulerVerdict::Tainted),
            false => Some(SchedulerVerdict::Excluded),
        };
        for (verdict, place) in self.nodes.managed.places_by(ask, plan, self.assumed, verdict) {
            passed.count(place, verdict);
        }
        passed
    }
}

fn is_tainted(objects: &NodeObjects, name: &NodeName, tolerated: &[Toleration]) -> bool {
    objects.taints(name).is_some_and(|taints| is_tainted_for(taints, tolerated))
}

#[cfg(test)]
#[path = "preferred_kinds_tests.rs"]
mod tests;
