//! The binds of pods: open requests of the scheduler, Bindings whose outcome is not known yet, and when a reservation
//! was last used by one.
//!
//! A lost answer says nothing, and neither does a watch that shows the pod unbound, because the Binding may still be
//! made. But no request outlives its time in the API server. After that time the API server's state of the pod is the
//! outcome.

use crate::assumed::KindChoice;
use crate::objects::ask::Ask;
use hashbrown::{HashMap, HashSet};
use kerf_core::ledger;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::time::{Duration, Instant};

/// How long after its sender stopped waiting a Binding may still be made, unless a flag says otherwise. The API server
/// ends a request after a minute (`--request-timeout`), whatever it waits for.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(70);

/// How long reservations and requests live without a sign of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a reservation of a pod that is not bound stays after the pod's last bind.
    pub reservation: Duration,
    /// How long a request may live in the API server after its sender has stopped waiting for it.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reservation: Duration::from_mins(1), request: REQUEST_LIMIT }
    }
}

#[derive(Debug, Default)]
pub struct Bindings {
    limits: Limits,
    /// The number of open binds of each pod.
    open: HashMap<PodUid, u32>,
    /// When each pod's last bind ended. For a reservation of a former leader: when it was first seen.
    last_use: HashMap<PodUid, Instant>,
    /// Pods that this replica bound, even if an old event of the watch shows them unbound.
    bound: HashSet<PodUid>,
    /// Pods whose Binding was sent and whose outcome is not known yet.
    pending: HashMap<PodUid, PendingBindings>,
    /// The kinds by which pods with no Binding yet were last proposed to a node. A bind whose proposal is rejected, or
    /// that loses its reservation, proposes by the same ones.
    choices: HashMap<PodUid, KindChoice>,
}

/// A pod's Bindings whose outcome is not known.
#[derive(Debug)]
pub(super) struct PendingBindings {
    pub key: PodKey,
    /// When the sender of each Binding stops waiting, at the latest. Each is kept, because the refusal of a later one
    /// says nothing about an earlier one.
    until: Vec<Instant>,
    /// The last filter that found the pod's place unusable.
    pub held_up: Option<HeldUp>,
}

/// The request and the nodes of a pod that could go elsewhere.
#[derive(Debug)]
pub(super) struct HeldUp {
    pub ask: Ask,
    pub offered: Vec<NodeName>,
}

impl Bindings {
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// How long a request may live in the API server after its sender has stopped waiting for it.
    pub(super) fn request_limit(&self) -> Duration {
        self.limits.request
    }

    /// How long reservations and requests live.
    #[must_use]
    pub fn ledger_limits(&self) -> ledger::Limits {
        let Limits { reservation, request } = self.limits;
        ledger::Limits { reservation, request, ..ledger::Limits::default() }
    }

    /// Begins a bind of the pod. Each call is followed by an end of it.
    pub fn begin(&mut self, uid: &PodUid) {
        *self.open.entry(uid.clone()).or_default() += 1;
    }

