//! The slices that the cluster's GPUs can serve while nothing is in use. They change with nodes, models and policies,
//! not with pods.

mod fitting;
mod fixed;
mod gpu;
mod index;

pub(super) use fitting::{has_compute, smallest};
pub use index::SupplyIndex;

use crate::contract::{GpuNodeSpec, GpuNodeStatus, RequestDocument, Shape};
use crate::kind::Kind;
use crate::mig::Profile;
use crate::names::NodeName;
use crate::packing::Asked;
use crate::request::GpuSelection;
use crate::resource::{ResourceName, share_size};
use crate::static_node::StaticNode;
use crate::units::{ComputePercent, LARGEST_SIZE, MemoryMib, SizeGb};
use fixed::StaticNodes;
use gpu::GpuSupply;
use index::NamedGpus;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The names of extended resources that a `DeviceClass` maps to DRA, each with one class that maps it.
pub type MappedNames = BTreeMap<String, String>;

/// The slices that the cluster's GPUs serve in their present modes; empty until an agent has reported. Clones share the
/// large parts.
#[derive(Debug, Clone, Default)]
pub struct Supply {
    gpus: Arc<Gpus>,
    /// The static nodes, which NVIDIA's device plugin serves.
    statics: Arc<StaticNodes>,
    /// The nodes that are known to have no user namespaces.
    without_users: Arc<BTreeSet<NodeName>>,
    /// The names that pods must not get, because a `DeviceClass` maps them.
    mapped: Arc<MappedNames>,
    /// Whether pods get concrete names only: no agent has reported neutral names, or the chart turns them off.
    concrete_names: bool,
}

#[derive(Debug, Default)]
struct Gpus {
    /// One GPU of each sort.
    sorts: Vec<Arc<GpuSupply>>,
    /// The GPUs node by node, for pods that select GPUs by UUID.
    nodes: Vec<NamedGpus>,
}

