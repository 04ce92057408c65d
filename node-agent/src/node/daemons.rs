//! The MPS daemons that the node's shares need, and whether they serve the shares.

use super::Restored;
use super::conflicts::Conflicts;
use super::device_ids::{share_device, share_slice};
use super::holders::Account;
use super::slices::Share;
use super::usage::GpuUse;
use crate::gpu::Gpu;
use kerf_core::contract::{Reservation, Shape, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, SliceId};
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedDaemon {
    /// The memory that the server lets each client process have.
    pub limit: MemoryMib,
    /// The multiprocessors that the server lets each client have, in percent.
    pub threads: u8,
    /// Whether the GPU is in `EXCLUSIVE_PROCESS` mode meanwhile.
    pub exclusive: bool,
    /// Whether processes of pods ran on the GPU at the last observation: they lose their work if the daemon is killed.
    pub in_use: bool,
}

/// The observed state of a GPU's MPS daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Daemon {
    /// The daemon is being started, or stopped.
    Changing,
    /// It serves clients, each within these limits.
    Serving {
        /// Rises with each start: the clients of an earlier one are gone.
        generation: u64,
        limit: MemoryMib,
        threads: u8,
    },
    /// It does not serve, for this reason.
    Ill(String),
}

/// What a server must let a client have.
#[derive(Debug, Clone, Copy, Default)]
struct Needed {
    memory: MemoryMib,
    /// The compute part, in hundredths of the GPU's MiB.
    compute: u64,
}

impl Needed {
    /// The sum of these shares on a GPU with this memory. Without compute limits each share may use the whole GPU.
    fn sum(shapes: impl Iterator<Item = Shape>, gpu: MemoryMib, limits_compute: bool) -> Self {
        let compute = |shape: Shape| if limits_compute { shape.compute_of(gpu) } else { gpu.0 * 100 };
        shapes.fold(Self::default(), |sum, shape| Self {
            memory: MemoryMib(sum.memory.0 + shape.size().share_memory().0),
            compute: sum.compute.saturating_add(compute(shape)),
        })
    }

    fn max(self, other: Self) -> Self {
        Self { memory: self.memory.max(other.memory), compute: self.compute.max(other.compute) }
    }

    /// The multiprocessors of the GPU, in percent.
    fn threads(self, gpu: MemoryMib) -> u8 {
        u8::try_from((self.compute / gpu.0.max(1)).clamp(1, 100)).unwrap_or(100)
    }

    fn is_within(self, limit: MemoryMib, threads: u8, gpu: MemoryMib) -> bool {
        self.memory <= limit && self.threads(gpu) <= threads
    }
}

pub type Daemons = BTreeMap<GpuUuid, Daemon>;

/// The MPS daemons as they were last seen.
#[derive(Debug, Default)]
pub(super) struct MpsDaemons {
    /// Their folder. Without it no daemon runs, and MPS shares are only accounted for.
    folder: Option<PathBuf>,
    daemons: Daemons,
    generations: BTreeMap<GpuUuid, u64>,
    /// What was last wrong with each daemon; removed once it serves.
    ills: BTreeMap<GpuUuid, String>,
    /// GPUs whose pods got an Event for their MPS server; removed once its daemon serves again.
    reported: BTreeSet<GpuUuid>,
    /// The GPUs that an earlier process had put into `EXCLUSIVE_PROCESS` mode.
    were_exclusive: BTreeSet<GpuUuid>,
}

impl MpsDaemons {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, ..Self::default() }
    }

    pub(super) fn restore(&mut self, restored: &Restored) {
        self.were_exclusive.clone_from(&restored.exclusive);
    }

    /// Writes what a restart needs into the checkpoint.
    pub(super) fn save(&self, record: &mut Restored, wanted: &BTreeMap<GpuUuid, WantedDaemon>) {
        let exclusive = wanted.iter().filter(|(_, d)| d.exclusive).map(|(gpu, _)| gpu);
        let kept = self.were_exclusive.iter().filter(|gpu| self.has(gpu));
        record.exclusive = exclusive.chain(kept).cloned().collect();
    }

    /// Takes the state of the daemons. Returns the GPUs whose pods have lost their daemon and got no Event for its
    /// server's fault, with how it ended.
    pub(super) fn take(&mut self, daemons: Daemons) -> Vec<(GpuUuid, Option<String>)> {
        let mut lost = Vec::new();
        for (gpu, daemon) in &daemons {
            if let Daemon::Ill(text) = daemon {
                self.ills.insert(gpu.clone(), text.clone());
            }
            let Daemon::Serving { generation, .. } = daemon else { continue };
            let before = self.generations.insert(gpu.clone(), *generation);
            let (how, is_reported) = (self.ills.remove(gpu), self.reported.remove(gpu));
            // On the first report after an agent's start there is no generation to compare, so nothing is reported as
            // lost.
            if !is_reported && before.is_some_and(|before| before != *generation) {
                lost.push((gpu.clone(), how));
            }
        }
        self.daemons = daemons;
        lost
    }

    /// Records that the clients of a GPU's MPS server have lost their work. If the daemon restarts for that, it is the
    /// same loss.
    pub(super) fn take_loss(&mut self, gpu: &GpuUuid) {
        self.reported.insert(gpu.clone());
    }

    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    pub(super) fn has(&self, gpu: &GpuUuid) -> bool {
        self.daemons.contains_key(gpu)
    }

    pub(super) fn are_gone(&self) -> bool {
        self.daemons.is_empty()
    }

    /// Why the GPU's daemon does not serve.
    pub(super) fn trouble(&self, gpu: &GpuUuid) -> Option<&str> {
        match self.daemons.get(gpu) {
            Some(Daemon::Ill(text)) => Some(text),
            _ => None,
        }
    }
}

