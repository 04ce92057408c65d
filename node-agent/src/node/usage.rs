//! Measures the memory use on GPUs without MIG by the driver's process list. Memory in use outside of kerf is not
//! offered, and a pod that uses more than it was given gets an Event, or is evicted.

use super::NodeEvent;
use super::orphaned::Orphans;
use super::pod_shares::PodShares;
use crate::gpu::Gpu;
use crate::gpu::limits::Limits;
use crate::processes::{GpuUsage, Usage};
use kerf_core::accounting::tolerated;
use kerf_core::contract::{Holder, SliceStatus};
use kerf_core::names::{GpuUuid, PodKey, PodUid};
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};

/// Memory outside of kerf is rounded to this size in MiB, so that a growing process does not cause a write of the
/// status each time.
const STEP: u64 = 256;

#[derive(Debug, Default)]
pub(super) struct Measured {
    usage: Usage,
    /// The pods that held something of each GPU when the usage was measured.
    served: BTreeMap<GpuUuid, BTreeSet<PodUid>>,
}

impl Measured {
    /// Takes the usage of an observation.
    pub(super) fn take(&mut self, usage: Usage, shares: PodShares<'_>) {
        let served = |(gpu, usage): (&GpuUuid, &GpuUsage)| {
            let known = shares.placement.inventory.gpu(gpu);
            let given = |uid: &&PodUid| known.is_some_and(|gpu| shares.given(gpu, uid).is_some());
            (gpu.clone(), usage.pods.keys().filter(given).cloned().collect())
        };
        self.served = usage.iter().map(served).collect();
        self.usage = usage;
    }

    pub(super) fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(super) fn has_pods_on(&self, gpu: &GpuUuid) -> bool {
        self.usage.get(gpu).is_some_and(|usage| !usage.pods.is_empty())
    }
}

/// The part of a GPU's use that belongs to a slice.
enum Part {
    /// A compute instance of a GPU instance, and whether it fills the instance.
    Instance { gi: u32, ci: u32, is_full: bool },
    /// The use of the pod's processes on the GPU.
    Pod(PodUid),
}

/// The measured use of GPUs, beside what pods were given of them.
#[derive(Debug, Clone, Copy)]
pub struct GpuUse<'a> {
    pub(super) shares: PodShares<'a>,
    pub(super) orphans: &'a Orphans,
    pub(super) measured: &'a Measured,
}

impl<'a> GpuUse<'a> {
    /// The memory of the GPU that is in use by processes without a part of it.
    pub(super) fn outside(self, gpu: &Gpu) -> MemoryMib {
        let used: MemoryMib = self.strangers(gpu).map(|(_, memory)| memory).sum();
        MemoryMib(used.0.div_ceil(STEP) * STEP)
    }

    /// The GPUs that processes outside of kerf use.
    pub(super) fn outside_events(self) -> Vec<NodeEvent> {
        let event = |gpu: &Gpu| {
            let processes: Vec<String> = self.strangers(gpu).map(|(name, _)| name).collect();
            let (gpu, used, processes) = (gpu.uuid.clone(), self.outside(gpu), processes.join(", "));
            (!used.is_zero()).then_some(NodeEvent::Outside { gpu, used, processes })
        };
        self.gpus().iter().filter_map(event).collect()
    }

