//! The node's ledger: a leader's orders, and the work that is due without one.

use super::health::Neighbour;
use super::restore::RECORD_RETRY_INTERVAL;
use super::{Node, Task};
use kerf_core::contract::{GpuNodeStatus, NodePolicy, SliceStatus, Summary};
use kerf_core::ledger::{
    Answer, BoundPod, Found, Moment, NodeState, Order, OrderKind, Owner, Saved, Seen, Upkeep, reserved,
};
use kerf_core::names::{GpuUuid, PodKey, PodUid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long no idle slice is cut on a GPU after one could not be made there.
const IDLE_BACKOFF: Duration = Duration::from_mins(5);

/// How long the extender may be without a leader before the node reports that it accepts no new pods.
const LEADERLESS: Duration = Duration::from_mins(1);

/// An agent's answer to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub answer: Answer,
    /// The pod whose reservation must be on the disk before the answer is sent.
    pub reserved: Option<PodUid>,
}

/// State that belongs to the ledger.
#[derive(Debug, Default)]
pub(super) struct Housekeeping {
    /// When the process started: the ledger counts from then.
    pub(super) started: Option<Instant>,
    /// Ended pods that the ledger does not know yet.
    pub(super) ended: BTreeSet<PodUid>,
    /// Pods that are due for a look-up, until the next decision.
    pub(super) look_up: BTreeMap<PodUid, PodKey>,
    /// When the connection to the last leader was lost.
    pub(super) leaderless_since: Option<Instant>,
    /// GPUs on which an idle slice could not be made. Meanwhile no slice is cut there ahead of demand.
    pub(super) resting: BTreeSet<GpuUuid>,
    pub(super) rests_until: Option<Instant>,
}

impl Node {
    /// Takes the epoch of the connected leader, if there is one.
    pub fn on_leader(&mut self, epoch: Option<u64>, now: Instant) {
        match epoch {
            Some(epoch) => {
                self.ledger.hear(epoch);
                self.health.leader = Neighbour::Well;
                self.housekeeping.leaderless_since = None;
            }
            None => drop(self.housekeeping.leaderless_since.get_or_insert(now)),
        }
    }

    /// Reports the lack of a leader once it has lasted too long. Otherwise returns when that will be.
    pub(super) fn await_leader(&mut self, now: Instant) -> Option<Instant> {
        let until = self.housekeeping.leaderless_since? + LEADERLESS;
        if until > now {
            return Some(until);
        }
        let text = "no leader of the extender is connected, so the node takes no new pods: the agents must reach \
                    port 9445 of its pods (extender.agentsPort, NetworkPolicies)";
        self.health.leader = Neighbour::Ill(text.to_owned());
        None
    }

    /// The node's state, which the streams copy to the extender.
    #[must_use]
    pub fn state(&self, status: &GpuNodeStatus) -> NodeState {
        let status = GpuNodeStatus { summary: Summary::default(), ..status.clone() };
        NodeState { status, policy: self.ledger.desired().policy.clone(), closed: self.closed() }
    }

    /// Carries out a leader's order, or returns why not.
    pub fn on_order(&mut self, order: &Order, now: Instant) -> Reply {
        // A process that was frozen must first drop what expired meanwhile, and only then follow orders.
        self.follow_pods(now);
        let (closed, observed, status) = (self.closed(), self.observed(), self.status(&BTreeSet::new()));
        let seen = Seen { closed: closed.as_deref(), observed: &observed, status: &status };
        let now = self.moment(now);
        let answer = self.ledger.follow(order, seen, now);
        let reserved = match &order.kind {
            OrderKind::Reserve(proposal) => Some(&proposal.owner.uid),
            // The reservation must be on the disk here too: another leader than the one that waits for the disk may
            // have seen it.
            OrderKind::Mark { uid, .. } => Some(uid),
            OrderKind::Outcome { .. } | OrderKind::Release { .. } => None,
        };
        let reserved = reserved.filter(|_| answer.is_ok()).cloned();
        if answer.is_ok() && matches!(order.kind, OrderKind::Reserve(_)) {
            self.desired_changed();
        }
        Reply { answer, reserved }
    }

    /// Takes why the disk accepts no reservation now. Then the node accepts no new pods; those with a reservation
    /// continue.
    pub fn on_disk(&mut self, trouble: Option<String>) {
        self.health.disk = trouble;
    }

