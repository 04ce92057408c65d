//! The ledger of one node: its agent's account of reservations, their owners and their ends.
//!
//! ```text
//!            Reserve                 Mark            the pod is bound here
//!  nothing ───────────► reserved ───────────► binding ───────────────────► held
//!                        │     ▲ all Bindings  │                            │
//!                        │     └───────────────┤ have failed                │
//!                        ▼ lifetime, Release   ▼ a look-up: gone, elsewhere ▼ the pod has ended or is gone
//!                     released              released                     released
//! ```
//!
//! The ledger has no clock and no disk. The caller passes the time, and must write [`Ledger::saved`] to disk before it
//! answers an order that [adds](Reserved::Added) a reservation.

mod upkeep;

pub use upkeep::Upkeep;

use super::change::number;
use super::{Done, Limits, Moment, Order, OrderKind, Owner, Proposal, Rejection};
use super::{accept, release, reserved};
use crate::contract::{GpuNodeSpec, GpuNodeStatus, NodePolicy, SliceReservation, WantedSlice};
use crate::names::{PodKey, PodUid, SliceId};
use crate::planner::Observed;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The first interval between a look-up without an answer and the next one. It doubles each time.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(1);

/// The longest interval between two look-ups of a pod.
const LONGEST_LOOK_UP_INTERVAL: Duration = Duration::from_secs(30);

/// The account of one node: desired slices, reservations, and the highest epoch.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    desired: GpuNodeSpec,
    epoch: u64,
    entries: BTreeMap<PodUid, Entry>,
    limits: Limits,
}

/// The state of a pod that has a reservation, without its slices.
#[derive(Debug, Clone)]
struct Entry {
    key: PodKey,
    /// When the last `Reserve` came.
    renewed: Moment,
    /// Bindings that may have been made, or may still be made.
    open: Vec<OpenBinding>,
    /// Whether the pod is bound to this node.
    bound: bool,
    look_up: LookUp,
    /// Whether it was restored from disk, and the node's watch has not shown its pods since.
    restored: bool,
}

/// A Binding whose result is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenBinding {
    /// The epoch and number of its mark. `None` if only a look-up can end it.
    attempt: Option<(u64, u64)>,
    /// From this moment on, the Binding is either made or never will be.
    over: Moment,
}

/// The time of the pod's next look-up.
#[derive(Debug, Clone, Copy)]
struct LookUp {
    at: Moment,
    interval: Duration,
    /// Whether to look the pod up although a Binding may still be made: a pod that is gone stays gone, so an early
    /// answer can suffice.
    early: bool,
}

impl LookUp {
    const NEW: Self = Self { at: Moment(Duration::ZERO), interval: LOOK_UP_INTERVAL, early: false };

    fn next(self, now: Moment) -> Self {
        let interval = (self.interval * 2).min(LONGEST_LOOK_UP_INTERVAL);
        Self { at: now + self.interval, interval, ..self }
    }
}

/// The part of a ledger that the node's disk keeps. Marks are not in it, which saves one sync for each pod: after a
/// restart every reservation counts as marked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Saved {
    /// The desired slices with their reservations.
    pub desired: GpuNodeSpec,
    /// The highest epoch that the agent has received.
    pub epoch: u64,
}

impl From<GpuNodeSpec> for Saved {
    /// A ledger with the slices, reservations and epoch of a spec.
    fn from(spec: GpuNodeSpec) -> Self {
        Self { epoch: spec.epoch, desired: spec }
    }
}

/// The agent's view of its node while it executes an order.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Why the agent accepts no reservation now; `None` while it does.
    pub closed: Option<&'a str>,
    /// The planner's input for this node.
    pub observed: &'a Observed,
    /// The status that the agent reports. It must not be older than the ledger's last change.
    pub status: &'a GpuNodeStatus,
}

/// The effect of an accepted [`OrderKind::Reserve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// The reservation is new. It must be on disk before the order is answered.
    Added,
    /// The pod had a reservation already; its lifetime starts again.
    Renewed,
}

/// A pod as the node's own watch of pods shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundPod {
    /// The pod is bound here and has not ended.
    Alive,
    /// The pod is bound here and has ended or was deleted. A pod that is only missing in a new list must be left out
    /// instead.
    Ended,
}

