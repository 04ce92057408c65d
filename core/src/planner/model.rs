//! What the planner is told, and what it answers.

use crate::contract::Shape;
use crate::mig::{Illegal, Instance, MigTable};
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
    /// Its memory.
    pub memory: MemoryMib,
    /// What MIG offers; `None` while MIG mode is off.
    pub table: Option<MigTable>,
    /// GPU instances that exist.
    pub instances: Vec<ObservedInstance>,
    /// Shares that are served.
    pub shares: Vec<ObservedShare>,
}

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedInstance {
    /// What and where.
    pub instance: Instance,
    /// Whether a container holds it or a process runs on it.
    pub held: bool,
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
    /// Destroy an idle GPU instance.
    Destroy {
        /// The GPU.
        gpu: GpuUuid,
        /// The instance.
        instance: Instance,
    },
    /// Create a GPU instance and its compute instance.
    Create {
        /// The GPU.
        gpu: GpuUuid,
        /// The instance.
        instance: Instance,
        /// The slice that wants it.
        id: SliceId,
    },
    /// Stop serving an idle share.
    End {
        /// The GPU.
        gpu: GpuUuid,
        /// The share.
        id: SliceId,
    },
    /// Serve a share.
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
            Self::Destroy { gpu, instance } => {
                write!(f, "destroy {} at {} on {gpu}", instance.profile, instance.placement)
            }
            Self::Create { gpu, instance, id } => {
                write!(f, "create {} at {} on {gpu} for {id}", instance.profile, instance.placement)
            }
            Self::End { gpu, id } => write!(f, "end share {id} on {gpu}"),
            Self::Start { gpu, id, shape } => write!(f, "start {shape} {id} on {gpu}"),
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
    /// It is not legal beside the others.
    #[error("it cannot exist beside the other slices: {0}")]
    Illegal(#[from] Illegal),
    /// Shares of another kind are in use on the GPU.
    #[error("shares of another kind are in use on the GPU")]
    OtherKind,
    /// The GPU's memory does not suffice.
    #[error("the GPU's memory does not suffice beside the other shares")]
    NoMemory,
}
