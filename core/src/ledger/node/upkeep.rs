//! Maintenance of the ledger without an order.

use super::{Entry, Ledger, Owner};
use crate::contract::{GpuNodeSpec, GpuNodeStatus, Reservation, SliceState, SliceStatus};
use crate::ledger::{drop_disallowed, follow_holders, keep_warm};
use crate::names::{GpuUuid, PodUid};
use crate::packing::Fleet;
use std::collections::{BTreeMap, BTreeSet};

/// The changes that one [`Ledger::upkeep`] has made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Upkeep {
    /// Whether the desired slices or their owners have changed.
    pub has_changed: bool,
    /// Owners whose reservation was released because it could not be fulfilled, with the reason.
    pub lost: Vec<(Owner, String)>,
}

impl Ledger {
    /// Adapts the ledger to the node. Reservations follow the kubelet's choices. A slice that could not be made ends
    /// its pod's whole reservation. Idle slices become those of the policy. A pod that is bound, or may be bound, keeps
    /// its reservation.
    ///
    /// `owner` returns the pod that holds a slice, from an account with UIDs.
    /// No idle slice is cut on GPUs in `resting`. GPUs on which an idle slice could not be made are added to it.
    pub fn upkeep<'o>(
        &mut self,
        status: &GpuNodeStatus,
        owner: impl Fn(&SliceStatus) -> Option<&'o PodUid>,
        resting: &mut BTreeSet<GpuUuid>,
    ) -> Upkeep {
        let is_bound = |uid: &&PodUid| self.entries.get(*uid).is_some_and(|entry| entry.bound);
        let followed = follow_holders(&self.desired, status, |shown| owner(shown).filter(is_bound));
        let mut has_changed = self.take_on(followed);
        let before = self.desired.slices.len();
        let lost = self.drop_failed(status, resting);
        has_changed |= !lost.is_empty() || self.desired.slices.len() != before;
        let allowed = drop_disallowed(&self.desired, status);
        has_changed |= self.take_on(allowed);
        let warm = keep_warm(&self.desired, status, resting, &Fleet::default());
        has_changed |= self.take_on(warm);
        Upkeep { has_changed, lost }
    }

    /// Replaces the desired slices if there are new ones, and returns whether there are.
    fn take_on(&mut self, next: Option<GpuNodeSpec>) -> bool {
        let Some(next) = next else { return false };
        self.desired = next;
        true
    }

    fn drop_failed(
        &mut self,
        status: &GpuNodeStatus,
        resting: &mut BTreeSet<GpuUuid>,
    ) -> Vec<(Owner, String)> {
        let mut lost = BTreeMap::new();
        let (entries, slices) = (&self.entries, &mut self.desired.slices);
        slices.retain(|slice| {
            let failed = status.slice(&slice.id).filter(|shown| shown.state == SliceState::Failed);
            let Some(failed) = failed else { return true };
            let Some(Reservation { uid, .. }) = &slice.reservation else {
                // The GPU rests, because the same idle slice would be added and fail again.
                resting.insert(slice.gpu.clone());
                return false;
            };
            // The reservation must stay, because the pod may be here or on its way.
            if entries.get(uid).is_some_and(Entry::is_in_use) {
                return true;
            }
            let message = failed.message.as_deref().unwrap_or("the agent gives no reason");
            let why = format!("slice {} ({}) could not be made: {message}", slice.id, slice.shape);
            lost.insert(uid.clone(), why);
            false
        });
        lost.into_iter().filter_map(|(uid, why)| Some((self.give_back(&uid)?, why))).collect()
    }
}
