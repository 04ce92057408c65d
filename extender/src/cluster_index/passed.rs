//! Which kinds a pod's policy prefers to the one that it gets, and what became of them on how many nodes. For people alone.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::destinations::is_tainted_for;
use hashbrown::HashSet;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use kerf_core::contract::PassedKind;
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::packing::{KindPlan, Refusal, plans};

/// What the scheduler asked about.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'o> {
    /// The nodes that it offered.
    pub nodes: &'o [&'o str],
    /// Whether these are all that pass its own checks. The node to which a pod is nominated it offers alone.
    pub is_complete: bool,
    /// The taints that the pod tolerates.
    pub tolerated: &'o [Toleration],
}

impl ClusterIndex {
    /// The preferred kinds that are passed over for a pod that is served by this plan.
    pub fn passed(&mut self, ask: &Ask, chosen: &KindPlan, offer: Offer<'_>) -> Vec<PassedKind> {
        let better = plans(&ask.document).into_iter().take_while(|plan| plan != chosen);
        let mut by_kind: Vec<(Kind, KindPlan)> = Vec::new();
        for plan in better {
            let kind = plan.kinds().find(|(name, kind)| chosen.kind(*name) != Some(*kind));
            if let Some((_, kind)) = kind.filter(|(_, kind)| by_kind.iter().all(|(known, _)| known != kind)) {
                by_kind.push((kind, plan));
            }
        }
        if by_kind.is_empty() {
            return Vec::new();
        }
        let offered: HashSet<&str> = offer.nodes.iter().copied().collect();
        by_kind.iter().map(|(kind, plan)| self.count_passed(ask, *kind, plan, &offered, offer)).collect()
    }

    fn count_passed(
        &mut self,
        ask: &Ask,
        kind: Kind,
        plan: &KindPlan,
        offered: &HashSet<&str>,
        offer: Offer<'_>,
    ) -> PassedKind {
        let mut passed = PassedKind { kind, full: 0, never: 0, excluded: 0, tainted: 0 };
        let Self { nodes, tentatives, fleet, taints, .. } = self;
        for (name, node) in nodes {
            let is_offered = offered.contains(name.as_str());
            if !is_offered && !offer.is_complete {
                continue;
            }
            match node.place_by(name, ask, plan, tentatives, fleet) {
                Err(Refusal::NoRoom) => passed.full += 1,
                Err(
                    Refusal::NeverFits
                    | Refusal::NotSelected
                    | Refusal::CountNeverFits
                    | Refusal::TooFewGpus
                    | Refusal::OneReplica,
                ) if is_offered => passed.never += 1,
                Ok(()) if !is_offered => {
                    passed.excluded += 1;
                    passed.tainted += u32::from(is_tainted(taints, name, offer.tolerated));
                }
                // An offered node that could serve the plan is refused for the namespace's quota; one without a working agent serves none.
                Ok(()) | Err(_) => {}
            }
        }
        passed
    }
}

fn is_tainted(
    taints: &hashbrown::HashMap<NodeName, Vec<Taint>>,
    name: &NodeName,
    tolerated: &[Toleration],
) -> bool {
    taints.get(name).is_some_and(|taints| is_tainted_for(taints, tolerated))
}

#[cfg(test)]
#[path = "passed_tests.rs"]
mod tests;