    fn gpus(self) -> &'a [Gpu] {
        self.shares.placement.inventory.gpus()
    }

    fn usage(self, gpu: &GpuUuid) -> Option<&'a GpuUsage> {
        self.measured.usage.get(gpu)
    }

    /// Processes on a GPU without MIG that belong to no pod with a slice of it.
    fn strangers(self, gpu: &Gpu) -> impl Iterator<Item = (String, MemoryMib)> {
        let usage = self.usage(&gpu.uuid).filter(|_| gpu.table.is_none());
        let pods = usage.into_iter().flat_map(|u| &u.pods);
        // A pod that has left since the observation still counts as served, because its use was not observed again.
        let served = self.measured.served.get(&gpu.uuid);
        let pods = pods.filter(move |(uid, _)| served.is_none_or(|served| !served.contains(*uid)));
        let pods = pods.filter(move |(uid, _)| self.shares.given(gpu, uid).is_none());
        let slices = self.shares.placement.slices;
        let pods = pods.filter(move |(uid, _)| !self.orphans.has_share(&gpu.uuid, uid, slices));
        let pods = pods.map(|(uid, memory)| (format!("pod {uid}"), *memory));
        // The driver's own MPS server belongs to the shares that it serves.
        let others = usage
            .into_iter()
            .flat_map(|u| &u.others)
            .filter(|(name, ..)| !name.starts_with("nvidia-cuda-mps"));
        pods.chain(others.map(|(name, pid, memory)| (format!("{name} ({pid})"), *memory)))
    }

    /// The limits that the driver should set on the memory of pods' cgroups, if the policy enables them.
    pub(super) fn wanted_limits(self) -> Limits {
        let mut limits = Limits::new();
        // A pod with an unknown share keeps its current limit.
        let unknown: BTreeSet<&GpuUuid> = self.shares.gpus_with_unknown().collect();
        let known = self.gpus().iter().filter(|gpu| !unknown.contains(&gpu.uuid));
        let reservations = self.shares.placement.reservations;
        for gpu in known.filter(|gpu| reservations.rule(gpu).time_slicing.memory_limits) {
            for (uid, cgroup) in self.usage(&gpu.uuid).into_iter().flat_map(|u| &u.cgroups) {
                if let Some(given) = self.shares.given(gpu, uid) {
                    limits.insert((gpu.uuid.clone(), cgroup.clone()), given);
                }
            }
        }
        limits
    }

    /// The memory that the holder of a slice requested; `None` if its pod does not say.
    #[must_use]
    pub fn requested(self, slice: &SliceStatus) -> Option<MemoryMib> {
        self.shares.pods.requested(slice.holder.as_ref()?)
    }

    /// The memory that the processes of a slice use.
    #[must_use]
    pub fn used(self, slice: &SliceStatus) -> MemoryMib {
        let Some(usage) = self.usage(&slice.gpu) else { return MemoryMib(0) };
        let used = self.part(slice).and_then(|part| match part {
            Part::Instance { gi, ci, .. } => usage.instances.get(&(gi, ci)),
            Part::Pod(uid) => usage.pods.get(&uid),
        });
        used.copied().unwrap_or_default()
    }

    /// How busy a held slice was, in percent of the time in which its pod's processes ran on the GPU or, under MIG,
    /// anything on the instance. `None` without a holder, or if the driver does not report it, as for compute instances
    /// that share a GPU instance.
    #[must_use]
    pub fn busy(self, slice: &SliceStatus) -> Option<u32> {
        slice.holder.as_ref()?;
        let busy = &self.usage(&slice.gpu)?.busy;
        match self.part(slice)? {
            Part::Instance { gi, is_full, .. } => busy.instances.get(&gi).filter(|_| is_full).copied(),
            Part::Pod(uid) => Some(busy.pods.as_ref()?.get(&uid).copied().unwrap_or(0)),
        }
    }

    /// How busy a GPU was in percent; `None` if the driver does not report it.
    #[must_use]
    pub fn busy_gpu(self, gpu: &GpuUuid) -> Option<u32> {
        self.usage(gpu)?.busy.gpu
    }

    /// The part of its GPU's use that belongs to a slice. For a share it is the use of its pod's processes. If a pod
    /// has several shares on one GPU the first gets all of it, because the use of each cannot be determined.
    fn part(self, slice: &SliceStatus) -> Option<Part> {
        let device = slice.device.as_ref()?;
        let gpu = self.shares.placement.inventory.gpu(&slice.gpu);
        let instances = gpu.into_iter().flat_map(|gpu| &gpu.instances);
        let mut places = instances.flat_map(|i| i.devices().map(move |(part, ci, d)| (i.gi, ci, part, d)));
        if let Some((gi, ci, part, _)) = places.find(|(.., d)| *d == device) {
            return Some(Part::Instance { gi, ci, is_full: part.is_none() });
        }
        let pod = slice.holder.as_ref().map(Holder::key)?;
        let shares = self.shares.placement.slices.shares();
        let mut held = self.shares.account.devices().filter(|(d, held)| {
            held.holder.key() == pod && shares.get(*d).is_some_and(|share| share.gpu == slice.gpu)
        });
        let is_first = held.next().is_some_and(|(first, _)| first == device);
        self.shares.uid(&pod).filter(|_| is_first).map(Part::Pod)
    }

    /// The UID of a pod of this node, bound or with a reservation.
    #[must_use]
    pub fn uid(self, pod: &PodKey) -> Option<PodUid> {
        self.shares.uid(pod)
    }

    /// Whether GPUs are shared, so that the use of each pod must be measured.
    #[must_use]
    pub fn has_shares(self) -> bool {
        !self.shares.placement.slices.shares().is_empty()
    }

    pub(super) fn over_use_events(self) -> Vec<NodeEvent> {
        let mut events = Vec::new();
        // On a GPU with MIG no pod can use more memory than its MIG device has.
        for gpu in self.gpus().iter().filter(|gpu| gpu.table.is_none()) {
            let Some(usage) = self.usage(&gpu.uuid) else { continue };
            for (uid, used) in &usage.pods {
                let (given, pod) = (self.shares.given(gpu, uid), self.shares.key(uid));
                let (Some(given), Some(pod)) = (given, pod) else { continue };
                let processes = usage.processes.get(uid).copied().unwrap_or(0);
                if *used > tolerated(&gpu.model, given, processes) {
                    events.push(NodeEvent::OverUse { gpu: gpu.uuid.clone(), pod, used: *used, given });
                }
            }
        }
        events
    }

    /// By how much pods exceed their part of a GPU, for those beyond the tolerance.
    pub fn over_used(self) -> impl Iterator<Item = (GpuUuid, PodKey, MemoryMib)> {
        self.over_use_events().into_iter().filter_map(|event| match event {
            NodeEvent::OverUse { gpu, pod, used, given } => Some((gpu, pod, used.saturating_sub(given))),
            _ => None,
        })
    }
}
