//! The best GPU for an MPS share, a time slice, or as a whole: neither has a place on it.

use super::Cost;
use super::fit::{Candidate, Source};
use crate::contract::Shape;
use crate::inventory::GpuInventory;
use crate::kind::Kind;
use crate::names::SliceId;
use crate::units::{MemoryMib, SizeGb};

/// A GPU that nobody uses stays free for a bigger request while another has room.
const OPENS_A_GPU: i64 = 500_000;

/// Starting a share, and ending an idle one that is in its way.
const START: i64 = 4;
const END: i64 = 16;

/// The place for a share on `gpu`, where it has one: shares of one GPU are of one kind, and together within its memory.
pub(super) fn candidate(gpu: &GpuInventory, kind: Kind, size: SizeGb) -> Option<Candidate> {
    let shape = Shape::share(kind, size)?;
    if gpu.taken().any(|taken| taken.kind() != kind) {
        return None;
    }
    if kind == Kind::Mps && gpu.rule.mps.strict && gpu.taken().any(|taken| taken != shape) {
        return None;
    }
    let most = gpu.mps_shares.filter(|_| kind == Kind::Mps).map_or(usize::MAX, |most| most as usize);
    if gpu.taken().count() >= most {
        return None;
    }
    let used: MemoryMib = gpu.taken().map(|s| s.size().share_memory()).sum();
    let free = gpu.memory.saturating_sub(used);
    if size.share_memory() > free {
        return None;
    }
    let rank = rank(kind, used, free.saturating_sub(size.share_memory()));
    if let Some((id, _)) = gpu.idle().find(|(_, idle)| *idle == shape) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: rank });
    }
    let destroyed = in_the_way(gpu, shape, free.saturating_sub(size.share_memory()));
    let work = START + END * i64::try_from(destroyed.len()).unwrap_or(0);
    Some(Candidate { shape, source: Source::Cut(destroyed), cost: rank + Cost(work) })
}

/// Whether a request of this size may have a whole GPU of that: more than half of it must be asked for, so that no small
/// request takes a large GPU.
#[must_use]
pub fn is_worth_whole(asked: SizeGb, gpu: SizeGb) -> bool {
    asked <= gpu && asked.0.saturating_mul(2) > gpu.0
}

/// The GPU as a whole, where nobody has anything of it and `size` is worth it: of two the smaller one.
pub(super) fn whole(gpu: &GpuInventory, size: SizeGb) -> Option<Candidate> {
    let shape = Shape::Whole { size_gb: gpu.memory.nominal() };
    if gpu.taken().next().is_some() || !gpu.undivided || !is_worth_whole(size, gpu.memory.nominal()) {
        return None;
    }
    if let Some((id, _)) = gpu.idle().find(|(_, idle)| *idle == shape) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: Cost(mib(gpu.memory)) });
    }
    let gone: Vec<_> = gpu.idle().map(|(id, _)| id.clone()).collect();
    let work = START + END * i64::try_from(gone.len()).unwrap_or(0);
    Some(Candidate { shape, source: Source::Cut(gone), cost: Cost(mib(gpu.memory) + work) })
}

/// MPS shares go where they leave the least memory over; time slices where the fewest neighbours take turns.
fn rank(kind: Kind, used: MemoryMib, left: MemoryMib) -> Cost {
    let opens = if used == MemoryMib(0) { OPENS_A_GPU } else { 0 };
    match kind {
        Kind::TimeSlicing => Cost(mib(used)),
        Kind::Whole | Kind::Mps | Kind::Mig => Cost(opens + mib(left)),
    }
}

/// Idle shares that cannot be beside `new`, and as many more as must go for the others to stay within `room`.
fn in_the_way(gpu: &GpuInventory, new: Shape, room: MemoryMib) -> Vec<SliceId> {
    let one_size = gpu.rule.mps.strict && new.kind() == Kind::Mps;
    let mut kept = MemoryMib(0);
    let mut destroyed = Vec::new();
    let most = gpu.mps_shares.filter(|_| new.kind() == Kind::Mps).map_or(usize::MAX, |most| most as usize);
    let mut beside = gpu.taken().count() + 1;
    for (id, shape) in gpu.idle() {
        let with = MemoryMib(kept.0 + shape.size().share_memory().0);
        if shape.kind() == new.kind() && (!one_size || shape == new) && with <= room && beside < most {
            kept = with;
            beside += 1;
        } else {
            destroyed.push(id.clone());
        }
    }
    destroyed
}

fn mib(memory: MemoryMib) -> i64 {
    i64::try_from(memory.0).unwrap_or(i64::MAX / 2)
}
