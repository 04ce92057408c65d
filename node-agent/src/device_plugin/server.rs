//! The gRPC server of one resource name: its device list as a stream, its allocations, its preferences.

use super::{Allocations, allocate, prefer};
use crate::event::{Event, Events};
use crate::kubelet_api::deviceplugin::device_plugin_server::DevicePlugin;
use crate::kubelet_api::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions,
    Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo,
};
use crate::kubelet_api::{HEALTHY, UNHEALTHY};
use crate::node::ListedDevice;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

pub type List = Arc<Vec<ListedDevice>>;

/// The plugin's options: the kubelet requests a preference before it picks devices.
pub(super) fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

pub(super) struct Plugin {
    pub(super) name: ResourceName,
    pub(super) list: watch::Receiver<List>,
    pub(super) events: Events,
    pub(super) allocations: Allocations,
    pub(super) streams: Streams,
    pub(super) stop: CancellationToken,
}

/// The number of open `ListAndWatch` streams of a plugin. Zero means that the kubelet has dropped the plugin.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams(Arc<AtomicUsize>);

impl Streams {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn open(&self) -> OpenStream {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenStream(Arc::clone(&self.0))
    }
}

struct OpenStream(Arc<AtomicUsize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let open = self.streams.open();
        let lists = WatchStream::new(self.list.clone()).map(move |list| {
            let _held_while_the_stream_lives = &open;
            Ok(ListAndWatchResponse { devices: list.iter().map(device).collect() })
        });
        Ok(Response::new(lists.take_until(self.stop.clone().cancelled_owned()).boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        // The kubelet picks devices after this answer, so it waits here while the holders are listed.
        self.allocations.begin().await;
        let list = self.list.borrow().clone();
        let answers = request.into_inner().container_requests.into_iter().map(|container| {
            let size = usize::try_from(container.allocation_size).unwrap_or(0);
            let (available, required) =
                (&container.available_device_i_ds, &container.must_include_device_i_ds);
            ContainerPreferredAllocationResponse {
                device_i_ds: prefer::prefer(&list, available, required, size),
            }
        });
        Ok(Response::new(PreferredAllocationResponse { container_responses: answers.collect() }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        self.allocations.note();
        let containers = request.into_inner().container_requests;
        // Keep the list locked until the event is sent, so that a decision that withdraws a device sees the allocation
        // first.
        let list = self.list.borrow();
        let mut container_responses = Vec::new();
        for container in containers {
            let answer = allocate::allocate(&list, &container.devices_ids).map_err(|refusal| {
                tracing::warn!(name = %self.name, devices = ?container.devices_ids, %refusal, "allocation refused");
                Status::failed_precondition(refusal.to_string())
            })?;
            tracing::info!(name = %self.name, devices = ?container.devices_ids, "allocated");
            let devices = container.devices_ids.into_iter().map(DeviceId::new).collect();
            self.events.send(Event::Allocated(self.name, devices));
            container_responses.push(answer);
        }
        // Note the time of the answer, too, because the kubelet records the allocation only after it.
        self.allocations.note();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

fn device(device: &ListedDevice) -> Device {
    let health = if device.healthy { HEALTHY } else { UNHEALTHY };
    let topology = device.numa.map(|node| TopologyInfo { nodes: vec![NumaNode { id: node.into() }] });
    Device { id: device.id.as_str().to_owned(), health: health.to_owned(), topology }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::closeness::Closeness;

    #[test]
    fn a_device_has_its_numa_node_if_it_is_known() {
        let nodes = |numa| {
            let listed = ListedDevice {
                id: DeviceId::new("MIG-1"),
                healthy: true,
                held: false,
                grant: None,
                reserved_for: None,
                numa,
                closeness: Closeness::default(),
            };
            device(&listed)
                .topology
                .map(|topology| topology.nodes.iter().map(|node| node.id).collect::<Vec<_>>())
        };
        assert_eq!(nodes(Some(1)), Some(vec![1]));
        assert_eq!(nodes(None), None);
    }
}
