//! Work that depends on the checkpoint: making the recorded slices again, and steps after a failed write.
//!
//! GPU instances end with the load of the driver, and so does the MIG mode of most GPUs. After a reload of the driver,
//! at a boot or within one, the recorded slices are made again at the same places before any resource name is
//! registered, because the kubelet's own checkpoint has pods that need these names.

use super::Restored;
use kerf_core::contract::SliceLength;
use kerf_core::names::GpuUuid;
use kerf_core::planner::Step;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the registration of names waits for recorded slices.
const RECOVERY_TIMEOUT: Duration = Duration::from_mins(2);

/// The wait after a failed write of the checkpoint.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// When names are registered although recorded slices are missing; `None` outside of a recovery.
    until: Option<Instant>,
    /// Why the checkpoint could not be written, and when the next try is.
    write_failure: Option<(String, Instant)>,
    /// The GPUs whose time slices have had another length than the driver's default.
    lengths: BTreeSet<GpuUuid>,
}

impl Recovery {
    pub(super) fn restore(&mut self, restored: &Restored, now: Instant) {
        if restored.booted {
            tracing::info!(
                slices = restored.ledger.desired.slices.len(),
                "the driver was loaded anew: its slices are made again"
            );
            self.until = Some(now + RECOVERY_TIMEOUT);
        }
        self.lengths.clone_from(&restored.lengths);
    }

    /// Writes what a restart needs into the checkpoint.
    pub(super) fn save(&self, record: &mut Restored) {
        record.booted = self.is_running();
        record.lengths.clone_from(&self.lengths);
    }

    /// Records whose time slices have another length than the driver's default. An agent that leaves the node resets
    /// them.
    pub(super) fn observe_lengths(&mut self, wanted: &BTreeMap<GpuUuid, SliceLength>) {
        let changed = wanted.iter().filter(|(_, length)| **length != SliceLength::Default);
        self.lengths.extend(changed.map(|(gpu, _)| gpu.clone()));
    }

    /// Whether the names still wait for slices that are being made again.
    pub(super) fn is_running(&self) -> bool {
        self.until.is_some()
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Selects the steps that a recovery may run: they make what the checkpoint lists, and nothing else.
    pub(super) fn select(&self, mut steps: Vec<Step>) -> Vec<Step> {
        let restores = |step: &Step| matches!(step, Step::Switch { mig: true, .. } | Step::Create { .. });
        steps.retain(|step| !self.is_running() || restores(step));
        steps
    }

    /// Extends the timeout while nothing can be made yet.
    pub(super) fn extend(&mut self, now: Instant) {
        self.until = self.until.map(|until| until.max(now + RECOVERY_TIMEOUT));
    }

    /// Ends the recovery once no step is left to try, or after its timeout: names must not wait forever, because pods
    /// that need them cannot start before. Returns whether it ended.
    pub(super) fn end(&mut self, is_complete: bool, now: Instant) -> bool {
        self.until.take_if(|until| is_complete || now >= *until).is_some()
    }

    /// Records that the checkpoint could not be written. After a while it is tried again.
    pub(super) fn fail_write(&mut self, error: &str, now: Instant) {
        self.write_failure = Some((error.to_owned(), now + WRITE_RETRY_INTERVAL));
    }

    /// Forgets a failed write of the checkpoint, because a step ran and so was recorded.
    pub(super) fn clear_write_failure(&mut self) {
        self.write_failure = None;
    }

    /// Drops a failed write whose next try is due.
    pub(super) fn retry_write(&mut self, now: Instant) {
        self.write_failure.take_if(|(_, at)| *at <= now);
    }

    /// When the next try of a write is. No step runs before, because each step is recorded first.
    pub(super) fn next_write(&self, now: Instant) -> Option<Instant> {
        self.write_failure.as_ref().map(|(_, at)| *at).filter(|at| *at > now)
    }

    pub(super) fn write_trouble(&self) -> Option<&str> {
        self.write_failure.as_ref().map(|(text, _)| text.as_str())
    }
}
