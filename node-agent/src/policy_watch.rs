//! Watches the policy in the node's own GpuNode, and creates that object if it is missing.

use crate::event::{Event, Events};
use crate::node::Predecessor;
use crate::node_object;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::names::NodeName;
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long the API server may keep a watch. It is short, so that a connection that died silently is noticed soon.
const WATCH_SECONDS: u32 = 60;

/// Sends each policy until `stop`, and before the first one the object that has it. `shown` receives the status of each
/// object that was listed or created again.
pub async fn watch(
    (api, nodes): (Api<GpuNode>, Api<Node>),
    node: NodeName,
    events: Events,
    shown: mpsc::UnboundedSender<Option<GpuNodeStatus>>,
    stop: CancellationToken,
) {
    let config = watcher::Config::default().fields(&format!("metadata.name={node}")).timeout(WATCH_SECONDS);
    let stream = watcher(api.clone(), config).default_backoff().take_until(stop.clone().cancelled_owned());
    tokio::pin!(stream);
    // The UID of the last object that was seen.
    let (mut seen, mut is_first) = (None, true);
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Init) => seen = None,
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                if seen.as_ref() != Some(&object.metadata.uid) {
                    // The send fails once the publisher has ended with the agent; then the status is not needed.
                    drop(shown.send(status(&object)));
                    seen = Some(object.metadata.uid.clone());
                }
                let spec = object.read_spec().map_err(|error| error.to_string());
                if let (true, Ok(spec)) = (is_first, &spec) {
                    is_first = false;
                    let (uid, spec, status) = (object.metadata.uid.clone(), spec.clone(), status(&object));
                    events.send(Event::Predecessor(Box::new(Predecessor { uid, spec, status })));
                }
                events.send(Event::Policy(spec.map(|spec| spec.policy)));
            }
            Ok(watcher::Event::Delete(_)) => {
                tracing::warn!("the GpuNode was deleted; making it anew");
                ensure(&api, &nodes, &node, &stop).await;
            }
            Ok(watcher::Event::InitDone) if seen.is_some() => {}
            Ok(watcher::Event::InitDone) => ensure(&api, &nodes, &node, &stop).await,
            Err(error) => tracing::warn!(%error, "the watch of the GpuNode failed"),
        }
    }
}

fn status(object: &GpuNode) -> Option<GpuNodeStatus> {
    object.read_status().unwrap_or_else(|error| {
        tracing::warn!(%error, "what is in the GpuNode's status cannot be read");
        None
    })
}

/// Creates the GpuNode if it is missing, with retries. Its owner is the current Node, because a recreated Node has
/// another UID and the garbage collector deletes what the old one owned. Without a Node it is not created: it would
/// have no owner, outlive its node, and get no owner later.
async fn ensure(api: &Api<GpuNode>, nodes: &Api<Node>, node: &NodeName, stop: &CancellationToken) {
    let mut reported = false;
    while !stop.is_cancelled() {
        match make(api, nodes, node).await {
            Ok(true) => return,
            Ok(false) if reported => {}
            Ok(false) => {
                tracing::warn!(%node, "there is no such Node; its GpuNode is made once there is");
                reported = true;
            }
            Err(error) => tracing::warn!(%error, "failed to make the GpuNode; is the CRD applied?"),
        }
        stop.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL)).await;
    }
}

/// Whether the GpuNode exists now; `false` while there is no Node.
async fn make(api: &Api<GpuNode>, nodes: &Api<Node>, node: &NodeName) -> Result<bool, kube::Error> {
    let Some(owner) = node_object::owner(nodes, node.as_str()).await? else { return Ok(false) };
    let mut object = GpuNode::new(node);
    object.metadata.owner_references = Some(vec![owner]);
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => tracing::info!(%node, "GpuNode made"),
        // It exists already, as desired.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::{client, refusal};
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_gpu_node_is_created_once_its_node_exists() {
        let asked = AtomicUsize::new(0);
        let (client, log) = client(move |request| {
            let made = || (200, json!({"metadata": {"name": "n1", "uid": "u1"}}));
            match (request.method.as_str(), asked.load(Ordering::Relaxed)) {
                ("GET", 0) => {
                    asked.fetch_add(1, Ordering::Relaxed);
                    refusal(404)
                }
                _ => made(),
            }
        });
        let (gpu_nodes, nodes) = (Api::all(client.clone()), Api::all(client));
        ensure(&gpu_nodes, &nodes, &NodeName::new("n1"), &CancellationToken::new()).await;
        let posted: Vec<_> = log.all().into_iter().filter(|asked| asked.method == "POST").collect();
        assert_eq!(posted.len(), 1);
        assert_eq!(posted[0].body["metadata"]["ownerReferences"][0]["uid"], "u1");
    }
}
