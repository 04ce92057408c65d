//! The node's reservations: the ledger, a leader's orders, and the work that is due without one.

mod takeover;

pub use takeover::Predecessor;

use super::{NodePods, Restored, gpu_rule};
use crate::gpu::Gpu;
use kerf_core::contract::{
    GpuNodeStatus, GpuRule, NodePolicy, Reservation, SliceReservation, SliceStatus, WantedSlice,
};
use kerf_core::ledger::{
    Answer, BoundPod, Found, Ledger, Limits, Moment, Order, OrderKind, Owner, Saved, Seen, Upkeep, reserved,
};
use kerf_core::names::{GpuUuid, PodKey, PodUid, SliceId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use takeover::TakeOver;

/// How long no idle slice is cut on a GPU after one could not be made there.
const IDLE_BACKOFF: Duration = Duration::from_mins(5);

/// An agent's answer to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub answer: Answer,
    /// The pod whose reservation must be on the disk before the answer is sent.
    pub reserved: Option<PodUid>,
}

#[derive(Debug, Default)]
pub(crate) struct Reservations {
    ledger: Ledger,
    limits: Limits,
    /// When the process started: the ledger counts from then.
    started: Option<Instant>,
    /// Ended pods that are not passed to the ledger yet.
    ended: BTreeSet<PodUid>,
    /// Pods that are due for a look-up, until the next decision.
    look_up: BTreeMap<PodUid, PodKey>,
    takeover: TakeOver,
    /// The UID of the GpuNode whose spec was followed; `None` if the ledger is the agent's own.
    followed: Option<String>,
    /// GPUs on which an idle slice could not be made. Meanwhile no slice is cut there ahead of demand.
    resting: BTreeSet<GpuUuid>,
    rests_until: Option<Instant>,
}

impl Reservations {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(super) fn restore(&mut self, restored: &Restored, now: Instant) {
        self.started = Some(now);
        self.followed.clone_from(&restored.uid);
        if !restored.is_own {
            self.takeover = TakeOver::Awaited { is_lost: restored.is_lost };
        }
        self.ledger = Ledger::restore(restored.ledger.clone(), self.limits, Moment::default());
    }

    /// Writes what a restart needs into the checkpoint.
    pub(super) fn save(&self, record: &mut Restored) {
        record.ledger = self.ledger.saved();
        record.is_own = self.takeover == TakeOver::Done;
        record.uid.clone_from(&self.followed);
    }

    /// Takes the epoch of the connected leader.
    pub(super) fn hear(&mut self, epoch: u64) {
        self.ledger.hear(epoch);
    }

    /// Carries out a leader's order, or returns why not.
    pub(super) fn follow(&mut self, order: &Order, seen: Seen<'_>, now: Instant) -> Reply {
        let moment = self.moment(now);
        let answer = self.ledger.follow(order, seen, moment);
        let reserved = match &order.kind {
            OrderKind::Reserve(proposal) => Some(&proposal.owner.uid),
            // The reservation must be on the disk here too: another leader than the one that waits for the disk may
            // have seen it.
            OrderKind::Mark { uid, .. } => Some(uid),
            OrderKind::Outcome { .. } | OrderKind::Release { .. } => None,
        };
        let reserved = reserved.filter(|_| answer.is_ok()).cloned();
        Reply { answer, reserved }
    }

