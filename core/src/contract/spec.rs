//! `GpuNode.spec`: the slices that a node should have, and who was promised which. Written by the extender's leader only.

use super::{MigPart, NodePolicy};
use crate::kind::Kind;
use crate::mig::{ComputeInstance, ComputeProfile, Instance, Placement, Profile};
use crate::names::{GpuUuid, PodKey, PodUid, SliceId};
use crate::resource::ResourceName;
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What one node should have. Its default is the spec of a node on which nothing was cut yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuNodeSpec {
    /// Rises by one with each write: a writer that has not seen the newest one is refused (compare and swap).
    pub revision: u64,
    /// The epoch of the leader that wrote last. Agents ignore a spec of an older epoch than they have seen.
    pub epoch: u64,
    /// The number of the next slice id, so that no id is used twice.
    pub next_slice: u64,
    /// The wanted slices, in the order in which they were asked for.
    pub slices: Vec<WantedSlice>,
    /// What the node's GPUs may be used for.
    #[serde(skip_serializing_if = "NodePolicy::is_default")]
    pub policy: NodePolicy,
}

/// One wanted slice. Without a reservation it is idle: kept until its place is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedSlice {
    /// The slice's name on this node.
    pub id: SliceId,
    /// The GPU to cut.
    pub gpu: GpuUuid,
    /// What to cut.
    pub shape: Shape,
    /// The pod that it is promised to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
}

/// A slice promised to a container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The pod's UID: a pod of the same name created anew is another one.
    pub uid: PodUid,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container that holds it in the end. That is an init container only where the pod needs fewer slices later.
    pub container: String,
    /// The name under which the kubelet must offer the slice.
    pub resource: ResourceName,
    /// Whether the kubelet is offered no other pod's slices of this name while it has not taken the pod's: they are of one GPU, of
    /// different GPUs, or of GPUs that the pod selects. Absent for most.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// The epoch of the leader that promised it.
    pub epoch: u64,
}

impl Reservation {
    /// The pod's namespace and name.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.pod)
    }
}

/// What a slice is, and for a GPU instance where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Shape {
    /// A GPU instance, or a part of one.
    Mig {
        /// The GPU instance's profile.
        profile: Profile,
        /// The first memory slice.
        start: u8,
        /// Memory slices taken.
        size: u8,
        /// What of it.
        #[serde(default, skip_serializing_if = "MigPart::is_whole")]
        part: MigPart,
    },
    /// The GPU itself.
    Whole {
        /// Its nominal memory.
        size_gb: SizeGb,
    },
    /// An MPS share.
    Mps {
        /// Its size.
        size_gb: SizeGb,
        /// The part of the GPU's compute that its processes may use; absent for one that follows from the memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compute: Option<ComputePercent>,
    },
    /// A time slice, accounted by memory.
    TimeSlicing {
        /// Its size.
        size_gb: SizeGb,
    },
}

impl Shape {
    /// The shape of a GPU instance.
    #[must_use]
    pub fn mig(instance: Instance) -> Self {
        Self::of_instance(instance, MigPart::Whole)
    }

    /// The shape of a part of a GPU instance, or of all of it.
    #[must_use]
    pub fn of_instance(instance: Instance, part: MigPart) -> Self {
        let Placement { start, size } = instance.placement;
        Self::Mig { profile: instance.profile, start, size, part }
    }

    /// An MPS share of `size`, with the part of the compute that follows from its memory.
    #[must_use]
    pub const fn mps(size: SizeGb) -> Self {
        Self::Mps { size_gb: size, compute: None }
    }

    /// The shape of a share of `size` made by `kind`; `None` for what is no share.
    #[must_use]
    pub fn share(kind: Kind, size: SizeGb) -> Option<Self> {
        match kind {
            Kind::Mig | Kind::Whole => None,
            Kind::Mps => Some(Self::mps(size)),
            Kind::TimeSlicing => Some(Self::TimeSlicing { size_gb: size }),
        }
    }

