//! Whether a pod has a place on a node once others have left it, which is what kube-scheduler's preemption asks.
//!
//! A leaving pod already counts as gone: one that is being deleted, and one that is gone although the agent has not
//! reported its slices as free. For a pod that waits for CPU the scheduler asks when another pod is deleted, and not
//! when an agent reports a slice. So a "not yet" in these moments would last for minutes.

use super::managed_nodes::{IndexedNode, charge};
use super::nodes::Nodes;
use super::pods::Pods;
use super::quotas::Quotas;
use crate::assumed::{AssumedPods, Leaving};
use crate::objects::ask::Ask;
use hashbrown::HashSet;
use kerf_core::contract::{
    GpuNodeSpec, GpuNodeStatus, Holder, Reservation, SliceState, SliceStatus, Wanted, WantedSlice,
};
use kerf_core::inventory::is_wanted_idle;
use kerf_core::ledger::reserved;
use kerf_core::names::{NodeName, PodKey, PodUid, SliceId};
use kerf_core::packing::{KindPlan, Refusal, fit};
use kerf_core::static_node::Devices;
use std::collections::BTreeSet;

/// The nodes as they will be once pods have left them.
#[derive(Debug, Clone, Copy)]
pub struct Preemption<'i> {
    pub(super) nodes: &'i Nodes,
    pub(super) pods: &'i Pods,
    pub(super) quotas: &'i Quotas,
    pub(super) assumed: &'i AssumedPods,
}

impl Preemption<'_> {
    /// Whether a pod's `ask` has a place on a node once the victims have left it. The quota still counts the
    /// victims' slices, because pods are not evicted for a quota.
    pub fn serves_without(
        &self,
        name: &str,
        uid: &PodUid,
        ask: &Ask,
        victims: &BTreeSet<PodUid>,
    ) -> Result<(), Refusal> {
        let Some((key, node)) = self.nodes.managed.get_key_value(name) else {
            let leaves = |other: &PodUid| other == uid || self.leaves(other, victims);
            let spot = self.nodes.unmanaged_place_without(name, ask, self.assumed, leaves)?;
            return self.quotas.admit_at(ask, self.assumed, || Ok(spot.charge));
        };
        node.serving()?;
        let fleet = self.nodes.managed.fleet();
        let spec = self.assumed.laid_over(key, &node.spec(), node.status(), fleet).into_owned();
        let mut leaving = node.reserved_pods_now();
        leaving.retain(|other| node.left().contains_key(other) || self.leaves(other, victims));
        let (spec, status) = leaving.iter().fold((spec, node.status().clone()), |(spec, status), pod| {
            Leaving { pods: vec![pod.clone()], slices: own_slices(&spec, &status, pod) }.gone(&spec, &status)
        });
        let status = without_left_pods(node, &spec, status);
        let fit = fit(&node.inventory_of(&spec, &status), &ask.document, fleet)?;
        self.quotas.admit_at(ask, self.assumed, || Ok(charge(&fit)))
    }

    /// The same for a pod that asks NVIDIA's device plugin and not kerf.
    pub fn serves_plain_without(
        &self,
        name: &str,
        uid: &PodUid,
        asked: &Devices,
        victims: &BTreeSet<PodUid>,
    ) -> Result<(), Refusal> {
        let leaves = |other: &PodUid| other == uid || self.leaves(other, victims);
        self.nodes.plain_fit_without(name, asked, leaves)
    }

    /// Whether a pod with a reservation on a node may still be bound to it.
    pub fn serves_reserved(&self, name: &NodeName) -> Result<(), Refusal> {
        self.nodes.check_serving(name)
    }

    fn leaves(&self, uid: &PodUid, victims: &BTreeSet<PodUid>) -> bool {
        victims.contains(uid) || self.pods.is_leaving(uid)
    }

    /// The first of `offered` nodes where a pod fits once the leaving pods are gone, with the kinds and the leaving
    /// pods. Places where other pods are assumed do not count as free.
    ///
    /// A controller recreates a pod milliseconds after the former one is gone. No pod needs to be evicted for it.
    pub(super) fn place_being_left(
        &self,
        ask: &Ask,
        offered: &[&str],
    ) -> Option<(NodeName, KindPlan, Leaving)> {
        let staying = self.pods.iter().filter(|pod| !pod.ended && !pod.deleting);
        let staying: HashSet<_> = staying.filter_map(|pod| Some((pod.node.as_ref()?, &pod.key))).collect();
        let fleet = self.nodes.managed.fleet();
        offered.iter().find_map(|name| {
            let (name, node) = self.nodes.managed.get_key_value(name)?;
            node.serving().ok()?;
            let leaving = self.leaving(node, |pod| staying.contains(&(name, pod)));
            if leaving == Leaving::default() {
                return None;
            }
            let spec = node.spec();
            let view = self.assumed.laid_over(name, &spec, node.status(), fleet);
            let (spec, status) = leaving.gone(&view, node.status());
            let fit = fit(&node.inventory_of(&spec, &status), &ask.document, fleet).ok()?;
            self.quotas.admit_at(ask, self.assumed, || Ok(charge(&fit))).ok()?;
            Some((name.clone(), fit.rank.plan(&ask.document)?, leaving))
        })
    }

    fn leaving(&self, node: &IndexedNode, stays: impl Fn(&PodKey) -> bool) -> Leaving {
        let is_left = |slice: &Wanted<'_>| match slice.reservation {
            Some(reservation) => {
                node.left().contains_key(reservation.uid) || self.pods.is_leaving(reservation.uid)
            }
            None => node.status().slice(slice.id).is_some_and(|observed| {
                let stays = observed.holder.as_ref().is_some_and(|holder| stays(&holder.key()));
                !stays && observed.state != SliceState::Failed && !is_wanted_idle(*slice, node.status())
            }),
        };
        let mut found = Leaving::default();
        for slice in node.wanted().filter(is_left) {
            found.slices.push(slice.id.clone());
            let reserved_for = slice.reservation.map(|reservation| reservation.uid);
            found.pods.extend(reserved_for.filter(|uid| !found.pods.contains(uid)).cloned());
        }
        found
    }
}

/// The slices that are reserved for a pod and that, by the kubelet's account, no other pod holds.
fn own_slices(spec: &GpuNodeSpec, status: &GpuNodeStatus, uid: &PodUid) -> Vec<SliceId> {
    let key = |slice: &WantedSlice| slice.reservation.as_ref().map(Reservation::key);
    let holder =
        |slice: &WantedSlice| status.slice(&slice.id).and_then(|s| s.holder.as_ref()).map(Holder::key);
    let own = reserved(spec, uid).filter(|slice| holder(slice).is_none() || holder(slice) == key(slice));
    own.map(|slice| slice.id.clone()).collect()
}

/// The status as it will be once the agent has seen the end of all pods that are gone.
fn without_left_pods(node: &IndexedNode, spec: &GpuNodeSpec, mut status: GpuNodeStatus) -> GpuNodeStatus {
    let is_free = |slice: &SliceStatus| {
        spec.slices.iter().any(|wanted| Some(&wanted.id) == slice.id.as_ref() && wanted.reservation.is_none())
    };
    for slice in &mut status.slices {
        let given_back =
            matches!(slice.state, SliceState::Preparing | SliceState::Waiting | SliceState::Ready);
        let left = match &slice.holder {
            Some(holder) => node.left().values().any(|pod| *pod == holder.key()),
            None => given_back && is_free(slice),
        };
        if left {
            (slice.state, slice.holder) = (SliceState::Idle, None);
        }
    }
    status
}
