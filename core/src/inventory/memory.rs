//! Accounts for a GPU's memory: the slices that have it, and the part of the rest that no slice can use.

use crate::contract::{GpuStatus, SliceState, SliceStatus};
use crate::kind::Kind;
use crate::mig::{Geometry, Instance, MigTable, Placement};
use crate::resource::SHARE_SIZES;
use crate::units::MemoryMib;
use std::collections::BTreeMap;

/// The state of a part of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryState {
    /// In slices that pods hold.
    Held,
    /// In slices that are reserved, being made, or failed.
    Reserved,
    /// In slices that no pod holds or has reserved.
    Idle,
    /// In no slice, but a slice could be cut from it.
    Free,
    /// In no slice, and no slice can be cut from it: the rest that MIG leaves, or all memory of a GPU from which
    /// nothing can be cut.
    Unusable,
    /// Used by processes that no slice of kerf's accounts for.
    Outside,
}

impl MemoryState {
    /// All states that memory can have.
    pub const ALL: [Self; 6] =
        [Self::Held, Self::Reserved, Self::Idle, Self::Free, Self::Unusable, Self::Outside];

    /// The value of the metrics' label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            // Dashboards query the label by this value.
            Self::Reserved => "promised",
            Self::Idle => "idle",
            Self::Free => "free",
            Self::Unusable => "unusable",
            Self::Outside => "outside",
        }
    }
}

/// A GPU's memory by state. The sum is the GPU's memory, unless its policy lets shares exceed that.
#[must_use]
pub fn by_state(gpu: &GpuStatus, slices: &[SliceStatus]) -> BTreeMap<MemoryState, MemoryMib> {
    let here: Vec<_> = slices.iter().filter(|slice| slice.gpu == gpu.uuid).collect();
    let mut all = MemoryState::ALL.map(|state| (state, MemoryMib(0)));
    let mut add = |state, memory: MemoryMib| {
        all.iter_mut().filter(|(known, _)| *known == state).for_each(|(_, sum)| sum.0 += memory.0);
    };
    let mut instances = BTreeMap::<Instance, (MemoryState, MemoryMib)>::new();
    for slice in &here {
        match slice.shape.instance() {
            // Compute instances share the memory of their GPU instance. It counts once, in the strongest state of any
            // of them.
            Some(instance) => {
                let counted = instances.entry(instance).or_insert((state(slice), slice.memory));
                counted.0 = counted.0.min(state(slice));
            }
            None => add(state(slice), slice.memory),
        }
    }
    for (state, memory) in instances.values() {
        add(*state, *memory);
    }
    add(MemoryState::Outside, gpu.outside);
    let taken: u64 = all.iter().map(|(_, memory)| memory.0).sum();
    let rest = gpu.memory.saturating_sub(MemoryMib(taken));
    let usable = usable(gpu, &here, instances.into_keys(), rest);
    let mut all = BTreeMap::from(all);
    all.insert(MemoryState::Free, usable);
    all.insert(MemoryState::Unusable, rest.saturating_sub(usable));
    all
}

fn state(slice: &SliceStatus) -> MemoryState {
    match slice.state {
        SliceState::Idle => MemoryState::Idle,
        SliceState::Held => MemoryState::Held,
        SliceState::Preparing | SliceState::Waiting | SliceState::Ready | SliceState::Failed => {
            MemoryState::Reserved
        }
    }
}

/// The part of the remaining memory from which slices can be cut.
fn usable(
    gpu: &GpuStatus,
    slices: &[&SliceStatus],
    instances: impl Iterator<Item = Instance>,
    rest: MemoryMib,
) -> MemoryMib {
    if gpu.kinds.contains(&Kind::Mig) {
        let (usable, free) = memory_slices(&gpu.profiles, instances);
        return MemoryMib(rest.0 * u64::from(usable) / u64::from(free.max(1)));
    }
    // A GPU that can still be given as a whole is given with all of its memory.
    let is_for_shares = !slices.is_empty() || !gpu.kinds.contains(&Kind::Whole);
    let rest = if is_for_shares { rest.saturating_sub(gpu.beside_shares()) } else { rest };
    let is_full = gpu.mps_shares.is_some_and(|most| {
        let shares = slices.iter().filter(|slice| slice.shape.kind() == Kind::Mps).count();
        shares >= most as usize && !gpu.kinds.contains(&Kind::TimeSlicing)
    });
    let smallest = SHARE_SIZES[0].share_memory();
    let fits = if slices.is_empty() { !gpu.kinds.is_empty() } else { rest >= smallest };
    if gpu.kinds.is_empty() || is_full || !fits { MemoryMib(0) } else { rest }
}

