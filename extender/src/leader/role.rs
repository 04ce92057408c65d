//! Labels the pod that the Service selects: the leader's. The leader labels its own pod and removes the label from all
//! others: a leader that died, or one that was cut off and came back.
//!
//! The label is a signpost and no right: a replica that has it but does not lead refuses every request.

use crate::api_timeout::with_timeout;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_runtime::args::NamespacedName;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use serde_json::json;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::time::sleep;

/// Selects the pods of the Deployment, as its own selector does.
const REPLICAS: &str = "app.kubernetes.io/name=kerf-extender";
/// Timeout of one pass over the pods' labels.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Seconds after which the watch is restarted, as for the other watches.
const WATCH_SECONDS: u32 = 60;

/// The pod of this replica, among those of its Deployment.
#[derive(Debug, Clone)]
pub struct OwnPod {
    pods: Api<PartialObjectMeta<Pod>>,
    name: String,
}

impl OwnPod {
    #[must_use]
    pub fn new(client: Client, pod: &NamespacedName) -> Self {
        Self { pods: Api::namespaced(client, &pod.namespace), name: pod.name.clone() }
    }

    /// Keeps the label on this pod only, for as long as the future is polled. Calls `labelled` each time after it is
    /// so.
    pub async fn keep_label(&self, labelled: impl Fn()) -> Infallible {
        let config = Config::default().labels(REPLICAS).timeout(WATCH_SECONDS);
        let mut changes = pin!(watcher(self.pods.clone(), config).default_backoff());
        loop {
            match with_timeout(TIMEOUT, self.take_label()).await {
                Ok(()) => {
                    labelled();
                    // The event only triggers another pass, which reads the pods again, because the event may be older
                    // than the last pass.
                    let _event = changes.next().await;
                }
                Err(error) => {
                    let pod = &self.name;
                    tracing::warn!(pod, %error, "failed to label the leader's pod for the Service; trying again");
                    sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Removes the label from every other replica, then puts it on this one. In this order the Service never selects
    /// two pods.
    async fn take_label(&self) -> Result<(), kube::Error> {
        let leaders = format!("{REPLICAS},{}={}", keys::ROLE, keys::LEADER);
        let found = self.pods.list(&ListParams::default().labels(&leaders)).await?;
        let names: Vec<String> = found.items.into_iter().filter_map(|pod| pod.metadata.name).collect();
        for other in names.iter().filter(|name| **name != self.name) {
            match self.label(other, None).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                taken => taken?,
            }
            tracing::info!(pod = other, "took the leader's label from a replica that does not lead");
        }
        if names.contains(&self.name) {
            return Ok(());
        }
        self.label(&self.name, Some(keys::LEADER)).await?;
        tracing::info!(pod = self.name, "the Service selects this replica");
        Ok(())
    }

    async fn label(&self, pod: &str, value: Option<&str>) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {keys::ROLE: value}}}));
        self.pods.patch(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::{ApiStandIn, Fault};
    use http::Method;
    use std::sync::Arc;

    fn pods(labelled: &[&str]) -> Arc<ApiStandIn> {
        let api = ApiStandIn::new();
        for name in ["a", "b", "c"] {
            let mut labels = json!({"app.kubernetes.io/name": "kerf-extender"});
            if labelled.contains(&name) {
                labels[keys::ROLE] = json!(keys::LEADER);
            }
            api.put(&path(name), json!({"metadata": {"name": name, "labels": labels}}));
        }
        // A pod of another application with the same label.
        let labels = json!({keys::ROLE: keys::LEADER});
        api.put(&path("else"), json!({"metadata": {"name": "else", "labels": labels}}));
        api
    }

    fn path(pod: &str) -> String {
        format!("/api/v1/namespaces/kerf-system/pods/{pod}")
    }

    fn leaders(api: &ApiStandIn) -> Vec<&'static str> {
        let is_leader =
            |pod: &&str| api.get(&path(pod)).unwrap()["metadata"]["labels"].get(keys::ROLE).is_some();
        ["a", "b", "c", "else"].into_iter().filter(is_leader).collect()
    }

    fn own(api: &Arc<ApiStandIn>) -> OwnPod {
        OwnPod::new(api.client(), &"kerf-system/a".parse().unwrap())
    }

    #[tokio::test]
    async fn only_the_leader_has_the_label() {
        for labelled in [&[][..], &["a"], &["b"], &["b", "c"], &["a", "b"]] {
            let api = pods(labelled);
            own(&api).take_label().await.unwrap();
            assert_eq!(leaders(&api), ["a", "else"], "after {labelled:?}");
        }
    }

    #[tokio::test]
    async fn a_correct_label_is_not_written_again() {
        let api = pods(&["a"]);
        own(&api).take_label().await.unwrap();
        assert_eq!(api.requests(&Method::PATCH), 0);
    }

    #[tokio::test]
    async fn a_former_leader_that_is_gone_does_not_block_the_label() {
        let api = pods(&["b"]);
        api.meddle(|api| api.delete(&path("b")));
        own(&api).take_label().await.unwrap();
        assert!(api.get(&path("a")).unwrap()["metadata"]["labels"].get(keys::ROLE).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_label_is_tried_again() {
        let api = pods(&["b"]);
        api.fail([Fault::Answer(403), Fault::Answer(500)]);
        let (own, labelled) = (own(&api), tokio::sync::Notify::new());
        tokio::select! {
            never = own.keep_label(|| labelled.notify_one()) => match never {},
            () = labelled.notified() => {}
        }
        assert_eq!(leaders(&api), ["a", "else"]);
    }
}
