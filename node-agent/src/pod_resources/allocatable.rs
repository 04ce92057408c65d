//! Waits until the kubelet acknowledges the lists: asks for its allocatable devices until they match.

use super::Pace;
use crate::event::{Event, Events};
use crate::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::kubelet_api::podresources::{AllocatableResourcesRequest, AllocatableResourcesResponse};
use crate::node::{Allocatable, DevicesByName};
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::Channel;

/// The first wait for the acknowledgement, which a kubelet sends within 2.4 ms (measured). It doubles with each
/// request.
const FIRST_BACKOFF: Duration = Duration::from_millis(1);

/// The longest wait while an acknowledgement may come at any moment.
const BACKOFF_LIMIT: Duration = Duration::from_millis(20);

/// After this time without one the kubelet has a problem, and frequent requests do not help.
const FAST_POLL_LIMIT: Duration = Duration::from_secs(2);
const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The allocatable devices to wait for. A new number triggers a request even if nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Watched {
    /// Rises when the kubelet has to acknowledge everything again.
    pub number: u64,
    /// Healthy devices of all lists.
    pub healthy: DevicesByName,
}

/// Asks after each change of `watched` until the kubelet's answer matches. Every answer is sent to the loop.
pub async fn watch_allocatable(
    mut client: PodResourcesListerClient<Channel>,
    mut watched: watch::Receiver<Watched>,
    events: Events,
    stop: CancellationToken,
) {
    let pace = Pace::for_acknowledgements();
    loop {
        tokio::select! {
            changed = watched.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
        let since = Instant::now();
        let mut wait = FIRST_BACKOFF;
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                changed = watched.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    wait = FIRST_BACKOFF;
                    tokio::time::sleep(wait).await;
                }
                () = stop.cancelled() => return,
            }
            let wanted = watched.borrow_and_update().clone();
            if ask(&mut client, &pace, &events, &wanted).await {
                break;
            }
            let late = since.elapsed() > FAST_POLL_LIMIT;
            wait = if late { SLOW_POLL_INTERVAL } else { (wait * 2).min(BACKOFF_LIMIT) };
        }
    }
}

/// Asks once. Returns whether the answer matches.
async fn ask(
    client: &mut PodResourcesListerClient<Channel>,
    pace: &Pace,
    events: &Events,
    wanted: &Watched,
) -> bool {
    pace.allow().await;
    let asked = Instant::now();
    match client.get_allocatable_resources(AllocatableResourcesRequest {}).await {
        Ok(answer) => {
            let healthy = healthy(answer.into_inner());
            let acknowledged = healthy == wanted.healthy;
            tracing::debug!(acknowledged, took = ?asked.elapsed(), "asked what the kubelet may hand out");
            events.send(Event::Allocatable(Allocatable { asked, healthy }));
            acknowledged
        }
        Err(status) => {
            if status.code() == Code::ResourceExhausted {
                pace.exhausted();
            } else {
                tracing::debug!(error = status.message(), "the kubelet does not say what it may hand out");
            }
            false
        }
    }
}

fn healthy(answer: AllocatableResourcesResponse) -> DevicesByName {
    let mut all = DevicesByName::new();
    for devices in answer.devices {
        let Ok(name) = devices.resource_name.parse::<ResourceName>() else { continue };
        all.entry(name).or_default().extend(devices.device_ids.into_iter().map(DeviceId::new));
    }
    all
}
