//! The registration server and the `ListAndWatch` streams.
//!
//! It copies two traps of the kubelet (kubernetes v1.36,
//! `pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`, `connectClient` and `runClient`).
//! - When a stream ends, the plugin that is registered under its name *now* counts as stopped. So a plugin
//!   that registers again while its old server still streams is cut off when that stream ends.
//! - A failed registration drops the earlier connection from the table. When that stream ends, its devices
//!   stay healthy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kerf_node_agent::kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;
use kerf_node_agent::kubelet_api::deviceplugin::registration_server::Registration;
use kerf_node_agent::kubelet_api::deviceplugin::{Empty, ListAndWatchResponse, RegisterRequest};
use kerf_node_agent::kubelet_api::{API_VERSION, HEALTHY};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::demand::is_extended_resource;
use super::devices::{DeviceManager, locked};
use super::plugin::Plugin;

/// How long a registration waits for the end of the name's older stream. The kubelet has a thread for each
/// stream and notices an end at once. On a busy machine the tests' process may see an end and the following
/// registration together, and must not attribute the end to the new stream.
const NOTICE_DELAY: Duration = Duration::from_millis(200);

pub(super) struct RegistrationService(pub(super) Arc<DeviceManager>);

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        check(&request)?;
        self.0.connect(request).await?;
        Ok(Response::new(Empty {}))
    }
}

fn check(request: &RegisterRequest) -> Result<(), Status> {
    if request.version != API_VERSION {
        return Err(Status::unknown(format!(
            "requested API version {:?} is not supported by kubelet. Supported version is {:?}",
            request.version,
            [API_VERSION]
        )));
    }
    if !is_extended_resource(&request.resource_name) {
        return Err(Status::unknown(format!("the ResourceName {:?} is invalid", request.resource_name)));
    }
    Ok(())
}

impl DeviceManager {
    async fn connect(self: &Arc<Self>, request: RegisterRequest) -> Result<(), Status> {
        let close = locked(&self.run).child_token();
        let resource = request.resource_name;
        let before = locked(&self.followers).remove(&resource);
        if let Some(before) = before {
            // The wait is limited, because an older stream that does not end within this time belongs to a plugin that
            // is still served.
            let _ = timeout(NOTICE_DELAY, before).await;
        }
        locked(&self.clients).insert(resource.clone(), close.clone());
        let connected = Plugin::connect(&self.socket(&request.endpoint)).await;
        let plugin = connected.inspect_err(|_| drop(locked(&self.clients).remove(&resource)))?;
        let client = plugin.client()?;
        tracing::debug!(resource, endpoint = request.endpoint, "a device plugin registered");
        locked(&self.plugins).insert(resource.clone(), plugin);
        let (manager, name) = (Arc::clone(self), resource.clone());
        let follower = tokio::spawn(async move {
            let mut client = client;
            let ended = tokio::select! {
                ended = manager.follow(&resource, &mut client) => ended,
                () = close.cancelled() => return,
            };
            tracing::debug!(resource, status = ?ended, "a device plugin's stream ended");
            manager.disconnected(&resource);
        });
        locked(&self.followers).insert(name, follower);
        Ok(())
    }

    async fn follow(&self, resource: &str, client: &mut DevicePluginClient<Channel>) -> Result<(), Status> {
        let mut stream = client.list_and_watch(Empty {}).await?.into_inner();
        while let Some(message) = stream.message().await? {
            let delay = self.delay();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            self.listed(resource, message);
        }
        Ok(())
    }

    fn listed(&self, resource: &str, message: ListAndWatchResponse) {
        let devices = message.devices.into_iter().map(|device| (device.id, device.health == HEALTHY));
        locked(&self.ledger).set_devices(resource, devices);
        self.write_checkpoint();
    }

    /// Marks the plugin that is registered under this name as stopped, whichever stream ended. Without a
    /// current connection nothing happens.
    fn disconnected(&self, resource: &str) {
        let Some(close) = locked(&self.clients).remove(resource) else { return };
        close.cancel();
        let plugin =
            locked(&self.plugins).get_mut(resource).map(|plugin| plugin.stopped = Some(Instant::now()));
        // Code that takes both locks takes the ledger's first, so that there is no deadlock.
        if plugin.is_some() {
            locked(&self.ledger).mark_unhealthy(resource);
        }
    }
}
