//! Builds GpuNode.status from what the agent has observed.

mod conditions;
mod gpus;
mod slices;
mod summary;

use super::advertise::Advertised;
use super::conflicts::Conflicts;
use super::daemons::MpsDaemons;
use super::device_access::DeviceAccess;
use super::facts::Facts;
use super::health::{Health, Neighbour};
use super::names::neutral_up_to;
use super::recovery::Recovery;
use super::steps::Steps;
use conditions::Conditions;
use gpus::GpuStatuses;
use kerf_core::contract::{Condition, GpuNodeStatus, SliceState};
use kerf_core::names::SliceId;
use kerf_core::offer::Bindings;
use slices::SliceStatuses;
use std::collections::BTreeSet;

/// The parts of the node that the status shows.
pub(super) struct StatusBuilder<'a> {
    pub(super) facts: &'a Facts,
    pub(super) health: &'a Health,
    pub(super) advertised: &'a Advertised,
    pub(super) bindings: &'a Bindings,
    pub(super) steps: &'a Steps,
    pub(super) conflicts: &'a Conflicts,
    pub(super) recovery: &'a Recovery,
    pub(super) mps: &'a MpsDaemons,
    pub(super) access: &'a DeviceAccess,
}

impl StatusBuilder<'_> {
    /// Builds the status. `waiting` are slices that are offered once others of their name are allocated. The publisher
    /// fills in the conditions' times.
    pub(super) fn build(&self, waiting: &BTreeSet<SliceId>) -> GpuNodeStatus {
        let Self { facts, health, advertised, bindings, steps, conflicts, recovery, mps, access } = *self;
        let is_registered = health.is_well(Neighbour::Registration);
        let slices = SliceStatuses { facts, steps, advertised, bindings, is_registered, waiting }.all();
        let gpus = GpuStatuses { facts, steps, mps, access, is_closed: conflicts.is_closed() }.all();
        GpuNodeStatus {
            neutral_up_to: neutral_up_to(advertised.registered()),
            conditions: Conditions { facts, health, conflicts, recovery, steps }.all(&gpus),
            summary: summary::summary(facts, &gpus, &slices),
            slices,
            gpus,
        }
    }
}

/// The last status without service: no slice is ready and no name is registered; everything else is unchanged.
pub(crate) fn unserved(mut status: GpuNodeStatus, condition: Condition) -> GpuNodeStatus {
    status.neutral_up_to = None;
    for slice in &mut status.slices {
        slice.ready_for = None;
        if slice.state == SliceState::Ready {
            slice.state = SliceState::Preparing;
        }
    }
    status.conditions.retain(|c| c.kind != condition.kind);
    status.conditions.insert(0, condition);
    status
}
