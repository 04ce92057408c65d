//! Measures the memory use on GPUs without MIG by the driver's process list. Memory in use outside of kerf is not
//! offered, and a pod that uses more than it was given gets an Event, or is evicted.

use super::{Node, NodeEvent};
use crate::gpu::Gpu;
use crate::gpu::limits::Limits;
use crate::processes::{GpuUsage, Usage};
use kerf_core::accounting::tolerated;
use kerf_core::contract::{Holder, OverUse, SliceStatus};
use kerf_core::mig::catalog;
use kerf_core::names::{GpuUuid, PodKey, PodUid};
use kerf_core::units::MemoryMib;
use std::collections::BTreeSet;

/// Memory outside of kerf is rounded to this size in MiB, so that a growing process does not cause a write of the
/// status each time.
const STEP: u64 = 256;

/// The part of a GPU's use that belongs to a slice.
enum Part {
    /// A compute instance of a GPU instance, and whether it fills the instance.
    Instance { gi: u32, ci: u32, is_full: bool },
    /// The use of the pod's processes on the GPU.
    Pod(PodUid),
}

impl Node {
    /// Takes the usage of an observation.
    pub fn on_usage(&mut self, usage: Usage) {
        // A failed observation shows no process; that does not mean that none runs.
        if !self.health.nvml.is_well() {
            return;
        }
        self.served = usage.iter().map(|(gpu, usage)| (gpu.clone(), self.served(gpu, usage))).collect();
        self.usage = usage;
        self.look_at_shares();
        let outside: Vec<NodeEvent> = self.gpus.iter().filter_map(|gpu| self.outside_note(gpu)).collect();
        self.tell_lasting(outside, |note| matches!(note, NodeEvent::Outside { .. }));
        let over = self.over_use();
        self.tell_lasting(over, |note| matches!(note, NodeEvent::OverUse { .. }));
    }

    /// The pods that use the GPU and have a part of it.
    fn served(&self, gpu: &GpuUuid, usage: &GpuUsage) -> BTreeSet<PodUid> {
        let given = |uid: &&PodUid| self.gpu(gpu).is_some_and(|gpu| self.given(gpu, uid).is_some());
        usage.pods.keys().filter(given).cloned().collect()
    }

    /// The memory of the GPU that is in use by processes without a part of it.
    pub(super) fn outside(&self, gpu: &Gpu) -> MemoryMib {
        let used: MemoryMib = self.strangers(gpu).map(|(_, memory)| memory).sum();
        MemoryMib(used.0.div_ceil(STEP) * STEP)
    }

    fn outside_note(&self, gpu: &Gpu) -> Option<NodeEvent> {
        let processes: Vec<String> = self.strangers(gpu).map(|(name, _)| name).collect();
        let used = self.outside(gpu);
        let note = NodeEvent::Outside { gpu: gpu.uuid.clone(), used, processes: processes.join(", ") };
        (!used.is_zero()).then_some(note)
    }

    /// Processes on a GPU without MIG that belong to no pod with a slice of it.
    fn strangers<'n>(&'n self, gpu: &'n Gpu) -> impl Iterator<Item = (String, MemoryMib)> + 'n {
        let usage = self.usage.get(&gpu.uuid).filter(|_| gpu.table.is_none());
        let pods = usage.into_iter().flat_map(|u| &u.pods);
        // A pod that has left since the observation still counts as served, because its use was not observed again.
        let served = self.served.get(&gpu.uuid);
        let pods = pods.filter(move |(uid, _)| served.is_none_or(|served| !served.contains(*uid)));
        let pods = pods.filter(move |(uid, _)| self.given(gpu, uid).is_none());
        let pods = pods.filter(move |(uid, _)| !self.lingers_on(&gpu.uuid, uid));
        let pods = pods.map(|(uid, memory)| (format!("pod {uid}"), *memory));
        // The driver's own MPS server belongs to the shares that it serves.
        let others = usage
            .into_iter()
            .flat_map(|u| &u.others)
            .filter(|(name, ..)| !name.starts_with("nvidia-cuda-mps"));
        pods.chain(others.map(|(name, pid, memory)| (format!("{name} ({pid})"), *memory)))
    }

    /// The memory of the GPU that the pod was given; `None` if it has no part of it.
    fn given(&self, gpu: &Gpu, uid: &PodUid) -> Option<MemoryMib> {
        let promised = self.desired().iter().filter(|w| w.gpu == gpu.uuid);
        let promised = promised.filter(|w| w.reservation.as_ref().is_some_and(|r| r.uid == *uid));
        let promised: MemoryMib = promised.map(|w| w.shape.memory_of(gpu.memory)).sum();
        let key = self.key_of(uid);
        let held = self.shares.iter().filter(|(device, share)| {
            share.gpu == gpu.uuid
                && key.is_some()
                && self.account.possible_holder(device).map(|h| h.holder.key()) == key
        });
        let held: MemoryMib = held.map(|(_, share)| share.shape.memory_of(gpu.memory)).sum();
        Some(promised.max(held)).filter(|memory| !memory.is_zero())
    }

    /// The limits that the driver should set on the memory of pods' cgroups, if the policy enables them.
    pub(super) fn wanted_limits(&self) -> Limits {
        let mut limits = Limits::new();
        // A pod with an unknown share keeps its current limit.
        let unknown: BTreeSet<&GpuUuid> = self.with_unknown_shares().collect();
        let known = self.gpus.iter().filter(|gpu| !unknown.contains(&gpu.uuid));
        for gpu in known.filter(|gpu| self.rule(gpu).time_slicing.memory_limits) {
            for (uid, cgroup) in self.usage.get(&gpu.uuid).into_iter().flat_map(|u| &u.cgroups) {
                if let Some(given) = self.given(gpu, uid) {
                    limits.insert((gpu.uuid.clone(), cgroup.clone()), given);
                }
            }
        }
        limits
    }