    /// Rejects and removes reservations that could not be recorded.
    pub fn on_unrecorded_reservations<'u>(
        &mut self,
        uids: impl Iterator<Item = &'u PodUid>,
        error: &str,
        now: Instant,
    ) {
        tracing::error!(error, "no reservation is accepted that cannot be recorded");
        self.unrecorded = Some((error.to_owned(), now + RECORD_RETRY_INTERVAL));
        for uid in uids {
            self.ledger.retract(uid);
        }
        self.desired_changed();
    }

    /// Whether the GPUs and their managers were observed, so that there is something to report.
    #[must_use]
    pub fn has_looked(&self) -> bool {
        self.health.nvml != Neighbour::Awaited && (self.others.is_some() || !self.settings.others)
    }

    /// Whether a record has the pod's reservation in its current form.
    #[must_use]
    pub fn is_reservation_in(&self, saved: &Saved, uid: &PodUid) -> bool {
        reserved(&saved.desired, uid).eq(reserved(self.ledger.desired(), uid))
    }

    /// Takes the result of a pod's look-up that was requested at this time.
    pub fn on_looked_up(&mut self, uid: &PodUid, asked: Instant, found: Found) {
        let asked = self.moment(asked);
        if let Some(owner) = self.ledger.looked_up(uid, asked, found) {
            note_released(&[owner], "its pod is gone or runs elsewhere");
        }
    }

    /// Why no reservation is accepted now; `None` if they are.
    #[must_use]
    pub fn closed(&self) -> Option<String> {
        let knows_all = self.health.nvml.is_well()
            && self.account.is_known()
            && self.health.pods.is_well()
            && self.health.policy != Neighbour::Awaited
            && self.awaited.is_empty();
        let trouble = self.upgrade_trouble().map(|(_, text)| text).or_else(|| self.contest());
        let trouble = trouble.or_else(|| self.takeover_trouble());
        trouble.or_else(|| {
            let unknown = || {
                self.health.trouble().map_or_else(|| "the node is being read".to_owned(), |(_, text)| text)
            };
            (!knows_all).then(unknown)
        })
    }

    pub(super) fn follow_policy(&mut self, policy: NodePolicy) {
        if self.ledger.desired().policy != policy {
            self.ledger.set_policy(policy);
            // A new policy may make a failed switch succeed, so retry.
            self.retries.retain(|task| !matches!(task, Task::Switch(_)));
            self.desired_changed();
        }
    }

    /// Applies the node's pods and the time to the ledger: reservations end if their pods have ended, or if they were
    /// not renewed in time. Returns when the next one is due.
    pub(super) fn follow_pods(&mut self, now: Instant) -> Option<Instant> {
        let moment = self.moment(now);
        if let Some(pods) = &self.pods {
            let alive = pods.keys().map(|uid| (uid.clone(), BoundPod::Alive));
            let ended =
                std::mem::take(&mut self.housekeeping.ended).into_iter().map(|uid| (uid, BoundPod::Ended));
            let bound_here: BTreeMap<_, _> = alive.chain(ended).collect();
            let released = self.ledger.pods(&bound_here, moment);
            note_released(&released, "its pod has ended");
        }
        let due = self.ledger.due(moment);
        note_released(&due.released, "it was not renewed in time");
        let desired = self.ledger.desired();
        let key = |uid: &PodUid| Some(reserved(desired, uid).next()?.reservation.as_ref()?.key());
        let look_up = due.look_up.into_iter().filter_map(|uid| Some((uid.clone(), key(&uid)?)));
        self.housekeeping.look_up.extend(look_up);
        self.at(due.next?)
    }

    /// Does the work that is due in the node's current state. Returns whether a new slice is desired for it.
    pub(super) fn upkeep(&mut self, status: &GpuNodeStatus, now: Instant) -> bool {
        if self.closed().is_some() {
            return false;
        }
        let account = &self.account;
        // The kubelet's checkpoint has UIDs.
        let owner = |shown: &SliceStatus| account.owner(shown.device.as_ref()?);
        let Housekeeping { resting, rests_until, .. } = &mut self.housekeeping;
        if rests_until.take_if(|until| *until <= now).is_some() {
            resting.clear();
        }
        let Upkeep { has_changed, lost } = self.ledger.upkeep(status, owner, resting);
        if !resting.is_empty() {
            // The rest lasts from the first failure, so that further ones do not extend it.
            rests_until.get_or_insert(now + IDLE_BACKOFF);
        }
        for (owner, why) in &lost {
            tracing::warn!(pod = %owner.key, uid = %owner.uid, why, "released a reservation that cannot be fulfilled");
        }
        if has_changed {
            self.desired_changed();
        }
        has_changed
    }

    /// Handles a change of the desired slices: earlier failures of others no longer count, and new slices may need new
    /// names.
    pub(super) fn desired_changed(&mut self) {
        let desired = self.ledger.desired();
        self.retries.retain(|task| match task {
            Task::Create(id) => desired.slices.iter().any(|slice| slice.id == *id),
            Task::Destroy(..) | Task::Switch(_) => true,
        });
        self.advertised.serve(&self.resource_names());
    }

    /// Converts a moment of the ledger to clock time.
    pub(super) fn at(&self, moment: Moment) -> Option<Instant> {
        self.housekeeping.started?.checked_add(moment.0)
    }

    /// Converts clock time to a moment of the ledger.
    pub(super) fn moment(&self, now: Instant) -> Moment {
        Moment(
            self.housekeeping
                .started
                .map_or(Duration::ZERO, |started| now.saturating_duration_since(started)),
        )
    }
}

fn note_released(owners: &[Owner], why: &str) {
    for owner in owners {
        tracing::info!(pod = %owner.key, uid = %owner.uid, why, "released a reservation");
    }
}
