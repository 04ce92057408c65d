//! What one GPU serves, and how much more of it now. GPUs that are alike share one.

use crate::contract::{GpuStatus, Shape};
use crate::inventory::{GpuInventory, Occupancy, PlacedSlice};
use crate::kind::Kind;
use crate::mig::{ComputeProfile, Profile, catalog};
use crate::names::{GpuUuid, SliceId};
use crate::packing::{Fleet, room};
use crate::resource::{ResourceName, SHARE_SIZES};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use std::sync::Arc;

/// What a GPU serves.
#[derive(Debug)]
pub(super) struct GpuSupply {
    /// Its short model name.
    pub model: String,
    /// Its nominal size.
    pub size: SizeGb,
    /// The names that it serves while nobody has anything of it, ascending, with how many slices of each.
    pub ever: Arc<[(ResourceName, u32)]>,
    /// The profiles that it offers, with the memory of each.
    pub profiles: Arc<[(Profile, MemoryMib)]>,
    /// One of its equal time slices and of its equal MPS shares, where it has such.
    replicas: [Option<Shape>; 2],
    /// Whether an MPS share can have a part of the compute for itself.
    pub limits_compute: bool,
    /// How many more slices of each name it holds now, each name by itself and with the compute that goes with its size.
    /// Names without room are left out.
    room: Vec<(ResourceName, u32)>,
    /// The GPU as it is cut, for MPS shares with another compute: their room is worked out when somebody asks for it. `None`
    /// where no shares can be cut.
    shared: Option<GpuInventory>,
}

impl GpuSupply {
    /// One of its equal shares of this kind, where it has such.
    pub fn replica(&self, kind: Kind) -> Option<Shape> {
        self.replicas.iter().flatten().copied().find(|shape| shape.kind() == kind)
    }

    /// Whether one of its equal MPS shares has so much compute for itself.
    fn has_compute(&self, least: ComputePercent) -> bool {
        let share = self.replica(Kind::Mps).and_then(Shape::compute);
        self.limits_compute && share >= Some(least)
    }

    /// How many more slices of this name it holds.
    pub fn room(&self, name: ResourceName) -> u32 {
        count(&self.room, name)
    }

    /// Whether it serves the name while nobody has anything of it.
    pub fn serves(&self, name: ResourceName) -> bool {
        count(&self.ever, name) > 0
    }

    /// How many slices of this name, with this share of compute, it holds while nobody has anything of it.
    pub fn ever_for(&self, name: ResourceName, compute: Option<ComputePercent>) -> u32 {
        let ever = count(&self.ever, name);
        match (name, compute) {
            (ResourceName::Mps(_), Some(_)) if !self.limits_compute => 0,
            (ResourceName::Mps(_), Some(compute)) => ever.min(100 / u32::from(compute.get())),
            (ResourceName::MpsReplica, Some(compute)) if !self.has_compute(compute) => 0,
            _ => ever,
        }
    }

    /// The same for slices with this share of compute. Only MPS gives it away by itself: what it has of other kinds, a name
    /// says.
    pub fn room_for(&self, name: ResourceName, compute: Option<ComputePercent>) -> u32 {
        match (name, compute, &self.shared) {
            (ResourceName::Mps(size), Some(_), Some(gpu)) => {
                room(gpu, name, size, compute, &Fleet::default())
            }
            (ResourceName::Mps(_), Some(_), None) => 0,
            (ResourceName::MpsReplica, Some(compute), _) if !self.has_compute(compute) => 0,
            _ => self.room(name),
        }
    }
}

/// How many there are of a name in a list by ascending name.
fn count(list: &[(ResourceName, u32)], name: ResourceName) -> u32 {
    let found = list.binary_search_by_key(&name, |(known, _)| *known);
    found.ok().and_then(|at| list.get(at)).map_or(0, |(_, count)| *count)
}

/// What of a GPU's slices decides what it serves now. Those that are idle are in nobody's way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cut {
    /// Whether new slices may be cut at all.
    open: bool,
    /// Each with whether it may be promised as it is.
    slices: Vec<(Shape, bool)>,
}

impl Cut {
    /// How `gpu` is cut.
    pub fn of(gpu: &GpuInventory, open: bool) -> Self {
        let slices = gpu.slices.iter().filter_map(|slice| match slice.occupancy {
            Occupancy::Taken => Some((slice.shape, false)),
            Occupancy::Released(_) => Some((slice.shape, true)),
            Occupancy::Idle(_) => None,
        });
        let mut slices: Vec<_> = slices.collect();
        slices.sort_unstable();
        let sizes_matter = gpu.rule.mps.is_one_size() || gpu.layout.is_some();
        Self { open, slices: if sizes_matter { slices } else { alike(slices) } }
    }

    /// The same while nothing new is cut.
    pub fn closed(&self) -> Self {
        Self { open: false, ..self.clone() }
    }

    fn on(&self, gpu: &GpuInventory) -> GpuInventory {
        let slice = |(number, (shape, released)): (usize, &(Shape, bool))| {
            let id = SliceId::new(number.to_string());
            let occupancy = if *released { Occupancy::Released(id) } else { Occupancy::Taken };
            PlacedSlice { shape: *shape, occupancy }
        };
        GpuInventory { slices: self.slices.iter().enumerate().map(slice).collect(), ..gpu.clone() }
    }
}

