//! Whether a pod has a place on a node once others have left it, which is what kube-scheduler's preemption asks.
//!
//! A leaving pod already counts as gone: one that is being deleted, and one that is gone although the agent has not
//! reported its slices as free. For a pod that waits for CPU the scheduler asks when another pod is deleted, and not
//! when an agent reports a slice. So a "not yet" in these moments would last for minutes.

use super::leaving::charge;
use super::{ClusterIndex, IndexedNode};
use crate::ask::Ask;
use crate::assumed::Leaving;
use hashbrown::HashMap;
use kerf_core::contract::{
    GpuNodeSpec, GpuNodeStatus, Holder, Reservation, SliceState, SliceStatus, WantedSlice,
};
use kerf_core::ledger::reserved;
use kerf_core::names::{NodeName, PodKey, PodUid, SliceId};
use kerf_core::packing::{Refusal, fit};
use kerf_core::static_node::Devices;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The shortest interval between two Events about one pod.
const QUIET: Duration = Duration::from_mins(1);

/// The last Event about each pod, and its time.
#[derive(Debug, Default)]
pub(super) struct Told(HashMap<PodUid, (String, Instant)>);

impl Told {
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.0.remove(uid);
    }
}

/// A pod that no other pod is preempted for, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NobodyPreempted {
    pub uid: PodUid,
    pub pod: PodKey,
    pub note: String,
}

impl ClusterIndex {
    /// Whether a pod's `ask` has a place on a node once the victims have left it. What victims hold of a quota still
    /// counts, because pods are not evicted for a quota.
    pub fn serves_without(
        &self,
        name: &str,
        uid: &PodUid,
        ask: &Ask,
        victims: &BTreeSet<PodUid>,
    ) -> Result<(), Refusal> {
        let Some((key, node)) = self.nodes.get_key_value(name) else {
            let leaves = |other: &PodUid| other == uid || self.leaves_static(other, victims);
            return self.within_quota_for(ask, self.spot_without(name, ask, leaves)?.charge);
        };
        node.serving()?;
        let spec = self.lead.assumed.laid_over(key, &node.spec(), &node.status, &self.fleet).into_owned();
        let mut leaving = node.promised_now();
        leaving.retain(|other| victims.contains(other) || self.is_leaving(node, other));
        let (spec, status) = leaving.iter().fold((spec, node.status.clone()), |(spec, status), pod| {
            Leaving { pods: vec![pod.clone()], slices: own_slices(&spec, &status, pod) }.gone(&spec, &status)
        });
        let status = without_those_who_left(node, &spec, status);
        let fit = fit(&node.inventory_of(&spec, &status), &ask.document, &self.fleet)?;
        self.within_quota_for(ask, charge(&fit))
    }

    /// The same for a pod that asks NVIDIA's device plugin and not kerf.
    pub fn serves_plain_without(
        &self,
        name: &str,
        uid: &PodUid,
        asked: &Devices,
        victims: &BTreeSet<PodUid>,
    ) -> Result<(), Refusal> {
        let leaves = |other: &PodUid| other == uid || self.leaves_static(other, victims);
        self.plain_fit_without(name, asked, leaves).map(drop)
    }

    /// Whether a pod with a reservation on a node may still be bound to it.
    pub fn keeps_promises(&self, name: &NodeName) -> Result<(), Refusal> {
        match self.nodes.get(name) {
            Some(node) => node.serving(),
            None => self.open_node(name.as_str()).map(drop),
        }
    }

    /// Whether a node was among those that refused a pod in its last filter.
    #[must_use]
    pub fn was_refused_by(&self, uid: &PodUid, node: &NodeName) -> bool {
        self.lead.unschedulable.was_offered(uid, node)
    }

    /// Handles a pod that no other pod is preempted for. It gets an Event if the reason has changed, at most once a
    /// minute.
    pub fn spared(&mut self, uid: &PodUid, pod: &PodKey, note: String, now: Instant) {
        let told = self.lead.told.0.get(uid);
        if told.is_none_or(|(before, at)| *before != note && now.saturating_duration_since(*at) >= QUIET) {
            self.lead.told.0.insert(uid.clone(), (note.clone(), now));
            let (uid, pod) = (uid.clone(), pod.clone());
            self.effects.nobody_preempted.push(NobodyPreempted { uid, pod, note });
        }
    }

    fn leaves_static(&self, uid: &PodUid, victims: &BTreeSet<PodUid>) -> bool {
        victims.contains(uid)
            || self.hidden.contains(uid)
            || self.pods.get(uid).is_some_and(|pod| pod.deleting)
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
fn without_those_who_left(
    node: &IndexedNode,
    spec: &GpuNodeSpec,
    mut status: GpuNodeStatus,
) -> GpuNodeStatus {
    let is_nobodys = |slice: &SliceStatus| {
        spec.slices.iter().any(|wanted| Some(&wanted.id) == slice.id.as_ref() && wanted.reservation.is_none())
    };
    for slice in &mut status.slices {
        let given_back =
            matches!(slice.state, SliceState::Preparing | SliceState::Waiting | SliceState::Ready);
        let left = match &slice.holder {
            Some(holder) => node.left.values().any(|pod| *pod == holder.key()),
            None => given_back && is_nobodys(slice),
        };
        if left {
            (slice.state, slice.holder) = (SliceState::Idle, None);
        }
    }
    status
}