pub(super) fn holders_on(gpu: &GpuUuid, account: &Account) -> BTreeSet<PodKey> {
    let held = account.devices().filter(|(d, _)| share_slice(d).is_some_and(|(g, _)| g == *gpu));
    held.map(|(_, held)| held.holder.key()).collect()
}

/// The daemons beside the shares that need them.
#[derive(Debug, Clone, Copy)]
pub(super) struct MpsService<'a> {
    daemons: &'a MpsDaemons,
    gpu_use: GpuUse<'a>,
    /// Whether the driver is being upgraded, so that only shares in use count.
    is_upgrading: bool,
}

impl<'a> MpsService<'a> {
    pub(super) fn new(daemons: &'a MpsDaemons, gpu_use: GpuUse<'a>, conflicts: &Conflicts) -> Self {
        Self { daemons, gpu_use, is_upgrading: conflicts.is_upgrading() }
    }

    /// The daemons that should run: one for each GPU with MPS shares.
    pub(super) fn wanted(self) -> BTreeMap<GpuUuid, WantedDaemon> {
        if self.daemons.folder.is_none() {
            return BTreeMap::new();
        }
        let gpus = self.gpu_use.shares.placement.inventory.gpus().iter();
        gpus.filter_map(|gpu| Some((gpu.uuid.clone(), self.wanted_on(gpu)?))).collect()
    }

    fn wanted_on(self, gpu: &Gpu) -> Option<WantedDaemon> {
        let shares = self.gpu_use.shares;
        // During an upgrade an unused share must not keep its daemon, because the daemon holds the driver.
        let is_served = |s: &&Share| !self.is_upgrading || shares.is_in_use(s);
        let of_gpu = shares.placement.slices.shares().values().filter(|s| s.gpu == gpu.uuid);
        let of_gpu = of_gpu.filter(|s| s.shape.kind() == Kind::Mps).filter(is_served);
        let (taken, idle): (Vec<_>, Vec<_>) = of_gpu.partition(|s| shares.is_taken(s));
        // The limit is a wall that a client cannot move, so an idle share must not widen it for other clients.
        let counted = if taken.is_empty() { idle } else { taken };
        let needs = counted.into_iter().map(|s| self.needed(gpu, &s.id)).reduce(Needed::max)?;
        let (limit, threads) = (needs.memory, needs.threads(gpu.memory));
        let exclusive = shares.placement.reservations.rule(gpu).mps.exclusive;
        Some(WantedDaemon { limit, threads, exclusive, in_use: self.gpu_use.measured.has_pods_on(&gpu.uuid) })
    }

    /// What the server must let a client have for this share: all shares of its container on the GPU, because one
    /// process uses them together. In strict mode the limit is one share, and a container with several shares needs as
    /// many processes.
    fn needed(self, gpu: &Gpu, id: &SliceId) -> Needed {
        let placement = self.gpu_use.shares.placement;
        let device = share_device(&gpu.uuid, id);
        let mps = placement.reservations.rule(gpu).mps;
        let needed =
            |shapes: &mut dyn Iterator<Item = Shape>| Needed::sum(shapes, gpu.memory, mps.limits_compute());
        let shares = placement.slices.shares();
        let own = needed(&mut shares.get(&device).map(|s| s.shape).into_iter());
        if mps.is_one_size() {
            return own;
        }
        let wanted = placement.reservations.wanted(&gpu.uuid, id);
        let reserved = wanted.and_then(|w| w.reservation.as_ref());
        let reserved = reserved.map(|r| needed(&mut self.reserved_with(gpu, r))).unwrap_or_default();
        let account = self.gpu_use.shares.account;
        let holder_of = |device| account.possible_holder(device).map(|h| &h.holder);
        let holder = holder_of(&device);
        let held = shares
            .iter()
            .filter(|(other, s)| s.gpu == gpu.uuid && holder.is_some() && holder_of(other) == holder);
        own.max(reserved).max(needed(&mut held.map(|(_, s)| s.shape)))
    }

    /// The shares of the GPU that are reserved for the same container.
    fn reserved_with(self, gpu: &Gpu, reservation: &Reservation) -> impl Iterator<Item = Shape> {
        let is_same = move |w: &&WantedSlice| {
            let is_its =
                |r: &Reservation| (&r.uid, &r.container) == (&reservation.uid, &reservation.container);
            w.gpu == gpu.uuid && w.shape.kind() == Kind::Mps && w.reservation.as_ref().is_some_and(is_its)
        };
        self.gpu_use.shares.placement.desired().iter().filter(is_same).map(|w| w.shape)
    }

    /// Why a share cannot be served; `None` if it can.
    pub(super) fn trouble(self, device: &DeviceId, shape: Shape) -> Option<String> {
        let (gpu, id) =
            share_slice(device).filter(|_| self.daemons.folder.is_some() && shape.kind() == Kind::Mps)?;
        let shares = self.gpu_use.shares;
        let gpu = shares.placement.inventory.gpu(&gpu)?;
        let served = shares.placement.slices.shares().get(device);
        let is_idle = served.is_some_and(|share| !shares.is_taken(share));
        match self.daemons.daemons.get(&gpu.uuid) {
            Some(Daemon::Serving { limit, threads, .. })
                if is_idle || self.needed(gpu, &id).is_within(*limit, *threads, gpu.memory) =>
            {
                None
            }
            Some(Daemon::Serving { .. }) => Some("the MPS daemon's limit is being raised".to_owned()),
            Some(Daemon::Ill(text)) => Some(format!("the GPU's MPS daemon does not serve: {text}")),
            Some(Daemon::Changing) | None => Some("the GPU's MPS daemon is being started".to_owned()),
        }
    }
}
