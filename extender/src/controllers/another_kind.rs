//! Writes an Event, once per pod, about pending pods that another kind of slice would serve if they were recreated.
//!
//! If only one kind could serve a pod when it was created, the webhook writes a name that says this kind. Nodes that
//! joined later may serve the pod by another kind, but the limits of a pod cannot be changed.

use crate::events::EventReason;
use crate::term::Term;
use kerf_core::names::PodUid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// How long a pod is pending before it gets the Event. A node may join or a pod may end at any moment, so an earlier
/// Event would often be wrong.
const PENDING_LIMIT: Duration = Duration::from_mins(5);

/// What is remembered of pending pods between two polls.
#[derive(Debug, Default)]
struct Memory {
    since: BTreeMap<PodUid, Instant>,
    reported: BTreeSet<PodUid>,
}

impl Memory {
    /// The pods that have been pending for [`PENDING_LIMIT`] without a break and have no Event yet, with the time that
    /// they have been pending.
    fn due(&mut self, pending: Vec<PodUid>, now: Instant) -> BTreeMap<PodUid, Duration> {
        let before = std::mem::take(&mut self.since);
        let since = |uid: PodUid| (uid.clone(), before.get(&uid).copied().unwrap_or(now));
        self.since = pending.into_iter().map(since).collect();
        self.reported.retain(|uid| self.since.contains_key(uid));
        let pending = self.since.iter().map(|(uid, since)| (uid, now.saturating_duration_since(*since)));
        let due = pending.filter(|(uid, pending)| *pending >= PENDING_LIMIT && !self.reported.contains(*uid));
        due.map(|(uid, pending)| (uid.clone(), pending)).collect()
    }
}

pub async fn run(term: Arc<Term>) {
    let mut memory = Memory::default();
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            () = sleep(POLL_INTERVAL) => {}
        }
        look(&term, &mut memory, Instant::now()).await;
    }
}

async fn look(term: &Arc<Term>, memory: &mut Memory, now: Instant) {
    let found = term.with(|index| {
        // Before all lists end, a node that serves the pod by its own kind may be missing.
        if !index.is_listed() {
            return Vec::new();
        }
        let due = memory.due(index.scheduling().unplaced(), now);
        index.scheduling().served_by_another_kind(&due)
    });
    for (uid, pod, found) in found {
        tracing::info!(%pod, %uid, %found, "another kind has room");
        term.events.publish(&pod, &uid, EventReason::AnotherKindHasRoom, found.to_string()).await;
        memory.reported.insert(uid);
    }
}

#[cfg(test)]
#[path = "another_kind_tests.rs"]
mod tests;
