//! The kubelet's account: who holds what, by List and by its checkpoint, and what it may hand out.
//!
//! Two tasks ask and tell, each within an allowance, because the kubelet's limit is one for all callers of the node.

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

/// How long the kubelet may take for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// gRPC's default cap of 4 MiB is too little for a node with many pods.
const LARGEST_ANSWER: usize = 16 << 20;

/// A client of the pod-resources socket in `folder`. It connects at the first call, and again when it must.
pub fn client(folder: &Path) -> Result<PodResourcesListerClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", folder.join(KUBELET_SOCKET).display()))?;
    let channel = endpoint.timeout(TIMEOUT).connect_lazy();
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER))
}
