//! Publishes what pods wait for, so that the webhook sends no more pods to a kind of slice than it has room for. Only the
//! leader does, when it has changed.

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
/// How long one write may take. What could not be written is written at the next look.
const PATIENCE: Duration = Duration::from_secs(5);

/// Publishes into `namespace` until the term ends.
pub async fn run(term: Arc<Term>, namespace: String) {
    let api = Api::<ConfigMap>::namespaced(term.client.clone(), &namespace);
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

async fn write(api: &Api<ConfigMap>, demand: &Demand) -> Result<(), kube::Error> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": keys::DEMAND},
        "data": {keys::DEMAND_DOCUMENT: demand.to_json()},
    });
    let params = PatchParams::apply("kerf-extender").force();
    api.patch(keys::DEMAND, &params, &Patch::Apply(object)).await.map(drop)
}
