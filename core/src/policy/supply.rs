//! What the cluster's GPUs can ever serve, how much more of it now, and what of that is wanted already.

mod fitting;
mod fixed;
mod gpu;
mod index;
mod labels;
mod pending;
mod selected;
mod several;

pub(super) use fitting::has_compute;
pub use fixed::Asked;
pub use index::SupplyIndex;
pub use pending::Room;
pub use several::Several;

use crate::contract::{GpuNodeSpec, GpuNodeStatus, Held, Shape};
use crate::kind::Kind;
use crate::mig::Profile;
use crate::names::NodeName;
use crate::request::GpuSelection;
use crate::resource::{ResourceName, share_size};
use crate::static_node::StaticNode;
use crate::units::{ComputePercent, LARGEST_SIZE, MemoryMib, SizeGb};
use fixed::StaticNodes;
use gpu::GpuSupply;
use index::NamedGpus;
use labels::Labels;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// GPUs that are alike, and how many there are.
type Alike = (Arc<GpuSupply>, u32);

/// What the cluster's GPUs serve in their present modes. Empty while no agent has reported. Clones share what is large.
#[derive(Debug, Clone, Default)]
pub struct Supply {
    gpus: Arc<Gpus>,
    /// The nodes that NVIDIA's device plugin serves.
    statics: Arc<StaticNodes>,
    /// Those of them that take no new pods.
    shut: Arc<BTreeSet<NodeName>>,
    /// The nodes of which it is known that they have no user namespaces.
    without_users: Arc<BTreeSet<NodeName>>,
    /// The labels of all nodes with GPUs, as far as they are known.
    labels: Arc<BTreeMap<NodeName, Labels>>,
    /// What pods hold of them.
    held: Arc<Held>,
    /// How many slices of each name pods wait for that have been promised none yet.
    pending: BTreeMap<ResourceName, u32>,
}

/// All GPUs.
#[derive(Debug, Default)]
struct Gpus {
    alike: Vec<Alike>,
    /// For pods that name GPUs or nodes, or want several slices of one node.
    nodes: Vec<NamedGpus>,
}

