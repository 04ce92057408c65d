//! Asks for holders whenever the agent wants to know, and never more often than allowed.

use super::Pace;
use crate::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::kubelet_api::podresources::{ListPodResourcesRequest, ListPodResourcesResponse};
use crate::node::{Held, Holders};
use crate::reconcile::{Event, Events};
use kerf_core::contract::Holder;
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The wait after an answer that was none.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// The wait after the kubelet's limit was met.
const AFTER_LIMIT: Duration = Duration::from_millis(20);

/// Asks each time that `wanted` says so. Wishes that come while an answer is under way are one wish.
pub async fn list_holders(
    mut client: PodResourcesListerClient<Channel>,
    wanted: Arc<Notify>,
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
        match ask(&mut client).await {
            Ok(holders) => events.send(Event::Holders(Ok(holders))),
            Err(status) => {
                let limited = status.code() == Code::ResourceExhausted;
                if limited {
                    pace.exhausted();
                } else {
                    events.send(Event::Holders(Err(unanswered(&status))));
                }
                wanted.notify_one();
                tokio::time::sleep(if limited { AFTER_LIMIT } else { AFTER_ERROR }).await;
            }
        }
    }
}

/// The kubelet's account now, for somebody who has no other question.
///
/// # Errors
/// What the kubelet says instead.
pub async fn ask_once(mut client: PodResourcesListerClient<Channel>) -> Result<Holders, String> {
    ask(&mut client).await.map_err(|status| unanswered(&status))
}

async fn ask(client: &mut PodResourcesListerClient<Channel>) -> Result<Holders, Status> {
    let asked = Instant::now();
    let answer = client.list(ListPodResourcesRequest {}).await?;
    Ok(Holders { asked, held: holders(answer.into_inner()) })
}

fn unanswered(status: &Status) -> String {
    format!("pod-resources does not answer: {}", status.message())
}

/// The devices of kerf's names. Of the containers that hold one in turn (init containers hand theirs on) the last counts.
fn holders(answer: ListPodResourcesResponse) -> std::collections::BTreeMap<DeviceId, Held> {
    let mut held = std::collections::BTreeMap::new();
    for pod in answer.pod_resources {
        for container in pod.containers {
            let holder =
                Holder { namespace: pod.namespace.clone(), pod: pod.name.clone(), container: container.name };
            for devices in container.devices {
                let Ok(name) = devices.resource_name.parse::<ResourceName>() else { continue };
                for id in devices.device_ids {
                    held.insert(DeviceId::new(id), Held { name, holder: holder.clone() });
                }
            }
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_api::podresources::{ContainerDevices, ContainerResources, PodResources};

    #[test]
    fn only_devices_of_kerfs_names_are_taken_in() {
        let devices = |name: &str, id: &str| ContainerDevices {
            resource_name: name.to_owned(),
            device_ids: vec![id.to_owned()],
            topology: None,
        };
        let container = ContainerResources {
            name: "main".to_owned(),
            devices: vec![devices("nvidia.com/mig-1g.10gb", "MIG-1"), devices("example.com/gpu", "GPU-1")],
            ..ContainerResources::default()
        };
        let pod = PodResources { name: "p".into(), namespace: "ns".into(), containers: vec![container] };
        let held = holders(ListPodResourcesResponse { pod_resources: vec![pod] });
        assert_eq!(held.len(), 1);
        assert_eq!(held[&DeviceId::new("MIG-1")].holder.pod, "p");
    }
}