impl Supply {
    /// The supply of managed nodes with these statuses, without node policies.
    #[must_use]
    pub fn from_statuses<'a>(nodes: impl IntoIterator<Item = &'a GpuNodeStatus>) -> Self {
        let mut index = SupplyIndex::default();
        for (number, status) in nodes.into_iter().enumerate() {
            index.show(NodeName::new(number.to_string()), &GpuNodeSpec::default(), status);
        }
        index.supply()
    }

    /// The same supply, where these names are mapped to DRA.
    #[must_use]
    pub fn mapped(self, names: Arc<MappedNames>) -> Self {
        Self { mapped: names, ..self }
    }

    /// The `DeviceClass` that maps a name to DRA. kube-scheduler may serve the name by that class, and not call kerf.
    #[must_use]
    pub fn mapping(&self, name: ResourceName) -> Option<&str> {
        if self.mapped.is_empty() {
            return None;
        }
        self.mapped.get(&name.to_string()).map(String::as_str)
    }

    /// The same supply, where pods get no neutral names.
    #[must_use]
    pub fn with_concrete_names(self) -> Self {
        Self { concrete_names: true, ..self }
    }

    /// Whether pods may get neutral names: an agent has reported that its kubelet has registered them, or there are no
    /// agents yet.
    #[must_use]
    pub fn has_neutral_names(&self) -> bool {
        !self.concrete_names
    }

    /// Whether no GPU of the supply serves anything. Then kerf cannot judge yet what the cluster can serve.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.sorts.iter().all(|gpu| gpu.names.is_empty()) && !self.has_static()
    }

    /// Whether all GPUs of the cluster are on static nodes, which serve no neutral names.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.gpus.sorts.is_empty() && self.has_static()
    }

    /// Whether some GPU that the pod may have offers exactly `profile`.
    #[must_use]
    pub fn has_profile(&self, profile: Profile, gpus: &GpuSelection) -> bool {
        self.memory_of(profile, gpus).is_some()
    }

    /// Whether some GPU of a managed node could serve this name.
    #[must_use]
    pub fn has_managed(&self, name: ResourceName, gpus: &GpuSelection) -> bool {
        self.admitted(gpus).iter().any(|gpu| gpu.serves(name))
    }

    /// The least memory that an instance of `profile` has on these GPUs; `None` if no GPU reports it.
    #[must_use]
    pub fn memory_of(&self, profile: Profile, gpus: &GpuSelection) -> Option<MemoryMib> {
        let admitted = self.admitted(gpus);
        let profiles = admitted.iter().flat_map(|gpu| gpu.profiles.iter());
        let managed = profiles.filter(|(known, _)| *known == profile).map(|(_, memory)| *memory).min();
        let fixed = self.fixed_least(ResourceName::Mig(profile), &Asked::for_size(SizeGb::ANY), gpus);
        managed.into_iter().chain(fixed.and_then(|offer| offer.memory)).min()
    }

    /// Whether some GPU can be given as a whole for this request.
    #[must_use]
    pub fn has_whole(&self, asked: &Asked, gpus: &GpuSelection) -> bool {
        let admitted = self.admitted(gpus);
        let mut whole = admitted.iter().filter(|gpu| gpu.serves(ResourceName::Whole));
        whole.any(|gpu| asked.is_worth(ResourceName::Whole, gpu.size))
            || self.fixed_least(ResourceName::Whole, asked, gpus).is_some()
    }

    /// Whether some GPU can hold a share of `size` with this share of compute.
    #[must_use]
    pub fn has_share(
        &self,
        kind: Kind,
        size: SizeGb,
        compute: Option<ComputePercent>,
        gpus: &GpuSelection,
    ) -> bool {
        let Some(name) = share_size(size).and_then(|size| ResourceName::share(kind, size)) else {
            return false;
        };
        let has = |gpu: &GpuSupply| gpu.serves(name) && (compute.is_none() || gpu.limits_compute);
        self.admitted(gpus).iter().any(|gpu| has(gpu))
    }

    /// Whether some GPU is shared in equal MPS shares, with this share of compute for each.
    #[must_use]
    pub fn has_mps_replica(&self, compute: Option<ComputePercent>, gpus: &GpuSelection) -> bool {
        let has = |gpu: &GpuSupply| {
            gpu.serves(ResourceName::MpsReplica) && compute.is_none_or(|least| gpu.has_compute(least))
        };
        self.admitted(gpus).iter().any(|gpu| has(gpu))
    }

    /// A node without user namespaces that keeps a pod with this document from having one; `None` if there is none.
    ///
    /// Under a neutral name any node without them counts that serves one of the kinds, so that no kind is lost. Under a
    /// concrete name it is enough that some node has user namespaces. A node that reports nothing about them is assumed
    /// to have them.
    #[must_use]
    pub fn without_user_namespaces(&self, document: &RequestDocument) -> Option<&NodeName> {
        let is_meant = |kind: Kind| document.containers.iter().any(|container| container.may_be(kind));
        let serves = |gpu: &GpuSupply| gpu.names.iter().filter_map(|name| name.kind()).any(is_meant);
        let managed = self.gpus.nodes.iter().filter(|(_, gpus)| gpus.iter().any(|(_, gpu)| serves(gpu)));
        let offers = |node: &StaticNode| node.offers.iter().any(|offer| is_meant(offer.kind));
        let fixed = self.statics.iter().filter(|(_, node)| document.static_nodes && offers(node));
        let serving = managed.map(|(name, _)| &**name).chain(fixed.map(|(name, _)| name));
        let (without, with): (Vec<_>, Vec<_>) = serving.partition(|name| self.without_users.contains(*name));
        let is_open = document.containers.iter().any(|container| container.resource.is_neutral());
        without.into_iter().next().filter(|_| is_open || with.is_empty())
    }

    /// The known models of the cluster's GPUs, possibly with repetitions.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let managed = self.gpus.sorts.iter().map(|gpu| gpu.model.as_str());
        let fixed = self.statics.values().map(|node| node.model.as_str());
        managed.chain(fixed).filter(|model| !model.is_empty())
    }

    /// The nominal size of the largest GPU; `None` while no GPU is known.
    #[must_use]
    pub fn largest_gpu(&self) -> Option<SizeGb> {
        let managed = self.gpus.sorts.iter().filter(|gpu| !gpu.names.is_empty()).map(|gpu| gpu.size);
        managed.chain(self.statics.values().filter_map(|node| node.gpu_size())).max()
    }

    /// The size of the largest slice that a name without a size may give: a whole GPU, or one of a GPU's equal parts.
    /// `None` for other names, and if no GPU that the pod may have serves it.
    #[must_use]
    pub fn at_most(&self, name: ResourceName, gpus: &GpuSelection) -> Option<SizeGb> {
        let admitted = self.admitted(gpus);
        let serving = admitted.iter().filter(|gpu| gpu.serves(name));
        let managed = serving.filter_map(|gpu| match name {
            ResourceName::Whole => Some(gpu.size),
            ResourceName::Replica => gpu.replica(Kind::TimeSlicing).map(Shape::size),
            ResourceName::MpsReplica => gpu.replica(Kind::Mps).map(Shape::size),
            _ => None,
        });
        let fixed = match name {
            ResourceName::Whole | ResourceName::Replica | ResourceName::Plugin(..) => {
                self.fixed_largest(name, LARGEST_SIZE, gpus)
            }
            _ => None,
        };
        managed.chain(fixed).max()
    }

    /// The largest size that some GPU serves by `kind`; `None` if none does.
    #[must_use]
    pub fn largest(&self, kind: Kind) -> Option<SizeGb> {
        let largest = |gpu: &Arc<GpuSupply>| {
            let names = gpu.names.iter().filter(|name| name.kind() == Some(kind));
            names.filter_map(|name| if kind == Kind::Whole { Some(gpu.size) } else { name.size() }).max()
        };
        let fixed = self.statics.values().flat_map(|node| &node.offers).filter(|offer| offer.kind == kind);
        let fixed = fixed.filter_map(|offer| offer.size);
        self.gpus.sorts.iter().filter_map(largest).chain(fixed).max()
    }

    /// One GPU of each sort that the pod may have.
    fn admitted(&self, gpus: &GpuSelection) -> Cow<'_, [Arc<GpuSupply>]> {
        let Gpus { sorts, nodes } = &*self.gpus;
        if gpus.is_all() {
            return Cow::Borrowed(sorts);
        }
        if gpus.uuids.is_empty() && gpus.not_uuids.is_empty() {
            return sorts.iter().filter(|gpu| gpus.admits_model(&gpu.model)).cloned().collect();
        }
        let all = nodes.iter().flat_map(|(_, gpus)| gpus.iter());
        let admitted = all.filter(|(uuid, gpu)| gpus.admits(uuid, &gpu.model));
        // GPUs of one sort share one `Arc`, so its address identifies the sort.
        let sorts: BTreeMap<_, _> = admitted.map(|(_, gpu)| (Arc::as_ptr(gpu).addr(), gpu.clone())).collect();
        sorts.into_values().collect()
    }
}

#[cfg(test)]
mod fixed_tests;
#[cfg(test)]
mod tests;
