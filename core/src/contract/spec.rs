//! The desired state of one node: the slices that it should have, their reservations, and its policy.
//!
//! The agent keeps it as its ledger. In `GpuNode.spec` only the policy is still written. Agents take over slices that
//! an extender of an earlier version wrote there.

use super::{MigPart, NodePolicy};
use crate::kind::Kind;
use crate::mig::{ComputeInstance, ComputeProfile, Instance, Placement, Profile};
use crate::names::{GpuUuid, PodKey, PodUid, SliceId};
use crate::resource::ResourceName;
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The desired state of one node. The default is that of a node on which nothing was cut yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuNodeSpec {
    /// The number of the write. Extenders of earlier versions raised it by one each time; 0 in a spec that none of them
    /// wrote.
    pub revision: u64,
    /// The epoch of the leader that wrote last. An agent that takes the spec over obeys no leader of an older epoch.
    pub epoch: u64,
    /// The number of the last slice id that was given, so that no id is used twice.
    pub next_slice: u64,
    /// The desired slices, in the order in which they were added.
    pub slices: Vec<WantedSlice>,
    /// The policy for the node's GPUs.
    #[serde(skip_serializing_if = "NodePolicy::is_default")]
    pub policy: NodePolicy,
}

/// One desired slice. Without a reservation it is idle, and stays until its place is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedSlice {
    /// The slice's id, unique on this node.
    pub id: SliceId,
    /// UUID of the GPU to cut.
    pub gpu: GpuUuid,
    /// The shape to cut, and for MIG its position.
    pub shape: Shape,
    /// The reservation of the slice; absent for an idle slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
}

/// A slice that is reserved for a container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The pod's UID. A recreated pod of the same name has another UID.
    pub uid: PodUid,
    /// Namespace of the pod that owns the reservation.
    pub namespace: String,
    /// Name of the pod that owns the reservation.
    pub pod: String,
    /// The container that holds the slice in the end. That is an init container only if the pod needs fewer slices
    /// later.
    pub container: String,
    /// The resource name under which the kubelet must offer the slice.
    pub resource: ResourceName,
    /// Whether the kubelet is offered no other pod's slices of this name until it has taken this pod's. The pod needs
    /// its own slices, because they are on one GPU, on different GPUs, or on GPUs that the pod selects. Absent for most
    /// pods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// The epoch of the leader that made the reservation.
    pub epoch: u64,
}

impl Reservation {
    /// Namespace and name of the pod that owns the reservation.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.pod)
    }
}

/// The form of a slice, and for a GPU instance its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Shape {
    /// A GPU instance, or a part of one.
    Mig {
        /// The profile of the GPU instance.
        profile: Profile,
        /// The first memory slice of the instance.
        start: u8,
        /// The number of memory slices that the instance takes.
        size: u8,
        /// The part of the instance that the slice is; absent for all of it.
        #[serde(default, skip_serializing_if = "MigPart::is_whole")]
        part: MigPart,
    },
    /// The whole GPU, without any sharing.
    Whole {
        /// The GPU's nominal memory in GB.
        size_gb: SizeGb,
    },
    /// An MPS share with a memory limit.
    Mps {
        /// The nominal memory of the share in GB.
        size_gb: SizeGb,
        /// The part of the GPU's compute that its processes may use; absent if it follows from the memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compute: Option<ComputePercent>,
    },
    /// A time slice, accounted by memory although nothing limits it.
    TimeSlicing {
        /// The nominal memory of the slice in GB.
        size_gb: SizeGb,
    },
}

impl Shape {
    /// The shape of a whole GPU instance.
    #[must_use]
    pub fn mig(instance: Instance) -> Self {
        Self::from_instance(instance, MigPart::Whole)
    }

    /// The shape of a GPU instance, or of a part of it.
    #[must_use]
    pub fn from_instance(instance: Instance, part: MigPart) -> Self {
        let Placement { start, size } = instance.placement;
        Self::Mig { profile: instance.profile, start, size, part }
    }

