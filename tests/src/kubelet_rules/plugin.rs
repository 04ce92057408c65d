//! A device plugin whose list and answers a test sets.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
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

use crate::kubelet::locked;

pub struct FakePlugin {
    /// Its list. Sending another one reports it to the kubelet.
    pub devices: watch::Sender<Vec<Device>>,
    /// The receiving end of `devices`, for each stream.
    pub seen: watch::Receiver<Vec<Device>>,
    /// The devices that it prefers, in this order; empty without a preference.
    pub preferred: Vec<String>,
    /// Its error for the next `GetPreferredAllocation`.
    pub no_preference: Mutex<Option<Status>>,
    /// Its error for the next `GetDevicePluginOptions`.
    pub no_options: Mutex<Option<Status>>,
    /// Its error for every `Allocate`.
    pub refusal: Mutex<Option<Status>>,
    pub thinking: Duration,
    /// The devices of each allocation, in order.
    pub allocated: Mutex<Vec<Vec<String>>>,
    /// How many allocations are under way.
    pub thoughts: AtomicUsize,
    /// The largest number of allocations under way.
    pub most_thoughts: AtomicUsize,
    /// Ends its server and its streams.
    pub closed: CancellationToken,
}

impl FakePlugin {
    /// A plugin with these healthy devices, no preference and quick answers.
    #[must_use]
    pub fn new(healthy: &[&str]) -> Self {
        let (devices, seen) = watch::channel(list(healthy, &[]));
        Self {
            devices,
            seen,
            preferred: Vec::new(),
            no_preference: Mutex::default(),
            no_options: Mutex::default(),
            refusal: Mutex::default(),
            thinking: Duration::ZERO,
            allocated: Mutex::default(),
            thoughts: AtomicUsize::new(0),
            most_thoughts: AtomicUsize::new(0),
            closed: CancellationToken::new(),
        }
    }

    /// Serves it on a socket until `closed`.
    pub fn serve(self, socket: &Path) -> io::Result<Arc<Self>> {
        let plugin = Arc::new(self);
        plugin.serve_also(socket)?;
        Ok(plugin)
    }

    /// Serves it on another socket too, because a starting kubelet removes the existing sockets.
    pub fn serve_also(self: &Arc<Self>, socket: &Path) -> io::Result<()> {
        let listener = UnixListener::bind(socket)?;
        let server = Server::builder().add_service(DevicePluginServer::from_arc(Arc::clone(self)));
        let closed = self.closed.clone().cancelled_owned();
        tokio::spawn(server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), closed));
        Ok(())
    }

    /// Reports these devices to the kubelet in place of the former ones.
    pub fn tell(&self, healthy: &[&str], unhealthy: &[&str]) {
        self.devices.send_replace(list(healthy, unhealthy));
    }

    /// Sets or clears the error of `Allocate`.
    pub fn refuse(&self, refusal: Option<Status>) {
        *locked(&self.refusal) = refusal;
    }

    /// Makes the next `GetPreferredAllocation` fail.
    pub fn refuse_preference(&self, refusal: Status) {
        *locked(&self.no_preference) = Some(refusal);
    }

    /// Makes the next `GetDevicePluginOptions` fail.
    pub fn refuse_options(&self, refusal: Status) {
        *locked(&self.no_options) = Some(refusal);
    }

    /// The largest number of allocations under way.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.most_thoughts.load(Ordering::Relaxed)
    }

    /// The devices of each allocation, in order.
    #[must_use]
    pub fn allocations(&self) -> Vec<Vec<String>> {
        locked(&self.allocated).clone()
    }
}

/// Registers a plugin on a socket of the device plugin folder.
pub async fn register(
    registration: PathBuf,
    socket: &str,
    resource: &str,
    version: &str,
) -> Result<(), Status> {
    let channel = channel(registration).await.map_err(|error| Status::unavailable(format!("{error:?}")))?;
    let mut client = RegistrationClient::new(channel);
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: socket.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    client.register(request).await.map(drop)
}

pub async fn channel(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect().await
}

/// Devices as in a `ListAndWatch` message.
#[must_use]
pub fn list(healthy: &[&str], unhealthy: &[&str]) -> Vec<Device> {
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
        if let Some(refusal) = locked(&self.no_options).take() {
            return Err(refusal);
        }
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
        if let Some(refusal) = locked(&self.no_preference).take() {
            return Err(refusal);
        }
        let device_i_ds = self.preferred.clone();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let thoughts = self.thoughts.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_thoughts.fetch_max(thoughts, Ordering::Relaxed);
        tokio::time::sleep(self.thinking).await;
        self.thoughts.fetch_sub(1, Ordering::Relaxed);
        if let Some(refusal) = locked(&self.refusal).clone() {
            return Err(refusal);
        }
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        let shared = ("SHARED".to_owned(), "of the plugin".to_owned());
        let envs = BTreeMap::from([("DEVICES".to_owned(), ids.join(",")), shared]);
        locked(&self.allocated).push(ids);
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
