//! Requests the list of holders when the agent needs it, but never more often than allowed.

use super::{Pace, checkpoint};
use crate::device_plugin::Allocations;
use crate::event::{Event, Events};
use crate::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::kubelet_api::podresources::{ContainerDevices, ListPodResourcesRequest, ListPodResourcesResponse};
use crate::node::{Foreign, Held, Holders, Recorded};
use kerf_core::contract::Holder;
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The wait after a failed request.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The wait after a request above the kubelet's rate limit.
const AFTER_LIMIT: Duration = Duration::from_millis(20);

/// Requests a list for each notification of `wanted`, and never during an allocation. Notifications during a request
/// become one.
pub async fn list_holders(
    (mut client, folder): (PodResourcesListerClient<Channel>, PathBuf),
    wanted: Arc<Notify>,
    allocations: Allocations,
    events: Events,
    stop: CancellationToken,
) {
    let pace = Pace::for_holders();
    loop {
        tokio::select! {
            () = wanted.notified() => {}
            () = stop.cancelled() => return,
        }
        pace.allow().await;
        // During an allocation this request could make the kubelet forget its pick.
        let paused = allocations.pause().await;
        let answer = ask(&mut client, &folder).await;
        drop(paused);
        match answer {
            Ok(holders) => events.send(Event::Holders(Ok(holders))),
            Err(status) => {
                let limited = status.code() == Code::ResourceExhausted;
                if limited {
                    pace.exhausted();
                } else {
                    events.send(Event::Holders(Err(unanswered(&status))));
                }
                // The request has failed, so request the list again.
                wanted.notify_one();
                tokio::time::sleep(if limited { AFTER_LIMIT } else { RETRY_DELAY }).await;
            }
        }
    }
}

/// Requests one list, for a process without other requests; the kubelet's checkpoint is in `folder`.
///
/// # Errors
/// The error of the kubelet, as a text.
pub async fn ask_once(
    mut client: PodResourcesListerClient<Channel>,
    folder: PathBuf,
) -> Result<Holders, String> {
    ask(&mut client, &folder).await.map_err(|status| unanswered(&status))
}

/// Reads the checkpoint before List, because List frees devices that the checkpoint may still have.
async fn ask(client: &mut PodResourcesListerClient<Channel>, folder: &Path) -> Result<Holders, Status> {
    let asked = Instant::now();
    let recorded = checkpoint::read(folder).await.map_err(|error| error.to_string());
    let answer = client.list(ListPodResourcesRequest {}).await?;
    Ok(holders(asked, answer.into_inner(), recorded))
}

fn unanswered(status: &Status) -> String {
    format!("pod-resources does not answer: {}", status.message())
}

/// The held devices of kerf's names, and other GPU devices. Containers may hold a device in turn, because init
/// containers hand theirs on; the last one counts.
fn holders(
    asked: Instant,
    answer: ListPodResourcesResponse,
    recorded: Result<Vec<Recorded>, String>,
) -> Holders {
    let mut all = Holders { asked, held: BTreeMap::new(), foreign: Vec::new(), recorded };
    for pod in answer.pod_resources {
        for container in pod.containers {
            let (namespace, pod) = (pod.namespace.clone(), pod.name.clone());
            let holder = Holder { namespace, pod, container: container.name };
            take_devices(&mut all, container.devices, &holder);
            let claims = container.dynamic_resources.iter().flat_map(|claim| &claim.claim_resources);
            let claimed =
                claims.filter_map(|claim| Foreign::from_claim(&claim.driver_name, &claim.device_name));
            all.foreign.extend(claimed.map(|device| (device, holder.clone())));
        }
    }
    all
}

fn take_devices(all: &mut Holders, listed: Vec<ContainerDevices>, holder: &Holder) {
    for devices in listed {
        let name = devices.resource_name.parse::<ResourceName>().ok();
        for id in devices.device_ids {
            let foreign = Foreign::from_plugin_device(&devices.resource_name, &id);
            all.foreign.extend(foreign.map(|device| (device, holder.clone())));
            let held = name.map(|name| Held { name, holder: holder.clone() });
            all.held.extend(held.map(|held| (DeviceId::new(id), held)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_api::podresources::{
        ClaimResource, ContainerResources, DynamicResource, PodResources,
    };

    /// The kubelet's answer for a pod with this container.
    fn listed(container: ContainerResources) -> Holders {
        let container = ContainerResources { name: "main".to_owned(), ..container };
        let pod = PodResources { name: "p".into(), namespace: "ns".into(), containers: vec![container] };
        holders(Instant::now(), ListPodResourcesResponse { pod_resources: vec![pod] }, Ok(Vec::new()))
    }

    fn devices(name: &str, id: &str) -> ContainerDevices {
        ContainerDevices { resource_name: name.to_owned(), device_ids: vec![id.to_owned()], topology: None }
    }

    #[test]
    fn only_devices_of_kerfs_names_are_listed() {
        let devices = vec![devices("nvidia.com/mig-1g.10gb", "MIG-1"), devices("example.com/gpu", "GPU-1")];
        let all = listed(ContainerResources { devices, ..ContainerResources::default() });
        assert_eq!((all.held.len(), all.foreign), (1, Vec::new()));
        assert_eq!(all.held[&DeviceId::new("MIG-1")].holder.pod, "p");
    }

    #[test]
    fn foreign_devices_are_listed_apart() {
        let claim = ClaimResource {
            driver_name: "gpu.nvidia.com".to_owned(),
            device_name: "gpu-1".to_owned(),
            ..ClaimResource::default()
        };
        let all = listed(ContainerResources {
            devices: vec![devices("nvidia.com/gpu", "nvidia0")],
            dynamic_resources: vec![DynamicResource {
                claim_resources: vec![claim],
                ..DynamicResource::default()
            }],
            ..ContainerResources::default()
        });
        let found: Vec<_> =
            all.foreign.iter().map(|(device, holder)| (device, holder.pod.as_str())).collect();
        let gpus = [0, 1].map(|minor| Foreign::Gpu { minor });
        assert_eq!(found, [(&gpus[0], "p"), (&gpus[1], "p")]);
    }
}
