//! What the planner is told, and what it answers.

use crate::contract::{MpsMemory, Shape};
use crate::kind::Kind;
use crate::mig::{ComputeIllegal, ComputeInstance, ComputeProfile, Illegal, Instance, MigTable};
use crate::names::{GpuUuid, SliceId};
use crate::units::MemoryMib;
use std::fmt;
use thiserror::Error;

/// What a node's agent sees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// The node's GPUs.
    pub gpus: Vec<ObservedGpu>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedGpu {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Its memory, without what processes use that kerf knows no slice of.
    pub memory: MemoryMib,
    /// What may be made of it.
    pub allowed: Allowed,
    /// What MIG offers; `None` while MIG mode is off.
    pub table: Option<MigTable>,
    /// GPU instances that exist.
    pub instances: Vec<ObservedInstance>,
    /// Shares that are served.
    pub shares: Vec<ObservedShare>,
}

/// What may be made of a GPU. Slices that are there already stay, whatever it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The kinds of slice.
    pub kinds: Vec<Kind>,
    /// Whether MPS shares beside each other must be of one size.
    pub one_size: bool,
    /// What MPS shares may come to together.
    pub mps_memory: MpsMemory,
    /// How many MPS shares may be beside each other: an MPS server takes so many clients. `None` for any number.
    pub mps_shares: Option<u32>,
    /// How many replicas a GPU instance may have. `None` where none is shared out so.
    pub mig_replicas: Option<u8>,
    /// The MIG mode to switch to as soon as the GPU is empty.
    pub switch_to: Option<bool>,
}

impl Default for Allowed {
    fn default() -> Self {
        Self {
            kinds: Kind::ALL.to_vec(),
            one_size: false,
            mps_memory: MpsMemory::default(),
            mps_shares: None,
            mig_replicas: None,
            switch_to: None,
        }
    }
}

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedInstance {
    /// What and where.
    pub instance: Instance,
    /// Whether a container holds it as a whole, or a process runs on it that is no replica's.
    pub held: bool,
    /// The compute instances that share it; none if it has one of full size.
    pub parts: Vec<ObservedPart>,
    /// The replicas that are served of it.
    pub replicas: Vec<ObservedReplica>,
}

/// A compute instance that shares a GPU instance with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedPart {
    /// Where.
    pub part: ComputeInstance,
    /// Whether a container holds it.
    pub held: bool,
}

/// A replica of a GPU instance that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedReplica {
    /// Its number.
    pub number: u8,
    /// Its name in the spec that asked for it.
    pub id: SliceId,
    /// Whether a container holds it.
    pub held: bool,
}

impl ObservedInstance {
    /// Whether anything of it is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held || self.parts.iter().any(|p| p.held) || self.replicas.iter().any(|r| r.held)
    }
}

/// A share that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedShare {
    /// Its name in the spec that asked for it.
    pub id: SliceId,
    /// What it is.
    pub shape: Shape,
    /// Whether a container holds it.
    pub held: bool,
}

/// One step. Each is complete: it names the GPU and the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Switch the MIG mode of an empty GPU.
    Switch {
        /// The GPU.
        gpu: GpuUuid,
        /// Whether MIG mode is on then.
        mig: bool,
    },
    /// Destroy an idle GPU instance, or an idle compute instance of one.
    Destroy {
        /// The GPU.
        gpu: GpuUuid,
        /// The GPU instance.
        instance: Instance,
        /// The compute instance, if the GPU instance stays.
        part: Option<ComputeInstance>,
    },
    /// Create a compute instance, and its GPU instance where that is not there.
    Create {
        /// The GPU.
        gpu: GpuUuid,
        /// The GPU instance.
        instance: Instance,
        /// The compute instance's place, for one that is not of full size.
        part: Option<ComputeInstance>,
        /// The slice that wants it.
        id: SliceId,
    },
    /// Stop serving an idle share, or an idle replica of a GPU instance.
    End {
        /// The GPU.
        gpu: GpuUuid,
        /// The share.
        id: SliceId,
    },
    /// Serve a share, or a replica of a GPU instance that is there.
    Start {
        /// The GPU.
        gpu: GpuUuid,
        /// The share.
        id: SliceId,
        /// What it is.
        shape: Shape,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch { gpu, mig } => {
                write!(f, "switch MIG mode {} on {gpu}", if *mig { "on" } else { "off" })
            }
            Self::Destroy { gpu, instance, part } => write!(f, "destroy {} on {gpu}", Cut(*instance, *part)),
            Self::Create { gpu, instance, part, id } => {
                write!(f, "create {} on {gpu} for {id}", Cut(*instance, *part))
            }
            Self::End { gpu, id } => write!(f, "end share {id} on {gpu}"),
            Self::Start { gpu, id, shape } => write!(f, "start {shape} {id} on {gpu}"),
        }
    }
}

