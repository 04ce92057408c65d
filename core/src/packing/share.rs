//! The best GPU for an MPS share, a time slice or a whole GPU, which have no position on a GPU.

use super::Cost;
use super::fit::{Candidate, Source};
use crate::capacity::Room;
use crate::contract::{ContainerRequest, Shape};
use crate::inventory::GpuInventory;
use crate::kind::Kind;
use crate::names::SliceId;
use crate::resource::ResourceName;
use crate::units::{MemoryMib, SizeGb};

/// The cost of the first share on a GPU, so that an unused GPU stays free for a larger request while another has room.
const OPENS_A_GPU: i64 = 500_000;

/// The costs of starting a share, and of ending an idle one that is in its way.
const START: i64 = 4;
const END: i64 = 16;

/// The share of this name that serves a request on `gpu`; `None` if the GPU has no such shares.
pub(super) fn shape(gpu: &GpuInventory, name: ResourceName, request: &ContainerRequest) -> Option<Shape> {
    let kind = name.kind()?;
    match name {
        ResourceName::Replica => gpu.replica(kind),
        ResourceName::MpsReplica => gpu.replica(kind).filter(|share| {
            let has = |least| gpu.rule.mps.limits_compute() && share.compute() >= Some(least);
            request.compute.is_none_or(has)
        }),
        // A GPU with equal shares gives no shares by size.
        ResourceName::TimeSlicing(_) | ResourceName::Mps(_) if gpu.rule.replicas(kind).is_some() => None,
        ResourceName::TimeSlicing(size) => Shape::share(kind, size),
        // Without compute limits MPS guarantees no pod any compute.
        ResourceName::Mps(size) if request.compute.is_none() || gpu.rule.mps.limits_compute() => {
            Some(Shape::Mps { size_gb: size, compute: request.compute })
        }
        _ => None,
    }
}

/// The place for a share on `gpu`. All shares of a GPU are of one kind, and together they stay within the policy's
/// limits.
pub(super) fn candidate(gpu: &GpuInventory, shape: Shape) -> Option<Candidate> {
    let kind = shape.kind();
    if gpu.taken().any(|taken| taken.kind() != kind) || shape.size().share_memory() > gpu.for_shares() {
        return None;
    }
    let one_size = kind == Kind::Mps && gpu.rule.mps.is_one_size();
    if one_size && gpu.taken().any(|taken| taken.size() != shape.size()) {
        return None;
    }
    let used: MemoryMib = gpu.taken().map(|s| s.size().share_memory()).sum();
    let room = Room::new(&gpu.rule, kind, gpu.memory, gpu.beside, gpu.mps_shares);
    let room = room.after(gpu.taken())?.after([shape])?;
    let rank = rank(kind, used, room.memory);
    if let Some((id, _)) = gpu.idle().find(|(_, idle)| *idle == shape) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: rank });
    }
    let source = Source::Cut(in_the_way(gpu, shape, room));
    Some(Candidate { shape, cost: rank + work(&source), source })
}

/// Whether a request of this size may take a whole GPU of size `gpu`. It must ask for more than half of it, so that no
/// small request takes a large GPU. A request for a whole GPU without a size may take any. A request for several
/// `distinct` GPUs may take larger ones, because a process cannot use several isolated parts of GPUs.
#[must_use]
pub fn is_worth_whole(asked: SizeGb, gpu: SizeGb, distinct: bool) -> bool {
    asked == SizeGb::ANY || asked <= gpu && (distinct || asked.0.saturating_mul(2) > gpu.0)
}

/// The whole GPU, if no pod uses it and the request is large enough for it. The smaller of two GPUs costs less, so that
/// the larger one stays free.
pub(super) fn whole(gpu: &GpuInventory, request: &ContainerRequest) -> Option<Candidate> {
    let size = gpu.memory.nominal();
    let shape = Shape::Whole { size_gb: size };
    let suffices = request.memory.is_none_or(|memory| gpu.memory >= memory);
    let is_free = gpu.taken().next().is_none() && gpu.undivided;
    if !is_free || !suffices || !is_worth_whole(request.size_gb, size, request.distinct_gpus) {
        return None;
    }
    if let Some((id, _)) = gpu.idle().find(|(_, idle)| *idle == shape) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: mib(gpu.memory) });
    }
    let source = Source::Cut(gpu.idle().map(|(id, _)| id.clone()).collect());
    Some(Candidate { shape, cost: mib(gpu.memory) + work(&source), source })
}

