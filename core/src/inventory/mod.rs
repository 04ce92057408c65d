//! The inventory of a node, as packing needs it: its GPUs, and on each GPU the slices that are taken or idle.
//!
//! It is made from a node's desired state and its status. Slices in doubt count as taken: a slice that only the status
//! has, and a slice that a pod holds without a reservation. The extender counts a node as full if it cannot read its
//! status.

mod memory;

pub use memory::{MemoryState, by_state};

use crate::capacity::laid_out;
use crate::closeness::Closeness;
use crate::contract::{
    GpuNodeSpec, GpuNodeStatus, GpuRule, GpuStatus, NodePolicy, Shape, SliceState, SliceStatus, Wanted,
    WantedSlice,
};
use crate::kind::Kind;
use crate::mig::{Instance, MigTable};
use crate::names::{GpuUuid, SliceId};
use crate::units::{MemoryMib, SizeGb};

/// The GPUs of one node, with the facts about the node that packing needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInventory {
    /// The node's GPUs, ordered by NVML index.
    pub gpus: Vec<GpuInventory>,
    /// The closeness of the GPUs to each other, by their indexes in `gpus`.
    pub closeness: Closeness,
    /// The largest neutral name that the kubelet has registered; `None` if it has none, as with agents of earlier
    /// versions.
    pub neutral_up_to: Option<SizeGb>,
    /// Whether the node supports pods in user namespaces. `None` if the Node was not read; then it is assumed to.
    pub user_namespaces: Option<bool>,
}

/// One GPU of a node, with its slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInventory {
    /// The GPU's UUID, as NVML reports it.
    pub uuid: GpuUuid,
    /// Its short model name, as in `H100-80GB`.
    pub model: String,
    /// Its memory, without what processes outside of kerf use.
    pub memory: MemoryMib,
    /// The part of its memory that no share can use.
    pub beside: MemoryMib,
    /// Whether no process outside of kerf uses its memory. Only then can it be given as a whole.
    pub undivided: bool,
    /// The kinds that can be cut now, by the GPU's mode and by policy.
    pub kinds: Vec<Kind>,
    /// The number of MPS shares that may exist on it together; `None` if it has no MPS.
    pub mps_shares: Option<u32>,
    /// The MIG profiles that it offers; empty while MIG mode is off.
    pub table: MigTable,
    /// The rule of the node's policy for this GPU.
    pub rule: GpuRule,
    /// The exact slices of its fixed layout; empty if the GPU cannot have them. `None` if the GPU is cut on demand.
    pub layout: Option<Vec<Shape>>,
    /// The slices on the GPU, taken and idle.
    pub slices: Vec<PlacedSlice>,
}

/// A slice on a GPU, with its occupancy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedSlice {
    /// The shape of the slice, and for MIG its position.
    pub shape: Shape,
    /// Whether the slice may be reserved or destroyed.
    pub occupancy: Occupancy,
}

/// Whether a slice may be reserved or destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occupancy {
    /// It is reserved, held, or not made by kerf.
    Taken,
    /// It was given back, but the agent has not reported it as idle. The kubelet may have given it to another pod than
    /// the one that had reserved it. It may be reserved as it is, because reservations follow what the kubelet did. It
    /// must not be destroyed.
    Released(SliceId),
    /// No pod has it, so it may be reserved again or destroyed.
    Idle(SliceId),
}

