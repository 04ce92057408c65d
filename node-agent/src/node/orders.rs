//! The node's ledger: a leader's orders, and what is due without one.

use super::health::Neighbour;
use super::recall::RECORD_AGAIN;
use super::{Node, Task};
use kerf_core::contract::{GpuNodeStatus, NodePolicy, Summary};
use kerf_core::ledger::{
    Answer, BoundPod, Found, Moment, NodeState, Order, OrderKind, Owner, Saved, Seen, Upkeep, reserved,
};
use kerf_core::names::{GpuUuid, PodKey, PodUid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long no idle slice is cut on a GPU on which one could not be made.
const REST: Duration = Duration::from_mins(5);

/// How long the extender may be without a leader before the node says that it takes no new pods.
const LEADERLESS: Duration = Duration::from_mins(1);

/// What an agent answers to an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// The pod whose reservation must be on the disk before the answer is given.
    pub reserved: Option<PodUid>,
}

/// What goes with the ledger.
#[derive(Debug, Default)]
pub(super) struct Housekeeping {
    /// When the process began: the ledger counts from then.
    pub(super) started: Option<Instant>,
    /// Pods of which the ledger has not been told yet that they have ended.
    pub(super) ended: BTreeSet<PodUid>,
    /// Pods that are due to be looked up, until the next decision.
    pub(super) look_up: BTreeMap<PodUid, PodKey>,
    /// When the last leader was lost that was connected.
    pub(super) leaderless_since: Option<Instant>,
    /// GPUs on which an idle slice could not be made. None is cut there ahead of demand meanwhile.
    pub(super) resting: BTreeSet<GpuUuid>,
    pub(super) rests_until: Option<Instant>,
}

impl Node {
    /// Takes the epoch of the leader that is connected now, if one is.
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

    /// Says that there is no leader once there has been none for too long. Returns when that will be so.
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

    /// The node as the extender's copy of it is to be.
    #[must_use]
    pub fn state(&self, status: &GpuNodeStatus) -> NodeState {
        let status = GpuNodeStatus { summary: Summary::default(), ..status.clone() };
        NodeState { status, policy: self.ledger.desired().policy.clone(), closed: self.closed() }
    }

    /// Does what a leader orders, or says why not.
    pub fn on_order(&mut self, order: &Order, now: Instant) -> Reply {
        // A process that was stopped for a while reads orders only after what has expired meanwhile has.
        self.follow_pods(now);
        let (closed, observed, status) = (self.closed(), self.observed(), self.status(&BTreeSet::new()));
        let seen = Seen { closed: closed.as_deref(), observed: &observed, status: &status };
        let now = self.moment(now);
        let answer = self.ledger.follow(order, seen, now);
        let reserved = match &order.kind {
            OrderKind::Reserve(proposal) => Some(&proposal.owner.uid),
            // Another leader than the one that waits for the disk may have seen the reservation.
            OrderKind::Mark { uid, .. } => Some(uid),
            OrderKind::Outcome { .. } | OrderKind::Release { .. } => None,
        };
        let reserved = reserved.filter(|_| answer.is_ok()).cloned();
        if answer.is_ok() && matches!(order.kind, OrderKind::Reserve(_)) {
            self.desired_changed();
        }
        Reply { answer, reserved }
    }

    /// Takes why the disk takes no reservation at present. The node takes no new pods then; those with a reservation go on.
    pub fn on_disk(&mut self, trouble: Option<String>) {
        self.health.disk = trouble;
    }

    /// These reservations could not be recorded: they are refused, and taken back.
    pub fn on_unrecorded_reservations<'u>(
        &mut self,
        uids: impl Iterator<Item = &'u PodUid>,
        error: &str,
        now: Instant,
    ) {
        tracing::error!(error, "no reservation is accepted that cannot be recorded");
        self.unrecorded = Some((error.to_owned(), now + RECORD_AGAIN));
        for uid in uids {
            self.ledger.retract(uid);
        }
        self.desired_changed();
    }

    /// Whether the GPUs were looked at, and who else manages them, so that there is something to report.
    #[must_use]
    pub fn has_looked(&self) -> bool {
        self.health.nvml != Neighbour::Awaited && (self.others.is_some() || !self.settings.others)
    }

    /// Whether a record has the pod's reservation as it is now.
    #[must_use]
    pub fn is_reservation_in(&self, saved: &Saved, uid: &PodUid) -> bool {
        reserved(&saved.desired, uid).eq(reserved(self.ledger.desired(), uid))
    }

    /// A look-up of a pod that was `asked` at this time has found this.
    pub fn on_looked_up(&mut self, uid: &PodUid, asked: Instant, found: Found) {
        let asked = self.moment(asked);
        if let Some(owner) = self.ledger.looked_up(uid, asked, found) {
            note_released(&[owner], "its pod is gone or runs elsewhere");
        }
    }

    /// Why no reservation is accepted now.
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

    /// Takes the policy in force.
    pub(super) fn follow_policy(&mut self, policy: NodePolicy) {
        if self.ledger.desired().policy != policy {
            self.ledger.set_policy(policy);
            // Another policy is another try.
            self.retries.retain(|task| !matches!(task, Task::Switch(_)));
            self.desired_changed();
        }
    }

    /// Follows the node's pods and the time: reservations whose pods have ended, or that were not renewed in time, are given back. Returns
    /// when something is due next.
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

    /// Does what is due by what the node has now. Returns whether another slice is desired for it.
    pub(super) fn upkeep(&mut self, status: &GpuNodeStatus, now: Instant) -> bool {
        if self.closed().is_some() {
            return false;
        }
        let Housekeeping { resting, rests_until, .. } = &mut self.housekeeping;
        if rests_until.take_if(|until| *until <= now).is_some() {
            resting.clear();
        }
        let Upkeep { has_changed, lost } = self.ledger.upkeep(status, resting);
        if !resting.is_empty() {
            rests_until.get_or_insert(now + REST);
        }
        for (owner, why) in &lost {
            tracing::warn!(pod = %owner.key, uid = %owner.uid, why, "released a reservation that cannot be fulfilled");
        }
        if has_changed {
            self.desired_changed();
        }
        has_changed
    }

    /// Other slices are desired than before: what was tried for those of before counts no more, and new ones may need new names.
    pub(super) fn desired_changed(&mut self) {
        let desired = self.ledger.desired();
        self.retries.retain(|task| match task {
            Task::Create(id) => desired.slices.iter().any(|slice| slice.id == *id),
            Task::Destroy(..) | Task::Switch(_) => true,
        });
        self.advertised.serve(&self.resource_names());
    }

    /// The clock's time of a moment that the ledger counts.
    pub(super) fn at(&self, moment: Moment) -> Option<Instant> {
        self.housekeeping.started?.checked_add(moment.0)
    }

    /// The time as the ledger counts it.
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
