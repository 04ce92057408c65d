//! A device plugin whose list and answers a test sets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kerf_node_agent::kubelet_api::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use kerf_node_agent::kubelet_api::deviceplugin::registration_client::RegistrationClient;
use kerf_node_agent::kubelet_api::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    Device, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use kerf_node_agent::kubelet_api::{HEALTHY, UNHEALTHY};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// A device plugin whose list and answers a test sets.
pub(crate) struct FakePlugin {
    pub(crate) devices: watch::Sender<Vec<Device>>,
    /// The receiving end of `devices`, for each stream.
    pub(crate) seen: watch::Receiver<Vec<Device>>,
    pub(crate) preferred: Vec<String>,
    pub(crate) refusal: Mutex<Option<Status>>,
    pub(crate) thinking: Duration,
    pub(crate) allocated: Mutex<Vec<Vec<String>>>,
    pub(crate) closed: CancellationToken,
}

impl FakePlugin {
    /// A plugin with these healthy devices, no preference and quick answers.
    pub(crate) fn new(healthy: &[&str]) -> Self {
        let (devices, seen) = watch::channel(list(healthy, &[]));
        Self {
            devices,
            seen,
            preferred: Vec::new(),
            refusal: Mutex::default(),
            thinking: Duration::ZERO,
            allocated: Mutex::default(),
            closed: CancellationToken::new(),
        }
    }

    /// Serves it on a socket until `closed`.
    pub(crate) fn serve(self, socket: &Path) -> Arc<Self> {
        let plugin = Arc::new(self);
        let listener = UnixListener::bind(socket).unwrap();
        let server = Server::builder().add_service(DevicePluginServer::from_arc(Arc::clone(&plugin)));
        let closed = plugin.closed.clone().cancelled_owned();
        tokio::spawn(server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), closed));
        plugin
    }
}

/// Registers the plugin on a socket of the device plugin folder.
pub(crate) async fn register(
    registration: PathBuf,
    socket: &str,
    resource: &str,
    version: &str,
) -> Result<(), Status> {
    let mut client = RegistrationClient::new(channel(registration).await);
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: socket.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    client.register(request).await.map(drop)
}

/// A connection to a unix socket.
pub(crate) async fn channel(socket: PathBuf) -> Channel {
    Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap()
}

/// Devices as a `ListAndWatch` message has them.
pub(crate) fn list(healthy: &[&str], unhealthy: &[&str]) -> Vec<Device> {
    let device =
        |id: &&str, health: &str| Device { id: (*id).to_owned(), health: health.to_owned(), topology: None };
    let healthy = healthy.iter().map(|id| device(id, HEALTHY));
    healthy.chain(unhealthy.iter().map(|id| device(id, UNHEALTHY))).collect()
}

type Devices = Pin<Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for FakePlugin {
    type ListAndWatchStream = Devices;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        let preferences = !self.preferred.is_empty();
        let options = DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: preferences,
        };
        Ok(Response::new(options))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Devices>, Status> {
        let lists = WatchStream::new(self.seen.clone()).map(|devices| Ok(ListAndWatchResponse { devices }));
        let closed = self.closed.clone();
        let open = futures::StreamExt::take_until(lists, async move { closed.cancelled().await });
        Ok(Response::new(Box::pin(open)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let device_i_ds = self.preferred.clone();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        tokio::time::sleep(self.thinking).await;
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        let envs = BTreeMap::from([("DEVICES".to_owned(), ids.join(","))]);
        self.allocated.lock().unwrap().push(ids);
        let container_responses = vec![ContainerAllocateResponse { envs, ..Default::default() }];
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("this plugin did not ask for PreStartContainer"))
    }
}