    /// Removes reservations that could not be recorded.
    pub(super) fn retract<'u>(&mut self, uids: impl Iterator<Item = &'u PodUid>) {
        uids.for_each(|uid| self.ledger.retract(uid));
    }

    /// Whether a checkpoint has the pod's reservation in its current form.
    pub(super) fn is_in(&self, saved: &Saved, uid: &PodUid) -> bool {
        reserved(&saved.desired, uid).eq(reserved(self.ledger.desired(), uid))
    }

    /// Takes the result of a pod's look-up that was requested at this time.
    pub(super) fn take_look_up(&mut self, uid: &PodUid, asked: Instant, found: Found) {
        let asked = self.moment(asked);
        if let Some(owner) = self.ledger.looked_up(uid, asked, found) {
            log_released(&[owner], "its pod is gone or runs elsewhere");
        }
    }

    /// Takes the policy, and returns whether it has changed.
    pub(super) fn set_policy(&mut self, policy: NodePolicy) -> bool {
        let has_changed = *self.policy() != policy;
        if has_changed {
            self.ledger.set_policy(policy);
        }
        has_changed
    }

    /// Records that a pod of this node is gone or finished.
    pub(super) fn end_pod(&mut self, uid: PodUid) {
        self.ended.insert(uid);
    }

    /// Applies the node's pods and the time to the ledger: reservations end if their pods have ended, or if they were
    /// not renewed in time. Returns when the next one is due.
    pub(super) fn follow_pods(&mut self, pods: Option<&NodePods>, now: Instant) -> Option<Instant> {
        let moment = self.moment(now);
        if let Some(pods) = pods {
            let alive = pods.keys().map(|uid| (uid.clone(), BoundPod::Alive));
            let ended = std::mem::take(&mut self.ended).into_iter().map(|uid| (uid, BoundPod::Ended));
            let bound_here: BTreeMap<_, _> = alive.chain(ended).collect();
            let released = self.ledger.pods(&bound_here, moment);
            log_released(&released, "its pod has ended");
        }
        let due = self.ledger.due(moment);
        log_released(&due.released, "it was not renewed in time");
        let desired = self.ledger.desired();
        let key = |uid: &PodUid| Some(reserved(desired, uid).next()?.reservation.as_ref()?.key());
        let look_up = due.look_up.into_iter().filter_map(|uid| Some((uid.clone(), key(&uid)?)));
        self.look_up.extend(look_up);
        self.instant(due.next?)
    }

    /// Takes the pods that are due for a look-up.
    pub(super) fn take_look_ups(&mut self) -> BTreeMap<PodUid, PodKey> {
        std::mem::take(&mut self.look_up)
    }

    /// Does the work that is due in the node's current state. Returns whether a new slice is desired for it.
    pub(super) fn upkeep<'o>(
        &mut self,
        status: &GpuNodeStatus,
        owner: impl Fn(&SliceStatus) -> Option<&'o PodUid>,
        now: Instant,
    ) -> bool {
        if self.rests_until.take_if(|until| *until <= now).is_some() {
            self.resting.clear();
        }
        let Upkeep { has_changed, lost } = self.ledger.upkeep(status, owner, &mut self.resting);
        if !self.resting.is_empty() {
            // The rest lasts from the first failure, so that further ones do not extend it.
            self.rests_until.get_or_insert(now + IDLE_BACKOFF);
        }
        for (owner, why) in &lost {
            tracing::warn!(pod = %owner.key, uid = %owner.uid, why, "released a reservation that cannot be fulfilled");
        }
        has_changed
    }

    /// The slices that the node should have, in the order of the requests.
    pub(super) fn desired(&self) -> &[WantedSlice] {
        &self.ledger.desired().slices
    }

    pub(super) fn policy(&self) -> &NodePolicy {
        &self.ledger.desired().policy
    }

    /// The policy's rule for the GPU.
    pub(super) fn rule(&self, gpu: &Gpu) -> GpuRule {
        gpu_rule::rule(self.policy(), gpu)
    }

    /// The reservations of all desired slices.
    pub(super) fn all(&self) -> impl Iterator<Item = &Reservation> {
        self.desired().iter().filter_map(|wanted| wanted.reservation.as_ref())
    }

    /// The desired slice of this name on the GPU.
    pub(super) fn wanted(&self, gpu: &GpuUuid, id: &SliceId) -> Option<&WantedSlice> {
        self.desired().iter().find(|wanted| wanted.id == *id && wanted.gpu == *gpu)
    }

    /// The reservation of a slice, in the form of the status.
    pub(super) fn in_status(&self, id: &SliceId) -> Option<SliceReservation> {
        self.ledger.reservation(id)
    }

    /// Converts a moment of the ledger to clock time.
    fn instant(&self, moment: Moment) -> Option<Instant> {
        self.started?.checked_add(moment.0)
    }

    /// Converts clock time to a moment of the ledger.
    fn moment(&self, now: Instant) -> Moment {
        Moment(self.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started)))
    }
}

#[cfg(test)]
impl Reservations {
    /// Makes the ledger desire these slices. Any of their pods may be bound by now.
    pub(super) fn set_desired(&mut self, slices: Vec<WantedSlice>, now: Instant) {
        let (next_slice, policy) = (99, self.policy().clone());
        let desired = kerf_core::contract::GpuNodeSpec { next_slice, slices, policy, ..Default::default() };
        let saved = Saved { desired, epoch: self.ledger.epoch() };
        self.ledger = Ledger::restore(saved, Limits::default(), self.moment(now));
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

fn log_released(owners: &[Owner], why: &str) {
    for owner in owners {
        tracing::info!(pod = %owner.key, uid = %owner.uid, why, "released a reservation");
    }
}
