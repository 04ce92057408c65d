//! What a static node offers under one name, and whether it is what a container asks for.

use super::PluginName;
use crate::contract::ContainerRequest;
use crate::kind::{IsolationClass, Kind};
use crate::packing::{Refusal, is_worth_whole};
use crate::policy::Asked;
use crate::request::GpuSelection;
use crate::resource::ResourceName;
use crate::units::{MemoryMib, SizeGb};

/// What a static node offers under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticOffer {
    /// The name in allocatable.
    pub name: PluginName,
    /// What a device of this name is. It fences no more than is certain.
    pub kind: Kind,
    /// The nominal size of one device: of a MIG instance its profile's. `None` where the node's labels do not say it; then
    /// it serves only who asks by name.
    pub size: Option<SizeGb>,
    /// The memory that one device really has, as far as it is known.
    pub memory: Option<MemoryMib>,
    /// Whether the devices are replicas, of which a container is given no more by asking for several.
    pub replicas: bool,
    /// The part of a GPU's compute that one device has for itself, in percent; none where nothing is fenced.
    pub compute: u8,
    /// How many devices there are, in use or not.
    pub count: u32,
}

impl StaticOffer {
    /// The name by which who asks for memory is given it.
    #[must_use]
    pub fn resource(&self) -> ResourceName {
        let plain = self.name.plain().filter(|plain| plain.kind() == Some(self.kind));
        // Equal time slices that kerf makes itself have no size, so who wants one gets a static node's.
        plain
            .filter(|plain| *plain != ResourceName::Replica)
            .unwrap_or(ResourceName::Plugin(self.name, self.kind))
    }

    /// Whether devices of this offer are what `resource` stands for.
    #[must_use]
    pub fn is_of(&self, resource: ResourceName) -> bool {
        resource.plugin_name() == Some(self.name) && resource.kind() == Some(self.kind)
    }

    /// Whether one device is enough.
    #[must_use]
    pub fn suffices(&self, asked: &Asked) -> bool {
        let Asked { size, memory, compute, distinct_gpus } = *asked;
        let known = self.size.unwrap_or(SizeGb::ANY);
        let is_large = known >= size && memory.is_none_or(|memory| self.memory >= Some(memory));
        let worth = self.kind != Kind::Whole || is_worth_whole(size, known, distinct_gpus);
        is_large && worth && compute.is_none_or(|compute| self.compute >= compute.get())
    }

    /// Whether it is what a container of a pod with this isolation asks for, count apart.
    pub(super) fn serves(
        &self,
        request: &ContainerRequest,
        isolation: IsolationClass,
    ) -> Result<(), Refusal> {
        let is_fenced = isolation.is_served_by(self.kind);
        let suffices = self.suffices(&Asked::by(request));
        if !(self.is_of(request.resource) && is_fenced && suffices) {
            return Err(Refusal::NeverFits);
        }
        if self.replicas && request.count > 1 {
            return Err(Refusal::OneReplica);
        }
        // Which of its GPUs a device is of, only the plugin knows.
        if request.needs_distinct_gpus() && self.kind != Kind::Whole {
            return Err(Refusal::TooFewGpus);
        }
        Ok(())
    }
}

/// Whether a node with GPUs of this model may serve the pod. Which of its GPUs a device is of is known to its kubelet alone,
/// so who wants or shuns certain GPUs gets none. Nor does who shuns a model where the node's labels do not say which it has.
#[must_use]
pub fn admits(gpus: &GpuSelection, model: &str) -> bool {
    let is_sure = !model.is_empty() || gpus.not_models.is_empty();
    is_sure && gpus.admits_model(model) && gpus.uuids.is_empty() && gpus.not_uuids.is_empty()
}
