//! What the node reports as Events. A lasting condition is reported once for as long as it holds.

use kerf_core::names::{DeviceId, GpuUuid, PodKey};
use kerf_core::units::MemoryMib;

/// A report to an operator or to a pod's owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeEvent {
    /// The MPS daemon of a pod's share was restarted, or its server.
    MpsRestarted {
        gpu: GpuUuid,
        pod: PodKey,
        /// How it ended; `None` if unknown.
        how: Option<String>,
    },
    /// A pod's processes hold more memory than its slices give it.
    OverUse {
        gpu: GpuUuid,
        pod: PodKey,
        /// The memory that its processes hold.
        used: MemoryMib,
        /// The memory that it was given.
        given: MemoryMib,
    },
    /// A pod bypassed kerf's scheduler and gets no slice.
    NoSlice {
        pod: PodKey,
    },
    /// Processes outside of kerf's pods use a GPU's memory, which is not offered meanwhile.
    Outside {
        gpu: GpuUuid,
        used: MemoryMib,
        /// The processes, by name and id.
        processes: String,
    },
    GpuUnhealthy {
        gpu: GpuUuid,
        text: String,
    },
    GpuRecovered {
        gpu: GpuUuid,
    },
    /// The kubelet gave a slice to a pod without a reservation.
    Mismatch {
        device: DeviceId,
        pod: PodKey,
    },
    ModeChanged {
        gpu: GpuUuid,
        /// The new MIG mode: `true` is on.
        mig: bool,
    },
    /// A slice was found that no record lists.
    Adopted {
        device: DeviceId,
    },
    /// The driver is being upgraded without a reboot.
    DriverUpgrade {
        /// The evidence for the upgrade.
        text: String,
    },
    /// A conflicting manager serves the node's GPUs.
    Contested {
        /// Which one, its evidence, and the remedy.
        text: String,
    },
}

/// The reports for the next decision, and the lasting ones that were already sent.
#[derive(Debug, Default)]
pub(super) struct NodeEvents {
    pending: Vec<NodeEvent>,
    lasting: Vec<NodeEvent>,
}

impl NodeEvents {
    /// Reports something with the next decision.
    pub(super) fn emit(&mut self, event: NodeEvent) {
        self.pending.push(event);
    }

    /// Reports the lasting conditions of one kind that were not reported yet. `kind` selects the earlier reports of
    /// that kind, and those that no longer hold are dropped.
    pub(super) fn emit_lasting(&mut self, now: Vec<NodeEvent>, kind: impl Fn(&NodeEvent) -> bool) {
        let same = |a: &NodeEvent, b: &NodeEvent| {
            std::mem::discriminant(a) == std::mem::discriminant(b) && subject(a) == subject(b)
        };
        self.lasting.retain(|sent| !kind(sent) || now.iter().any(|event| same(event, sent)));
        for event in now {
            if !self.lasting.iter().any(|sent| same(&event, sent)) {
                self.lasting.push(event.clone());
                self.pending.push(event);
            }
        }
    }

    pub(super) fn take(&mut self) -> Vec<NodeEvent> {
        std::mem::take(&mut self.pending)
    }
}

/// What a lasting report is about. Its amounts may change without a new report.
fn subject(event: &NodeEvent) -> (Option<&GpuUuid>, Option<&PodKey>, Option<&DeviceId>) {
    match event {
        NodeEvent::MpsRestarted { gpu, pod, .. } | NodeEvent::OverUse { gpu, pod, .. } => {
            (Some(gpu), Some(pod), None)
        }
        NodeEvent::NoSlice { pod } => (None, Some(pod), None),
        NodeEvent::Mismatch { device, pod } => (None, Some(pod), Some(device)),
        NodeEvent::Adopted { device } => (None, None, Some(device)),
        NodeEvent::Outside { gpu, .. }
        | NodeEvent::GpuUnhealthy { gpu, .. }
        | NodeEvent::GpuRecovered { gpu }
        | NodeEvent::ModeChanged { gpu, .. } => (Some(gpu), None, None),
        NodeEvent::Contested { .. } | NodeEvent::DriverUpgrade { .. } => (None, None, None),
    }
}
