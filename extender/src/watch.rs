//! The watches that feed the index: nodes' GpuNode objects, pods with kerf's label, bound pods without it (of which only
//! those are kept that hold devices of NVIDIA's plugin), and what Nodes have for pods.
//!
//! Nodes come first, so that when pods are listed every promise is known and those to vanished pods are found.

use crate::cluster_index::ClusterIndex;
use crate::compute::Compute;
use crate::plugin_layout::NodeView;
use crate::pod::{KnownPod, SlicedPod};
use crate::term::Term;
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kerf_core::keys;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// Seconds after which a watch is begun anew. A connection that died silently is noticed 5 s later.
const WATCH_SECONDS: u32 = 60;

/// The pods that may hold devices: a watch with such a selector tells of the end of one that leaves it.
const BOUND_AND_ALIVE: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// Feeds the index until the term ends. `layouts` hears of the Nodes too, as long as anybody listens.
pub async fn run(term: Arc<Term>, layouts: UnboundedSender<Event<NodeView>>) {
    term.with(ClusterIndex::await_statics);
    let config = Config::default().timeout(WATCH_SECONDS);
    let nodes = watcher(Api::<GpuNode>::all(term.client.clone()), config.clone()).default_backoff();
    let pods_config = config.clone().labels(&format!("{}=true", keys::SLICED));
    let pods = watcher(Api::<SlicedPod>::all(term.client.clone()), pods_config).default_backoff();
    let others_config = config.clone().labels(&format!("{}!=true", keys::SLICED)).fields(BOUND_AND_ALIVE);
    let others = watcher(Api::<SlicedPod>::all(term.client.clone()), others_config).default_backoff();
    let machines = watcher(Api::<NodeView>::all(term.client.clone()), config).default_backoff();
    let nodes_listed = tokio::sync::Notify::new();
    let feed_nodes = feed(&term, "GpuNodes", nodes, |event| {
        let done = matches!(event, Event::InitDone);
        tell_node(&term, event);
        if done {
            nodes_listed.notify_one();
            term.listed.notify_one();
        }
    });
    let feed_pods = async {
        nodes_listed.notified().await;
        feed(&term, "Pods", pods, |event| {
            let done = matches!(event, Event::InitDone);
            tell_pod(&term, event);
            if done {
                term.listed.notify_one();
            }
        })
        .await;
    };
    let feed_others = feed(&term, "Pods of others", others, |event| {
        let done = matches!(event, Event::InitDone);
        tell_other(&term, event);
        if done {
            term.listed.notify_one();
        }
    });
    let feed_machines = feed(&term, "Nodes", machines, |event| {
        let done = matches!(event, Event::InitDone);
        if !layouts.is_closed() {
            // Nobody has stopped listening but when the term ends.
            let _told = layouts.send(event.clone());
        }
        tell_machine(&term, event);
        if done {
            term.listed.notify_one();
        }
    });
    tokio::select! {
        () = term.stop.cancelled() => {}
        () = async { tokio::join!(feed_nodes, feed_pods, feed_others, feed_machines); } => {}
    }
}

async fn feed<K>(
    term: &Arc<Term>,
    what: &'static str,
    events: impl Stream<Item = Result<Event<K>, Error>>,
    mut tell: impl FnMut(Event<K>),
) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => tell(event),
            Err(error) if term.stop.is_cancelled() => tracing::debug!(what, %error, "watch ended"),
            Err(error) => tracing::warn!(what, %error, "watch failed, trying again"),
        }
    }
}

fn tell_node(term: &Arc<Term>, event: Event<GpuNode>) {
    term.with(|index| match event {
        Event::Init => index.nodes_listing(),
        Event::InitApply(node) | Event::Apply(node) => {
            index.show_node(&node);
            index.note_stages(&node.name(), Instant::now());
        }
        Event::Delete(node) => index.remove_node(&node.name()),
        Event::InitDone => index.nodes_listed(),
    });
}

fn tell_machine(term: &Arc<Term>, event: Event<NodeView>) {
    match event {
        Event::InitApply(node) | Event::Apply(node) => term.with(|index| {
            let node = node.into_machine();
            index.show_shut(node.name(), node.is_shut());
            index
                .show_allocatable(node.name(), Some(node.allocatable().map(Compute::of).unwrap_or_default()));
            index.show_static(node.name(), node.static_node());
            index.show_taints(node.name(), node.taints().to_vec());
            index.show_user_namespaces(&node.name(), node.has_user_namespaces());
            index.show_labels(node.name(), Some(node.metadata.labels.unwrap_or_default()));
        }),
        Event::Delete(node) => term.with(|index| {
            let node = node.into_machine();
            index.show_shut(node.name(), false);
            index.show_allocatable(node.name(), None);
            index.show_static(node.name(), None);
            index.show_taints(node.name(), Vec::new());
            index.show_user_namespaces(&node.name(), true);
            index.show_labels(node.name(), None);
        }),
        Event::Init => term.with(ClusterIndex::machines_listing),
        Event::InitDone => term.with(ClusterIndex::machines_listed),
    }
}

fn tell_other(term: &Arc<Term>, event: Event<SlicedPod>) {
    term.with(|index| match event {
        Event::Init => index.others_listing(),
        Event::InitApply(pod) | Event::Apply(pod) => index.show_other(&KnownPod::from(pod)),
        Event::Delete(pod) => index.hide_other(&KnownPod::from(pod).uid),
        Event::InitDone => index.others_listed(),
    });
}

fn tell_pod(term: &Arc<Term>, event: Event<SlicedPod>) {
    term.with(|index| match event {
        Event::Init => index.pods_listing(),
        Event::InitApply(pod) => index.show_pod(KnownPod::from(pod)),
        Event::Apply(pod) => index.show_pod(KnownPod::from(pod).seen(Timestamp::now())),
        Event::Delete(pod) => index.hide_pod(&KnownPod::from(pod)),
        Event::InitDone => index.pods_listed(),
    });
}
