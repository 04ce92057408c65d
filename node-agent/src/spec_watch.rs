//! Watches the node's own GpuNode, and makes it when it is not there.

use crate::node_object;
use crate::reconcile::{Event, Events};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kerf_core::names::NodeName;
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The wait between two tries to make the GpuNode.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// How long the API server may keep a watch: a connection that died silently is noticed soon after.
const WATCH_SECONDS: u32 = 60;

/// Sends each spec until `stop`.
pub async fn watch(
    api: Api<GpuNode>,
    nodes: Api<Node>,
    node: NodeName,
    events: Events,
    stop: CancellationToken,
) {
    let config = watcher::Config::default().fields(&format!("metadata.name={node}")).timeout(WATCH_SECONDS);
    let stream = watcher(api.clone(), config).default_backoff().take_until(stop.clone().cancelled_owned());
    tokio::pin!(stream);
    let mut is_there = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Init) => is_there = false,
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                is_there = true;
                let spec = object.read_spec().map_err(|error| error.to_string());
                tracing::debug!(revision = spec.as_ref().map_or(0, |s| s.revision), "the GpuNode changed");
                events.send(Event::Spec(object.metadata.uid, spec));
            }
            Ok(watcher::Event::Delete(_)) => {
                tracing::warn!("the GpuNode was deleted; making it anew");
                ensure(&api, &nodes, &node, &stop).await;
            }
            Ok(watcher::Event::InitDone) if is_there => {}
            Ok(watcher::Event::InitDone) => ensure(&api, &nodes, &node, &stop).await,
            Err(error) => tracing::warn!(%error, "the watch of the GpuNode failed"),
        }
    }
}

/// Makes the GpuNode if it is not there; tries until it is. Its owner is the Node of now: one that was made anew has
/// another UID, and the garbage collector removes what the old one owned.
pub async fn ensure(api: &Api<GpuNode>, nodes: &Api<Node>, node: &NodeName, stop: &CancellationToken) {
    let mut object = GpuNode::new(node);
    object.metadata.owner_references =
        node_object::owner(nodes, node.as_str()).await.map(|owner| vec![owner]);
    loop {
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => return tracing::info!(%node, "GpuNode made"),
            Err(kube::Error::Api(status)) if status.code == 409 => return,
            Err(error) => tracing::warn!(%error, "failed to make the GpuNode; is the CRD applied?"),
        }
        tokio::select! {
            () = tokio::time::sleep(TRY_AGAIN) => {}
            () = stop.cancelled() => return,
        }
    }
}