/// The result of a consistent read of a pod by its UID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// No pod with this UID exists, or it has ended.
    Gone,
    /// The pod is bound to another node.
    Elsewhere,
    /// The pod is bound to this node.
    Here,
    /// The pod exists and is not bound.
    Unbound,
    /// The read failed, so nothing is known.
    Unknown,
}

/// The work that is due at a point in time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// The owners of expired reservations, which are released now.
    pub released: Vec<Owner>,
    /// Pods to look up now. A pod is due again later if its look-up has no result.
    pub look_up: Vec<PodUid>,
    /// The next time at which something is due if nothing happens before.
    pub next: Option<Moment>,
}

impl Ledger {
    /// Restores the ledger from disk. Every pod counts as one whose Binding may have been sent, because marks are not
    /// on disk.
    #[must_use]
    pub fn restore(saved: Saved, limits: Limits, now: Moment) -> Self {
        let Saved { desired, epoch } = saved;
        let open = OpenBinding { attempt: None, over: now + limits.binding() };
        let owners =
            desired.slices.iter().filter_map(|slice| slice.reservation.as_ref()).map(Owner::from_reservation);
        let entry = |key| Entry { restored: true, ..Entry::new(key, now, vec![open]) };
        let entries = owners.map(|owner| (owner.uid, entry(owner.key))).collect();
        Self { desired, epoch, entries, limits }
    }

    /// The part of the ledger that must be on disk.
    #[must_use]
    pub fn saved(&self) -> Saved {
        Saved { desired: self.desired.clone(), epoch: self.epoch }
    }

    /// The slices that the node should have.
    #[must_use]
    pub fn desired(&self) -> &GpuNodeSpec {
        &self.desired
    }

    /// The highest epoch that the agent has received.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The reservation of a slice, in the form of the status.
    #[must_use]
    pub fn reservation(&self, id: &SliceId) -> Option<SliceReservation> {
        let slice = self.desired.slices.iter().find(|slice| slice.id == *id)?;
        let reservation = slice.reservation.as_ref()?;
        let entry = self.entries.get(&reservation.uid);
        let binding = entry.is_some_and(|entry| !entry.open.is_empty());
        Some(SliceReservation::from_reservation(reservation, binding))
    }

    /// Whether all of a pod's slices are ready for it.
    #[must_use]
    pub fn is_ready(&self, uid: &PodUid, status: &GpuNodeStatus) -> bool {
        let is_ready = |id: &SliceId| status.slice(id).is_some_and(|s| s.ready_for.as_ref() == Some(uid));
        reserved(&self.desired, uid).all(|slice| is_ready(&slice.id))
    }

    /// Records a leader's epoch. Returns whether this leader is obeyed: false if a higher epoch was received before.
    pub fn hear(&mut self, epoch: u64) -> bool {
        self.epoch = self.epoch.max(epoch);
        self.epoch == epoch
    }

    /// Executes an order. A caller with a disk calls [`Self::reserve`] itself, because that shows whether the answer
    /// must wait for the disk.
    pub fn follow(&mut self, order: &Order, seen: Seen<'_>, now: Moment) -> Result<Done, Rejection> {
        let done = Done { lifetime: Duration::ZERO };
        match &order.kind {
            OrderKind::Reserve(proposal) => {
                let lifetime = self.limits.reservation;
                self.reserve(order.epoch, proposal, seen, now).map(|_| Done { lifetime })
            }
            OrderKind::Mark { uid, attempt } => {
                self.mark(order.epoch, uid, *attempt, seen, now).map(|()| done)
            }
            OrderKind::Outcome { uid, attempt, bound } => {
                self.outcome(order.epoch, uid, *attempt, *bound, now).map(|()| done)
            }
            OrderKind::Release { uid, .. } => self.release(order.epoch, uid, now).map(|()| done),
        }
    }

