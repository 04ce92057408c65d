//! The ledger of one node: its agent's own account of what is reserved, for whom, and for how long.
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
//! It has no clock and no disk. The caller gives the time, and records [`Ledger::saved`] before it answers an order that
//! [adds](Kept::Added) a reservation.

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

/// How long after a look-up without an answer the pod is looked up again, at first. The interval doubles each time.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(1);

/// The longest interval between two look-ups of a pod.
const LONGEST_LOOK_UP_INTERVAL: Duration = Duration::from_secs(30);

/// The account of one node.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    desired: GpuNodeSpec,
    epoch: u64,
    entries: BTreeMap<PodUid, Entry>,
    limits: Limits,
}

/// What is known of a pod that has a reservation, beside its slices.
#[derive(Debug, Clone)]
struct Entry {
    key: PodKey,
    /// When it was reserved last.
    renewed: Moment,
    /// Bindings that may have been made, or may be made yet.
    open: Vec<OpenBinding>,
    /// Whether the pod is bound to this node.
    bound: bool,
    look_up: LookUp,
    /// Whether it is from the disk, and the node's own watch has not told of its pods since.
    recalled: bool,
}

/// A Binding of which it is not known whether it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenBinding {
    /// The epoch and the number of its mark. `None` if a look-up alone can end it.
    attempt: Option<(u64, u64)>,
    /// When it is made, or never will be.
    over: Moment,
}

/// When the pod may be looked up next.
#[derive(Debug, Clone, Copy)]
struct LookUp {
    at: Moment,
    interval: Duration,
    /// Whether it is looked up although a Binding may be made yet: a pod that is gone is so for good.
    early: bool,
}

impl LookUp {
    const NEW: Self = Self { at: Moment(Duration::ZERO), interval: LOOK_UP_INTERVAL, early: false };

    fn next(self, now: Moment) -> Self {
        let interval = (self.interval * 2).min(LONGEST_LOOK_UP_INTERVAL);
        Self { at: now + self.interval, interval, ..self }
    }
}

/// What the node's disk keeps of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Saved {
    /// The desired slices with their reservations.
    pub desired: GpuNodeSpec,
    /// The highest epoch that was heard.
    pub epoch: u64,
}

impl From<GpuNodeSpec> for Saved {
    /// The ledger of a node that follows a spec.
    fn from(spec: GpuNodeSpec) -> Self {
        Self { epoch: spec.epoch, desired: spec }
    }
}

/// What an agent sees of its node while it reads an order.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Why it accepts no reservation now.
    pub closed: Option<&'a str>,
    /// What the planner is told.
    pub observed: &'a Observed,
    /// What it reports. It must not be older than the ledger's last change.
    pub status: &'a GpuNodeStatus,
}

/// What became of an accepted [`OrderKind::Reserve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The reservation is new: it must be on disk before the order is answered.
    Added,
    /// The pod had it. Its lifetime begins anew.
    Renewed,
}

/// A pod as the node's own watch of pods shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundPod {
    /// It is bound here and has not ended.
    Alive,
    /// It is bound here and has ended, or was deleted. A pod that is merely missing in a new list is left out instead.
    Ended,
}

/// What a consistent read of a pod by its UID has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// There is no pod of this UID, or it has ended.
    Gone,
    /// It is bound to another node.
    Elsewhere,
    /// It is bound to this node.
    Here,
    /// It is not bound.
    Unbound,
    /// The read failed.
    Unknown,
}

/// What a point in time brings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// Whose reservations have expired. They are released.
    pub released: Vec<Owner>,
    /// Pods to look up now. Each is due again later while its look-up brings nothing.
    pub look_up: Vec<PodUid>,
    /// When something is due next if nothing happens before.
    pub next: Option<Moment>,
}

impl Ledger {
    /// The ledger as the disk has it. Of no reservation is it known whether the pod's Binding was sent: a mark is not on disk.
    #[must_use]
    pub fn restore(saved: Saved, limits: Limits, now: Moment) -> Self {
        let Saved { desired, epoch } = saved;
        let open = OpenBinding { attempt: None, over: now + limits.binding() };
        let owners = desired.slices.iter().filter_map(|slice| slice.reservation.as_ref()).map(Owner::of);
        let entry = |key| Entry { recalled: true, ..Entry::new(key, now, vec![open]) };
        let entries = owners.map(|owner| (owner.uid, entry(owner.key))).collect();
        Self { desired, epoch, entries, limits }
    }

    /// What the disk must have.
    #[must_use]
    pub fn saved(&self) -> Saved {
        Saved { desired: self.desired.clone(), epoch: self.epoch }
    }

    /// The slices that the node should have.
    #[must_use]
    pub fn desired(&self) -> &GpuNodeSpec {
        &self.desired
    }

    /// The highest epoch that was heard.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The reservation of a slice, as the status reports it.
    #[must_use]
    pub fn reservation(&self, id: &SliceId) -> Option<SliceReservation> {
        let slice = self.desired.slices.iter().find(|slice| slice.id == *id)?;
        let reservation = slice.reservation.as_ref()?;
        let entry = self.entries.get(&reservation.uid);
        let binding = entry.is_some_and(|entry| !entry.open.is_empty());
        Some(SliceReservation::of(reservation, binding))
    }

    /// Whether all of a pod's slices are ready for it.
    #[must_use]
    pub fn is_ready(&self, uid: &PodUid, status: &GpuNodeStatus) -> bool {
        let is_ready = |id: &SliceId| status.slice(id).is_some_and(|s| s.ready_for.as_ref() == Some(uid));
        reserved(&self.desired, uid).all(|slice| is_ready(&slice.id))
    }