    /// Ends a bind of the pod, whatever its result.
    pub(super) fn end(&mut self, uid: &PodUid) {
        if let Some(count) = self.open.get_mut(uid) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(uid);
            }
        }
    }

    /// Whether a bind of the pod is under way.
    #[must_use]
    pub fn is_open(&self, uid: &PodUid) -> bool {
        self.open.contains_key(uid)
    }

    /// Records that the pod's Binding is about to be sent by a sender that stops waiting at `until`. The reservation
    /// stays until its outcome is seen.
    pub fn send(&mut self, uid: &PodUid, key: &PodKey, until: Instant) {
        let new = || PendingBindings { key: key.clone(), until: Vec::new(), held_up: None };
        let pending = self.pending.entry(uid.clone()).or_insert_with(new);
        pending.until.push(until);
        pending.held_up = None;
    }

    /// Whether the pod's Binding was sent and may have been made.
    #[must_use]
    pub fn is_pending(&self, uid: &PodUid) -> bool {
        self.pending.contains_key(uid)
    }

    /// Whether some pod's Binding may still be made.
    pub(super) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The pod whose Binding was sent.
    pub(super) fn key(&self, uid: &PodUid) -> Option<&PodKey> {
        self.pending.get(uid).map(|pending| &pending.key)
    }

    /// Records a filter in which the pod could not use its place on any of `offered`, but keeps it for the Binding that
    /// was sent.
    pub fn hold_up(&mut self, uid: &PodUid, ask: &Ask, offered: &[&str]) {
        if let Some(pending) = self.pending.get_mut(uid) {
            let offered = offered.iter().map(|name| NodeName::new(*name)).collect();
            pending.held_up = Some(HeldUp { ask: ask.clone(), offered });
        }
    }

    /// Removes the Binding with this `until`, which the API server refused. Returns whether the pod has no other.
    pub(super) fn refuse(&mut self, uid: &PodUid, until: Instant) -> bool {
        if let Some(pending) = self.pending.get_mut(uid) {
            pending.until.retain(|sent| *sent != until);
            if !pending.until.is_empty() {
                return false;
            }
        }
        self.pending.remove(uid);
        true
    }

    /// The pods whose Binding can no longer be made, but whose outcome is not known.
    pub(super) fn over(&self, now: Instant) -> impl Iterator<Item = &PodUid> {
        self.pending.keys().filter(move |uid| self.is_over(uid, now))
    }

    /// Whether none of the pod's Bindings can be made at `now`, and none has a known outcome.
    pub(super) fn is_over(&self, uid: &PodUid, now: Instant) -> bool {
        let is_over = |until: &Instant| now.saturating_duration_since(*until) >= self.limits.request;
        self.pending.get(uid).is_some_and(|pending| pending.until.iter().all(is_over))
    }

    /// Removes the Bindings of a pod, which were not made.
    pub(super) fn take_pending(&mut self, uid: &PodUid) -> Option<PendingBindings> {
        self.pending.remove(uid)
    }

    pub(super) fn set_bound(&mut self, uid: &PodUid) {
        self.forget(uid);
        self.bound.insert(uid.clone());
    }

    /// Forgets the Bindings of a pod that is bound, has ended or is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.pending.remove(uid);
        self.choices.remove(uid);
    }

    /// Records the kinds by which a pod is proposed to a node.
    pub(super) fn set_choice(&mut self, uid: &PodUid, choice: KindChoice) {
        self.choices.insert(uid.clone(), choice);
    }

    pub(super) fn choice(&self, uid: &PodUid) -> Option<&KindChoice> {
        self.choices.get(uid)
    }

    /// Whether a bind of the pod is under way, or a Binding was made or may still be made.
    pub(super) fn are_in_use(&self, uid: &PodUid) -> bool {
        self.is_open(uid) || self.bound.contains(uid) || self.is_pending(uid)
    }

    /// Records a use of the pod's reservation.
    pub(super) fn set_last_use(&mut self, uid: &PodUid, now: Instant) {
        self.last_use.insert(uid.clone(), now);
    }

    /// The reservations that were not used for their lifetime, of those that pods without a node have.
    pub(super) fn expired(&mut self, reserved: HashSet<PodUid>, now: Instant) -> Vec<PodUid> {
        self.last_use.retain(|uid, _| reserved.contains(uid));
        let is_expired = |uid: &PodUid| {
            let since = *self.last_use.entry(uid.clone()).or_insert(now);
            now.saturating_duration_since(since) >= self.limits.reservation
        };
        reserved.into_iter().filter(is_expired).collect()
    }

    /// Forgets pods that this replica bound and that have no reservation. They do no harm, so they are looked for only
    /// once they are many.
    pub(super) fn forget_bound(&mut self, reservations: usize, is_reserved: impl Fn(&PodUid) -> bool) {
        if self.bound.len() > 2 * reservations + 1000 {
            self.bound.retain(is_reserved);
        }
    }

    /// Ends the term: the next one has its own binds.
    pub(super) fn end_term(&mut self) {
        *self = Self { limits: self.limits, ..Self::default() };
    }
}
