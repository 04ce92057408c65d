//! The Events of the agent: a closed list, each with one text that says what happened and what to do.

use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// An MPS daemon was restarted, or its server. Reported for each pod that had a share of it.
    MpsRestarted {
        gpu: GpuUuid,
        /// How it ended; `None` if unknown.
        how: Option<String>,
    },
    /// A pod's processes use more GPU memory than it was given.
    GpuMemoryOverUse {
        gpu: GpuUuid,
        /// The memory that all its processes use there together.
        used: MemoryMib,
        /// The memory that it was given there.
        given: MemoryMib,
        /// Whether the policy evicts it.
        evicted: bool,
    },
    /// A pod that kerf did not place requests a slice.
    NoSliceForPod,
    /// Processes without a slice of kerf use memory of a GPU.
    OutsideMemory {
        gpu: GpuUuid,
        memory: MemoryMib,
        /// The processes, as a text.
        processes: String,
    },
    /// A GPU has an error: its slices are marked unhealthy.
    GpuUnhealthy {
        gpu: GpuUuid,
        why: String,
    },
    GpuRecovered {
        gpu: GpuUuid,
    },
    /// The kubelet gave a slice to a pod without a reservation. Reported for that pod.
    SliceMismatch {
        device: DeviceId,
    },
    /// A slice was found that no record lists.
    SliceAdopted {
        device: DeviceId,
    },
    /// The driver is being upgraded without a reboot.
    DriverUpgrade {
        /// The evidence for the upgrade.
        text: String,
    },
    /// A conflicting manager cuts or serves the node's GPUs.
    ForeignManager {
        /// An [`Other`](crate::conflicting::Other) as a text: which one, its evidence and the remedy.
        text: String,
    },
    /// A pod that the kubelet had rejected was deleted.
    RejectedPodRemoved {
        /// The kubelet's message about it.
        message: String,
    },
    ModeChanged {
        gpu: GpuUuid,
        /// The new MIG mode: `true` is on.
        mig: bool,
    },
}

impl AgentEvent {
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::MpsRestarted { .. } => "MpsRestarted",
            Self::GpuMemoryOverUse { .. } => "GpuMemoryOverUse",
            Self::NoSliceForPod => "NoSliceForPod",
            Self::OutsideMemory { .. } => "OutsideMemory",
            Self::GpuUnhealthy { .. } => "GpuUnhealthy",
            Self::GpuRecovered { .. } => "GpuRecovered",
            Self::SliceMismatch { .. } => "SliceMismatch",
            Self::SliceAdopted { .. } => "SliceAdopted",
            Self::DriverUpgrade { .. } => "DriverUpgrade",
            Self::ForeignManager { .. } => "ForeignManager",
            Self::RejectedPodRemoved { .. } => "RejectedPodRemoved",
            Self::ModeChanged { .. } => "ModeChanged",
        }
    }

    /// What the agent did about it, as a word for programs.
    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::MpsRestarted { .. } => "Restarted",
            Self::GpuMemoryOverUse { evicted: true, .. } => "Evicted",
            Self::GpuUnhealthy { .. } | Self::DriverUpgrade { .. } => "Withdrawn",
            Self::GpuRecovered { .. } => "Offered",
            Self::NoSliceForPod | Self::ForeignManager { .. } => "Refused",
            Self::SliceMismatch { .. } => "Reconciled",
            Self::SliceAdopted { .. } => "Adopted",
            Self::RejectedPodRemoved { .. } => "Deleted",
            Self::ModeChanged { .. } => "Switched",
            Self::GpuMemoryOverUse { .. } | Self::OutsideMemory { .. } => "Accounted",
        }
    }

    /// Whether the Event needs no action, so that its type is Normal.
    pub(super) fn is_good(&self) -> bool {
        matches!(
            self,
            Self::GpuRecovered { .. }
                | Self::RejectedPodRemoved { .. }
                | Self::ModeChanged { .. }
                | Self::DriverUpgrade { .. }
        )
    }

    /// The part of the node that it is about, so that errors of two GPUs are two Events.
    pub(super) fn subject(&self) -> Option<String> {
        let gpu = |uuid: &GpuUuid| Some(format!("status.gpus{{{uuid}}}"));
        match self {
            Self::MpsRestarted { gpu: uuid, .. }
            | Self::GpuMemoryOverUse { gpu: uuid, .. }
            | Self::OutsideMemory { gpu: uuid, .. }
            | Self::GpuUnhealthy { gpu: uuid, .. }
            | Self::GpuRecovered { gpu: uuid }
            | Self::ModeChanged { gpu: uuid, .. } => gpu(uuid),
            Self::SliceMismatch { device } | Self::SliceAdopted { device } => {
                Some(format!("status.slices{{{device}}}"))
            }
            Self::NoSliceForPod
            | Self::ForeignManager { .. }
            | Self::DriverUpgrade { .. }
            | Self::RejectedPodRemoved { .. } => None,
        }
    }
}

