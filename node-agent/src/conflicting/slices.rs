//! Detects NVIDIA's DRA driver by its `ResourceSlice`s: with one for this node, the driver allocates its GPUs.

use super::{DRA_DRIVER, Other, Who};
use kerf_core::names::NodeName;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

/// Returns the DRA driver if it has published GPUs of this node.
///
/// Clusters without `resource.k8s.io/v1` (before 1.34) do not enable DRA by default. If the agent lacks the right to
/// list slices, the cluster was set up without DRA for GPUs. Neither is an error.
pub(super) async fn found(client: &Client, node: &NodeName) -> Result<Option<Other>, kube::Error> {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceSlice");
    let slices = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let selector = format!("spec.nodeName={node},spec.driver={DRA_DRIVER}");
    // Read from the API server's cache, because a minute's delay does not matter.
    let found = match slices.list_metadata(&ListParams::default().fields(&selector).match_any()).await {
        Ok(found) => found,
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok((!found.items.is_empty()).then(|| {
        Other::new(
            Who::DraDriver,
            format!("ResourceSlices of the driver {DRA_DRIVER} offer GPUs of this node"),
        )
    }))
}
