//! Watches the pods of this node, only to learn when one is gone or finished: then its slices may be free.

use crate::reconcile::{Event, Events};
use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::names::{NodeName, PodKey};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long the API server may keep a watch.
const WATCH_SECONDS: u32 = 290;

/// Of a pod, what this watch needs; the rest is not even kept while it is read.
#[derive(Debug, Clone, Deserialize)]
struct PodView {
    metadata: ObjectMeta,
    #[serde(default)]
    status: PodStatusView,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PodStatusView {
    #[serde(default)]
    phase: String,
}

impl PodView {
    fn key(&self) -> PodKey {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        PodKey::new(text(&self.metadata.namespace), text(&self.metadata.name))
    }

    fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

impl kube::Resource for PodView {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Cow::Borrowed("Pod")
    }

    fn group((): &()) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn version((): &()) -> Cow<'_, str> {
        Cow::Borrowed("v1")
    }

    fn plural((): &()) -> Cow<'_, str> {
        Cow::Borrowed("pods")
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Tells which pods leave until `stop`. After a gap in the watch the kubelet is asked instead.
pub async fn watch(
    client: Client,
    node: NodeName,
    events: Events,
    want_holders: Arc<Notify>,
    stop: CancellationToken,
) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}")).timeout(WATCH_SECONDS);
    let pods: Api<PodView> = Api::all(client);
    let stream = watcher(pods, config).default_backoff().take_until(stop.cancelled_owned());
    tokio::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Delete(pod)) => events.send(Event::PodLeft(pod.key())),
            Ok(watcher::Event::Apply(pod)) if pod.is_finished() => events.send(Event::PodLeft(pod.key())),
            Ok(watcher::Event::InitDone) => want_holders.notify_one(),
            Ok(watcher::Event::Apply(_) | watcher::Event::Init | watcher::Event::InitApply(_)) => {}
            Err(error) => tracing::warn!(%error, "the watch of the node's pods failed"),
        }
    }
}
