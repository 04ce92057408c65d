//! One node as packing sees it: its GPUs, and on each the slices that are taken or idle.
//!
//! Built from the two halves of a GpuNode. What is in doubt counts as taken: a slice that only the status knows, one
//! that somebody holds without a reservation, a node whose status cannot be read.

mod memory;

pub use memory::{MemoryState, by_state};

use crate::closeness::Closeness;
use crate::contract::{
    GpuNodeSpec, GpuNodeStatus, GpuRule, GpuStatus, Shape, SliceState, SliceStatus, WantedSlice,
};
use crate::kind::Kind;
use crate::mig::{Instance, MigTable};
use crate::names::{GpuUuid, SliceId};
use crate::packing::{Fleet, FleetGpu, laid_out};
use crate::units::{MemoryMib, SizeGb};

/// A node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInventory {
    /// By NVML index.
    pub gpus: Vec<GpuInventory>,
    /// How close they are to each other, by their places in `gpus`.
    pub closeness: Closeness,
    /// The largest neutral name that the node's kubelet knows; none from agents of earlier versions.
    pub neutral_up_to: Option<SizeGb>,
    /// Whether pods may run in user namespaces there. `None` where the Node was not looked at: then they may.
    pub user_namespaces: Option<bool>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInventory {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Its short model name.
    pub model: String,
    /// Its memory, without what is used outside kerf.
    pub memory: MemoryMib,
    /// The part of it that no share may have.
    pub beside: MemoryMib,
    /// Whether all of its memory is kerf's.
    pub undivided: bool,
    /// The kinds that can be cut now, by its mode and by policy.
    pub kinds: Vec<Kind>,
    /// How many MPS shares may be beside each other on it.
    pub mps_shares: Option<u32>,
    /// What MIG offers.
    pub table: MigTable,
    /// What policy says of it.
    pub rule: GpuRule,
    /// The slices that policy lays out on it, always and no others; none at all where it cannot have them. `None` for a GPU
    /// that is cut as pods come.
    pub layout: Option<Vec<Shape>>,
    /// Slices on it.
    pub slices: Vec<PlacedSlice>,
}

/// A slice on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedSlice {
    /// What it is.
    pub shape: Shape,
    /// Whether it may be used or destroyed.
    pub occupancy: Occupancy,
}

/// Whether a slice may be used or destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occupancy {
    /// Reserved, held, or not ours.
    Taken,
    /// Given back, while the agent has not said so: the kubelet may have handed it to another pod than the one that it was
    /// promised to. It may be promised as it is, for promises follow what the kubelet did; it may not be destroyed.
    Released(SliceId),
    /// Nobody's: may be used again or destroyed.
    Idle(SliceId),
}

impl GpuInventory {
    /// Shows the GPU to a fleet that knows it or not, if it is one that MIG can cut now in any way.
    pub fn join(&self, fleet: &mut Fleet, known: Option<FleetGpu>) -> Option<FleetGpu> {
        if !self.kinds.contains(&Kind::Mig) || self.layout.is_some() {
            if let Some(known) = known {
                fleet.remove(known);
            }
            return None;
        }
        fleet.show(known, &self.table, self.taken_instances(), self.idle_instances())
    }
}

