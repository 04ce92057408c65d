//! Publishes what pods wait for, so that the webhook sends no more pods to a kind of slice than it has room for. Only the
//! leader does, when it has changed.
//!
//! The webhook drops the word of an older epoch than it has heard. So a leader first reads what was published last.

use crate::term::Term;
use k8s_openapi::api::core::v1::ConfigMap;
use kerf_core::contract::Demand;
use kerf_core::keys;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How often it is looked at, and written at most. In between a burst is decided on by what each replica of the webhook knows
/// itself, and who was promised a slice meanwhile counts as waiting still.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is written without a change: somebody else may have written, or deleted it.
const RENEW: Duration = Duration::from_secs(30);
/// How long one call may take. What could not be written is written at the next look.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before it is asked again what a former leader published.
const BREATH: Duration = Duration::from_secs(1);

/// Publishes into `namespace` until the term ends.
pub async fn run(term: Arc<Term>, namespace: String) {
    let api = Api::<ConfigMap>::namespaced(term.client.clone(), &namespace);
    tokio::select! {
        () = term.stop.cancelled() => return,
        epoch = former_epoch(&api) => term.with(|index| index.rise_over(epoch)),
    }
    term.listed.notify_one();
    let mut written: Option<(Demand, Instant)> = None;
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            () = sleep(LOOK) => {}
        }
        let Some(demand) = term.with(|index| index.is_listed().then(|| index.demand())) else { continue };
        if written.as_ref().is_some_and(|(last, at)| *last == demand && at.elapsed() < RENEW) {
            continue;
        }
        match timeout(PATIENCE, write(&api, &demand)).await {
            Ok(Ok(())) => written = Some((demand, Instant::now())),
            Ok(Err(error)) => tracing::warn!(%error, "failed to publish what pods wait for"),
            Err(_) => tracing::warn!("failed to publish what pods wait for in time"),
        }
    }
}

/// The epoch of what is published; `None` if there is nothing that anybody could read.
async fn former_epoch(api: &Api<ConfigMap>) -> Option<u64> {
    loop {
        match timeout(PATIENCE, api.get_opt(keys::DEMAND)).await {
            Ok(Ok(found)) => return found.as_ref().and_then(epoch_of),
            Ok(Err(error)) => tracing::warn!(%error, "failed to read what a former leader published"),
            Err(_) => tracing::warn!("failed to read what a former leader published in time"),
        }
        sleep(BREATH).await;
    }
}

fn epoch_of(object: &ConfigMap) -> Option<u64> {
    let text = object.data.as_ref()?.get(keys::DEMAND_DOCUMENT)?;
    let read = Demand::parse(text);
    read.inspect_err(|error| tracing::warn!(%error, "what a former leader published cannot be read"))
        .ok()
        .map(|demand| demand.epoch)
}

async fn write(api: &Api<ConfigMap>, demand: &Demand) -> Result<(), kube::Error> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": keys::DEMAND},
        "data": {keys::DEMAND_DOCUMENT: demand.to_json()},
    });
    let params = PatchParams::apply("kerf-extender").force();
    api.patch(keys::DEMAND, &params, &Patch::Apply(object)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::ApiStandIn;
    use crate::cluster_index::ClusterIndex;
    use crate::in_force::InForce;
    use crate::metrics::Metrics;
    use kerf_core::packing::Terms;
    use kerf_runtime::shutdown::CancellationToken;
    use serde_json::Value;

    const PATH: &str = "/api/v1/namespaces/kerf-system/configmaps/kerf-demand";

    fn published(api: &ApiStandIn) -> Option<Demand> {
        Demand::parse(api.get(PATH)?["data"][keys::DEMAND_DOCUMENT].as_str()?).ok()
    }

    /// The Lease was deleted, and there is no GpuNode whose spec tells of an epoch.
    #[tokio::test]
    async fn a_leader_whose_lease_was_lost_speaks_by_a_higher_epoch_than_was_heard() {
        let api = ApiStandIn::new();
        let put = |data: Value| api.put(PATH, json!({"metadata": {"name": keys::DEMAND}, "data": data}));
        put(json!({keys::DEMAND_DOCUMENT: Demand::of(7).to_json()}));
        let (metrics, _) = Metrics::new(&Arc::default());
        let (terms, policies, stop) = (Terms::default(), InForce::default(), CancellationToken::new());
        let term = Term::new(api.client(), metrics, 1, terms, policies, stop);
        term.with(|index| {
            index.await_former_epoch();
            index.nodes_listed();
            index.pods_listed();
        });
        assert!(!term.with(|index| index.is_listed()), "it answers by no epoch that may be too low");
        let publishing = tokio::spawn(run(term.clone(), "kerf-system".to_owned()));
        let spoken = async {
            while published(&api).is_none_or(|demand| demand.epoch == 7) {
                sleep(LOOK).await;
            }
        };
        timeout(PATIENCE, spoken).await.unwrap();
        assert_eq!(published(&api).map(|demand| demand.epoch), Some(8));
        assert_eq!(term.with(|index| index.epoch()), 8);
        term.stop.cancel();
        publishing.await.unwrap();
    }

    #[test]
    fn an_epoch_that_is_known_to_be_higher_stays() {
        for (former, epoch) in [(None, 3), (Some(2), 3), (Some(3), 4), (Some(9), 10)] {
            let mut index = ClusterIndex::new(3, Terms::default());
            index.rise_over(former);
            assert_eq!(index.epoch(), epoch, "{former:?}");
        }
    }

    #[test]
    fn what_nobody_can_read_has_no_epoch() {
        let object = |text: &str| ConfigMap {
            data: Some([(keys::DEMAND_DOCUMENT.to_owned(), text.to_owned())].into()),
            ..ConfigMap::default()
        };
        assert_eq!(epoch_of(&object(&Demand::of(7).to_json())), Some(7));
        assert_eq!(epoch_of(&object("{}")), None);
        assert_eq!(epoch_of(&ConfigMap::default()), None);
    }
}
