//! What an agent reports of its node, and the differences by which a copy of it follows.

use crate::contract::{
    Condition, GpuNodeSpec, GpuNodeStatus, GpuStatus, NodePolicy, Reservation, SliceReservation, SliceStatus,
    WantedSlice,
};
use crate::names::SliceId;
use crate::units::SizeGb;
use std::collections::{BTreeMap, BTreeSet};

/// All that an agent reports of its node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeState {
    /// What the node has, without what is for people alone: the summary, and what the agent has read of a spec.
    pub status: GpuNodeStatus,
    /// The policy in force.
    pub policy: NodePolicy,
    /// Why the agent accepts no reservation now; `None` while it does.
    pub closed: Option<String>,
}

impl NodeState {
    /// The slices that the node should have, as its agent sees it.
    #[must_use]
    pub fn desired(&self) -> GpuNodeSpec {
        let slices = &self.status.slices;
        // Also of those that are leaving: a name that is made up for a proposal's place is none that the status has.
        let numbers = slices.iter().filter_map(|slice| number(slice.id.as_ref()?));
        GpuNodeSpec {
            next_slice: numbers.max().unwrap_or_default(),
            slices: slices.iter().filter_map(desired_slice).collect(),
            policy: self.policy.clone(),
            ..GpuNodeSpec::default()
        }
    }
}

/// The number in a slice's name.
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
    // Which leader's it is matters to the agent alone.
    Reservation { uid, namespace, pod, container, resource, alone, epoch: 0 }
}

/// By what a slice of a node is told from the others while it is reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey(String);

impl SliceKey {
    /// Takes a key as it was sent.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key of a slice.
    #[must_use]
    pub fn of(slice: &SliceStatus) -> Self {
        Self(match (&slice.id, &slice.device) {
            // The shape as well: a share that was left over may carry the id of a slice of another shape.
            (Some(id), _) => format!("{id} {}", slice.shape),
            (None, Some(device)) => device.to_string(),
            (None, None) => format!("{} {}", slice.gpu, slice.shape),
        })
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What has changed in a [`NodeState`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// New or changed slices, each whole.
    pub slices: Vec<SliceStatus>,
    /// Slices that are no more.
    pub gone: Vec<SliceKey>,
    /// All GPUs; `None` if none has changed.
    pub gpus: Option<Vec<GpuStatus>>,
    /// The policy in force; `None` if it has not changed.
    pub policy: Option<NodePolicy>,
    /// All conditions; `None` if none has changed.
    pub conditions: Option<Vec<Condition>>,
    /// The largest neutral name that the kubelet knows, [`SizeGb::ANY`] for none; `None` if it has not changed.
    pub neutral_up_to: Option<SizeGb>,
    /// Why the agent accepts no reservation now, empty while it does; `None` if that has not changed.
    pub closed: Option<String>,
}

/// What turns a copy of `from` into one of `to`. From [`NodeState::default`] it is all that `to` has.
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
    status.slices.iter().map(|slice| (SliceKey::of(slice), slice)).collect()
}

impl Change {
    /// Whether nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Brings a copy up to date. New slices come last: their order says nothing.
    pub fn apply(self, state: &mut NodeState) {
        let gone: BTreeSet<SliceKey> = self.gone.into_iter().collect();
        let mut new: BTreeMap<SliceKey, SliceStatus> =
            self.slices.into_iter().map(|slice| (SliceKey::of(&slice), slice)).collect();
        let status = &mut state.status;
        status.slices.retain(|slice| !gone.contains(&SliceKey::of(slice)));
        for slice in &mut status.slices {
            if let Some(changed) = new.remove(&SliceKey::of(slice)) {
                *slice = changed;
            }
        }
        status.slices.extend(new.into_values());
        if let Some(gpus) = self.gpus {
            status.gpus = gpus;
        }
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
