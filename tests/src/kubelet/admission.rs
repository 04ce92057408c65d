//! The kubelet's admission of one pod: devices first, then the fit check for what is no device of ours.
//!
//! The two traps live here: a name that nobody registered is skipped by the device manager, and the fit check drops
//! it too when the node does not list it, so the pod starts **without** the device.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::demand::PodDemand;
use super::node;
use super::node_resources::ResourceList;
use super::parts::Core;

/// Reason of a pod whose devices could not be allocated (kubernetes v1.36, `pkg/kubelet/lifecycle/handlers.go`).
const UNEXPECTED_ADMISSION_ERROR: &str = "UnexpectedAdmissionError";

/// A refusal, as it goes into the pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
}

impl Rejection {
    fn new(reason: impl Into<String>, message: &str) -> Self {
        Self { reason: reason.into(), message: format!("Pod was rejected: {message}") }
    }

    /// The device manager could not allocate.
    #[must_use]
    pub fn of_devices(error: &super::devices::DeviceError) -> Self {
        Self::new(UNEXPECTED_ADMISSION_ERROR, &format!("Allocate failed due to {error}, which is unexpected"))
    }
}

/// Admits a pod; gives the names for which it will run without a device.
pub(super) async fn admit(core: &Core, pod: &Pod) -> Result<BTreeSet<String>, Rejection> {
    let demand = PodDemand::of(pod);
    let allocated = core.devices.admit(&demand).await;
    let unknown = allocated.map_err(|error| Rejection::of_devices(&error))?.unknown;
    if unknown.is_empty() {
        return Ok(unknown);
    }
    let allocatable = node::allocatable(core).await.unwrap_or_default();
    let in_use = |resource: &str| core.pods.in_use(resource, &demand.uid);
    fit(&demand, unknown, &allocatable, in_use)
}

/// The fit check over names that the device manager does not know. Names that the node does not list are dropped
/// from it (kubernetes v1.36, `removeMissingExtendedResources` in `pkg/kubelet/lifecycle/predicate.go`); they are
/// given back.
pub fn fit(
    demand: &PodDemand,
    unknown: BTreeSet<String>,
    allocatable: &ResourceList,
    in_use: impl Fn(&str) -> usize,
) -> Result<BTreeSet<String>, Rejection> {
    let peak = demand.peak();
    let mut dropped = BTreeSet::new();
    for resource in unknown {
        let requested = peak.get(&resource).copied().unwrap_or_default();
        let Some(quantity) = allocatable.get(&resource) else {
            dropped.insert(resource);
            continue;
        };
        let capacity = quantity.0.parse::<usize>().unwrap_or_default();
        let used = in_use(&resource);
        if used + requested > capacity {
            let message = format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            return Err(Rejection::new(format!("OutOf{resource}"), &message));
        }
    }
    Ok(dropped)
}
