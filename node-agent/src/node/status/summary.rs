//! The summary in the status, for the columns of kubectl.

use crate::node::facts::Facts;
use kerf_core::accounting::beside_shares;
use kerf_core::contract::{GpuStatus, Shape, SliceState, SliceStatus, Summary};
use kerf_core::kind::Kind;
use kerf_core::names::SliceId;
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn summary(facts: &Facts, gpus: &[GpuStatus], slices: &[SliceStatus]) -> Summary {
    let count = |state| slices.iter().filter(|s| s.state == state).count().try_into().unwrap_or(u32::MAX);
    let kinds: BTreeSet<_> = gpus.iter().flat_map(|gpu| gpu.kinds.iter().copied()).collect();
    let kinds: Vec<_> = kinds.into_iter().map(Kind::as_str).collect();
    Summary {
        gpus: models(gpus),
        mode: kinds.join(","),
        held: count(SliceState::Held),
        idle: count(SliceState::Idle),
        free: format!("{}Gi", free(facts, gpus, slices).0 / 1024),
    }
}

/// The memory that is neither taken by slices nor lost beside shares.
fn free(facts: &Facts, gpus: &[GpuStatus], slices: &[SliceStatus]) -> MemoryMib {
    let desired = facts.reservations.desired();
    let reserved = |id: &SliceId| desired.iter().any(|w| w.id == *id && w.reservation.is_some());
    let is_taken = |s: &&SliceStatus| {
        s.state == SliceState::Held || s.id.as_ref().is_some_and(reserved) || s.id.is_none()
    };
    let total: MemoryMib = gpus.iter().map(|gpu| gpu.memory).sum();
    // A part of a GPU instance, or a replica of it, has no memory of its own, so count each instance once.
    let by_place = |s: &SliceStatus| ((s.gpu.clone(), s.shape.instance()), s.memory);
    let (of_mig, others): (Vec<_>, Vec<_>) =
        slices.iter().filter(is_taken).partition(|s| s.shape.instance().is_some());
    let of_mig: BTreeMap<_, _> = of_mig.into_iter().map(by_place).collect();
    let used: MemoryMib = others.iter().map(|s| s.memory).chain(of_mig.into_values()).sum();
    let is_share = |shape: Shape| matches!(shape.kind(), Kind::Mps | Kind::TimeSlicing);
    let shares = facts.slices.shares();
    let is_shared = |gpu: &&GpuStatus| shares.values().any(|s| s.gpu == gpu.uuid && is_share(s.shape));
    let beside = gpus.iter().filter(is_shared);
    let beside: MemoryMib = beside.map(|gpu| beside_shares(gpu.memory, gpu.reserved)).sum();
    total.saturating_sub(used).saturating_sub(beside)
}

/// A text like `2x H100-80GB, 1x T4-16GB`.
fn models(gpus: &[GpuStatus]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in gpus {
        *counts.entry(&gpu.model).or_default() += 1;
    }
    let texts: Vec<_> = counts.into_iter().map(|(model, count)| format!("{count}x {model}")).collect();
    texts.join(", ")
}
