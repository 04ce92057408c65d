//! The MPS daemons that the node's shares need, and whether they serve the shares.

use super::Node;
use super::share::{self, Share};
use crate::gpu::Gpu;
use kerf_core::contract::{Shape, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;

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
    fn of(shapes: impl Iterator<Item = Shape>, gpu: MemoryMib, limits_compute: bool) -> Self {
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

impl Node {
    /// Takes the state of the MPS daemons. Pods that lost their daemon get an Event, unless they got one for its
    /// server's fault.
    pub fn on_daemons(&mut self, daemons: Daemons) {
        for (gpu, daemon) in &daemons {
            if let Daemon::Ill(text) = daemon {
                self.daemon_ills.insert(gpu.clone(), text.clone());
            }
            let Daemon::Serving { generation, .. } = daemon else { continue };
            let before = self.generations.insert(gpu.clone(), *generation);
            let (how, told) = (self.daemon_ills.remove(gpu), self.told_lost.remove(gpu));
            // On the first report after an agent's start there is no generation to compare, so nothing is reported as
            // lost.
            if !told && before.is_some_and(|before| before != *generation) {
                self.tell_holders(gpu, how.as_deref());
            }
        }
        self.daemons = daemons;
    }

    /// Handles that the clients of a GPU's MPS server have lost their work. If the daemon restarts for that, it is the
    /// same loss.
    pub fn on_server_lost(&mut self, gpu: &GpuUuid, how: &str) {
        self.tell_holders(gpu, Some(how));
        self.told_lost.insert(gpu.clone());
    }

    fn tell_holders(&mut self, gpu: &GpuUuid, how: Option<&str>) {
        for pod in self.holders_on(gpu) {
            self.tell(super::NodeEvent::MpsRestarted { gpu: gpu.clone(), pod, how: how.map(str::to_owned) });
        }
    }

    /// The daemons that should run: one for each GPU with MPS shares. While the driver is being upgraded only shares in
    /// use count.
    pub(super) fn wanted_daemons(&self) -> BTreeMap<GpuUuid, WantedDaemon> {
        if self.settings.mps.is_none() {
            return BTreeMap::new();
        }
        let wanted = |gpu: &Gpu| {
            let is_served = |s: &&Share| self.upgrade.is_none() || self.is_share_in_use(s);
            let shares = self.shares.values().filter(|s| s.gpu == gpu.uuid && s.shape.kind() == Kind::Mps);
            let (taken, idle): (Vec<_>, Vec<_>) = shares.filter(is_served).partition(|s| self.is_taken(s));
            // The limit is a wall that a client cannot move, so an idle share must not widen it for other clients.
            let counted = if taken.is_empty() { idle } else { taken };
            let needs = counted.into_iter().map(|s| self.needed(gpu, &s.id)).reduce(Needed::max)?;
            let (limit, threads) = (needs.memory, needs.threads(gpu.memory));
            let in_use = self.usage.get(&gpu.uuid).is_some_and(|usage| !usage.pods.is_empty());
            Some(WantedDaemon { limit, threads, exclusive: self.rule(gpu).mps.exclusive, in_use })
        };
        self.gpus.iter().filter_map(|gpu| Some((gpu.uuid.clone(), wanted(gpu)?))).collect()
    }

    /// Whether a pod holds the share, may hold it, or has reserved it.
    fn is_taken(&self, share: &Share) -> bool {
        let is_reserved = |w: &WantedSlice| w.id == share.id && w.gpu == share.gpu && w.reservation.is_some();
        self.desired().iter().any(is_reserved) || self.is_share_in_use(share)
    }

    /// What the server must let a client have for this share: all shares of its container on the GPU, because one
    /// process uses them together. In strict mode the limit is one share, and a container with several shares needs as
    /// many processes.
    fn needed(&self, gpu: &Gpu, id: &SliceId) -> Needed {
        let device = share::device_id(&gpu.uuid, id);
        let mps = self.rule(gpu).mps;
        let needed =
            |shapes: &mut dyn Iterator<Item = Shape>| Needed::of(shapes, gpu.memory, mps.limits_compute());
        let own = needed(&mut self.shares.get(&device).map(|s| s.shape).into_iter());
        if mps.is_one_size() {
            return own;
        }
        let wanted = self.desired().iter().find(|w| w.id == *id && w.gpu == gpu.uuid);
        let promised = wanted.and_then(|w| w.reservation.as_ref());
        let promised = promised
            .map(|promised| {
                let same = |w: &&WantedSlice| {
                    w.gpu == gpu.uuid
                        && w.shape.kind() == Kind::Mps
                        && w.reservation
                            .as_ref()
                            .is_some_and(|r| (&r.uid, &r.container) == (&promised.uid, &promised.container))
                };
                needed(&mut self.desired().iter().filter(same).map(|w| w.shape))
            })
            .unwrap_or_default();
        let holder_of = |device| self.account.possible_holder(device).map(|h| &h.holder);
        let holder = holder_of(&device);
        let held = self
            .shares
            .iter()
            .filter(|(other, s)| s.gpu == gpu.uuid && holder.is_some() && holder_of(other) == holder);
        own.max(promised).max(needed(&mut held.map(|(_, s)| s.shape)))
    }

    /// Why a share cannot be served; `None` if it can.
    pub(super) fn daemon_trouble(&self, device: &DeviceId, shape: Shape) -> Option<String> {
        let (gpu, id) =
            share::slice_of(device).filter(|_| self.settings.mps.is_some() && shape.kind() == Kind::Mps)?;
        let gpu = self.gpu(&gpu)?;
        let is_idle = self.shares.get(device).is_some_and(|share| !self.is_taken(share));
        match self.daemons.get(&gpu.uuid) {
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

    /// Whether a share of this kind must wait until the GPU's MPS daemon has ended.
    pub(super) fn waits_for_daemon(&self, gpu: &GpuUuid, shape: Shape) -> bool {
        shape.kind() != Kind::Mps && self.daemons.contains_key(gpu)
    }
}
