//! Decides when GPU Operator's programs that hold GPU instances (DCGM, its exporter, GPU feature discovery, NVSM) are
//! paused, as NVIDIA's MIG manager pauses them. While they run, NVML refuses a step and lists no process that holds the
//! GPU. The result is a [`Pause`] for the task that writes the Node's labels.

use super::Restored;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a pause outlasts the last step, so that consecutive steps share one.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Which of the programs should be paused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pause {
    /// Distinguishes one pause from the next.
    pub number: u64,
    /// Their labels on the Node; empty once all should be restored.
    pub labels: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct Pausing {
    is_enabled: bool,
    /// The programs' labels that are `true` on the Node.
    deployed: BTreeSet<String>,
    /// The labels that may still have to be restored.
    labels: BTreeSet<String>,
    /// When the pause ends, unless another step needs it.
    until: Option<Instant>,
    number: u64,
    /// The last pause whose programs have ended, or whose timeout has passed.
    cleared: u64,
}

impl Pausing {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, ..Self::default() }
    }

    pub(super) fn restore(&mut self, restored: &Restored) {
        self.labels.clone_from(&restored.paused);
    }

    /// Writes what a restart needs into the checkpoint.
    pub(super) fn save(&self, record: &mut Restored) {
        record.paused.clone_from(&self.labels);
    }

    /// Takes the labels of the programs that GPU Operator deploys on the node.
    pub(super) fn take_deployed(&mut self, labels: BTreeSet<String>) {
        self.deployed = labels;
    }

    /// Takes the labels that may still have to be restored, and the pause whose programs have ended or whose timeout
    /// has passed.
    pub(super) fn take_paused(&mut self, labels: BTreeSet<String>, cleared: u64) {
        self.cleared = cleared;
        // During a pause all of its labels may be written at any time, so keep the full set.
        if self.until.is_none() {
            self.labels = labels;
        }
    }

    /// Begins a pause that a step needs, and ends one that no step has needed for a while. `may` is whether the node
    /// may change GPUs at all.
    pub(super) fn update(&mut self, may: bool, needs: impl FnOnce() -> bool, now: Instant) {
        let may = may && self.is_enabled;
        let is_needed = may && needs();
        if is_needed && self.until.is_none() && !self.deployed.is_empty() {
            self.number += 1;
            // Recorded before the labels are written, so that a restart can restore them.
            self.labels.extend(self.deployed.iter().cloned());
            self.until = Some(now + PAUSE_TIMEOUT);
        }
        self.until = self.until.filter(|until| may && (*until > now || is_needed));
        if is_needed {
            self.extend(now);
        }
    }

    /// Extends the pause when a step needs it or runs in it.
    pub(super) fn extend(&mut self, now: Instant) {
        self.until = self.until.map(|_| now + PAUSE_TIMEOUT);
    }

    /// Whether steps that need the pause wait until the programs have ended.
    pub(super) fn is_beginning(&self) -> bool {
        self.until.is_some() && self.cleared < self.number
    }

    /// The programs that should be paused now.
    pub(super) fn current(&self) -> Pause {
        let labels = self.until.map(|_| self.labels.clone()).unwrap_or_default();
        Pause { number: self.number, labels }
    }

    pub(super) fn ends(&self) -> Option<Instant> {
        self.until
    }
}