/// The Event's message, for people.
impl fmt::Display for AgentEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MpsRestarted { gpu, how } => write!(
                f,
                "The MPS service of {gpu}, which serves this pod's share, was restarted{}. The CUDA contexts that the pod \
                 had there are gone: its processes must start anew; restart the container if they do not.",
                how.as_ref().map(|how| format!(" ({how})")).unwrap_or_default()
            ),
            Self::GpuMemoryOverUse { gpu, used, given, evicted } => {
                write!(f, "The pod's processes use {used} of {gpu} and were given {given} together. ")?;
                let remedy = if *evicted { "It is evicted, as the node's policy says. " } else { "" };
                write!(f, "{remedy}Ask for more GPU memory, or let fewer processes of the pod use the GPU.")
            }
            Self::NoSliceForPod => f.write_str(
                "The pod asks for a slice of a GPU and came past kerf, by spec.nodeName or another scheduler; none is reserved \
                 for it and it gets none. Leave spec.nodeName out and create the pod anew.",
            ),
            Self::OutsideMemory { gpu, memory, processes } => write!(
                f,
                "Processes that hold no slice use {memory} of {gpu}: {processes}. So much less is offered; stop them, or \
                 run them in a pod that asks for a slice."
            ),
            Self::GpuUnhealthy { gpu, why } => write!(
                f,
                "{gpu}: {why}. Nothing new is cut from it and its slices are marked unhealthy; pods that run on it go on. \
                 It is probed and comes back by itself once it answers without an error; if it does not, drain the node \
                 and reset the GPU."
            ),
            Self::GpuRecovered { gpu } => write!(f, "{gpu} answers without an error; its slices are offered again."),
            Self::SliceMismatch { device } => write!(
                f,
                "The kubelet gave this pod {device}, although no slice was reserved for the pod; it counts as the pod's now. \
                 If this repeats, look for pods that are created with spec.nodeName or by another scheduler."
            ),
            Self::SliceAdopted { device } => write!(
                f,
                "{device} was found, and no record lists it. It counts as occupied, and kerf does not change it; if it is \
                 not needed, destroy it (nvidia-smi mig -dci, -dgi)."
            ),
            Self::DriverUpgrade { text } => write!(
                f,
                "The driver is being upgraded: {text}. kerf offers nothing new on this node, closes the driver once no pod uses an \
                 MPS share here, and serves the node again after the upgrade."
            ),
            Self::ForeignManager { text } => write!(f, "{text} kerf cuts nothing new on this node until then."),
            Self::RejectedPodRemoved { message } => write!(
                f,
                "The kubelet had rejected the pod (UnexpectedAdmissionError: {message}) and it would have stayed Failed; it \
                 was deleted, as the node's policy says, and its controller makes another."
            ),
            Self::ModeChanged { gpu, mig } => {
                let mode = if *mig { "on" } else { "off" };
                write!(f, "MIG mode of {gpu} is {mode} now, as the node's policy says.")
            }
        }
    }
}
