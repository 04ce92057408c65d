//! The kubelet's admission of one pod: device allocation first, then the fit check.
//!
//! Two rules together let a pod start **without** its device: the device manager skips a name that no plugin
//! registered, and the fit check drops a name that the node does not list. Such a pod still counts as one
//! that uses the device.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::demand::PodDemand;
use super::node;
use super::node_resources::ResourceList;
use super::parts::Core;
use super::status;

/// The reason of a pod whose devices could not be allocated (kubernetes v1.36,
/// `pkg/kubelet/lifecycle/handlers.go`).
const UNEXPECTED_ADMISSION_ERROR: &str = "UnexpectedAdmissionError";

/// The prefix of the message in a rejected pod's status.
const REJECTED: &str = "Pod was rejected: ";

/// A rejection, as it is written into the pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

impl Rejection {
    fn new(reason: impl Into<String>, message: &str) -> Self {
        Self { reason: reason.into(), message: format!("{REJECTED}{message}") }
    }

    /// The status of a rejected pod whose containers have not all run.
    pub(super) fn status(&self) -> Value {
        status::rejected(&self.reason, &self.message)
    }

    /// The message without its prefix, for an Event.
    #[must_use]
    pub fn reported(&self) -> &str {
        self.message.strip_prefix(REJECTED).unwrap_or(&self.message)
    }

    /// The rejection for a failed allocation.
    #[must_use]
    pub fn of_devices(error: &super::devices::DeviceError) -> Self {
        Self::new(UNEXPECTED_ADMISSION_ERROR, &format!("Allocate failed due to {error}, which is unexpected"))
    }
}

/// Admits a pod whose containers `running` already run. Returns the names for which it will run without a
/// device.
pub(super) async fn admit(
    core: &Core,
    pod: &Pod,
    running: &BTreeSet<String>,
) -> Result<BTreeSet<String>, Rejection> {
    let demand = PodDemand::from_pod(pod);
    let allocated = core.devices.readmit(&demand, running).await;
    let unknown = allocated.map_err(|error| Rejection::of_devices(&error))?.unknown;
    let peak = demand.peak();
    let used = |resource: &str| core.pods.in_use(resource, &demand.uid);
    let taken = core.devices.taken_beside(&demand.uid);
    let covers = |resource: &String, count: &usize| {
        taken.get(resource).is_some_and(|taken| used(resource) + count <= *taken)
    };
    // The Node is read only if it can change the result: usually the pod holds devices for all that it
    // requests.
    if !peak.iter().all(|(resource, count)| covers(resource, count)) {
        let listed = node::allocatable(core).await.unwrap_or_default();
        fit(&peak, &allocatable(&listed, taken), used)?;
    }
    Ok(unknown)
}

/// The allocatable counts of the fit check: the node's list, but never less than what is taken, if the pod
/// holds devices (kubernetes v1.36, `sanitizeNodeAllocatable` in `pkg/kubelet/cm/devicemanager/manager.go`).
fn allocatable(listed: &ResourceList, taken: BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    let listed = listed.iter().map(|(name, quantity)| (name.clone(), quantity.0.parse().unwrap_or_default()));
    let mut allocatable: BTreeMap<String, usize> = listed.collect();
    for (name, count) in taken {
        let least = allocatable.entry(name).or_default();
        *least = count.max(*least);
    }
    allocatable
}

/// The fit check. It ignores names that the node does not list, so the pod starts **without** the device
/// (same release, `removeMissingExtendedResources` in `pkg/kubelet/lifecycle/predicate.go`).
pub fn fit(
    peak: &BTreeMap<String, usize>,
    allocatable: &BTreeMap<String, usize>,
    used: impl Fn(&str) -> usize,
) -> Result<(), Rejection> {
    for (resource, requested) in peak {
        let Some(capacity) = allocatable.get(resource) else { continue };
        let used = used(resource);
        if used + requested > *capacity {
            let message = format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            return Err(Rejection::new(format!("OutOf{resource}"), &message));
        }
    }
    Ok(())
}