    /// An MPS share of `size`, with the part of the compute that follows from its memory.
    #[must_use]
    pub const fn mps(size: SizeGb) -> Self {
        Self::Mps { size_gb: size, compute: None }
    }

    /// The shape of a share of `size` by `kind`; `None` for kinds that are no shares.
    #[must_use]
    pub fn share(kind: Kind, size: SizeGb) -> Option<Self> {
        match kind {
            Kind::Mig | Kind::Whole => None,
            Kind::Mps => Some(Self::mps(size)),
            Kind::TimeSlicing => Some(Self::TimeSlicing { size_gb: size }),
        }
    }

    /// The kind that makes a slice of this shape.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Mig { .. } => Kind::Mig,
            Self::Whole { .. } => Kind::Whole,
            Self::Mps { .. } => Kind::Mps,
            Self::TimeSlicing { .. } => Kind::TimeSlicing,
        }
    }

    /// The GPU instance that the slice is, or is a part of; `None` for other kinds.
    #[must_use]
    pub fn instance(self) -> Option<Instance> {
        match self {
            Self::Mig { profile, start, size, .. } => {
                Some(Instance { profile, placement: Placement { start, size } })
            }
            Self::Whole { .. } | Self::Mps { .. } | Self::TimeSlicing { .. } => None,
        }
    }

    /// The part of its GPU instance that the slice is. Slices that are no part of one return the whole.
    #[must_use]
    pub fn mig_part(self) -> MigPart {
        match self {
            Self::Mig { part, .. } => part,
            Self::Whole { .. } | Self::Mps { .. } | Self::TimeSlicing { .. } => MigPart::Whole,
        }
    }

    /// The compute instance in its GPU instance; `None` for a slice that is none.
    #[must_use]
    pub fn part(self) -> Option<ComputeInstance> {
        self.mig_part().compute()
    }

    /// The number among the replicas of its GPU instance; `None` for a slice that is none.
    #[must_use]
    pub fn replica(self) -> Option<u8> {
        self.mig_part().replica()
    }

    /// The memory that is accounted for the slice on a GPU with `total`. It has no meaning for MIG, which accounts by
    /// placement.
    #[must_use]
    pub fn memory_of(self, total: MemoryMib) -> MemoryMib {
        match self {
            Self::Whole { .. } => total,
            Self::Mig { .. } | Self::Mps { .. } | Self::TimeSlicing { .. } => self.size().share_memory(),
        }
    }

    /// The compute that an MPS share takes on a GPU with `total`, in hundredths of `total`'s MiB. That is the part that
    /// the pod asks for, otherwise the same part as of the memory. 0 for other slices, whose compute kerf does not
    /// limit.
    #[must_use]
    pub fn compute_of(self, total: MemoryMib) -> u64 {
        match self {
            Self::Mps { compute: Some(compute), .. } => total.0.saturating_mul(u64::from(compute.get())),
            Self::Mps { size_gb, compute: None } => size_gb.share_memory().0.saturating_mul(100),
            Self::Mig { .. } | Self::Whole { .. } | Self::TimeSlicing { .. } => 0,
        }
    }

    /// Whether a slice of this shape can be offered under a name. Under a neutral name every slice can, unless it is a
    /// part of a GPU instance. Then the pod's request document decides whether the slice meets the request, not the
    /// name.
    #[must_use]
    pub fn keeps(self, name: ResourceName) -> bool {
        match (self, name) {
            (_, ResourceName::Neutral(_)) => self.mig_part().is_whole(),
            (Self::Mig { profile, part: MigPart::Whole, .. }, name) => name.is_kept_by(profile),
            (Self::Mig { profile, part: MigPart::Compute(part), .. }, ResourceName::Compute(compute)) => {
                compute.gpu_profile() == profile && compute.compute() == part.compute
            }
            (Self::Mig { profile, part: MigPart::Replica { .. }, .. }, ResourceName::MigReplica(of)) => {
                of == profile
            }
            (Self::Mig { .. }, _) | (_, ResourceName::Plugin(..)) => false,
            (_, name) => {
                name.kind() == Some(self.kind()) && name.size().is_none_or(|size| size == self.size())
            }
        }
    }

    /// The nominal size of the slice.
    #[must_use]
    pub fn size(self) -> SizeGb {
        match self {
            Self::Mig { profile, .. } => profile.size(),
            Self::Whole { size_gb } | Self::Mps { size_gb, .. } | Self::TimeSlicing { size_gb } => size_gb,
        }
    }

    /// The part of a GPU's compute that was asked for. `None` for slices other than MPS shares, because only these
    /// limit compute.
    #[must_use]
    pub fn compute(self) -> Option<ComputePercent> {
        match self {
            Self::Mps { compute, .. } => compute,
            Self::Mig { .. } | Self::Whole { .. } | Self::TimeSlicing { .. } => None,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mig { profile, start, size, part: MigPart::Whole } => {
                write!(f, "{profile} at {start}:{size}")
            }
            Self::Mig { profile, start, size, part: MigPart::Replica { replica } } => {
                write!(f, "{profile} at {start}:{size}, replica {replica}")
            }
            Self::Mig { profile, start, size, part: MigPart::Compute(part) } => {
                match ComputeProfile::new(part.compute, *profile) {
                    Some(compute) => write!(f, "{compute}")?,
                    None => write!(f, "{}c.{profile}", part.compute)?,
                }
                write!(f, " at {start}:{size}, compute {}", part.start)
            }
            Self::Whole { size_gb } => write!(f, "whole GPU of {size_gb}"),
            Self::Mps { size_gb, compute: None } => write!(f, "{}gb MPS share", size_gb.0),
            Self::Mps { size_gb, compute: Some(compute) } => {
                write!(f, "{}gb MPS share with {compute} of the compute", size_gb.0)
            }
            Self::TimeSlicing { size_gb } => write!(f, "{}gb time slice", size_gb.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h100_shape;

    #[test]
    fn a_part_of_an_instance_is_offered_under_its_own_name_only() {
        let names = ["nvidia.com/mig-3g.40gb", "nvidia.com/mig-1c.3g.40gb", "nvidia.com/mig-3g.40gb.shared"];
        let instance = h100_shape("3g.40gb", 0).instance().unwrap();
        let part = MigPart::Compute(ComputeInstance { start: 1, compute: 1 });
        let kept = |part| names.map(|name| Shape::from_instance(instance, part).keeps(name.parse().unwrap()));
        assert_eq!(kept(MigPart::Whole), [true, false, false]);
        assert_eq!(kept(part), [false, true, false]);
        assert_eq!(kept(MigPart::Replica { replica: 1 }), [false, false, true]);
        let neutral = ResourceName::Neutral(SizeGb(10));
        assert!(!Shape::from_instance(instance, part).keeps(neutral));
        for shape in [Shape::mig(instance), Shape::mps(SizeGb(10)), Shape::Whole { size_gb: SizeGb(15) }] {
            assert!(shape.keeps(neutral), "{shape}");
        }
        let other = "nvidia.com/mig-2g.20gb.shared".parse().unwrap();
        assert!(!Shape::from_instance(instance, MigPart::Replica { replica: 1 }).keeps(other));
    }

    #[test]
    fn every_kind_and_size_is_offered_under_a_neutral_name() {
        let name = "kerf.dev/gpu-10gb".parse().unwrap();
        let whole = Shape::Whole { size_gb: SizeGb(80) };
        for shape in [h100_shape("2g.20gb", 0), whole, Shape::mps(SizeGb(9))] {
            assert!(shape.keeps(name), "{shape}");
        }
    }
}