    /// The memory that the holder of a slice requested; `None` if its pod does not say.
    #[must_use]
    pub fn requested(&self, slice: &SliceStatus) -> Option<MemoryMib> {
        let holder = slice.holder.as_ref()?;
        let key = holder.key();
        let pod = self.pods.iter().flatten().map(|(_, pod)| pod).find(|pod| pod.key == key)?;
        pod.requested.get(&holder.container).copied()
    }

    /// The memory that the processes of a slice use.
    #[must_use]
    pub fn used(&self, slice: &SliceStatus) -> MemoryMib {
        let Some(usage) = self.usage.get(&slice.gpu) else { return MemoryMib(0) };
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
    pub fn busy(&self, slice: &SliceStatus) -> Option<u32> {
        slice.holder.as_ref()?;
        let busy = &self.usage.get(&slice.gpu)?.busy;
        match self.part(slice)? {
            Part::Instance { gi, is_full, .. } => busy.instances.get(&gi).filter(|_| is_full).copied(),
            Part::Pod(uid) => Some(busy.pods.as_ref()?.get(&uid).copied().unwrap_or(0)),
        }
    }

    /// How busy a GPU was in percent; `None` if the driver does not report it.
    #[must_use]
    pub fn busy_gpu(&self, gpu: &GpuUuid) -> Option<u32> {
        self.usage.get(gpu)?.busy.gpu
    }

    /// The part of its GPU's use that belongs to a slice. For a share it is the use of its pod's processes. If a pod
    /// has several shares on one GPU the first gets all of it, because the use of each cannot be determined.
    fn part(&self, slice: &SliceStatus) -> Option<Part> {
        let device = slice.device.as_ref()?;
        let instances = self.gpu(&slice.gpu).into_iter().flat_map(|gpu| &gpu.instances);
        let mut places = instances.flat_map(|i| i.devices().map(move |(part, ci, d)| (i.gi, ci, part, d)));
        if let Some((gi, ci, part, _)) = places.find(|(.., d)| *d == device) {
            return Some(Part::Instance { gi, ci, is_full: part.is_none() });
        }
        let pod = slice.holder.as_ref().map(Holder::key)?;
        let mut shares = self.account.devices().filter(|(d, held)| {
            held.holder.key() == pod && self.shares.get(*d).is_some_and(|share| share.gpu == slice.gpu)
        });
        let is_first = shares.next().is_some_and(|(first, _)| first == device);
        self.uid_of(&pod).filter(|_| is_first).map(Part::Pod)
    }

    #[must_use]
    pub fn uid_of(&self, key: &PodKey) -> Option<PodUid> {
        let mut pods = self.pods.iter().flatten().filter(|(_, pod)| pod.key == *key);
        let promised = || {
            let mut reservations = self.desired().iter().filter_map(|w| w.reservation.as_ref());
            reservations.find(|r| r.key() == *key).map(|r| r.uid.clone())
        };
        pods.next().map(|(uid, _)| uid.clone()).or_else(promised)
    }

    /// Whether GPUs are shared, so that the use of each pod must be measured.
    #[must_use]
    pub fn has_shares(&self) -> bool {
        !self.shares.is_empty()
    }

    /// The namespace and name of a pod of this node.
    pub(super) fn key_of(&self, uid: &PodUid) -> Option<PodKey> {
        let pod = self.pods.as_ref().and_then(|pods| pods.get(uid));
        let promised = || {
            let mut reservations = self.desired().iter().filter_map(|w| w.reservation.as_ref());
            reservations.find(|r| r.uid == *uid).map(kerf_core::contract::Reservation::key)
        };
        pod.map(|pod| pod.key.clone()).or_else(promised)
    }

    /// The pods that use more than they were given.
    fn over_use(&self) -> Vec<NodeEvent> {
        let mut notes = Vec::new();
        for gpu in self.gpus.iter().filter(|gpu| gpu.table.is_none()) {
            let model = catalog::short_name(&gpu.product, gpu.memory);
            let Some(usage) = self.usage.get(&gpu.uuid) else { continue };
            for (uid, used) in &usage.pods {
                let (Some(given), Some(pod)) = (self.given(gpu, uid), self.key_of(uid)) else { continue };
                let processes = usage.processes.get(uid).copied().unwrap_or(0);
                if *used > tolerated(&model, given, processes) {
                    notes.push(NodeEvent::OverUse { gpu: gpu.uuid.clone(), pod, used: *used, given });
                }
            }
        }
        notes
    }

    /// By how much pods exceed their part of a GPU, for those beyond the tolerance.
    pub fn over_used(&self) -> impl Iterator<Item = (GpuUuid, PodKey, MemoryMib)> {
        self.over_use().into_iter().filter_map(|note| match note {
            NodeEvent::OverUse { gpu, pod, used, given } => Some((gpu, pod, used.saturating_sub(given))),
            _ => None,
        })
    }

    /// The pods that the policy evicts for their use of memory.
    pub(super) fn evictions(&self) -> Vec<(PodKey, PodUid)> {
        if self.ledger.desired().policy.over_use != OverUse::Evict {
            return Vec::new();
        }
        self.over_used().filter_map(|(_, pod, _)| Some((pod.clone(), self.uid_of(&pod)?))).collect()
    }
}
