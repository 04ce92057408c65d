//! Places that are just being left: by pods that are being deleted, and by pods that are gone although the agent has
//! not reported it yet.
//!
//! A controller recreates a pod milliseconds after the former one is gone. No pod needs to be evicted for it.

use super::{ClusterIndex, IndexedNode};
use crate::ask::Ask;
use crate::assumed::Leaving;
use hashbrown::HashSet;
use kerf_core::contract::{SliceState, Wanted};
use kerf_core::inventory::is_wanted_idle;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Fit, KindPlan, fit};
use kerf_core::quota::Charge;

impl ClusterIndex {
    /// The first of `offered` nodes where a pod fits once the leaving pods are gone, with the kinds and the leaving
    /// pods. Places where other pods are assumed stay theirs.
    pub(super) fn place_being_left(
        &self,
        ask: &Ask,
        offered: &[&str],
    ) -> Option<(NodeName, KindPlan, Leaving)> {
        let staying = self.pods.values().filter(|pod| !pod.ended && !pod.deleting);
        let staying: HashSet<_> = staying.filter_map(|pod| Some((pod.node.as_ref()?, &pod.key))).collect();
        offered.iter().find_map(|name| {
            let (name, node) = self.nodes.get_key_value(name)?;
            node.serving().ok()?;
            let leaving = self.leaving(node, |pod| staying.contains(&(name, pod)));
            if leaving == Leaving::default() {
                return None;
            }
            let spec = node.spec();
            let view = self.lead.assumed.laid_over(name, &spec, &node.status, &self.fleet);
            let (spec, status) = leaving.gone(&view, &node.status);
            let fit = fit(&node.inventory_of(&spec, &status), &ask.document, &self.fleet).ok()?;
            self.within_quota_for(ask, charge(&fit)).ok()?;
            Some((name.clone(), fit.rank.plan(&ask.document)?, leaving))
        })
    }

    /// Whether a pod is giving its slices on the node back: it is being deleted or gone, and the agent has not reported
    /// it yet. A hidden pod counts too. It was deleted at once, or lost its label, and a lookup will soon say which.
    pub(super) fn is_leaving(&self, node: &IndexedNode, uid: &PodUid) -> bool {
        node.left.contains_key(uid)
            || self.hidden.contains(uid)
            || self.pods.get(uid).is_some_and(|pod| pod.deleting)
    }

    fn leaving(&self, node: &IndexedNode, stays: impl Fn(&PodKey) -> bool) -> Leaving {
        let is_left = |slice: &Wanted<'_>| match slice.reservation {
            Some(reservation) => self.is_leaving(node, reservation.uid),
            None => node.status.slice(slice.id).is_some_and(|observed| {
                let stays = observed.holder.as_ref().is_some_and(|holder| stays(&holder.key()));
                !stays && observed.state != SliceState::Failed && !is_wanted_idle(*slice, &node.status)
            }),
        };
        let mut found = Leaving::default();
        for slice in node.wanted().filter(is_left) {
            found.slices.push(slice.id.clone());
            let promised_to = slice.reservation.map(|reservation| reservation.uid);
            found.pods.extend(promised_to.filter(|uid| !found.pods.contains(uid)).cloned());
        }
        found
    }
}

/// What a pod is charged for a place.
pub(super) fn charge(fit: &Fit) -> Charge {
    fit.slices.iter().map(|slice| Charge::of_slice(slice.resource, slice.shape)).sum()
}
