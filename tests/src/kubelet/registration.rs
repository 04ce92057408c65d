//! The registration server and the `ListAndWatch` streams.
//!
//! Faithful to two sharp edges (kubernetes v1.36, `pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`, `connectClient`
//! and `runClient`). When a stream ends, whatever plugin is registered under its name *now* is taken for gone: a plugin that
//! registers again while its old server still streams is cut off when that one ends. And a registration that fails forgets
//! the connection that there was: when that one ends nobody notices, and its devices stay healthy.

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

/// How long the end of a stream may take to be noticed. The kubelet has a thread for each and notices at once; on a machine that is
/// busy the tests' process may hear of an end and of the registration after it together, and must not take the former for the
/// latter's.
const NOTICED: Duration = Duration::from_millis(200);

/// Serves `v1beta1.Registration`.
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
            // It ends now, or is still served and not waited for.
            let _ = timeout(NOTICED, before).await;
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

    /// The plugin registered under this name is taken for gone, whichever stream it was that ended; if no connection counts,
    /// nobody notices.
    fn disconnected(&self, resource: &str) {
        let Some(close) = locked(&self.clients).remove(resource) else { return };
        close.cancel();
        let plugin =
            locked(&self.plugins).get_mut(resource).map(|plugin| plugin.stopped = Some(Instant::now()));
        // Whoever takes both locks takes the ledger's first.
        if plugin.is_some() {
            locked(&self.ledger).mark_unhealthy(resource);
        }
    }
}
