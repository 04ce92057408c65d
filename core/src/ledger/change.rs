//! An agent's report of its node, and the differences that update a copy of it.

use crate::contract::{
    Condition, GpuNodeSpec, GpuNodeStatus, GpuStatus, NodePolicy, Reservation, SliceReservation, SliceStatus,
    WantedSlice,
};
use crate::names::SliceId;
use crate::units::SizeGb;
use std::collections::{BTreeMap, BTreeSet};

/// The whole report of an agent about its node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeState {
    /// The status of the node, without the summary, which only people read.
    pub status: GpuNodeStatus,
    /// The policy that is in force on the node.
    pub policy: NodePolicy,
    /// Why the agent accepts no reservation now; `None` while it does.
    pub closed: Option<String>,
}

impl NodeState {
    /// The desired slices of the node, as its agent reports them.
    #[must_use]
    pub fn desired(&self) -> GpuNodeSpec {
        desired(&self.status, &self.policy)
    }
}

/// The desired slices of a node with this status, under the policy in force there.
#[must_use]
pub fn desired(status: &GpuNodeStatus, policy: &NodePolicy) -> GpuNodeSpec {
    let slices = &status.slices;
    // Leaving slices count too, because a new name for a proposal's place must not be in the status already.
    let numbers = slices.iter().filter_map(|slice| number(slice.id.as_ref()?));
    GpuNodeSpec {
        next_slice: numbers.max().unwrap_or_default(),
        slices: slices.iter().filter_map(desired_slice).collect(),
        policy: policy.clone(),
        ..GpuNodeSpec::default()
    }
}

/// The number in the name of a slice.
pub(super) fn number(id: &SliceId) -> Option<u64> {
    id.as_str().strip_prefix('s')?.parse().ok()
}

fn desired_slice(slice: &SliceStatus) -> Option<WantedSlice> {
    let id = slice.id.clone().filter(|_| !slice.leaving)?;
    let reservation = slice.reservation.as_ref().map(reservation);
    Some(WantedSlice { id, gpu: slice.gpu.clone(), shape: slice.shape, reservation })
}

fn reservation(reported: &SliceReservation) -> Reservation {
    let SliceReservation { uid, namespace, pod, container, resource, alone, binding: _ } = reported.clone();
    // Only the agent needs the leader's epoch of a reservation, so the report omits it.
    Reservation { uid, namespace, pod, container, resource, alone, epoch: 0 }
}

/// The key that distinguishes a slice from the others of its node while it is reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey(String);

impl SliceKey {
    /// Takes a key from a message as it is.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key of a reported slice.
    #[must_use]
    pub fn from_slice(slice: &SliceStatus) -> Self {
        Self(match (&slice.id, &slice.device) {
            // The shape is part of the key, because an orphaned share may have the ID of a slice of another shape.
            (Some(id), _) => format!("{id} {}", slice.shape),
            (None, Some(device)) => device.to_string(),
            (None, None) => format!("{} {}", slice.gpu, slice.shape),
        })
    }

    /// The text of the key, as messages carry it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The changes between two versions of a [`NodeState`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// New and changed slices, each complete.
    pub slices: Vec<SliceStatus>,
    /// The keys of slices that do not exist any longer.
    pub gone: Vec<SliceKey>,
    /// All GPUs; `None` if none has changed.
    pub gpus: Option<Vec<GpuStatus>>,
    /// The policy in force; `None` if it has not changed.
    pub policy: Option<NodePolicy>,
    /// All conditions; `None` if none has changed.
    pub conditions: Option<Vec<Condition>>,
    /// The largest registered neutral name, [`SizeGb::ANY`] for none; `None` if it has not changed.
    pub neutral_up_to: Option<SizeGb>,
    /// Why the agent accepts no reservation, empty while it does; `None` if that has not changed.
    pub closed: Option<String>,
}

/// The change that turns a copy of `from` into one of `to`. From [`NodeState::default`] it contains everything in `to`.
/// An agent computes it when its stream takes the next message, so that a slow reader gets fewer and larger changes
/// instead of a queue.
#[must_use]
pub fn difference(from: &NodeState, to: &NodeState) -> Change {
    let (old, new) = (by_key(&from.status), by_key(&to.status));
    let slices = new.iter().filter(|(key, slice)| old.get(*key) != Some(*slice));
    let changed = |is: bool| is.then_some(());
    let (before, after) = (&from.status, &to.status);
    Change {
        slices: slices.map(|(_, slice)| (*slice).clone()).collect(),
        gone: old.keys().filter(|key| !new.contains_key(*key)).cloned().collect(),
        gpus: changed(before.gpus != after.gpus).map(|()| after.gpus.clone()),
        policy: changed(from.policy != to.policy).map(|()| to.policy.clone()),
        conditions: changed(before.conditions != after.conditions).map(|()| after.conditions.clone()),
        neutral_up_to: changed(before.neutral_up_to != after.neutral_up_to)
            .map(|()| after.neutral_up_to.unwrap_or(SizeGb::ANY)),
        closed: changed(from.closed != to.closed).map(|()| to.closed.clone().unwrap_or_default()),
    }
}

fn by_key(status: &GpuNodeStatus) -> BTreeMap<SliceKey, &SliceStatus> {
    status.slices.iter().map(|slice| (SliceKey::from_slice(slice), slice)).collect()
}

/// Makes a slice share the names that its node repeats, because a leader has a copy of every node.
fn share_names(slice: &mut SliceStatus, gpus: &[GpuStatus]) {
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == slice.gpu) {
        slice.gpu = gpu.uuid.clone();
    }
    if let (Some(uid), Some(reservation)) = (&mut slice.ready_for, &slice.reservation)
        && *uid == reservation.uid
    {
        *uid = reservation.uid.clone();
    }
}

impl Change {
    /// Whether the change contains nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Updates a copy of the node. New slices come last, because their order has no meaning.
    pub fn apply(self, state: &mut NodeState) {
        let gone: BTreeSet<SliceKey> = self.gone.into_iter().collect();
        let mut new: BTreeMap<SliceKey, SliceStatus> =
            self.slices.into_iter().map(|slice| (SliceKey::from_slice(&slice), slice)).collect();
        let status = &mut state.status;
        if let Some(gpus) = self.gpus {
            status.gpus = gpus;
        }
        for slice in new.values_mut() {
            share_names(slice, &status.gpus);
        }
        if !gone.is_empty() {
            status.slices.retain(|slice| !gone.contains(&SliceKey::from_slice(slice)));
        }
        for slice in &mut status.slices {
            if let Some(changed) = new.remove(&SliceKey::from_slice(slice)) {
                *slice = changed;
            }
        }
        // A leader has a copy of every node, so spare capacity in each of them would add up.
        status.slices.reserve_exact(new.len());
        status.slices.extend(new.into_values());
        if let Some(conditions) = self.conditions {
            status.conditions = conditions;
        }
        if let Some(size) = self.neutral_up_to {
            status.neutral_up_to = Some(size).filter(|size| *size != SizeGb::ANY);
        }
        if let Some(policy) = self.policy {
            state.policy = policy;
        }
        if let Some(why) = self.closed {
            state.closed = Some(why).filter(|why| !why.is_empty());
        }
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