impl NodeInventory {
    /// The inventory of a node with this desired state and status.
    #[must_use]
    pub fn from_spec(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> Self {
        let wanted: Vec<_> = spec.slices.iter().map(Wanted::from).collect();
        Self::from_wanted(&wanted, &spec.policy, status)
    }

    /// The inventory of a node that should have these slices under this policy.
    #[must_use]
    pub fn from_wanted(wanted: &[Wanted<'_>], policy: &NodePolicy, status: &GpuNodeStatus) -> Self {
        let gpus = status.gpus.iter().map(|gpu| gpu_inventory(gpu, wanted, policy, status)).collect();
        Self {
            gpus,
            closeness: Closeness::from_gpus(&status.gpus),
            neutral_up_to: status.neutral_up_to,
            user_namespaces: None,
        }
    }
}

fn gpu_inventory(
    gpu: &GpuStatus,
    wanted: &[Wanted<'_>],
    policy: &NodePolicy,
    status: &GpuNodeStatus,
) -> GpuInventory {
    let here = wanted.iter().filter(|s| *s.gpu == gpu.uuid);
    let mut slices: Vec<_> =
        here.map(|s| PlacedSlice { shape: s.shape, occupancy: occupancy(*s, status) }).collect();
    let unknown = status.slices.iter().filter(|s| s.gpu == gpu.uuid && s.state != SliceState::Failed);
    let unknown = unknown.filter(|s| !wanted.iter().any(|w| Some(w.id) == s.id.as_ref()));
    // The state counts as well, because a slice without a known holder may be held too.
    let held = |s: &SliceStatus| s.holder.is_some() || s.id.is_some() && s.state == SliceState::Held;
    let unknown = unknown.filter(|s| held(s) || !is_leaving(s, wanted));
    slices.extend(unknown.map(|s| PlacedSlice { shape: s.shape, occupancy: Occupancy::Taken }));
    let rule = policy.rule(gpu.index, &gpu.uuid, gpu.pci_bus_id.as_ref(), &gpu.model);
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
        // The kinds are narrowed here too, because the agent may not have received the newest policy yet.
        kinds: gpu.kinds.iter().copied().filter(|kind| rule.kinds.contains(kind)).collect(),
        rule,
        table: gpu.profiles.clone(),
        slices,
    }
}

/// Whether a slice without a holder is about to be destroyed: it is no longer desired, or a desired slice takes its
/// place.
fn is_leaving(slice: &SliceStatus, wanted: &[Wanted<'_>]) -> bool {
    let place = slice.shape.instance().map(|i| i.placement);
    let wanted = wanted.iter().filter(|w| *w.gpu == slice.gpu).filter_map(|w| w.shape.instance());
    slice.id.is_some() || place.is_some_and(|place| wanted.into_iter().any(|w| w.placement.overlaps(place)))
}

fn occupancy(slice: Wanted<'_>, status: &GpuNodeStatus) -> Occupancy {
    let observed = status.slice(slice.id);
    if slice.reservation.is_some() || observed.is_some_and(|s| s.holder.is_some()) {
        return Occupancy::Taken;
    }
    let exists = observed.is_some_and(|s| s.device.is_some());
    match observed.map(|s| s.state) {
        None | Some(SliceState::Idle) => Occupancy::Idle(slice.id.clone()),
        // Without a device nothing exists that a pod could hold.
        Some(SliceState::Preparing | SliceState::Failed) if !exists => Occupancy::Idle(slice.id.clone()),
        Some(SliceState::Preparing | SliceState::Waiting | SliceState::Ready) => {
            Occupancy::Released(slice.id.clone())
        }
        Some(SliceState::Failed | SliceState::Held) => Occupancy::Taken,
    }
}

/// Whether no pod holds or has reserved the slice. The agent must have reported that, or the slice must not exist yet.
#[must_use]
pub fn is_idle(slice: &WantedSlice, status: &GpuNodeStatus) -> bool {
    is_wanted_idle(slice.into(), status)
}

/// Whether no pod holds or has reserved a desired slice of an agent's report; see [`is_idle`].
#[must_use]
pub fn is_wanted_idle(slice: Wanted<'_>, status: &GpuNodeStatus) -> bool {
    matches!(occupancy(slice, status), Occupancy::Idle(_))
}

impl GpuInventory {
    /// The memory that its shares can use together.
    #[must_use]
    pub fn for_shares(&self) -> MemoryMib {
        self.memory.saturating_sub(self.beside)
    }

    /// The shapes of slices that must not be destroyed.
    pub fn taken(&self) -> impl Iterator<Item = Shape> + '_ {
        self.slices.iter().filter(|s| !matches!(s.occupancy, Occupancy::Idle(_))).map(|s| s.shape)
    }

    /// The GPU instances with a part that must not be destroyed, without duplicates.
    #[must_use]
    pub fn taken_instances(&self) -> Vec<Instance> {
        let mut taken: Vec<_> = self.taken().filter_map(Shape::instance).collect();
        taken.sort_unstable();
        taken.dedup();
        taken
    }

    /// The GPU instances that are idle as a whole, without duplicates.
    #[must_use]
    pub fn idle_instances(&self) -> Vec<Instance> {
        let taken = self.taken_instances();
        let mut idle: Vec<_> = self.idle().filter_map(|(_, shape)| shape.instance()).collect();
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|instance| !taken.contains(instance));
        idle
    }

    /// One of the GPU's equal shares of this kind; `None` if policy does not fix their number.
    #[must_use]
    pub fn replica(&self, kind: Kind) -> Option<Shape> {
        self.rule.replica(kind, self.for_shares())
    }

    /// The idle slices, each with its id and shape.
    pub fn idle(&self) -> impl Iterator<Item = (&SliceId, Shape)> + '_ {
        self.slices.iter().filter_map(|s| match &s.occupancy {
            Occupancy::Idle(id) => Some((id, s.shape)),
            Occupancy::Taken | Occupancy::Released(_) => None,
        })
    }

    /// For each slice that was given back, the GPU with this slice as idle. A pod may reserve it as it is.
    pub fn reusing(&self) -> impl Iterator<Item = (&SliceId, Self)> + '_ {
        self.slices.iter().enumerate().filter_map(|(index, slice)| {
            let Occupancy::Released(id) = &slice.occupancy else { return None };
            let mut gpu = self.clone();
            gpu.slices[index].occupancy = Occupancy::Idle(id.clone());
            Some((id, gpu))
        })
    }
}