impl Supply {
    /// The supply of these nodes while nobody has anything of them.
    #[must_use]
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a GpuNodeStatus>) -> Self {
        let mut index = SupplyIndex::default();
        for (number, status) in nodes.into_iter().enumerate() {
            index.show(NodeName::new(number.to_string()), &GpuNodeSpec::default(), status, true);
        }
        index.supply()
    }

    /// The same supply while so many slices of each name are wanted by pods that wait.
    #[must_use]
    pub fn wanted(&self, pending: BTreeMap<ResourceName, u32>) -> Self {
        Self { pending, ..self.clone() }
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.alike.iter().all(|(gpu, _)| gpu.ever.is_empty()) && !self.has_static()
    }

    /// The smallest plain profile of at least `size`: least memory, then least compute.
    #[must_use]
    pub fn profile_for(&self, size: SizeGb, gpus: &GpuSelection) -> Option<Profile> {
        let admitted = self.admitted(gpus);
        let profiles = admitted.iter().flat_map(|(gpu, _)| gpu.profiles.iter()).map(|(profile, _)| *profile);
        let fits = profiles.filter(|p| p.is_plain() && p.size() >= size);
        fits.min_by_key(|p| (p.size(), p.compute()))
    }

    /// Whether some GPU offers exactly `profile`.
    #[must_use]
    pub fn has_profile(&self, profile: Profile, gpus: &GpuSelection) -> bool {
        self.memory_of(profile, gpus).is_some()
    }

    /// Whether some GPU of a managed node ever serves this name.
    #[must_use]
    pub fn has_managed(&self, name: ResourceName, gpus: &GpuSelection) -> bool {
        self.admitted(gpus).iter().any(|(gpu, _)| gpu.serves(name))
    }

    /// The memory that an instance of `profile` has at least, where it is known.
    #[must_use]
    pub fn memory_of(&self, profile: Profile, gpus: &GpuSelection) -> Option<MemoryMib> {
        let admitted = self.admitted(gpus);
        let profiles = admitted.iter().flat_map(|(gpu, _)| gpu.profiles.iter());
        let managed = profiles.filter(|(known, _)| *known == profile).map(|(_, memory)| *memory).min();
        let fixed = self.fixed_least(ResourceName::Mig(profile), &Asked::of(SizeGb::ANY), gpus);
        managed.into_iter().chain(fixed.and_then(|offer| offer.memory)).min()
    }

    /// Whether some GPU is given as a whole to a request for this.
    #[must_use]
    pub fn has_whole(&self, asked: &Asked, gpus: &GpuSelection) -> bool {
        let admitted = self.admitted(gpus);
        let mut whole = admitted.iter().filter(|(gpu, _)| gpu.serves(ResourceName::Whole));
        whole.any(|(gpu, _)| asked.is_worth(ResourceName::Whole, gpu.size))
            || self.fixed_least(ResourceName::Whole, asked, gpus).is_some()
    }

    /// Whether some GPU can hold a share of `size`, with so much compute for itself.
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
        self.admitted(gpus).iter().any(|(gpu, _)| has(gpu))
    }

    /// Whether some GPU is shared out by `kind` in equal parts, with so much compute for each.
    #[must_use]
    pub fn has_replica(&self, kind: Kind, compute: Option<ComputePercent>, gpus: &GpuSelection) -> bool {
        let Some(name) = ResourceName::replica(kind) else { return false };
        self.admitted(gpus).iter().any(|(gpu, _)| gpu.ever_for(name, compute) > 0)
    }

    /// A node that serves MPS shares and cannot run pods in user namespaces, if there is one. A node of which that is not known is
    /// taken for one that can.
    #[must_use]
    pub fn without_user_namespaces(&self) -> Option<&NodeName> {
        let has_mps = |gpu: &GpuSupply| gpu.ever.iter().any(|(name, _)| name.kind() == Some(Kind::Mps));
        let managed = self.gpus.nodes.iter().filter(|(_, gpus)| gpus.iter().any(|(_, gpu)| has_mps(gpu)));
        let offers = |node: &StaticNode| node.offers.iter().any(|offer| offer.kind == Kind::Mps);
        let fixed = self.statics.iter().filter(|(_, node)| offers(node));
        let mut serving = managed.map(|(name, _)| &**name).chain(fixed.map(|(name, _)| name));
        serving.find(|name| self.without_users.contains(*name))
    }

    /// The models of the cluster's GPUs, as far as they are known. One may come several times.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let managed = self.gpus.alike.iter().map(|(gpu, _)| gpu.model.as_str());
        let fixed = self.statics.values().map(|node| node.model.as_str());
        managed.chain(fixed).filter(|model| !model.is_empty())
    }

    /// The size of the largest GPU.
    #[must_use]
    pub fn largest_gpu(&self) -> Option<SizeGb> {
        let managed = self.gpus.alike.iter().filter(|(gpu, _)| !gpu.ever.is_empty()).map(|(gpu, _)| gpu.size);
        managed.chain(self.statics.values().filter_map(|node| node.gpu_size())).max()
    }

    /// The most memory that one slice of a name without a size may have: a whole GPU, or one of a GPU's equal time slices.
    /// `None` for other names, and while no GPU that the pod may have serves it.
    #[must_use]
    pub fn at_most(&self, name: ResourceName, gpus: &GpuSelection) -> Option<SizeGb> {
        let admitted = self.admitted(gpus);
        let serving = admitted.iter().filter(|(gpu, _)| gpu.serves(name));
        let managed = serving.filter_map(|(gpu, _)| match name {
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

    /// The largest size that some GPU serves by `kind`.
    #[must_use]
    pub fn largest(&self, kind: Kind) -> Option<SizeGb> {
        let largest = |(gpu, _): &Alike| {
            let names = gpu.ever.iter().map(|(name, _)| name).filter(|name| name.kind() == Some(kind));
            names.filter_map(|name| if kind == Kind::Whole { Some(gpu.size) } else { name.size() }).max()
        };
        let fixed = self.statics.values().flat_map(|node| &node.offers).filter(|offer| offer.kind == kind);
        let fixed = fixed.filter_map(|offer| offer.size);
        self.gpus.alike.iter().filter_map(largest).chain(fixed).max()
    }

    /// The GPUs that a pod may have.
    fn admitted(&self, gpus: &GpuSelection) -> Cow<'_, [Alike]> {
        let Gpus { alike, nodes } = &*self.gpus;
        if gpus.is_all() {
            return Cow::Borrowed(alike);
        }
        if gpus.uuids.is_empty() && gpus.not_uuids.is_empty() {
            return alike.iter().filter(|(gpu, _)| gpus.admits_model(&gpu.model)).cloned().collect();
        }
        let mut count = BTreeMap::new();
        let all = nodes.iter().flat_map(|(_, gpus)| gpus.iter());
        for (_, gpu) in all.filter(|(uuid, gpu)| gpus.admits(uuid, &gpu.model)) {
            count.entry(Arc::as_ptr(gpu).addr()).or_insert_with(|| (gpu.clone(), 0)).1 += 1;
        }
        count.into_values().collect()
    }
}

#[cfg(test)]
mod tests;
