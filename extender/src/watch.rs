//! The watches that feed the index.
//!
//! - `GpuNodes`: that they exist, and their policies.
//! - Pods with kerf's label.
//! - Bound pods without it. Only those that hold devices of NVIDIA's plugin are kept.
//! - Nodes, for their resources.
//!
//! `GpuNodes` come first, so that every reservation is known when pods are listed, and those of vanished pods are
//! found.

use crate::cluster::Cluster;
use crate::objects::compute::Compute;
use crate::objects::gpu_node_view::GpuNodeView;
use crate::objects::node_view::NodeView;
use crate::objects::pod::{KnownPod, SlicedPod};
use crate::relist::List;
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kerf_core::keys;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::shutdown::CancellationToken;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use std::pin::pin;
use std::sync::Arc;

/// Seconds after which a watch is restarted. A connection that died silently is noticed 5 s later.
const WATCH_SECONDS: u32 = 60;

/// Selects the pods that may hold devices. When a pod stops matching, such a watch reports it as deleted.
const BOUND_AND_ALIVE: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// Feeds the index until `stop`, whether this replica leads or not.
pub async fn run(cluster: Arc<Cluster>, client: kube::Client, stop: CancellationToken) {
    cluster.with(|index| index.nodes().objects().await_lists());
    let config = Config::default().timeout(WATCH_SECONDS);
    let pods_config = config.clone().labels(&format!("{}=true", keys::SLICED));
    let others_config = config.clone().labels(&format!("{}!=true", keys::SLICED)).fields(BOUND_AND_ALIVE);
    let lists = &cluster.lists;
    let gpu_nodes = || watcher(Api::<GpuNodeView>::all(client.clone()), config.clone()).default_backoff();
    let pods = || watcher(Api::<SlicedPod>::all(client.clone()), pods_config.clone()).default_backoff();
    let others = || watcher(Api::<SlicedPod>::all(client.clone()), others_config.clone()).default_backoff();
    let nodes = || watcher(Api::<NodeView>::all(client.clone()), config.clone()).default_backoff();
    let nodes_listed = tokio::sync::Notify::new();
    let never_again = List::default();
    let feed_gpu_nodes = feed("GpuNodes", &never_again, gpu_nodes, |event| {
        let is_done = matches!(event, Event::InitDone);
        apply_gpu_node(&cluster, event);
        if is_done {
            nodes_listed.notify_one();
        }
    });
    let feed_pods = async {
        nodes_listed.notified().await;
        feed("Pods", &lists.pods, pods, |event| apply_pod(&cluster, event)).await;
    };
    let feed_others =
        feed("Pods of others", &lists.others, others, |event| apply_unlabelled(&cluster, event));
    let feed_nodes = feed("Nodes", &lists.nodes, nodes, |event| {
        cluster.seen_nodes.show(&event);
        apply_node(&cluster, event);
    });
    tokio::select! {
        () = stop.cancelled() => {}
        () = async { tokio::join!(feed_gpu_nodes, feed_pods, feed_others, feed_nodes); } => {}
    }
}

/// Passes on the events of a watch, and restarts it when a new list is requested.
async fn feed<K, S>(what: &'static str, list: &List, watch: impl Fn() -> S, mut apply: impl FnMut(Event<K>))
where
    S: Stream<Item = Result<Event<K>, Error>>,
{
    let mut wanted = list.wanted.subscribe();
    loop {
        let number = *wanted.borrow_and_update();
        let mut events = pin!(watch());
        loop {
            let event = tokio::select! {
                // A request for a new list comes first, because the events of the old watch may be stale.
                biased;
                Ok(()) = wanted.changed() => break,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    let is_done = matches!(event, Event::InitDone);
                    apply(event);
                    if is_done {
                        list.done.send_replace(number);
                    }
                }
                Some(Err(error)) => tracing::warn!(what, %error, "watch failed, trying again"),
                None => return,
            }
        }
    }
}

