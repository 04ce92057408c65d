//! What the cluster's GPUs can serve, from watches of the `GpuNodes`, of the Nodes for static nodes, and of the
//! `DeviceClasses` that map names to DRA. What is in use does not count. A GpuNode with an unreadable status adds
//! nothing and stops nothing.

mod index;

use crate::args::NeutralNames;
use futures::StreamExt;
use index::Index;
use kerf_core::kind::Kind;
use kerf_core::policy::Supply;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kerf_runtime::shutdown::CancellationToken;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::watch;

/// The page size of lists. A GpuNode or Node has some ten KiB of JSON and takes ten times that while it is parsed, and
/// the process keeps that memory.
const PAGE: u32 = 5;

/// The supply; `None` until everything was listed once. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LiveSupply(watch::Receiver<Option<Arc<Supply>>>);

impl LiveSupply {
    pub fn current(&self) -> Arc<Supply> {
        self.0.borrow().clone().unwrap_or_default()
    }

    pub async fn known(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.wait_for(Option::is_some).await.map(drop)
    }
}

#[derive(Debug)]
pub(crate) struct Publisher(watch::Sender<Option<Arc<Supply>>>);

impl Publisher {
    pub fn supply(&self, supply: Supply) {
        self.0.send_replace(Some(Arc::new(supply)));
    }
}

pub(crate) fn channel() -> (Publisher, LiveSupply) {
    let (sender, receiver) = watch::channel(None);
    (Publisher(sender), LiveSupply(receiver))
}

/// `DeviceClasses` of the version that has had `extendedResourceName` since its first release in Kubernetes 1.34.
/// Earlier clusters answer that the resource does not exist.
fn device_classes(client: Client) -> Api<DynamicObject> {
    let (group, version) = ("resource.k8s.io".to_owned(), "v1".to_owned());
    let resource = ApiResource {
        api_version: format!("{group}/{version}"),
        group,
        version,
        kind: "DeviceClass".to_owned(),
        plural: "deviceclasses".to_owned(),
    };
    Api::all_with(client, &resource)
}

pub(crate) async fn follow(
    client: Client,
    publisher: Publisher,
    neutral_names: NeutralNames,
    stop: CancellationToken,
) {
    let config = watcher::Config::default().page_size(PAGE);
    let gpu_nodes = watcher(Api::<GpuNode>::all(client.clone()), config.clone()).default_backoff();
    let nodes = watcher(Api::<Machine>::all(client.clone()), config.clone()).default_backoff();
    let classes = watcher(device_classes(client), config).default_backoff();
    let (mut gpu_nodes, mut nodes, mut classes) = (pin!(gpu_nodes), pin!(nodes), pin!(classes));
    let mut index = Index::default();
    let mut logged = String::new();
    loop {
        let changed = tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = gpu_nodes.next() => match event {
                Ok(event) => index.take(event),
                Err(error) => {
                    tracing::warn!(%error, "watch of GpuNodes failed, retrying");
                    false
                }
            },
            Some(event) = nodes.next() => match event {
                Ok(event) => index.take_node(event),
                Err(error) => {
                tracing::warn!(%error, "watch of Nodes failed, retrying; static nodes keep their last state");
                index.nodes_unknown()
            }},
            Some(event) = classes.next() => match event {
                Ok(event) => index.take_class(event),
                Err(error) => {
                // A cluster without DRA lacks the resource, which is no fault.
                if !is_missing(&error) {
                    tracing::warn!(%error, "watch of DeviceClasses failed, retrying; names that they map to DRA keep their last state");
                }
                index.classes_unknown()
            }},
            else => return,
        };
        if let (true, Some(supply)) = (changed, index.supply()) {
            let largest = largest(&supply);
            if largest != logged {
                tracing::info!(nodes = index.nodes(), largest, "supply");
                logged = largest;
            }
            publisher.supply(match neutral_names {
                NeutralNames::Auto => supply,
                NeutralNames::Off => supply.with_concrete_names(),
            });
        }
    }
}

fn is_missing(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn largest(supply: &Supply) -> String {
    let size = |kind: &Kind| Some(format!("{kind}: {}", supply.largest(*kind)?));
    Kind::ALL.iter().filter_map(size).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
