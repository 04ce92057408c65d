//! What the node has to tell people of: each is told once for as long as it is so.

use super::Node;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::units::MemoryMib;

/// Something that an operator or a pod's owner should hear of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The MPS daemon behind a pod's share was started anew, or its server.
    MpsRestarted {
        /// The GPU.
        gpu: GpuUuid,
        /// The pod.
        pod: PodKey,
        /// How it ended, where that is known.
        how: Option<String>,
    },
    /// A pod's processes hold more memory than its slices give it.
    OverUse {
        /// The GPU.
        gpu: GpuUuid,
        /// The pod.
        pod: PodKey,
        /// What its processes hold.
        used: MemoryMib,
        /// What it was given.
        given: MemoryMib,
    },
    /// A pod came past kerf's scheduler and gets no slice.
    NoSlice {
        /// The pod.
        pod: PodKey,
    },
    /// Processes of no pod of kerf's use a GPU's memory, which is not offered meanwhile.
    Outside {
        /// The GPU.
        gpu: GpuUuid,
        /// How much.
        used: MemoryMib,
        /// The processes, by name and id.
        processes: String,
    },
    /// A GPU has reported an error.
    GpuUnhealthy {
        /// The GPU.
        gpu: GpuUuid,
        /// The error.
        text: String,
    },
    /// A GPU is well again.
    GpuRecovered {
        /// The GPU.
        gpu: GpuUuid,
    },
    /// The kubelet gave a pod another slice than it was promised.
    Mismatch {
        /// The device.
        device: DeviceId,
        /// The pod that has it.
        pod: PodKey,
    },
    /// A GPU's MIG mode was switched.
    ModeChanged {
        /// The GPU.
        gpu: GpuUuid,
        /// Whether it is on now.
        mig: bool,
    },
    /// A slice was found that no record tells of.
    Adopted {
        /// The device.
        device: DeviceId,
    },
    /// The driver is being upgraded without a reboot.
    DriverUpgrade {
        /// How that is known.
        text: String,
    },
    /// Somebody else manages the node's GPUs.
    Contested {
        /// Who, by what that is seen, and what to do.
        text: String,
    },
}

impl Node {
    /// A pod of this node was rejected by the kubelet. One that kerf promised nothing has come past it.
    pub fn on_rejected(&mut self, pod: PodKey, uid: &PodUid) {
        let promised = self.desired().iter().filter_map(|w| w.reservation.as_ref()).any(|r| r.uid == *uid);
        if !promised {
            tracing::warn!(%pod, "a pod that kerf did not place asked for a slice, and was rejected");
            self.tell(Note::NoSlice { pod });
        }
    }

    /// Tells of pods that hold what was promised to others, and were promised nothing themselves.
    pub(super) fn tell_mismatches(&mut self) {
        let stolen = self.stolen().into_iter().map(|(_, device, pod)| Note::Mismatch { device, pod });
        let stolen: Vec<Note> = stolen.collect();
        self.tell_lasting(stolen, |note| matches!(note, Note::Mismatch { .. }));
    }

    /// What they hold.
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

    /// Slices of pods that are not bound yet and cannot be given them, for others have them: a promise that
    /// nobody can take over is kept elsewhere.
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

    /// Has something told with the next decision.
    pub(super) fn tell(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Has told what holds now of a lasting kind, if that was not told yet; `kind` says which of the told ones are of the
    /// same kind, and those that hold no more are forgotten.
    pub(super) fn tell_lasting(&mut self, now: Vec<Note>, kind: impl Fn(&Note) -> bool) {
        let same = |a: &Note, b: &Note| {
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

/// What a lasting note is about: amounts in it may change without its being another one.
fn subject(note: &Note) -> (Option<&GpuUuid>, Option<&PodKey>, Option<&DeviceId>) {
    match note {
        Note::MpsRestarted { gpu, pod, .. } | Note::OverUse { gpu, pod, .. } => (Some(gpu), Some(pod), None),
        Note::NoSlice { pod } => (None, Some(pod), None),
        Note::Mismatch { device, pod } => (None, Some(pod), Some(device)),
        Note::Adopted { device } => (None, None, Some(device)),
        Note::Outside { gpu, .. }
        | Note::GpuUnhealthy { gpu, .. }
        | Note::GpuRecovered { gpu }
        | Note::ModeChanged { gpu, .. } => (Some(gpu), None, None),
        Note::Contested { .. } | Note::DriverUpgrade { .. } => (None, None, None),
    }
}
