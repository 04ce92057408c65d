//! One registered device plugin: its connection, and since when it is stopped.
//!
//! It only makes the calls; `devices` chooses their arguments and interprets the answers.

use std::path::Path;
use std::time::{Duration, Instant};

use kerf_node_agent::kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;
use kerf_node_agent::kubelet_api::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, PreStartContainerRequest,
    PreferredAllocationRequest,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::ledger::Choice;

/// How long the kubelet tries to connect to a registering plugin (kubernetes v1.36,
/// `pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`).
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of these tries (gRPC's first backoff).
const DIAL_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of `PreStartContainer` (same release, `apis/deviceplugin/v1beta1/constants.go`).
const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Plugin {
    /// `None` after a restart of the kubelet, until the plugin registers again.
    client: Option<DevicePluginClient<Channel>>,
    options: DevicePluginOptions,
    /// When the plugin stopped; `None` while it runs.
    pub(super) stopped: Option<Instant>,
}

impl Plugin {
    /// Connects to a plugin's socket, which may be created a little later, and reads its options.
    pub(super) async fn connect(socket: &Path) -> Result<Self, Status> {
        let late = |_| Status::unknown("failed to dial device plugin: context deadline exceeded");
        let channel = tokio::time::timeout(DIAL_TIMEOUT, dial(socket)).await.map_err(late)??;
        let mut client = DevicePluginClient::new(channel);
        let options = client.get_device_plugin_options(Empty {}).await.map_err(|refusal| {
            Status::unknown(format!("failed to get device plugin options: {}", go_text(&refusal)))
        })?;
        Ok(Self { client: Some(client), options: options.into_inner(), stopped: None })
    }

    /// The endpoint that a restarted kubelet creates from its checkpoint.
    pub(super) fn stopped_at(now: Instant) -> Self {
        Self { client: None, options: DevicePluginOptions::default(), stopped: Some(now) }
    }

    pub(super) fn client(&self) -> Result<DevicePluginClient<Channel>, Status> {
        self.client.clone().ok_or_else(|| Status::unavailable("endpoint has been stopped"))
    }

    /// The devices that the plugin prefers; empty if it has no preference. The error is the kubelet's text.
    pub(super) async fn preferred(&self, choice: &Choice) -> Result<Vec<String>, String> {
        if !self.options.get_preferred_allocation_available {
            return Ok(Vec::new());
        }
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: choice.available.union(&choice.reused).cloned().collect(),
            must_include_device_i_ds: choice.reused.iter().cloned().collect(),
            allocation_size: i32::try_from(choice.required).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let failed = |refusal: Status| {
            format!("device plugin GetPreferredAllocation rpc failed with err: {}", go_text(&refusal))
        };
        let mut client = self.client().map_err(failed)?;
        let answer = client.get_preferred_allocation(request).await.map_err(failed)?.into_inner();
        Ok(answer.container_responses.into_iter().next().map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// Allocates for one container. There is no timeout, as in the kubelet.
    pub(super) async fn allocate(
        &self,
        devices_ids: Vec<String>,
    ) -> Result<ContainerAllocateResponse, Status> {
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        let answer = self.client()?.allocate(request).await?.into_inner();
        let first = answer.container_responses.into_iter().next();
        first.ok_or_else(|| Status::unknown("no containers return in allocation response"))
    }

    /// Calls `PreStartContainer` if the plugin's options require it.
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

/// Retries until a server accepts the connection. The caller sets the timeout.
async fn dial(socket: &Path) -> Result<Channel, Status> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let endpoint = endpoint.map_err(|error| Status::unknown(error.to_string()))?;
    loop {
        if let Ok(channel) = endpoint.connect().await {
            return Ok(channel);
        }
        tokio::time::sleep(DIAL_INTERVAL).await;
    }
}

/// A gRPC error as Go prints it, because the pod's status has that text.
pub(super) fn go_text(status: &Status) -> String {
    let code = match status.code() {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}