fn apply_gpu_node(cluster: &Cluster, event: Event<GpuNodeView>) {
    cluster.with(|index| match event {
        Event::Init => index.nodes().begin_gpu_node_list(),
        Event::InitApply(node) | Event::Apply(node) => index.nodes().show_gpu_node(&node.into()),
        Event::Delete(node) => index.nodes().remove_gpu_node(&GpuNode::from(node).name()),
        Event::InitDone => index.nodes().end_gpu_node_list(),
    });
}

fn apply_node(cluster: &Cluster, event: Event<NodeView>) {
    match event {
        Event::InitApply(node) | Event::Apply(node) => cluster.with(|index| {
            let (node, mut nodes) = (node.into_machine(), index.nodes());
            let allocatable = node.allocatable();
            let listed = |name: &str| Some(allocatable?.get(name)?.0.as_str());
            let allocatable = Compute::from_amounts(listed);
            nodes.objects().set_closed(node.name(), node.is_shut());
            nodes.objects().set_allocatable(node.name(), Some(allocatable));
            nodes.show_static(&node.name(), node.static_node());
            nodes.objects().set_taints(node.name(), node.taints().to_vec());
            nodes.show_user_namespaces(&node.name(), node.has_user_namespaces());
            nodes.objects().set_labels(node.name(), Some(node.metadata.labels.unwrap_or_default()));
        }),
        Event::Delete(node) => cluster.with(|index| {
            let (node, mut nodes) = (node.into_machine(), index.nodes());
            nodes.objects().set_closed(node.name(), false);
            nodes.objects().set_allocatable(node.name(), None);
            nodes.show_static(&node.name(), None);
            nodes.objects().set_taints(node.name(), Vec::new());
            nodes.show_user_namespaces(&node.name(), true);
            nodes.objects().set_labels(node.name(), None);
        }),
        Event::Init => cluster.with(|index| index.nodes().objects().begin_list()),
        Event::InitDone => cluster.with(|index| index.nodes().end_node_list()),
    }
}

fn apply_unlabelled(cluster: &Cluster, event: Event<SlicedPod>) {
    cluster.with(|index| match event {
        Event::Init => index.nodes().objects().begin_unlabelled_list(),
        Event::InitApply(pod) | Event::Apply(pod) => {
            index.nodes().holders().show_unlabelled(&KnownPod::from(pod));
        }
        Event::Delete(pod) => index.nodes().holders().hide_unlabelled(&KnownPod::from(pod).uid),
        Event::InitDone => index.nodes().holders().end_unlabelled_list(),
    });
}

fn apply_pod(cluster: &Cluster, event: Event<SlicedPod>) {
    cluster.with(|index| match event {
        Event::Init => index.begin_pod_list(),
        Event::InitApply(pod) => index.show_pod(KnownPod::from(pod)),
        Event::Apply(pod) => index.show_pod(KnownPod::from(pod).seen(Timestamp::now())),
        Event::Delete(pod) => index.hide_pod(&KnownPod::from(pod)),
        Event::InitDone => index.end_pod_list(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A list that was under way may show the state before the request, so it does not count.
    #[tokio::test]
    async fn a_requested_list_begins_after_the_request() {
        let (list, begun, reported) = (List::default(), AtomicUsize::new(0), Mutex::new(Vec::new()));
        let watch = || {
            let ends = begun.fetch_add(1, Ordering::Relaxed) > 0;
            let events = [Some(Event::<()>::Init), ends.then_some(Event::InitDone)];
            stream::iter(events.into_iter().flatten().map(Ok)).chain(stream::pending())
        };
        let feeding = feed("things", &list, watch, |event| {
            reported.lock().unwrap().push(matches!(event, Event::InitDone));
        });
        let asking = async {
            while reported.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            list.again().await;
        };
        tokio::select! {
            () = feeding => panic!("a watch goes on"),
            () = asking => {}
        }
        assert_eq!(*reported.lock().unwrap(), [false, false, true]);
    }
}
