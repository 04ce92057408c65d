//! The first start of an agent with a ledger on a node where the previous version followed the spec of the GpuNode.
//! This module exists for one version only.

use super::Reservations;
use crate::node::NodePods;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::ledger::{Ledger, Moment, Owner, Saved};
use std::time::Instant;

/// Whether the agent owns its ledger yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TakeOver {
    #[default]
    Done,
    /// The spec must be read first.
    Awaited {
        /// Whether there is a checkpoint that cannot be read.
        is_lost: bool,
    },
    /// An agent with a ledger has served the node, and its checkpoint is lost. Until `until` a Binding that it had marked
    /// may still be made. Meanwhile nothing is accepted, cut or destroyed, and what bound pods were assigned is
    /// reserved for them again.
    Lost {
        /// When no such Binding can be made any more.
        until: Moment,
    },
}

/// The earlier agent, as shown by the first GpuNode that a process reads.
#[derive(Debug, Clone, Default)]
pub struct Predecessor {
    pub uid: Option<String>,
    /// Its spec, which an agent without a ledger has followed.
    pub spec: GpuNodeSpec,
    /// The status that an earlier agent has written.
    pub status: Option<GpuNodeStatus>,
}

impl Reservations {
    /// Takes the slices of the spec into the ledger, or those of the checkpoint if that is newer. It is unknown which
    /// of the pods with reservations are bound or will be, so all are looked up. Returns the earlier agent's status if
    /// its spec was still to be read.
    pub(in crate::node) fn take_over(
        &mut self,
        Predecessor { uid, spec, status }: Predecessor,
        now: Instant,
    ) -> Option<GpuNodeStatus> {
        let TakeOver::Awaited { is_lost } = self.takeover else { return None };
        let recorded = self.ledger.desired();
        // A spec that a leader has written into another object of this name was followed too. One that no leader has
        // written yet was not.
        let is_another = self.followed.is_some() && self.followed != uid && spec.revision > 0;
        let (revision, epoch) = (spec.revision, spec.epoch.max(self.ledger.epoch()));
        let is_unknown = (status.is_some() || is_lost) && revision == 0 && recorded.slices.is_empty();
        let desired = if is_another || revision >= recorded.revision { spec } else { recorded.clone() };
        let (slices, moment) = (desired.slices.len(), self.moment(now));
        self.takeover = TakeOver::Done;
        if is_unknown {
            tracing::error!("the ledger is lost: nothing is accepted until no unknown Binding can be made");
            self.takeover = TakeOver::Lost { until: moment + self.limits.binding() };
        } else if slices > 0 {
            tracing::info!(slices, "took the slices of the GpuNode's spec over");
        }
        self.ledger = Ledger::restore(Saved { desired, epoch }, self.limits, moment);
        self.followed = None;
        Some(status.unwrap_or_default())
    }

    /// Restores reservations that the ledger has lost, from the pods' assignments, as long as unknown pods may still be
    /// bound.
    pub(in crate::node) fn adopt_assigned(&mut self, pods: Option<&NodePods>, now: Instant) {
        if !matches!(self.takeover, TakeOver::Lost { .. }) {
            return;
        }
        let moment = self.moment(now);
        for (uid, pod) in pods.into_iter().flatten() {
            let owner = Owner { uid: uid.clone(), key: pod.key.clone() };
            self.ledger.adopt(&owner, &pod.assigned, moment);
        }
    }

    /// Ends the wait after the loss of a ledger. Returns when it will end.
    pub(in crate::node) fn await_takeover(&mut self, now: Instant) -> Option<Instant> {
        let TakeOver::Lost { until } = self.takeover else { return None };
        if until > self.moment(now) {
            return self.instant(until);
        }
        self.takeover = TakeOver::Done;
        None
    }

    /// Why nothing is accepted and nothing destroyed.
    pub(in crate::node) fn takeover_trouble(&self) -> Option<String> {
        match self.takeover {
            TakeOver::Done => None,
            TakeOver::Awaited { .. } => Some("the GpuNode's spec has not been read yet".to_owned()),
            TakeOver::Lost { .. } => Some(
                "the agent's ledger was lost: for 80 s pods may be bound that it does not list".to_owned(),
            ),
        }
    }
}
