//! Decides when GPU Operator's programs that hold GPU instances (DCGM, its exporter, GPU feature discovery, NVSM) are
//! paused, as NVIDIA's MIG manager pauses them. While they run, NVML refuses a step and lists no process that holds the
//! GPU. The result is a [`Pause`] for the task that writes the Node's labels.

use super::Node;
use super::decide::task;
use kerf_core::planner::Step;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a pause outlasts the last step, so that consecutive steps share one.
const LINGER: Duration = Duration::from_secs(10);

/// Major compute capability of GPUs that need a reset to switch MIG mode (Ampere).
const WITH_RESET: u32 = 8;

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
    /// The labels that are `true` on the Node.
    deployed: BTreeSet<String>,
    /// When the pause ends, unless another step needs it.
    until: Option<Instant>,
    number: u64,
    /// The last pause whose programs have ended, or whose timeout has passed.
    cleared: u64,
}

impl Node {
    /// Takes the labels of the programs that GPU Operator deploys on the node.
    pub fn on_deployed(&mut self, labels: BTreeSet<String>) {
        self.pausing.deployed = labels;
    }

    /// Takes the labels that may still have to be restored, and the pause whose programs have ended or whose timeout
    /// has passed.
    pub fn on_paused(&mut self, labels: BTreeSet<String>, cleared: u64) {
        self.pausing.cleared = cleared;
        // During a pause all of its labels may be written at any time, so keep the full set.
        if self.pausing.until.is_none() {
            self.restored.paused = labels;
        }
    }

    /// Begins a pause that a step needs, and ends one that no step has needed for a while.
    pub(super) fn note_pause(&mut self, steps: &[Step], now: Instant) {
        let may = self.settings.pause_clients && self.knew && !self.is_closed();
        let is_needed = may && steps.iter().any(|step| self.needs_pause(step));
        let Pausing { deployed, until, number, .. } = &mut self.pausing;
        if is_needed && until.is_none() && !deployed.is_empty() {
            *number += 1;
            // Recorded before the labels are written, so that a restart can restore them.
            self.restored.paused.extend(deployed.iter().cloned());
            *until = Some(now + LINGER);
        }
        *until = until.filter(|until| may && (*until > now || is_needed));
        if is_needed {
            self.extend_pause(now);
        }
    }

    /// Extends the pause when a step needs it or runs in it.
    pub(super) fn extend_pause(&mut self, now: Instant) {
        self.pausing.until = self.pausing.until.map(|_| now + LINGER);
    }

    /// Whether the step waits until the programs have ended.
    pub(super) fn awaits_pause(&self, step: &Step) -> bool {
        let Pausing { until, number, cleared, .. } = &self.pausing;
        until.is_some() && cleared < number && self.needs_pause(step)
    }

    /// The programs that should be paused now, and when that may change.
    pub(super) fn pause(&self) -> (Pause, Option<Instant>) {
        let Pausing { until, number, .. } = self.pausing;
        let labels = until.map(|_| self.restored.paused.clone()).unwrap_or_default();
        (Pause { number, labels }, until)
    }

    /// Whether the programs block the step. A step that has failed for good in a pause has another obstacle, so DCGM is
    /// not stopped for each further try.
    fn needs_pause(&self, step: &Step) -> bool {
        match (self.retries.error(&task(step)), step) {
            (Some((_, true)), _) => false,
            // Even if the programs do not prevent a switch, they would afterwards work with outdated data about the
            // GPU.
            (_, Step::Switch { gpu, .. }) => {
                let changes_now =
                    |gpu: &crate::gpu::Gpu| gpu.capability.0 != WITH_RESET || self.may_reset(&gpu.uuid);
                !self.daemons.contains_key(gpu) && self.gpu(gpu).is_some_and(changes_now)
            }
            (error, _) => error.is_some_and(|(error, _)| error.is_held_by_unlisted()),
        }
    }
}