impl Step {
    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &GpuUuid {
        match self {
            Self::Switch { gpu, .. }
            | Self::Destroy { gpu, .. }
            | Self::Create { gpu, .. }
            | Self::End { gpu, .. }
            | Self::Start { gpu, .. } => gpu,
        }
    }
}

/// A GPU instance, or a compute instance of one, as people write it.
pub(super) struct Cut(pub(super) Instance, pub(super) Option<ComputeInstance>);

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Instance { profile, placement }, part) = self;
        match part.map(|part| (part, ComputeProfile::new(part.compute, *profile))) {
            None => write!(f, "{profile} at {placement}"),
            Some((part, Some(compute))) => write!(f, "{compute} at {placement}, compute {}", part.start),
            Some((part, None)) => write!(f, "{}c.{profile} at {placement}", part.compute),
        }
    }
}

/// Steps in their order, and the wanted slices that no legal step reaches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// In the order in which they run.
    pub steps: Vec<Step>,
    /// Wanted slices that cannot be made now.
    pub refused: Vec<(SliceId, Obstacle)>,
}

/// Why a wanted slice cannot be made now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// The node has no such GPU.
    #[error("the node has no GPU {0}")]
    NoSuchGpu(GpuUuid),
    /// A GPU instance is wanted of a GPU whose MIG mode is off, or a share of one whose MIG mode is on.
    #[error("the GPU's MIG mode does not allow this kind of slice")]
    WrongMode,
    /// Slices in use are in its way.
    #[error("slices in use are in its way")]
    Held,
    /// The node's policy does not allow the kind on this GPU.
    #[error("the node's policy does not allow {0} on this GPU")]
    NotAllowed(Kind),
    /// It is not legal beside the others.
    #[error("it cannot exist beside the other slices: {0}")]
    Illegal(#[from] Illegal),
    /// An MPS server takes no more clients.
    #[error("the GPU has as many MPS shares as its server takes clients")]
    TooManyShares,
    /// It is not legal beside the other compute instances.
    #[error("it cannot exist in its GPU instance: {0}")]
    IllegalPart(#[from] ComputeIllegal),
    /// Policy shares no GPU instance out by turns.
    #[error(
        "the node's policy has no mig.timeSlicing for this GPU, so no pods take turns on its GPU instances"
    )]
    NoReplicas,
    /// Policy lets no more take turns.
    #[error("as many pods take turns on the GPU instance as the node's policy allows")]
    TooManyReplicas,
    /// MPS shares of another size are in use on the GPU, and policy wants them of one size.
    #[error("MPS shares of another size are in use on the GPU, and the node's policy wants them of one size")]
    OtherSize,
    /// Shares of another kind are in use on the GPU.
    #[error("shares of another kind are in use on the GPU")]
    OtherKind,
    /// The GPU's compute does not suffice.
    #[error("the GPU's compute does not suffice beside the other MPS shares")]
    NoCompute,
    /// The GPU's memory does not suffice.
    #[error("the GPU's memory does not suffice beside the other shares")]
    NoMemory,
}
