//! Makes kube-scheduler requeue pods that now have room. It writes an annotation on the pod, because the scheduler
//! retries a pod at once when the pod changes.

use crate::term::Term;
use futures::StreamExt;
use kerf_core::keys;
use kerf_core::names::{PodKey, PodUid};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How many pods are annotated at once.
const AT_ONCE: usize = 8;
/// Timeout of one write. A pod whose write failed stays in line and is requeued later, here or by the scheduler.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Requeues pods until the term ends.
pub async fn run(term: Arc<Term>) {
    let mut count: u64 = 0;
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            () = term.room.notified() => {}
        }
        round(&term, &mut count, Instant::now()).await;
    }
}

/// Annotates the pods that have room now.
async fn round(term: &Arc<Term>, count: &mut u64, now: Instant) {
    let (woken, epoch) = term.with(|index| (index.requeue(now), index.leadership().epoch()));
    let numbered = woken.into_iter().map(|(uid, key)| {
        *count += 1;
        // Each mark is a new value, because the scheduler retries the pod only if the write changes it.
        (uid, key, format!("{epoch}.{count}"))
    });
    futures::stream::iter(numbered.collect::<Vec<_>>())
        .for_each_concurrent(AT_ONCE, async |(uid, key, mark)| {
            let reported = mark_pod(term, &uid, &key, mark).await;
            term.with(|index| {
                if reported {
                    index.scheduling().unschedulable().was_called(&uid);
                } else {
                    index.scheduling().unschedulable().was_not_called(&uid, now);
                }
            });
        })
        .await;
}

/// Annotates one pod. Returns whether this need not be tried again.
async fn mark_pod(term: &Term, uid: &PodUid, pod: &PodKey, mark: String) -> bool {
    let api: Api<crate::objects::pod::SlicedPod> = Api::namespaced(term.client.clone(), &pod.namespace);
    // The UID makes the API server refuse the write for another pod of the same name.
    let patch = json!({"metadata": {"uid": uid, "annotations": {keys::ROOM: mark}}});
    let reported =
        timeout(TIMEOUT, api.patch_metadata(&pod.name, &PatchParams::default(), &Patch::Merge(patch))).await;
    match reported {
        Ok(Ok(_)) => tracing::info!(%pod, %uid, "the pod has room and is requeued"),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
            tracing::debug!(%pod, %uid, "the pod is gone");
        }
        Ok(Err(error)) => {
            tracing::warn!(%pod, %uid, %error, "failed to requeue a pod that has room");
            return false;
        }
        Err(_) => {
            tracing::warn!(%pod, %uid, "timed out requeueing a pod that has room");
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::{ApiStandIn, Fault, pod_path};
    use crate::cluster_index::Limits;
    use crate::cluster_index::scene::Agent;
    use crate::controllers::timers;
    use crate::metrics::Metrics;
    use crate::objects::ask::Ask;
    use crate::objects::pod::{KnownPod, SlicedPod};
    use crate::policy_source::PolicySource;
    use http::Method;
    use kerf_core::packing::Terms;
    use kerf_core::testing::{request, static_node};
    use kerf_runtime::shutdown::CancellationToken;

    #[tokio::test]
    async fn a_failed_requeue_is_tried_again() {
        let (api, start) = (ApiStandIn::new(), Instant::now());
        api.put_pod("a", None);
        let (metrics, _) = Metrics::new();
        let (terms, policies, stop) = (Terms::default(), PolicySource::default(), CancellationToken::new());
        let term = Term::new(api.client(), metrics, 1, terms, policies, stop);
        let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
        term.with(|index| {
            index.nodes().end_gpu_node_list();
            index.end_pod_list();
            index.scheduling().unschedulable().refused(
                &"uid-a".into(),
                &PodKey::new("default", "a"),
                &ask,
                &["n"],
                false,
            );
            let _agent = Agent::connected(index, "n");
        });
        api.fail([Fault::Answer(429), Fault::Answer(500)]);
        let mut count = 0;
        for (seconds, patches) in [(0, 1), (1, 2), (2, 2), (3, 3), (60, 3)] {
            round(&term, &mut count, start + Duration::from_secs(seconds)).await;
            assert_eq!(api.requests(&Method::PATCH), patches, "after {seconds} s");
        }
        assert_eq!(api.get(&pod_path("a")).unwrap()["metadata"]["annotations"][keys::ROOM], "1.3");
    }

    #[tokio::test(start_paused = true)]
    async fn reservations_end_while_the_api_server_does_not_answer() {
        let api = ApiStandIn::new();
        let (metrics, _) = Metrics::new();
        let (terms, policies, stop) = (Terms::default(), PolicySource::default(), CancellationToken::new());
        let term = Term::new(api.client(), metrics, 1, terms, policies, stop);
        let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
        api.fail([Fault::NoReply]);
        term.with(|index| {
            index.bindings().set_limits(Limits { reservation: Duration::ZERO, ..Limits::default() });
            index.nodes().end_gpu_node_list();
            index.end_pod_list();
            index.scheduling().unschedulable().refused(
                &"uid-a".into(),
                &PodKey::new("default", "a"),
                &ask,
                &["n"],
                false,
            );
            let _agent = Agent::connected(index, "n");
            index.nodes().show_static(&"s".into(), Some(static_node(&[], &[("gpu", 8)])));
        });
        tokio::spawn(run(term.clone()));
        tokio::spawn(timers::run(term.clone()));
        while api.requests(&Method::PATCH) == 0 {
            tokio::task::yield_now().await;
        }
        let metadata = json!({"name": "b", "namespace": "default", "uid": "uid-b"});
        let pod: SlicedPod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let devices = [("nvidia.com/gpu".parse().unwrap(), 1)].into();
        let pod = KnownPod::from(pod).with(|template| template.devices = Arc::new(devices));
        term.with(|index| index.reserving().reserve_plain(&pod, &"s".into())).unwrap();
        tokio::time::sleep(timers::INTERVAL * 2).await;
        assert!(term.with(|index| index.place_of(&pod.uid).is_none()), "its lifetime is over");
    }
}
