//! What the node reports as Events: each report is sent once for as long as it holds.

use super::Node;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
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
    /// The kubelet gave a pod another slice than it has reserved.
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

impl Node {
    /// Handles a pod that the kubelet rejected. Without a reservation it has bypassed kerf.
    pub fn on_rejected(&mut self, pod: PodKey, uid: &PodUid) {
        let promised = self.desired().iter().filter_map(|w| w.reservation.as_ref()).any(|r| r.uid == *uid);
        if !promised {
            tracing::warn!(%pod, "a pod that kerf did not place asked for a slice, and was rejected");
            self.tell(NodeEvent::NoSlice { pod });
        }
    }

    /// Reports pods that hold a device that others have reserved, and that have no reservation themselves.
    pub(super) fn tell_mismatches(&mut self) {
        let stolen = self.stolen().into_iter().map(|(_, device, pod)| NodeEvent::Mismatch { device, pod });
        let stolen: Vec<NodeEvent> = stolen.collect();
        self.tell_lasting(stolen, |note| matches!(note, NodeEvent::Mismatch { .. }));
    }

    /// The slices that such pods hold.
    fn stolen(&self) -> Vec<(&WantedSlice, DeviceId, PodKey)> {
        let reservations = || self.desired().iter().filter_map(|w| w.reservation.as_ref());
        let stolen = self.desired().iter().filter_map(|wanted| {
            let (promised, device) = (wanted.reservation.as_ref()?, self.device_of(wanted)?);
            let holder = self.account.holder(&device)?.holder.key();
            let is_strange = holder != promised.key() && !reservations().any(|r| r.key() == holder);
            is_strange.then_some((wanted, device, holder))
        });
        stolen.collect()
    }

    /// Slices of unbound pods whose device another pod holds. The extender places their pods elsewhere, because the
    /// reservation cannot be honoured here.
    pub(super) fn taken_by_others(&self) -> impl Iterator<Item = (SliceId, String)> {
        let is_waiting = |wanted: &&WantedSlice| {
            let promised = wanted.reservation.as_ref();
            promised.is_some_and(|r| self.pods.as_ref().is_some_and(|pods| !pods.contains_key(&r.uid)))
        };
        let stolen = self
            .stolen()
            .into_iter()
            .map(|(wanted, _, pod)| (wanted, format!("{pod} has it, which was not promised it")));
        let taken: Vec<_> = stolen.filter(|(w, _)| is_waiting(w)).collect();
        taken.into_iter().map(|(wanted, text)| (wanted.id.clone(), text))
    }

    /// Reports something with the next decision.
    pub(super) fn tell(&mut self, note: NodeEvent) {
        self.notes.push(note);
    }

    /// Reports the lasting conditions of one kind that were not reported yet. `kind` selects the earlier reports of
    /// that kind, and those that no longer hold are dropped.
    pub(super) fn tell_lasting(&mut self, now: Vec<NodeEvent>, kind: impl Fn(&NodeEvent) -> bool) {
        let same = |a: &NodeEvent, b: &NodeEvent| {
            std::mem::discriminant(a) == std::mem::discriminant(b) && subject(a) == subject(b)
        };
        self.told.retain(|told| !kind(told) || now.iter().any(|note| same(note, told)));
        for note in now {
            if !self.told.iter().any(|told| same(&note, told)) {
                self.told.push(note.clone());
                self.notes.push(note);
            }
        }
    }
}

/// What a lasting report is about. Its amounts may change without a new report.
fn subject(note: &NodeEvent) -> (Option<&GpuUuid>, Option<&PodKey>, Option<&DeviceId>) {
    match note {
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