    /// Takes note of a leader's epoch. Returns whether this leader is obeyed: none of a higher epoch was heard.
    pub fn hear(&mut self, epoch: u64) -> bool {
        self.epoch = self.epoch.max(epoch);
        self.epoch == epoch
    }

    /// Follows an order. Who has a disk asks [`Self::reserve`] itself, to know whether the answer must wait for it.
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

    /// Reserves the places of a proposal, all or none. A pod that has a reservation keeps that one, whatever is proposed.
    pub fn reserve(
        &mut self,
        epoch: u64,
        proposal: &Proposal,
        seen: Seen<'_>,
        now: Moment,
    ) -> Result<Kept, Rejection> {
        self.obey(epoch)?;
        let Owner { uid, key } = &proposal.owner;
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.renewed = now;
            return Ok(Kept::Renewed);
        }
        open(seen)?;
        self.desired = accept(&self.desired, proposal, epoch, seen.observed, seen.status)?;
        self.entries.insert(uid.clone(), Entry::new(key.clone(), now, Vec::new()));
        Ok(Kept::Added)
    }

    /// Notes that a Binding of the pod is about to be sent. From now on the reservation outlives everything but the pod, until it
    /// is known what became of that Binding.
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
        // The leader may send the Binding from the answer to a repeated mark on.
        entry.open.retain(|open| open.attempt != Some((epoch, attempt)));
        entry.open.push(OpenBinding { attempt: Some((epoch, attempt)), over: now + self.limits.binding() });
        Ok(())
    }

    /// Notes what became of a Binding.
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
            // Until the node's own watch shows the pod, the mark stays: the pod may be gone before the watch has shown it.
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

    /// Gives the pod's slices back, unless the pod is bound or may be.
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

    /// Follows the node's own watch of pods: `bound_here` has all pods that it shows. Returns whose reservations are released.
    pub fn pods(&mut self, bound_here: &BTreeMap<PodUid, BoundPod>, now: Moment) -> Vec<Owner> {
        let mut ended = Vec::new();
        for (uid, entry) in &mut self.entries {
            let is_recalled = std::mem::take(&mut entry.recalled);
            match bound_here.get(uid) {
                Some(BoundPod::Alive) => {
                    entry.bound = true;
                    entry.settle();
                }
                Some(BoundPod::Ended) => ended.push(uid.clone()),
                // It was missing in a new list, or the watch is behind.
                None if entry.bound => entry.doubt(now),
                // Its end may not have been on the disk yet. If it is merely not bound, a Binding may still be made.
                None if is_recalled => entry.look_up.early = true,
                None => {}
            }
        }
        ended.iter().filter_map(|uid| self.give_back(uid)).collect()
    }

    /// Takes what a look-up of a pod has found that was `asked` at this time. Returns whose reservation is released.
    pub fn looked_up(&mut self, uid: &PodUid, asked: Moment, found: Found) -> Option<Owner> {
        match found {
            // A pod is bound once at most, and its UID is never used again.
            Found::Gone | Found::Elsewhere => return self.give_back(uid),
            Found::Unknown => {}
            Found::Here => {
                let entry = self.entries.get_mut(uid)?;
                entry.bound = true;
                entry.open.clear();
                // The next look-up keeps its distance: the watch may not show the pod for long, and asks for one each time that it is
                // read.
                entry.look_up.early = false;
            }
            Found::Unbound => {
                let entry = self.entries.get_mut(uid)?;
                let before = entry.open.len();
                entry.open.retain(|open| open.over > asked);
                entry.look_up = LookUp::NEW;
                if entry.open.is_empty() && before > 0 {
                    entry.bound = false;
                }
            }
        }
        None
    }

    /// Releases what has expired, and tells which pods must be looked up and when to ask again.
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

    /// Takes back a reservation that was accepted and could not be recorded, unless the pod is bound or may be.
    pub fn retract(&mut self, uid: &PodUid) {
        if self.entries.get(uid).is_some_and(|entry| !entry.is_in_use()) {
            self.give_back(uid);
        }
    }

    /// Takes over what a pod that is bound here was assigned by a ledger that is lost, all or nothing. What is here already stays as
    /// it is.
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

    /// Another policy is in force from now on.
    pub fn set_policy(&mut self, policy: NodePolicy) {
        self.desired.policy = policy;
    }

    fn obey(&mut self, epoch: u64) -> Result<(), Rejection> {
        if self.hear(epoch) { Ok(()) } else { Err(Rejection::OldEpoch) }
    }

    /// The pod's slices stay as idle capacity.
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
        Self { key, renewed, open, bound: false, look_up: LookUp::NEW, recalled: false }
    }

    /// Nothing is in doubt any more.
    fn settle(&mut self) {
        self.open.clear();
        self.look_up = LookUp::NEW;
    }

    /// The pod is to be looked up, unless it will be.
    fn doubt(&mut self, now: Moment) {
        if self.open.is_empty() {
            self.open.push(OpenBinding { attempt: None, over: now });
        }
    }

    /// Whether the pod is bound, or may be.
    fn is_in_use(&self) -> bool {
        self.bound || !self.open.is_empty()
    }

    /// When it ends by itself.
    fn expires(&self, lifetime: Duration) -> Option<Moment> {
        (!self.is_in_use()).then(|| self.renewed + lifetime)
    }

    /// When the pod is to be looked up, if it is.
    fn look_up_at(&self) -> Option<Moment> {
        let over = self.open.iter().map(|open| open.over).min()?;
        Some(if self.look_up.early { self.look_up.at } else { over.max(self.look_up.at) })
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
