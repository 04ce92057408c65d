//! The offer of a static node under one name, and whether it meets a container's request.

use crate::contract::ContainerRequest;
use crate::kind::{IsolationClass, Kind};
use crate::packing::{Asked, Refusal, is_worth_whole};
use crate::request::GpuSelection;
use crate::resource::{PluginName, ResourceName};
use crate::units::{MemoryMib, SizeGb};

/// The offer of a static node under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticOffer {
    /// The resource name in allocatable.
    pub name: PluginName,
    /// The kind of the devices. If labels and capacity disagree, it is the one without isolation.
    pub kind: Kind,
    /// The nominal size of one device, for a MIG instance that of its profile. `None` if the labels do not say it; then
    /// it serves only requests by name.
    pub size: Option<SizeGb>,
    /// The memory that one device really has; `None` if it is unknown.
    pub memory: Option<MemoryMib>,
    /// Whether the devices are replicas: a container that asks for several gets no more than one gives.
    pub replicas: bool,
    /// The percentage of a GPU's compute that one device has for itself; 0 without isolation.
    pub compute: u8,
    /// The number of devices, in use or not.
    pub count: u32,
}

impl StaticOffer {
    /// The resource name in the request document of a pod that asks for memory and gets these devices.
    #[must_use]
    pub fn resource(&self) -> ResourceName {
        let plain = self.name.plain().filter(|plain| plain.kind() == Some(self.kind));
        // A replica of kerf's own has no size, so a request for memory must name the static node's replica explicitly.
        plain
            .filter(|plain| *plain != ResourceName::Replica)
            .unwrap_or(ResourceName::Plugin(self.name, self.kind))
    }

    /// Whether devices of this offer are what `resource` means.
    #[must_use]
    pub fn is_of(&self, resource: ResourceName) -> bool {
        resource.plugin_name() == Some(self.name) && resource.kind() == Some(self.kind)
    }

    /// Whether one device meets the request's size, memory and compute.
    #[must_use]
    pub fn suffices(&self, asked: &Asked) -> bool {
        let Asked { size, memory, compute, distinct_gpus } = *asked;
        let known = self.size.unwrap_or(SizeGb::ANY);
        let is_large = known >= size && memory.is_none_or(|memory| self.memory >= Some(memory));
        let worth = self.kind != Kind::Whole || is_worth_whole(size, known, distinct_gpus);
        is_large && worth && compute.is_none_or(|compute| self.compute >= compute.get())
    }

    /// Whether it meets the request of a container in a pod with this isolation, without counting free devices.
    pub(super) fn serves(
        &self,
        request: &ContainerRequest,
        isolation: IsolationClass,
    ) -> Result<(), Refusal> {
        let is_isolated = isolation.is_served_by(self.kind);
        let suffices = self.suffices(&Asked::from_request(request));
        if !(self.is_of(request.resource) && is_isolated && suffices) {
            return Err(Refusal::NeverFits);
        }
        if self.replicas && request.count > 1 {
            return Err(Refusal::OneReplica);
        }
        // Only the plugin sees which GPU a device is on, so several devices may be on one GPU.
        if request.needs_distinct_gpus() && self.kind != Kind::Whole {
            return Err(Refusal::TooFewGpus);
        }
        Ok(())
    }
}

/// Whether a node with GPUs of this model may serve the pod. Only its kubelet reads which GPU a device is on, so kerf
/// does not admit a pod that selects or excludes UUIDs. It does not admit a pod that excludes models either, if the
/// labels do not have the model.
#[must_use]
pub fn admits(gpus: &GpuSelection, model: &str) -> bool {
    let is_sure = !model.is_empty() || gpus.not_models.is_empty();
    is_sure && gpus.admits_model(model) && gpus.uuids.is_empty() && gpus.not_uuids.is_empty()
}