/// The part of the cost for making a share or a whole GPU.
pub(super) fn work(source: &Source) -> Cost {
    match source {
        Source::Idle(_) => Cost::default(),
        Source::Cut(gone) => Cost(START + END * i64::try_from(gone.len()).unwrap_or(0)),
    }
}

/// MPS shares prefer the GPU with the least memory left over, time slices the one with the fewest neighbours.
fn rank(kind: Kind, used: MemoryMib, left: MemoryMib) -> Cost {
    let opens = if used == MemoryMib(0) { OPENS_A_GPU } else { 0 };
    match kind {
        Kind::TimeSlicing => mib(used),
        Kind::Whole | Kind::Mps | Kind::Mig => Cost(opens) + mib(left),
    }
}

/// Idle shares that cannot exist beside `new`, and further ones until the rest stays within `room`.
fn in_the_way(gpu: &GpuInventory, new: Shape, mut room: Room) -> Vec<SliceId> {
    let one_size = gpu.rule.mps.is_one_size() && new.kind() == Kind::Mps;
    let mut destroyed = Vec::new();
    for (id, shape) in gpu.idle() {
        let goes_with = shape.kind() == new.kind() && (!one_size || shape.size() == new.size());
        match room.after([shape]).filter(|_| goes_with) {
            Some(left) => room = left,
            None => destroyed.push(id.clone()),
        }
    }
    destroyed
}

/// A cost of one for each MiB. It leaves room to add other costs.
pub(super) fn mib(memory: MemoryMib) -> Cost {
    Cost(i64::try_from(memory.0).unwrap_or(i64::MAX / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::GpuNodeSpec;
    use crate::inventory::{NodeInventory, Occupancy, PlacedSlice};
    use crate::testing::node_status;
    use crate::units::SizeGb;

    #[test]
    fn idle_shares_of_another_size_go_where_all_have_one_size() {
        let share = |gb| Shape::Mps { size_gb: SizeGb(gb), compute: None };
        let idle = |id: &str, gb| PlacedSlice { shape: share(gb), occupancy: Occupancy::Idle(id.into()) };
        let mut gpu =
            NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(&["T4-16GB"])).gpus.remove(0);
        gpu.slices = vec![idle("smaller", 1), idle("equal", 2)];
        let beside = |gpu: &GpuInventory| {
            let room = Room::new(&gpu.rule, Kind::Mps, gpu.memory, MemoryMib(0), None);
            in_the_way(gpu, share(2), room.after([share(2)]).unwrap())
        };
        assert_eq!(beside(&gpu), []);
        gpu.rule.mps.strict = true;
        assert_eq!(beside(&gpu), [SliceId::new("smaller")]);
    }

    fn t4() -> GpuInventory {
        NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(&["T4-16GB"])).gpus.remove(0)
    }

    #[test]
    fn a_share_may_have_all_the_memory_for_shares_but_no_more() {
        let mut gpu = t4();
        gpu.rule.mps.memory_percent = 200.try_into().unwrap();
        let has = |gpu: &GpuInventory| candidate(gpu, Shape::mps(SizeGb(4))).is_some();
        gpu.memory = MemoryMib(gpu.beside.0 + 4096);
        assert!(has(&gpu));
        gpu.memory = MemoryMib(gpu.beside.0 + 4095);
        assert!(!has(&gpu));
    }

    #[test]
    fn time_slices_may_differ_in_size_where_mps_shares_may_not() {
        let mut gpu = t4();
        gpu.rule.mps.strict = true;
        for (of, may) in [(Shape::mps as fn(SizeGb) -> Shape, false), (slice, true)] {
            gpu.slices = vec![PlacedSlice { shape: of(SizeGb(4)), occupancy: Occupancy::Taken }];
            assert!(candidate(&gpu, of(SizeGb(4))).is_some());
            assert_eq!(candidate(&gpu, of(SizeGb(3))).is_some(), may);
        }
    }

    fn slice(size_gb: SizeGb) -> Shape {
        Shape::TimeSlicing { size_gb }
    }

    #[test]
    fn each_idle_share_that_must_end_adds_to_the_cost() {
        let ends = |gone: &[&str]| work(&Source::Cut(gone.iter().map(|id| SliceId::new(*id)).collect())).0;
        assert_eq!([ends(&[]), ends(&["a"]), ends(&["a", "b"])], [START, START + END, START + 2 * END]);
    }
}
