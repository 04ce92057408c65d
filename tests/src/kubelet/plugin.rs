//! One registered device plugin: its connection, and whether it is still there.
//!
//! Only carries calls; what is asked for and what an answer means is decided in `devices`.

use std::path::Path;
use std::time::{Duration, Instant};

use kerf_node_agent::kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;
use kerf_node_agent::kubelet_api::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, PreStartContainerRequest,
    PreferredAllocationRequest,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::ledger::Choice;

/// How long the kubelet tries to connect to a plugin that registers
/// (kubernetes v1.36, `pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`).
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a plugin may take for `PreStartContainer` (same release, `apis/deviceplugin/v1beta1/constants.go`).
const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// The endpoint of one resource name.
#[derive(Clone)]
pub(super) struct Plugin {
    /// None after a restart of the kubelet, until the plugin registers again.
    client: Option<DevicePluginClient<Channel>>,
    options: DevicePluginOptions,
    /// Closes the connection's `ListAndWatch` stream.
    pub(super) close: CancellationToken,
    /// Since when the plugin is gone.
    pub(super) stopped: Option<Instant>,
}

impl Plugin {
    /// Connects to a plugin's socket and asks for its options.
    pub(super) async fn connect(socket: &Path, close: CancellationToken) -> Result<Self, Status> {
        let unreachable = |error: tonic::transport::Error| {
            Status::unknown(format!("failed to dial device plugin {}: {error:?}", socket.display()))
        };
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(unreachable)?;
        let channel = endpoint.connect_timeout(DIAL_TIMEOUT).connect().await.map_err(unreachable)?;
        let mut client = DevicePluginClient::new(channel);
        let options = client.get_device_plugin_options(Empty {}).await?.into_inner();
        Ok(Self { client: Some(client), options, close, stopped: None })
    }

    /// The endpoint that a restarted kubelet makes from its checkpoint.
    pub(super) fn stopped_at(now: Instant) -> Self {
        let options = DevicePluginOptions::default();
        Self { client: None, options, close: CancellationToken::new(), stopped: Some(now) }
    }

    /// The client, for the stream.
    pub(super) fn client(&self) -> Result<DevicePluginClient<Channel>, Status> {
        self.client.clone().ok_or_else(|| Status::unavailable("endpoint has been stopped"))
    }

    /// The devices that the plugin would like to give; empty if it does not say.
    pub(super) async fn preferred(&self, choice: &Choice) -> Result<Vec<String>, Status> {
        if !self.options.get_preferred_allocation_available {
            return Ok(Vec::new());
        }
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: choice.available.union(&choice.reused).cloned().collect(),
            must_include_device_i_ds: choice.reused.iter().cloned().collect(),
            allocation_size: i32::try_from(choice.required).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let answer = self.client()?.get_preferred_allocation(request).await?.into_inner();
        Ok(answer.container_responses.into_iter().next().map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// Allocates for one container. There is no time-out, as in the kubelet.
    pub(super) async fn allocate(
        &self,
        devices_ids: Vec<String>,
    ) -> Result<ContainerAllocateResponse, Status> {
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        let answer = self.client()?.allocate(request).await?.into_inner();
        let first = answer.container_responses.into_iter().next();
        first.ok_or_else(|| Status::unknown("no containers return in allocation response"))
    }

    /// Tells the plugin that a container is about to start, if it wants to know.
    pub(super) async fn pre_start(&self, devices_ids: Vec<String>) -> Result<(), Status> {
        if !self.options.pre_start_required {
            return Ok(());
        }
        let mut client = self.client()?;
        let call = client.pre_start_container(PreStartContainerRequest { devices_ids });
        let late = |_| Status::deadline_exceeded("context deadline exceeded");
        tokio::time::timeout(PRE_START_TIMEOUT, call).await.map_err(late)?.map(drop)
    }
}

/// A gRPC error as Go prints it: that text ends up in the pod's status.
pub(super) fn go_text(status: &Status) -> String {
    let code = match status.code() {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}
