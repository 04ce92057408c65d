//! Evicts the pods that are to restart elsewhere, by the eviction API: disruption budgets are kept.

use crate::cluster_index::Eviction;
use crate::events::{self, Topic};
use crate::term::Term;
use kerf_core::keys;
use kerf_runtime::eviction;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long one call may take. What became of it is seen by the watch.
const PATIENCE: Duration = Duration::from_secs(5);

/// Evicts one pod, and tells the index if that is refused.
pub async fn evict(term: Arc<Term>, eviction: Eviction) {
    let Eviction { uid, pod, node, makes_room_for, makes_room_for_pod } = eviction;
    tracing::info!(%pod, %uid, %node, makes_room_for = %makes_room_for_pod, "a movable pod restarts elsewhere");
    let refused = match timeout(PATIENCE, eviction::evict(&term.client, &pod, &uid)).await {
        Ok(Ok(())) => {
            term.metrics.moved();
            let note = format!(
                "evicted from {node} so that {makes_room_for_pod} finds room: its owner has marked it {}; its controller makes \
                 another, which finds room elsewhere",
                keys::MOVABLE
            );
            return events::tell(&term.client, &pod, &uid, Topic::MovedForAnother, note).await;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(%pod, %uid, reason = refused, makes_room_for = %makes_room_for_pod, "a movable pod was not evicted");
    term.with(|index| index.eviction_refused(&makes_room_for));
}
