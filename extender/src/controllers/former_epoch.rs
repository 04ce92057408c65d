//! Reads and writes the ConfigMap with the leader's epoch, which completes what the Lease and the nodes' agents say.
//!
//! If the Lease was deleted and all nodes are static, no other object has an epoch. A leader without it would take the
//! cluster for a new one, and bind pods while Bindings of the former leader may be under way.

use crate::api_timeout::{ApiFailure, with_timeout};
use crate::term::Term;
use k8s_openapi::api::core::v1::ConfigMap;
use kerf_core::keys;
use kube::api::{Api, Patch, PatchParams};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const VERSION: u32 = 1;
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a failed request is retried.
const BACKOFF: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
struct Document {
    version: u32,
    epoch: u64,
}

/// Reads the former epoch, and writes the term's own once it is final.
pub async fn run(term: Arc<Term>, namespace: String) {
    let api = Api::<ConfigMap>::namespaced(term.client.clone(), &namespace);
    tokio::select! {
        () = term.stop.cancelled() => {}
        () = exchange(&term, &api) => {}
    }
}

async fn exchange(term: &Arc<Term>, api: &Api<ConfigMap>) {
    let former = until_answered("read", || with_timeout(TIMEOUT, api.get_opt(keys::DEMAND))).await;
    term.with(|index| index.rise_over(former.as_ref().and_then(epoch_in)));
    // Until the term answers, its epoch may rise.
    term.until(|index| index.leadership().answers()).await;
    let object = object(term.with(|index| index.leadership().epoch()));
    let params = PatchParams::apply("kerf-extender").force();
    let patch = Patch::Apply(&object);
    until_answered("write", || with_timeout(TIMEOUT, api.patch(keys::DEMAND, &params, &patch))).await;
}

/// Retries a request until it succeeds.
async fn until_answered<T, F>(what: &str, request: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, ApiFailure>>,
{
    loop {
        match request().await {
            Ok(answer) => return answer,
            Err(error) => {
                tracing::warn!(%error, config_map = keys::DEMAND, "failed to {what} the leader's epoch");
            }
        }
        sleep(BACKOFF).await;
    }
}

fn epoch_in(object: &ConfigMap) -> Option<u64> {
    let text = object.data.as_ref()?.get(keys::DEMAND_DOCUMENT)?;
    let read = serde_json::from_str::<Document>(text).inspect_err(
        |error| tracing::warn!(%error, config_map = keys::DEMAND, "the former leader's epoch cannot be read"),
    );
    read.ok().filter(|document| document.version == VERSION).map(|document| document.epoch)
}

fn object(epoch: u64) -> serde_json::Value {
    // The former version cannot read the document without the empty fields, and would miss the epoch after a rollback.
    let document = json!({"version": VERSION, "epoch": epoch, "pending": {}, "arrived": {}});
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": keys::DEMAND},
        "data": {keys::DEMAND_DOCUMENT: document.to_string()},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::{ApiStandIn, Fault};
    use crate::cluster_index::ClusterIndex;
    use crate::metrics::Metrics;
    use crate::policy_source::PolicySource;
    use http::Method;
    use kerf_core::packing::Terms;
    use kerf_runtime::shutdown::CancellationToken;
    use tokio::time::timeout;

    const PATH: &str = "/api/v1/namespaces/kerf-system/configmaps/kerf-demand";

    fn config_map(document: &str) -> ConfigMap {
        let data = [(keys::DEMAND_DOCUMENT.to_owned(), document.to_owned())];
        ConfigMap { data: Some(data.into()), ..ConfigMap::default() }
    }

    fn written(api: &ApiStandIn) -> Option<u64> {
        epoch_in(&serde_json::from_value(api.get(PATH)?).unwrap())
    }

    /// The Lease was deleted, and no agent has reported an epoch.
    #[tokio::test]
    async fn a_leader_without_its_lease_rises_over_the_written_epoch_and_writes_its_own_once() {
        let api = ApiStandIn::new();
        api.put(PATH, object(7));
        api.fail([Fault::Answer(500)]);
        let (metrics, _) = Metrics::new();
        let (terms, policies, stop) = (Terms::default(), PolicySource::default(), CancellationToken::new());
        let term = Term::new(api.client(), metrics, 1, terms, policies, stop);
        term.with(|index| {
            index.leadership_mut().await_former_epoch();
            index.nodes().end_gpu_node_list();
            index.end_pod_list();
        });
        assert!(!term.with(|index| index.is_listed()), "it answers by no epoch that may be too low");
        let taking_over = async {
            term.until(ClusterIndex::can_answer).await;
            assert_eq!(written(&api), Some(7), "the epoch may still rise");
            term.with(ClusterIndex::take_over);
        };
        let running = async { tokio::join!(run(term.clone(), "kerf-system".to_owned()), taking_over) };
        timeout(TIMEOUT, running).await.unwrap();
        assert_eq!((written(&api), term.with(|index| index.leadership().epoch())), (Some(8), 8));
        assert_eq!(api.requests(&Method::PATCH), 2, "the first failed");
    }

    #[test]
    fn an_epoch_that_is_known_to_be_higher_stays() {
        for (former, epoch) in [(None, 3), (Some(2), 3), (Some(3), 4), (Some(9), 10)] {
            let mut index = ClusterIndex::new(3, Terms::default());
            index.rise_over(former);
            assert_eq!(index.leadership().epoch(), epoch, "{former:?}");
        }
    }

    #[test]
    fn this_version_and_the_former_one_read_each_others_documents() {
        let before = r#"{"arrived":{},"epoch":7,"pending":{"nvidia.com/gpu":1},"revisions":{},"version":1}"#;
        assert_eq!(epoch_in(&config_map(before)), Some(7));
        let text = object(8)["data"][keys::DEMAND_DOCUMENT].as_str().unwrap().to_owned();
        assert_eq!(text, r#"{"arrived":{},"epoch":8,"pending":{},"version":1}"#);
    }

    #[test]
    fn an_unreadable_document_has_no_epoch() {
        for text in ["", "{}", r#"{"version":2,"epoch":7}"#] {
            assert_eq!(epoch_in(&config_map(text)), None, "{text}");
        }
        assert_eq!(epoch_in(&ConfigMap::default()), None);
    }
}