/// Shares leave as much room whatever their sizes are, where there are as many and they have as much memory together. One with a
/// compute of its own has another part of that than of the memory.
fn alike(slices: Vec<(Shape, bool)>) -> Vec<(Shape, bool)> {
    let Some(kind) = slices.first().map(|(shape, _)| shape.kind()) else { return slices };
    let differs = |(shape, released): &(Shape, bool)| {
        shape.kind() != kind || *released || matches!(shape, Shape::Mps { compute: Some(_), .. })
    };
    if !matches!(kind, Kind::Mps | Kind::TimeSlicing) || slices.iter().any(differs) {
        return slices;
    }
    let total: u32 = slices.iter().map(|(shape, _)| shape.size().0).sum();
    let others = u32::try_from(slices.len() - 1).unwrap_or(0);
    let sizes = std::iter::repeat_n(1, slices.len() - 1).chain([total.saturating_sub(others)]);
    sizes.filter_map(|gb| Some((Shape::share(kind, SizeGb(gb))?, false))).collect()
}

/// GPUs that differ at most in their slices and their UUIDs.
#[derive(Debug, Clone)]
pub(super) struct Chip {
    /// Its memory, with what is used outside kerf.
    memory: MemoryMib,
    gpu: GpuInventory,
    ever: Arc<[(ResourceName, u32)]>,
    profiles: Arc<[(Profile, MemoryMib)]>,
}

impl Chip {
    /// What is common to all such GPUs.
    pub fn of(status: &GpuStatus, gpu: &GpuInventory) -> Self {
        let mut gpu = GpuInventory { slices: Vec::new(), uuid: GpuUuid::new(""), ..gpu.clone() };
        gpu.rule.select = crate::contract::GpuSelector::default();
        Self { memory: status.memory, gpu, ever: Arc::default(), profiles: Arc::default() }
    }

    /// Whether the two serve the same.
    pub fn is_like(&self, other: &Self) -> bool {
        self.memory == other.memory && self.gpu == other.gpu
    }

    /// The same with what it serves while nobody has anything of it, slices or memory. The fleet keeps what it works out of
    /// the model.
    pub fn prepared(self, fleet: &mut Fleet) -> Self {
        if let Some(known) = fleet.add(&self.gpu.table, [], []) {
            fleet.remove(known);
        }
        let empty = GpuInventory { memory: self.memory, undivided: true, ..self.gpu.clone() };
        let names = self.names();
        let ever: Arc<[_]> = self.room(names, &empty, fleet).into();
        let entries = self.gpu.table.entries().iter();
        let served = entries.filter(|entry| count(&ever, ResourceName::Mig(entry.profile)) > 0);
        let profiles = served.map(|entry| (entry.profile, entry.memory)).collect();
        Self { ever, profiles, ..self }
    }

    /// What such a GPU serves that is cut so.
    pub fn supply(&self, cut: &Cut, fleet: &Fleet) -> GpuSupply {
        let gpu = cut.on(&self.gpu);
        let names = self.ever.iter().map(|(name, _)| *name);
        let room = if cut.open { self.room(names, &gpu, fleet) } else { Vec::new() };
        GpuSupply {
            model: self.gpu.model.clone(),
            size: self.memory.nominal(),
            ever: self.ever.clone(),
            profiles: self.profiles.clone(),
            replicas: [Kind::TimeSlicing, Kind::Mps].map(|kind| self.gpu.replica(kind)),
            limits_compute: self.gpu.rule.mps.limits_compute(),
            room,
            shared: Some(gpu).filter(|gpu| cut.open && gpu.kinds.contains(&Kind::Mps)),
        }
    }

    /// How many slices of each of these names `gpu` holds, where it holds any.
    fn room(
        &self,
        names: impl IntoIterator<Item = ResourceName>,
        gpu: &GpuInventory,
        fleet: &Fleet,
    ) -> Vec<(ResourceName, u32)> {
        let size = |name: ResourceName| name.size().unwrap_or(self.memory.nominal());
        let count = |name: ResourceName| (name, room(gpu, name, size(name), None, fleet));
        names.into_iter().map(count).filter(|(_, room)| *room > 0).collect()
    }

    /// The names that a GPU of these kinds could serve, ascending.
    fn names(&self) -> Vec<ResourceName> {
        let own = || self.gpu.table.entries().iter().map(|entry| entry.profile);
        let (parts, turns) = (self.gpu.rule.compute_instances, self.gpu.rule.mig.time_slicing.is_some());
        let of_kind = |kind: &Kind| -> Vec<ResourceName> {
            match kind {
                Kind::Mig => {
                    let parts = own().filter(|_| parts).flat_map(ComputeProfile::all);
                    let replicas = own().filter(|_| turns).map(ResourceName::MigReplica);
                    let profiles = catalog::profiles().into_iter().chain(own());
                    let parts = parts.map(ResourceName::Compute);
                    profiles.map(ResourceName::Mig).chain(parts).chain(replicas).collect()
                }
                Kind::Whole => vec![ResourceName::Whole],
                Kind::Mps | Kind::TimeSlicing => {
                    let sizes = SHARE_SIZES.iter().filter_map(|size| ResourceName::share(*kind, *size));
                    sizes.chain(ResourceName::replica(*kind)).collect()
                }
            }
        };
        let mut names: Vec<_> = self.gpu.kinds.iter().flat_map(of_kind).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
