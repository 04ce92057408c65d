//! When GPU Operator's programs that hold GPU instances (DCGM, its exporter, GPU feature discovery, NVSM) are paused, as NVIDIA's MIG
//! manager pauses them. NVML refuses a step meanwhile, and lists nobody. Who writes the Node's labels is told by a [`Pause`].

use super::Node;
use super::decide::task;
use kerf_core::planner::Step;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a pause outlasts the last step, so that steps in a row share one.
const LINGER: Duration = Duration::from_secs(10);

/// Compute capability of GPUs whose MIG mode changes with a reset (Ampere).
const WITH_RESET: u32 = 8;

/// Which of the programs should be paused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pause {
    /// Tells one pause from the next.
    pub number: u64,
    /// Their labels on the Node; empty once all should be put back.
    pub labels: BTreeSet<String>,
}

/// What is known of the pause.
#[derive(Debug, Default)]
pub(super) struct Pausing {
    /// The labels that are `true` on the Node.
    deployed: BTreeSet<String>,
    /// When it ends, unless it is needed again.
    until: Option<Instant>,
    number: u64,
    /// The last pause whose programs have gone, or were waited for long enough.
    cleared: u64,
}

impl Node {
    /// Takes the labels of the programs that GPU Operator deploys on the node.
    pub fn on_deployed(&mut self, labels: BTreeSet<String>) {
        self.pausing.deployed = labels;
    }

    /// Takes the labels that may still have to be put back, and the pause whose programs have gone or were waited for long enough.
    pub fn on_paused(&mut self, labels: BTreeSet<String>, cleared: u64) {
        self.pausing.cleared = cleared;
        // While a pause is on all of its labels may be written at any time.
        if self.pausing.until.is_none() {
            self.recalled.paused = labels;
        }
    }

    /// Begins a pause that a step needs, and ends one that none has needed for a while.
    pub(super) fn note_pause(&mut self, steps: &[Step], now: Instant) {
        let may = self.settings.pause_clients && self.knew && !self.is_closed();
        let is_needed = may && steps.iter().any(|step| self.needs_pause(step));
        let Pausing { deployed, until, number, .. } = &mut self.pausing;
        if is_needed && until.is_none() && !deployed.is_empty() {
            *number += 1;
            self.recalled.paused.extend(deployed.iter().cloned());
            *until = Some(now + LINGER);
        }
        *until = until.filter(|until| may && (*until > now || is_needed));
        if is_needed {
            self.extend_pause(now);
        }
    }

    /// A step needs the pause, or is run in it.
    pub(super) fn extend_pause(&mut self, now: Instant) {
        self.pausing.until = self.pausing.until.map(|_| now + LINGER);
    }

    /// Whether the step waits until the programs have gone.
    pub(super) fn awaits_pause(&self, step: &Step) -> bool {
        let Pausing { until, number, cleared, .. } = &self.pausing;
        until.is_some() && cleared < number && self.needs_pause(step)
    }

    /// What should be paused now, and when that may change.
    pub(super) fn pause(&self) -> (Pause, Option<Instant>) {
        let Pausing { until, number, .. } = self.pausing;
        let labels = until.map(|_| self.recalled.paused.clone()).unwrap_or_default();
        (Pause { number, labels }, until)
    }

    /// Whether the programs are in the step's way. A step that has failed for good in a pause has another obstacle, and DCGM is not
    /// stopped for each further try.
    fn needs_pause(&self, step: &Step) -> bool {
        match (self.retries.error(&task(step)), step) {
            (Some((_, true)), _) => false,
            // The mode changes under the programs where they do not prevent it, and they would know the GPU as it was.
            (_, Step::Switch { gpu, .. }) => {
                let changes_now =
                    |gpu: &crate::gpu::Gpu| gpu.capability.0 != WITH_RESET || self.may_reset(&gpu.uuid);
                !self.daemons.contains_key(gpu) && self.gpu(gpu).is_some_and(changes_now)
            }
            (error, _) => error.is_some_and(|(error, _)| error.is_held_by_unlisted()),
        }
    }
}