    /// How the slice is made.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Mig { .. } => Kind::Mig,
            Self::Whole { .. } => Kind::Whole,
            Self::Mps { .. } => Kind::Mps,
            Self::TimeSlicing { .. } => Kind::TimeSlicing,
        }
    }

    /// The GPU instance, if it is one.
    #[must_use]
    pub fn instance(self) -> Option<Instance> {
        match self {
            Self::Mig { profile, start, size, .. } => {
                Some(Instance { profile, placement: Placement { start, size } })
            }
            Self::Whole { .. } | Self::Mps { .. } | Self::TimeSlicing { .. } => None,
        }
    }

    /// What of its GPU instance it is; the whole for what is no part of one.
    #[must_use]
    pub fn mig_part(self) -> MigPart {
        match self {
            Self::Mig { part, .. } => part,
            Self::Whole { .. } | Self::Mps { .. } | Self::TimeSlicing { .. } => MigPart::Whole,
        }
    }

    /// Its place among the compute instances of its GPU instance, for one that shares it so.
    #[must_use]
    pub fn part(self) -> Option<ComputeInstance> {
        self.mig_part().compute()
    }

    /// Its number among the replicas of its GPU instance, for one of them.
    #[must_use]
    pub fn replica(self) -> Option<u8> {
        self.mig_part().replica()
    }

    /// The memory that is accounted for it on a GPU with `total`, for what is not cut by MIG.
    #[must_use]
    pub fn memory_of(self, total: MemoryMib) -> MemoryMib {
        match self {
            Self::Whole { .. } => total,
            Self::Mig { .. } | Self::Mps { .. } | Self::TimeSlicing { .. } => self.size().share_memory(),
        }
    }

    /// The part of the compute of a GPU with `total` that an MPS share takes, in hundredths of `total`'s MiB: what was asked
    /// for by itself, or as much as of the memory. Nothing for other slices, which have no such fence.
    #[must_use]
    pub fn compute_of(self, total: MemoryMib) -> u64 {
        match self {
            Self::Mps { compute: Some(compute), .. } => total.0.saturating_mul(u64::from(compute.get())),
            Self::Mps { size_gb, compute: None } => size_gb.share_memory().0.saturating_mul(100),
            Self::Mig { .. } | Self::Whole { .. } | Self::TimeSlicing { .. } => 0,
        }
    }

    /// Whether a slice of this shape can be offered under a name. Under a neutral one each can that is no part of a GPU
    /// instance: what serves it, the pod's request says, and neither the name nor the shape.
    #[must_use]
    pub fn keeps(self, name: ResourceName) -> bool {
        match (self, name) {
            (_, ResourceName::Neutral(_)) => self.mig_part().is_whole(),
            (Self::Mig { profile, part: MigPart::Whole, .. }, name) => name.is_kept_by(profile),
            (Self::Mig { profile, part: MigPart::Compute(part), .. }, ResourceName::Compute(compute)) => {
                compute.of() == profile && compute.compute() == part.compute
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

    /// The nominal size.
    #[must_use]
    pub fn size(self) -> SizeGb {
        match self {
            Self::Mig { profile, .. } => profile.size(),
            Self::Whole { size_gb } | Self::Mps { size_gb, .. } | Self::TimeSlicing { size_gb } => size_gb,
        }
    }

    /// The part of a GPU's compute that was asked for by itself: only an MPS share has a fence for it.
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
    fn what_of_an_instance_a_slice_is_is_offered_under_its_own_name_only() {
        let names = ["nvidia.com/mig-3g.40gb", "nvidia.com/mig-1c.3g.40gb", "nvidia.com/mig-3g.40gb.shared"];
        let instance = h100_shape("3g.40gb", 0).instance().unwrap();
        let part = MigPart::Compute(ComputeInstance { start: 1, compute: 1 });
        let kept = |part| names.map(|name| Shape::of_instance(instance, part).keeps(name.parse().unwrap()));
        assert_eq!(kept(MigPart::Whole), [true, false, false]);
        assert_eq!(kept(part), [false, true, false]);
        assert_eq!(kept(MigPart::Replica { replica: 1 }), [false, false, true]);
        let neutral = ResourceName::Neutral(SizeGb(10));
        assert!(!Shape::of_instance(instance, part).keeps(neutral));
        for shape in [Shape::mig(instance), Shape::mps(SizeGb(10)), Shape::Whole { size_gb: SizeGb(15) }] {
            assert!(shape.keeps(neutral), "{shape}");
        }
        let other = "nvidia.com/mig-2g.20gb.shared".parse().unwrap();
        assert!(!Shape::of_instance(instance, MigPart::Replica { replica: 1 }).keeps(other));
    }
}
