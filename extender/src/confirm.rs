//! Asks the API server about pods that the watch shows no more, so that a promise is given back for good reason only;
//! and from time to time has the index look at everything anew.

use crate::binding;
use crate::term::Term;
use futures::StreamExt;
use kerf_core::names::PodUid;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often everything is looked at anew. Events do the work; this finds what one of them missed.
const RESYNC: Duration = Duration::from_secs(30);
/// How many pods are asked for at once.
const AT_ONCE: usize = 8;
/// How long one answer may take. Who is not answered for is asked for again at the next resync.
const PATIENCE: Duration = Duration::from_secs(5);

/// Confirms pods until the term ends.
pub async fn run(term: Arc<Term>) {
    let mut resync = interval(RESYNC);
    resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            _ = resync.tick() => term.with(crate::cluster_index::ClusterIndex::resync),
            () = term.confirm.notified() => confirm(&term).await,
        }
    }
}

async fn confirm(term: &Arc<Term>) {
    let pods = term.take_unconfirmed();
    futures::stream::iter(pods).for_each_concurrent(AT_ONCE, |uid| confirm_one(term, uid)).await;
}

async fn confirm_one(term: &Arc<Term>, uid: PodUid) {
    let Some(key) = term.with(|index| index.promised_pod(&uid)) else { return };
    match timeout(PATIENCE, binding::pod(&term.client, &key, &uid)).await {
        Ok(Ok(None)) => term.with(|index| index.pod_gone(&uid)),
        Ok(Ok(Some(pod))) => term.with(|index| index.show_stray(pod)),
        Ok(Err(error)) => tracing::warn!(pod = %key, %error, "failed to look a pod up"),
        Err(_) => tracing::warn!(pod = %key, "failed to look a pod up in time"),
    }
}