impl NodeInventory {
    /// The inventory of a node with this spec and status.
    #[must_use]
    pub fn of(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> Self {
        let gpus = status.gpus.iter().map(|gpu| gpu_inventory(gpu, spec, status)).collect();
        Self {
            gpus,
            closeness: Closeness::of(&status.gpus),
            neutral_up_to: status.neutral_up_to,
            user_namespaces: None,
        }
    }
}

fn gpu_inventory(gpu: &GpuStatus, spec: &GpuNodeSpec, status: &GpuNodeStatus) -> GpuInventory {
    let wanted = spec.slices.iter().filter(|s| s.gpu == gpu.uuid);
    let mut slices: Vec<_> =
        wanted.map(|s| PlacedSlice { shape: s.shape, occupancy: occupancy(s, status) }).collect();
    let unknown = status.slices.iter().filter(|s| s.gpu == gpu.uuid && s.state != SliceState::Failed);
    let unknown = unknown.filter(|s| !spec.slices.iter().any(|w| Some(&w.id) == s.id.as_ref()));
    // Who holds one may be unknown.
    let held = |s: &SliceStatus| s.holder.is_some() || s.id.is_some() && s.state == SliceState::Held;
    let unknown = unknown.filter(|s| held(s) || !is_leaving(s, spec));
    slices.extend(unknown.map(|s| PlacedSlice { shape: s.shape, occupancy: Occupancy::Taken }));
    let rule = spec.policy.rule(gpu.index, &gpu.uuid, gpu.pci_bus_id.as_ref(), &gpu.model);
    let layout = || {
        laid_out(&rule, &gpu.profiles, gpu.memory, gpu.beside_shares(), gpu.mps_shares).unwrap_or_default()
    };
    GpuInventory {
        layout: (!rule.layout.is_empty()).then(layout),
        uuid: gpu.uuid.clone(),
        model: gpu.model.clone(),
        memory: gpu.memory.saturating_sub(gpu.outside),
        beside: gpu.beside_shares(),
        undivided: gpu.outside.is_zero(),
        mps_shares: gpu.mps_shares,
        // The agent may not have seen the newest policy yet.
        kinds: gpu.kinds.iter().copied().filter(|kind| rule.kinds.contains(kind)).collect(),
        rule,
        table: gpu.profiles.clone(),
        slices,
    }
}

/// Whether a slice that nobody holds is on its way out: it left the spec, or a wanted slice takes its place.
fn is_leaving(slice: &SliceStatus, spec: &GpuNodeSpec) -> bool {
    let place = slice.shape.instance().map(|i| i.placement);
    let wanted = spec.slices.iter().filter(|w| w.gpu == slice.gpu).filter_map(|w| w.shape.instance());
    slice.id.is_some() || place.is_some_and(|place| wanted.into_iter().any(|w| w.placement.overlaps(place)))
}

fn occupancy(slice: &WantedSlice, status: &GpuNodeStatus) -> Occupancy {
    let observed = status.slice(&slice.id);
    if slice.reservation.is_some() || observed.is_some_and(|s| s.holder.is_some()) {
        return Occupancy::Taken;
    }
    let exists = observed.is_some_and(|s| s.device.is_some());
    match observed.map(|s| s.state) {
        None | Some(SliceState::Idle) => Occupancy::Idle(slice.id.clone()),
        Some(SliceState::Preparing | SliceState::Failed) if !exists => Occupancy::Idle(slice.id.clone()),
        Some(SliceState::Preparing | SliceState::Waiting | SliceState::Ready) => {
            Occupancy::Released(slice.id.clone())
        }
        Some(SliceState::Failed | SliceState::Held) => Occupancy::Taken,
    }
}

/// Whether nobody has the slice or was promised it: by the agent's word only, or while there is nothing to have.
#[must_use]
pub fn is_idle(slice: &WantedSlice, status: &GpuNodeStatus) -> bool {
    matches!(occupancy(slice, status), Occupancy::Idle(_))
}

impl GpuInventory {
    /// What its shares may come to together.
    #[must_use]
    pub fn for_shares(&self) -> MemoryMib {
        self.memory.saturating_sub(self.beside)
    }

    /// Shapes that may not be destroyed.
    pub fn taken(&self) -> impl Iterator<Item = Shape> + '_ {
        self.slices.iter().filter(|s| !matches!(s.occupancy, Occupancy::Idle(_))).map(|s| s.shape)
    }

    /// GPU instances of which something may not be destroyed, each once.
    #[must_use]
    pub fn taken_instances(&self) -> Vec<Instance> {
        let mut taken: Vec<_> = self.taken().filter_map(Shape::instance).collect();
        taken.sort_unstable();
        taken.dedup();
        taken
    }

    /// GPU instances that are idle as a whole, each once.
    #[must_use]
    pub fn idle_instances(&self) -> Vec<Instance> {
        let taken = self.taken_instances();
        let mut idle: Vec<_> = self.idle().filter_map(|(_, shape)| shape.instance()).collect();
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|instance| !taken.contains(instance));
        idle
    }

    /// One of the GPU's equal shares of this kind, where policy fixes their number.
    #[must_use]
    pub fn replica(&self, kind: Kind) -> Option<Shape> {
        self.rule.replica(kind, self.for_shares())
    }

    /// Idle slices.
    pub fn idle(&self) -> impl Iterator<Item = (&SliceId, Shape)> + '_ {
        self.slices.iter().filter_map(|s| match &s.occupancy {
            Occupancy::Idle(id) => Some((id, s.shape)),
            Occupancy::Taken | Occupancy::Released(_) => None,
        })
    }

    /// The GPU as it is for a pod that is promised this slice, for each that was given back and that may be used as it is.
    pub fn reusing(&self) -> impl Iterator<Item = (&SliceId, Self)> + '_ {
        self.slices.iter().enumerate().filter_map(|(index, slice)| {
            let Occupancy::Released(id) = &slice.occupancy else { return None };
            let mut gpu = self.clone();
            gpu.slices[index].occupancy = Occupancy::Idle(id.clone());
            Some((id, gpu))
        })
    }
}