/// The number of free memory slices on which some profile can be placed, and the number of all free ones. The first is
/// 0 beside instances that cannot exist together.
fn memory_slices(table: &MigTable, instances: impl Iterator<Item = Instance>) -> (u32, u32) {
    let axis = Placement { start: 0, size: table.axis() }.mask();
    let Ok(geometry) = Geometry::from_instances(table, instances) else { return (0, axis.count_ones()) };
    let free = axis & !geometry.mask();
    let places = table.entries().iter().flat_map(|entry| entry.placements().map(move |place| (entry, place)));
    let open = places.filter(|(entry, place)| geometry.has_room(entry, place.start));
    let usable = open.fold(0, |mask, (_, place)| mask | place.mask()) & free;
    (usable.count_ones(), free.count_ones())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Shape, WantedSlice};
    use crate::testing::{gpu_uuid, h100_shape, node_status, slice_status};
    use crate::units::SizeGb;

    /// The memory of GPU 0 by state in MiB, in the order of [`MemoryState::ALL`].
    fn states(model: &str, shapes: &[(Shape, bool)], change: impl FnOnce(&mut GpuStatus)) -> [u64; 6] {
        let mut status = node_status(&[model]);
        change(&mut status.gpus[0]);
        let slices = shapes.iter().enumerate().map(|(index, (shape, held))| {
            let id = format!("s{index}").as_str().into();
            let slice = WantedSlice { id, gpu: gpu_uuid(0), shape: *shape, reservation: None };
            let state = if *held { SliceState::Held } else { SliceState::Idle };
            SliceStatus { state, ..slice_status(&slice, false) }
        });
        let all = by_state(&status.gpus[0], &slices.collect::<Vec<_>>());
        MemoryState::ALL.map(|state| all[&state].0)
    }

    #[test]
    fn seven_small_instances_leave_an_eighth_of_the_gpu_unusable() {
        let seven: Vec<_> = (0..7).map(|start| (h100_shape("1g.10gb", start), start < 5)).collect();
        let [held, reserved, idle, free, unusable, outside] = states("H100-80GB", &seven, |_| ());
        assert_eq!([held, reserved, idle, free, outside], [51_200, 0, 20_480, 0, 0]);
        assert_eq!(unusable, 81_559 - 71_680);
    }

    #[test]
    fn memory_that_a_slice_could_be_cut_from_is_free() {
        assert_eq!(states("H100-80GB", &[], |_| ()), [0, 0, 0, 81_559, 0, 0]);
        assert_eq!(states("T4-16GB", &[], |gpu| gpu.outside = MemoryMib(512)), [0, 0, 0, 14_848, 0, 512]);
        let share = (Shape::mps(SizeGb(4)), true);
        // No share can use the memory of the driver and of the MPS server.
        assert_eq!(states("T4-16GB", &[share], |_| ()), [4_096, 0, 0, 10_368, 896, 0]);
        let known = |gpu: &mut GpuStatus| (gpu.kinds, gpu.reserved) = (vec![Kind::Mps], Some(MemoryMib(444)));
        assert_eq!(states("T4-16GB", &[], known), [0, 0, 0, 14_660, 700, 0]);
    }

    #[test]
    fn the_rest_of_a_gpu_that_offers_nothing_is_unusable() {
        assert_eq!(states("T4-16GB", &[], |gpu| gpu.kinds.clear()), [0, 0, 0, 0, 15_360, 0]);
        let full = [(Shape::mps(SizeGb(4)), true), (Shape::mps(SizeGb(10)), false)];
        assert_eq!(
            states("T4-16GB", &full, |gpu| gpu.kinds = vec![Kind::Mps]),
            [4_096, 0, 10_240, 0, 1_024, 0]
        );
        let most = |gpu: &mut GpuStatus| (gpu.kinds, gpu.mps_shares) = (vec![Kind::Mps], Some(1));
        assert_eq!(states("T4-16GB", &full[..1], most), [4_096, 0, 0, 0, 11_264, 0]);
    }
}
