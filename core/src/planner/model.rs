//! The planner's input and output.

use crate::contract::{MpsMemory, Shape};
use crate::kind::Kind;
use crate::mig::{ComputeIllegal, ComputeInstance, ComputeProfile, Illegal, Instance, MigTable};
use crate::names::{GpuUuid, SliceId};
use crate::units::MemoryMib;
use std::fmt;
use thiserror::Error;

/// The state of a node as its agent observes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// The GPUs of the node.
    pub gpus: Vec<ObservedGpu>,
}

/// One GPU with its slices and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedGpu {
    /// The UUID of the GPU.
    pub uuid: GpuUuid,
    /// The memory of the GPU, without the part that processes outside kerf's slices use.
    pub memory: MemoryMib,
    /// The slices that may be made on it.
    pub allowed: Allowed,
    /// The MIG profiles of the GPU; `None` while MIG mode is off.
    pub table: Option<MigTable>,
    /// The GPU instances that exist.
    pub instances: Vec<ObservedInstance>,
    /// The shares that are served.
    pub shares: Vec<ObservedShare>,
}

/// The policy for new slices of a GPU. Existing slices stay, whatever it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The kinds of slice that may be made.
    pub kinds: Vec<Kind>,
    /// Whether all MPS shares of the GPU must have one size.
    pub one_size: bool,
    /// The limit for the memory of all MPS shares together.
    pub mps_memory: MpsMemory,
    /// The most MPS shares at the same time, because an MPS server has a limit of clients. `None` for no limit.
    pub mps_shares: Option<u32>,
    /// The most replicas of a GPU instance. `None` if pods do not share instances by time slicing.
    pub mig_replicas: Option<u8>,
    /// The MIG mode to which the GPU switches as soon as it is empty.
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
    /// The profile and the position.
    pub instance: Instance,
    /// Whether a container holds the whole instance, or a process runs on it that belongs to no replica.
    pub held: bool,
    /// The compute instances that share it; empty if it has one of full size.
    pub parts: Vec<ObservedPart>,
    /// The replicas that are served of it.
    pub replicas: Vec<ObservedReplica>,
}

/// A compute instance that shares a GPU instance with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedPart {
    /// The position in the GPU instance.
    pub part: ComputeInstance,
    /// Whether a container holds it.
    pub held: bool,
}

/// A replica of a GPU instance that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedReplica {
    /// The number of the replica on its instance.
    pub number: u8,
    /// The name of the slice in the spec.
    pub id: SliceId,
    /// Whether a container holds it.
    pub held: bool,
}

impl ObservedInstance {
    /// Whether a container holds the instance or any part of it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held || self.parts.iter().any(|p| p.held) || self.replicas.iter().any(|r| r.held)
    }
}

/// A share that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedShare {
    /// The name of the slice in the spec.
    pub id: SliceId,
    /// The kind and size of the share.
    pub shape: Shape,
    /// Whether a container holds it.
    pub held: bool,
}

/// One step of a plan. Each step is complete: it names the GPU and the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Switches the MIG mode of an empty GPU.
    Switch {
        /// The UUID of the GPU.
        gpu: GpuUuid,
        /// Whether MIG mode is on afterwards.
        mig: bool,
    },
    /// Destroys an idle GPU instance, or an idle compute instance of one.
    Destroy {
        /// The UUID of the GPU.
        gpu: GpuUuid,
        /// The GPU instance to destroy or change.
        instance: Instance,
        /// The compute instance, if the GPU instance stays.
        part: Option<ComputeInstance>,
    },
    /// Creates a compute instance, and its GPU instance if that does not exist.
    Create {
        /// The UUID of the GPU.
        gpu: GpuUuid,
        /// The GPU instance to create or use.
        instance: Instance,
        /// The compute instance's position; `None` for one of full size.
        part: Option<ComputeInstance>,
        /// The desired slice that uses it.
        id: SliceId,
    },
    /// Stops serving an idle share, or an idle replica of a GPU instance.
    End {
        /// The UUID of the GPU.
        gpu: GpuUuid,
        /// The name of the share or replica.
        id: SliceId,
    },
    /// Starts to serve a share, or a replica of an existing GPU instance.
    Start {
        /// The UUID of the GPU.
        gpu: GpuUuid,
        /// The name of the share or replica.
        id: SliceId,
        /// The kind, size and position.
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
    /// The GPU on which the step runs.
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

/// A GPU instance, or a compute instance of one, in the form for messages.
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

/// The steps in their order, and the desired slices that no legal step reaches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The steps in the order in which they must run.
    pub steps: Vec<Step>,
    /// Desired slices that cannot be made now, with the reason.
    pub refused: Vec<(SliceId, Obstacle)>,
}

/// Why a desired slice cannot be made now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// The node has no such GPU.
    #[error("the node has no GPU {0}")]
    NoSuchGpu(GpuUuid),
    /// The slice is a GPU instance on a GPU with MIG mode off, or a share on one with MIG mode on.
    #[error("the GPU's MIG mode does not allow this kind of slice")]
    WrongMode,
    /// Slices in use are in its way.
    #[error("slices in use are in its way")]
    Held,
    /// The node's policy does not allow the kind on this GPU.
    #[error("the node's policy does not allow {0} on this GPU")]
    NotAllowed(Kind),
    /// The GPU instance is not legal beside the others.
    #[error("it cannot exist beside the other slices: {0}")]
    Illegal(#[from] Illegal),
    /// The MPS server takes no further clients.
    #[error("the GPU has as many MPS shares as its server takes clients")]
    TooManyShares,
    /// The compute instance is not legal beside the others.
    #[error("it cannot exist in its GPU instance: {0}")]
    IllegalPart(#[from] ComputeIllegal),
    /// The policy does not let pods share GPU instances by time slicing.
    #[error(
        "the node's policy has no mig.timeSlicing for this GPU, so no pods take turns on its GPU instances"
    )]
    NoReplicas,
    /// The GPU instance has as many replicas as the policy allows.
    #[error("as many pods take turns on the GPU instance as the node's policy allows")]
    TooManyReplicas,
    /// MPS shares of another size are in use on the GPU, and the policy requires one size.
    #[error("MPS shares of another size are in use on the GPU, and the node's policy requires one size")]
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
