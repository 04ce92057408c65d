//! The first start of an agent with a ledger on a node where the previous version followed the spec of the GpuNode.
//! This module exists for one version only.

use super::{Node, replica};
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, SliceStatus};
use kerf_core::ledger::{Ledger, Moment, Owner, Saved};
use std::time::Instant;

/// Whether the agent owns its ledger yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TakeOver {
    #[default]
    Done,
    /// The spec must be read first.
    Awaited,
    /// An agent with a ledger has served the node, and its record is lost. Until `until` a Binding that it had marked
    /// may still be made. Meanwhile nothing is accepted, cut or destroyed, and what bound pods were assigned is
    /// reserved for them again.
    Lost {
        /// When no such Binding can be made any more.
        until: Moment,
    },
}

/// What the first GpuNode that a process sees says of the agent before.
#[derive(Debug, Clone, Default)]
pub struct Predecessor {
    pub uid: Option<String>,
    /// Its spec, which an agent without a ledger has followed.
    pub spec: GpuNodeSpec,
    /// The status that an earlier agent has written.
    pub status: Option<GpuNodeStatus>,
}

impl Node {
    /// Takes the slices of the spec into the ledger, or those of the checkpoint if that is newer. It is unknown which
    /// of the pods with reservations are bound or will be, so all are looked up.
    pub fn on_predecessor(&mut self, Predecessor { uid, spec, status }: Predecessor, now: Instant) {
        if self.takeover != TakeOver::Awaited {
            return;
        }
        let recorded = self.ledger.desired();
        // A spec that a leader has written into another object of this name was followed too. One that no leader has
        // written yet was not.
        let is_another = self.restored.uid.is_some() && self.restored.uid != uid && spec.revision > 0;
        let (revision, epoch) = (spec.revision, spec.epoch.max(self.ledger.epoch()));
        let is_unknown =
            (status.is_some() || self.restored.is_lost) && revision == 0 && recorded.slices.is_empty();
        let desired = if is_another || revision >= recorded.revision { spec } else { recorded.clone() };
        let (slices, moment, limits) = (desired.slices.len(), self.moment(now), self.settings.limits);
        self.takeover = TakeOver::Done;
        if is_unknown {
            tracing::error!("the ledger is lost: nothing is accepted until no unknown Binding can be made");
            self.takeover = TakeOver::Lost { until: moment + limits.binding() };
        } else if slices > 0 {
            tracing::info!(slices, "took the slices of the GpuNode's spec over");
        }
        for SliceStatus { id, device, .. } in status.into_iter().flat_map(|status| status.slices) {
            self.origins.extend(device.as_ref().map(replica::mig_device).zip(id));
        }
        self.ledger = Ledger::restore(Saved { desired, epoch }, limits, moment);
        self.restored.uid = None;
        self.desired_changed();
    }

    /// Restores reservations that the ledger has lost, from the pods' assignments, as long as unknown pods may still be
    /// bound.
    pub(super) fn recall_assigned(&mut self, now: Instant) {
        if !matches!(self.takeover, TakeOver::Lost { .. }) {
            return;
        }
        let moment = self.moment(now);
        for (uid, pod) in self.pods.iter().flatten() {
            let owner = Owner { uid: uid.clone(), key: pod.key.clone() };
            self.ledger.adopt(&owner, &pod.assigned, moment);
        }
    }

    /// Ends the wait after the loss of a ledger. Returns when it will end.
    pub(super) fn await_takeover(&mut self, now: Instant) -> Option<Instant> {
        let TakeOver::Lost { until } = self.takeover else { return None };
        if until > self.moment(now) {
            return self.at(until);
        }
        self.takeover = TakeOver::Done;
        None
    }

    /// Why nothing is accepted and nothing destroyed.
    pub(super) fn takeover_trouble(&self) -> Option<String> {
        match self.takeover {
            TakeOver::Done => None,
            TakeOver::Awaited => Some("the GpuNode's spec has not been read yet".to_owned()),
            TakeOver::Lost { .. } => Some(
                "the agent's ledger was lost: for 80 s pods may be bound that it does not know".to_owned(),
            ),
        }
    }
}
