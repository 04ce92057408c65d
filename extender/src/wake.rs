//! Tells kube-scheduler that there is room for a pod that it was refused: by an annotation on the pod, since a change of
//! a pod is what makes the scheduler look at it again at once.

use crate::term::Term;
use futures::StreamExt;
use kerf_core::keys;
use kerf_core::names::{PodKey, PodUid};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How often it is looked for room without an event: probable places end by time alone.
const LOOK: Duration = Duration::from_secs(1);
/// How many pods are told at once.
const AT_ONCE: usize = 8;
/// How long one write may take. A pod that could not be told is told at the next change, or found by the scheduler.
const PATIENCE: Duration = Duration::from_secs(5);

/// Wakes pods until the term ends.
pub async fn run(term: Arc<Term>) {
    let mut count: u64 = 0;
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            () = term.room.notified() => {}
            () = sleep(LOOK) => {}
        }
        let (woken, epoch) = term.with(|index| (index.wake(Instant::now()), index.epoch()));
        let numbered = woken.into_iter().map(|(uid, key)| {
            count += 1;
            (uid, key, format!("{epoch}.{count}"))
        });
        futures::stream::iter(numbered.collect::<Vec<_>>())
            .for_each_concurrent(AT_ONCE, |(uid, key, mark)| tell(&term, uid, key, mark))
            .await;
    }
}

async fn tell(term: &Term, uid: PodUid, pod: PodKey, mark: String) {
    let api: Api<crate::pod::SlicedPod> = Api::namespaced(term.client.clone(), &pod.namespace);
    // With the UID, so that a namesake is left alone.
    let patch = json!({"metadata": {"uid": uid, "annotations": {keys::ROOM: mark}}});
    let told =
        timeout(PATIENCE, api.patch_metadata(&pod.name, &PatchParams::default(), &Patch::Merge(patch))).await;
    match told {
        Ok(Ok(_)) => tracing::info!(%pod, %uid, "there is room: the scheduler is told"),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
            tracing::debug!(%pod, %uid, "the pod is gone");
        }
        Ok(Err(error)) => tracing::warn!(%pod, %uid, %error, "failed to tell the scheduler of room"),
        Err(_) => tracing::warn!(%pod, %uid, "failed to tell the scheduler of room in time"),
    }
}
