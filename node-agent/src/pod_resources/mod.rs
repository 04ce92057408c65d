//! Reads from the kubelet: the holders, by List and by its checkpoint, and the allocatable devices.
//!
//! Two tasks send requests, each within its own allowance, because the kubelet has one rate limit for all callers of
//! the node.

mod allocatable;
mod checkpoint;
mod holders;
mod pace;

pub use allocatable::{Watched, watch_allocatable};
pub use holders::{ask_once, list_holders};
use pace::Pace;

use crate::kubelet_api::KUBELET_SOCKET;
use crate::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use std::path::Path;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

const TIMEOUT: Duration = Duration::from_secs(5);

/// gRPC's default limit of 4 MiB is too small for a node with many pods.
const LARGEST_ANSWER: usize = 16 << 20;

/// A client of the pod-resources socket in `folder`. It connects at the first call, and reconnects when needed.
pub fn client(folder: &Path) -> Result<PodResourcesListerClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", folder.join(KUBELET_SOCKET).display()))?;
    let channel = endpoint.timeout(TIMEOUT).connect_lazy();
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER))
}