    /// Reserves all places of a proposal or none. A pod that has a reservation keeps it, whatever is proposed.
    pub fn reserve(
        &mut self,
        epoch: u64,
        proposal: &Proposal,
        seen: Seen<'_>,
        now: Moment,
    ) -> Result<Reserved, Rejection> {
        self.obey(epoch)?;
        let Owner { uid, key } = &proposal.owner;
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.renewed = now;
            return Ok(Reserved::Renewed);
        }
        open(seen)?;
        self.desired = accept(&self.desired, proposal, epoch, seen.observed, seen.status)?;
        self.entries.insert(uid.clone(), Entry::new(key.clone(), now, Vec::new()));
        Ok(Reserved::Added)
    }

    /// Records that the leader is about to send a Binding of the pod. Until its result is known, the reservation ends
    /// only with the pod.
    pub fn mark(
        &mut self,
        epoch: u64,
        uid: &PodUid,
        attempt: u64,
        seen: Seen<'_>,
        now: Moment,
    ) -> Result<(), Rejection> {
        self.obey(epoch)?;
        let is_ready = self.is_ready(uid, seen.status);
        let entry = self.entries.get_mut(uid).ok_or(Rejection::UnknownReservation)?;
        open(seen)?;
        if !is_ready {
            return Err(Rejection::NotReady);
        }
        // A repeated mark starts the time anew, because the leader may send the Binding after the answer to it.
        entry.open.retain(|open| open.attempt != Some((epoch, attempt)));
        entry.open.push(OpenBinding { attempt: Some((epoch, attempt)), over: now + self.limits.binding() });
        Ok(())
    }

    /// Records the result of a Binding.
    pub fn outcome(
        &mut self,
        epoch: u64,
        uid: &PodUid,
        attempt: u64,
        bound: bool,
        now: Moment,
    ) -> Result<(), Rejection> {
        self.obey(epoch)?;
        let Some(entry) = self.entries.get_mut(uid) else { return Ok(()) };
        if bound {
            // The mark stays until the node's own watch shows the pod, because the pod may be gone before that.
            let is_new = !entry.bound;
            entry.bound = true;
            if is_new && entry.open.is_empty() {
                entry.doubt(now);
            }
        } else {
            entry.open.retain(|open| open.attempt != Some((epoch, attempt)));
        }
        Ok(())
    }

    /// Releases the pod's slices, unless the pod is bound or may be.
    pub fn release(&mut self, epoch: u64, uid: &PodUid, now: Moment) -> Result<(), Rejection> {
        self.obey(epoch)?;
        let Some(entry) = self.entries.get_mut(uid) else { return Ok(()) };
        if entry.bound {
            entry.doubt(now);
        }
        if !entry.open.is_empty() {
            return Err(Rejection::BindingOpen);
        }
        self.give_back(uid);
        Ok(())
    }

    /// Updates the ledger from the node's own watch of pods; `bound_here` has all pods that it shows. Returns the
    /// owners of released reservations.
    pub fn pods(&mut self, bound_here: &BTreeMap<PodUid, BoundPod>, now: Moment) -> Vec<Owner> {
        let mut ended = Vec::new();
        for (uid, entry) in &mut self.entries {
            let was_restored = std::mem::take(&mut entry.restored);
            match bound_here.get(uid) {
                Some(BoundPod::Alive) => {
                    entry.bound = true;
                    entry.settle();
                }
                Some(BoundPod::Ended) => ended.push(uid.clone()),
                // Only a look-up can decide, because the pod may be gone, or the watch may be behind.
                None if entry.bound => entry.doubt(now),
                // The pod's end may not have been on disk before the restart, so it is looked up early. The reservation
                // stays, because a pod that is merely not bound may still get its Binding.
                None if was_restored => entry.look_up.early = true,
                None => {}
            }
        }
        ended.iter().filter_map(|uid| self.give_back(uid)).collect()
    }

    /// Updates the ledger from a look-up of a pod that was `asked` at this time. Returns the owner of a released
    /// reservation.
    pub fn looked_up(&mut self, uid: &PodUid, asked: Moment, found: Found) -> Option<Owner> {
        match found {
            // Both are final, because a pod is bound at most once and its UID is never used again.
            Found::Gone | Found::Elsewhere => return self.give_back(uid),
            Found::Unknown => {}
            Found::Here => {
                let entry = self.entries.get_mut(uid)?;
                entry.bound = true;
                entry.open.clear();
                // The next look-up keeps its interval: otherwise each reading of a watch that does not show the pod
                // would cause one.
                entry.look_up.early = false;
            }
            Found::Unbound => {
                let entry = self.entries.get_mut(uid)?;
                let before = entry.open.len();
                // Only a look-up that was asked after the last moment of a Binding can rule this Binding out.
                entry.open.retain(|open| open.over > asked);
                entry.look_up = LookUp::NEW;
                if entry.open.is_empty() && before > 0 {
                    entry.bound = false;
                }
            }
        }
        None
    }

    /// Releases expired reservations, and returns the pods to look up and the time of the next call.
    pub fn due(&mut self, now: Moment) -> Due {
        let lifetime = self.limits.reservation;
        let is_expired = |entry: &Entry| entry.expires(lifetime).is_some_and(|end| end <= now);
        let expired = self.entries.iter().filter(|(_, entry)| is_expired(entry));
        let expired: Vec<PodUid> = expired.map(|(uid, _)| uid.clone()).collect();
        let mut due = Due {
            released: expired.iter().filter_map(|uid| self.give_back(uid)).collect(),
            ..Due::default()
        };
        for (uid, entry) in &mut self.entries {
            if entry.look_up_at().is_some_and(|at| at <= now) {
                due.look_up.push(uid.clone());
                entry.look_up = entry.look_up.next(now);
            }
            due.next = [due.next, entry.expires(lifetime), entry.look_up_at()].into_iter().flatten().min();
        }
        due
    }

    /// Takes back a reservation that was accepted and could not be written to disk, unless the pod is bound or may be.
    pub fn retract(&mut self, uid: &PodUid) {
        if self.entries.get(uid).is_some_and(|entry| !entry.is_in_use()) {
            self.give_back(uid);
        }
    }

    /// Takes over all slices that a lost ledger had assigned to a pod bound here, or none. Reservations that are here
    /// already stay as they are.
    pub fn adopt(&mut self, owner: &Owner, slices: &[WantedSlice], now: Moment) {
        let is_taken = |slice: &WantedSlice| self.desired.slices.iter().any(|known| known.id == slice.id);
        if slices.is_empty() || self.entries.contains_key(&owner.uid) || slices.iter().any(is_taken) {
            return;
        }
        let highest = slices.iter().filter_map(|slice| number(&slice.id)).max();
        self.desired.next_slice = self.desired.next_slice.max(highest.unwrap_or_default());
        self.desired.slices.extend_from_slice(slices);
        let entry = Entry { bound: true, ..Entry::new(owner.key.clone(), now, Vec::new()) };
        self.entries.insert(owner.uid.clone(), entry);
    }

    /// Replaces the policy of the desired state.
    pub fn set_policy(&mut self, policy: NodePolicy) {
        self.desired.policy = policy;
    }

    fn obey(&mut self, epoch: u64) -> Result<(), Rejection> {
        if self.hear(epoch) { Ok(()) } else { Err(Rejection::OldEpoch) }
    }

    /// Ends the pod's reservation. Its slices stay as idle capacity, because the next pod may need equal ones.
    fn give_back(&mut self, uid: &PodUid) -> Option<Owner> {
        let entry = self.entries.remove(uid)?;
        if let Some(next) = release(&self.desired, uid) {
            self.desired = next;
        }
        Some(Owner { uid: uid.clone(), key: entry.key })
    }
}

