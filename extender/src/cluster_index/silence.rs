//! Agents that do not follow. `Ready` is an agent's own last word: one that dies without taking it back, and is not
//! started again, would say so for ever, and what is promised there would never be cut.
//!
//! An agent takes a spec in as soon as it hears of it, whatever the GPUs are doing meanwhile (`observedRevision`). So one
//! that has not done so for a while does not hear.

use super::{ClusterIndex, IndexedNode};
use kerf_core::names::NodeName;
use std::time::{Duration, Instant};

/// How long an agent may be behind its spec without a step. It follows within a second, and its writes may fail for a while.
/// One whose watch died silently hears nothing for a minute: meanwhile its node is passed over, as if it were gone.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An agent that is behind its spec.
#[derive(Debug)]
pub(super) struct Lag {
    /// The revision that it took in last.
    observed: u64,
    /// Since when, as far as was looked.
    since: Option<Instant>,
}

impl ClusterIndex {
    /// Notes whether a node's agent is behind. Any step that it makes is a sign of life.
    pub(super) fn note_lag(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let behind = node.behind();
        if behind.is_some() && self.lagging.get(name).map(|lag| lag.observed) == behind {
            return;
        }
        if std::mem::take(&mut node.is_silent) {
            tracing::info!(node = %name, "the agent follows its GpuNode again");
        }
        match behind {
            Some(observed) => drop(self.lagging.insert(name.clone(), Lag { observed, since: None })),
            None => drop(self.lagging.remove(name)),
        }
    }

    /// Finds the agents that have been behind for too long.
    pub(super) fn notice_silence(&mut self, now: Instant) {
        let mut silent = Vec::new();
        for (name, lag) in &mut self.lagging {
            let since = *lag.since.get_or_insert(now);
            if now.saturating_duration_since(since) < PATIENCE {
                continue;
            }
            if let Some(node) = self.nodes.get_mut(name).filter(|node| !node.is_silent) {
                node.is_silent = true;
                let revision = node.working().map(|spec| spec.revision);
                tracing::warn!(node = %name, revision, observed = lag.observed, "the agent does not follow its GpuNode");
                silent.push(name.clone());
            }
        }
        for name in &silent {
            self.settle(name);
        }
    }
}

impl IndexedNode {
    /// The revision that the agent took in last, if a newer one is written.
    fn behind(&self) -> Option<u64> {
        let (Ok(spec), Ok(status)) = (&self.spec, &self.status) else { return None };
        (status.observed_revision < spec.committed().revision).then_some(status.observed_revision)
    }
}

#[cfg(test)]
#[path = "silence_tests.rs"]
mod tests;
