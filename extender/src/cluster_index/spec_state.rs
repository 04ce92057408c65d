//! One node's spec between promise and commit: what is written, what is being written, and what is to be written.
//!
//! Decisions are made on [`SpecState::working`], the newest that we want. It becomes true by a write that names the
//! revision before it. When somebody else wrote in between, all pending changes are applied anew to what they wrote.
//!
//! The node's policy is an admin's: it is taken from whatever was shown last, and no write changes it.

use super::change::Change;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, NodePolicy, WantedSlice};
use kerf_core::ledger::{reserved, successor};
use kerf_core::names::{PodUid, SliceId};
use kerf_core::packing::{Fleet, Refusal};
use std::collections::BTreeMap;

/// A node's spec and its pending changes.
#[derive(Debug, Clone, Default)]
pub struct SpecState {
    committed: GpuNodeSpec,
    working: GpuNodeSpec,
    in_flight: Option<InFlight>,
    queued: Vec<Change>,
    /// The last revision, written or being written, in which each slice was promised.
    promised: BTreeMap<SliceId, u64>,
}

#[derive(Debug, Clone)]
struct InFlight {
    changes: Vec<Change>,
    next: GpuNodeSpec,
}

/// What a spec that the API server showed was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Nothing new.
    Known,
    /// What we are writing: the write has happened.
    Ours,
    /// Somebody else's. Pending changes were applied anew.
    Foreign,
}

impl SpecState {
    /// The state of a node whose spec was read.
    #[must_use]
    pub fn of(committed: GpuNodeSpec) -> Self {
        let mut state = Self { working: committed.clone(), ..Self::default() };
        state.note_promises(&committed);
        Self { committed, ..state }
    }

    /// The newest spec that we want. Its revision is the committed one's.
    #[must_use]
    pub fn working(&self) -> &GpuNodeSpec {
        &self.working
    }

    /// The newest spec that was written.
    #[must_use]
    pub fn committed(&self) -> &GpuNodeSpec {
        &self.committed
    }

    /// Applies a change to the working spec. Whether it changed anything, and so must be written.
    pub fn push(
        &mut self,
        change: Change,
        status: Option<&GpuNodeStatus>,
        fleet: &Fleet,
    ) -> Result<bool, Refusal> {
        let Some(next) = change.apply(&self.working, status, fleet)? else { return Ok(false) };
        if next == self.working {
            return Ok(false);
        }
        self.working = next;
        self.queued.push(change);
        Ok(true)
    }

    /// Whether there is something to write.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.queued.is_empty() || self.in_flight.is_some()
    }

    /// The spec to write now, by the leader of `epoch`; all changes until now go into one write. `None` if there is
    /// nothing to write or a write is under way. One that its agent has `ignored` is written again as it is.
    pub fn begin(&mut self, epoch: u64, ignored: bool) -> Option<&GpuNodeSpec> {
        if self.in_flight.is_some() || self.queued.is_empty() && !ignored {
            return None;
        }
        let changes = std::mem::take(&mut self.queued);
        if self.working == self.committed && !ignored {
            return None;
        }
        let next = successor(&self.committed, self.working.clone(), epoch);
        self.note_promises(&next);
        Some(&self.in_flight.insert(InFlight { changes, next }).next)
    }

    /// The write of `revision` has happened.
    pub fn written(&mut self, revision: u64) {
        if let Some(done) = self.in_flight.take_if(|w| w.next.revision == revision) {
            (self.working.revision, self.working.epoch) = (done.next.revision, done.next.epoch);
            self.committed = done.next;
        }
    }

    /// Takes in a spec that the API server showed.
    pub fn show(&mut self, fresh: GpuNodeSpec, status: Option<&GpuNodeStatus>, fleet: &Fleet) -> Shown {
        self.take_policy(&fresh.policy);
        if fresh.revision <= self.committed.revision {
            return Shown::Known;
        }
        if self.in_flight.as_ref().is_some_and(|w| w.next == fresh) {
            self.written(fresh.revision);
            return Shown::Ours;
        }
        self.rebase(fresh, status, fleet);
        Shown::Foreign
    }

    /// Takes `fresh` for the newest spec, whatever was known before, and applies the pending changes to it. Changes that
    /// are no longer possible or change nothing any more are dropped.
    pub fn rebase(&mut self, fresh: GpuNodeSpec, status: Option<&GpuNodeStatus>, fleet: &Fleet) {
        self.take_policy(&fresh.policy);
        if self.in_flight.as_ref().is_some_and(|w| w.next == fresh) {
            return self.written(fresh.revision);
        }
        let pending = self.in_flight.take().map(|w| w.changes).unwrap_or_default();
        let pending = pending.into_iter().chain(std::mem::take(&mut self.queued));
        self.note_promises(&fresh);
        self.working = fresh.clone();
        self.committed = fresh;
        for change in pending.collect::<Vec<_>>() {
            // A refused reservation is seen by its bind: the pod has none in the working spec.
            let _refused = self.push(change, status, fleet);
        }
    }

    /// Gives all pending changes up.
    pub fn abandon(&mut self) {
        self.in_flight = None;
        self.queued.clear();
        self.working = self.committed.clone();
        self.note_promises(&self.committed.clone());
    }

    /// Idle slices of the working spec of which an agent that has observed `revision` may not know that they are: until
    /// it does, the kubelet may hand them to a pod.
    pub fn unsettled(&self, revision: u64) -> impl Iterator<Item = &WantedSlice> {
        let idle = self.working.slices.iter().filter(|s| s.reservation.is_none());
        idle.filter(move |s| self.promised.get(&s.id).is_some_and(|promised| *promised >= revision))
    }

    fn note_promises(&mut self, spec: &GpuNodeSpec) {
        let is_there = |id: &SliceId| spec.slices.iter().any(|s| s.id == *id);
        self.promised.retain(|id, revision| *revision <= spec.revision && is_there(id));
        let promised = spec.slices.iter().filter(|s| s.reservation.is_some());
        self.promised.extend(promised.map(|s| (s.id.clone(), spec.revision)));
    }

    fn take_policy(&mut self, policy: &NodePolicy) {
        let writing = self.in_flight.iter_mut().map(|w| &mut w.next);
        let specs = [&mut self.committed, &mut self.working].into_iter().chain(writing);
        specs.filter(|spec| spec.policy != *policy).for_each(|spec| spec.policy = policy.clone());
    }

    /// Whether the promise to this pod is written as it is wanted.
    #[must_use]
    pub fn is_committed(&self, uid: &PodUid) -> bool {
        let mut wanted = reserved(&self.working, uid).peekable();
        wanted.peek().is_some() && wanted.eq(reserved(&self.committed, uid))
    }
}

#[cfg(test)]
#[path = "spec_state_tests.rs"]
mod tests;