fn open(seen: Seen<'_>) -> Result<(), Rejection> {
    seen.closed.map_or(Ok(()), |why| Err(Rejection::Closed(why.to_owned())))
}

impl Entry {
    fn new(key: PodKey, renewed: Moment, open: Vec<OpenBinding>) -> Self {
        Self { key, renewed, open, bound: false, look_up: LookUp::NEW, restored: false }
    }

    /// The pod is known to be bound here, so no Binding is open.
    fn settle(&mut self) {
        self.open.clear();
        self.look_up = LookUp::NEW;
    }

    /// Makes a look-up of the pod due, unless one is due anyway.
    fn doubt(&mut self, now: Moment) {
        if self.open.is_empty() {
            self.open.push(OpenBinding { attempt: None, over: now });
        }
    }

    /// Whether the pod is bound, or may be.
    fn is_in_use(&self) -> bool {
        self.bound || !self.open.is_empty()
    }

    /// When the reservation expires; `None` while the pod is bound or may be.
    fn expires(&self, lifetime: Duration) -> Option<Moment> {
        (!self.is_in_use()).then(|| self.renewed + lifetime)
    }

    /// When the next look-up of the pod is due; `None` if no Binding is open.
    fn look_up_at(&self) -> Option<Moment> {
        let over = self.open.iter().map(|open| open.over).min()?;
        Some(if self.look_up.early { self.look_up.at } else { over.max(self.look_up.at) })
    }
}

#[cfg(test)]
mod tests;
