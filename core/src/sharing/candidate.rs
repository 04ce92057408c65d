//! The most tenants that a GPU can have for a wish, for each way of sharing it.

use super::{Bound, PassedOver, Prediction, Share, Supply, Target, Technology, Throughput, Wish};
use super::{Duty, admits, predict_copies};
use crate::kind::{IsolationClass, Kind};
use crate::packing::fraction::Sharing;
use crate::units::ComputePercent;
use std::num::NonZeroU32;

/// The most clients of one MPS server up to CUDA 13.0, and the most replicas of NVIDIA's device plugin (60 from CUDA
/// 13.1).
const CLIENTS_LIMIT: u32 = 48;

/// A prediction may be 5 % below the measured value, so it must stay below a target with that much taken off.
const SAFE: f64 = 0.95;

/// One way to share the GPU, with the most tenants that it can have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub technology: Technology,
    pub tenants: NonZeroU32,
    pub each: Prediction,
    pub bound: Bound,
}

impl Candidate {
    /// The throughput of all tenants together.
    pub fn throughput(&self) -> Throughput {
        (0..self.tenants.get()).map(|_| self.each.throughput).sum()
    }
}

/// The ways to share the GPU by this kind, best first; an error instead of an empty list.
pub(super) fn candidates(wish: &Wish, supply: &Supply, kind: Kind) -> Result<Vec<Candidate>, PassedOver> {
    let hard = matches!(wish.target, Target::Hard(_));
    let class = if hard { IsolationClass::Hardware } else { wish.isolation };
    if !supply.kinds.contains(&kind) || kind == Kind::Mig && supply.table.is_empty() {
        return Err(PassedOver::NotOffered);
    }
    if !class.is_served_by(kind) {
        return Err(PassedOver::NotIsolated);
    }
    match kind {
        Kind::Mig => instances(wish, supply),
        Kind::Whole => {
            room(wish, supply)?;
            most(wish, (1, Bound::Alone), |_| Technology::Whole)
        }
        Kind::Mps => most(wish, room(wish, supply)?, |tenants| mps(wish.share, tenants)),
        Kind::TimeSlicing => {
            let turns = Technology::TimeSlicing { switching: supply.switching };
            most(wish, room(wish, supply)?, |_| turns)
        }
    }
}

/// The number of copies that the GPU's memory and one MPS server can have.
fn room(wish: &Wish, supply: &Supply) -> Result<(u32, Bound), PassedOver> {
    match supply.memory.0 / wish.memory.0.max(1) {
        0 => Err(PassedOver::Memory),
        copies if copies >= u64::from(CLIENTS_LIMIT) => Ok((CLIENTS_LIMIT, Bound::Clients)),
        copies => Ok((u32::try_from(copies).unwrap_or(CLIENTS_LIMIT), Bound::Memory)),
    }
}

fn mps(share: Share, tenants: NonZeroU32) -> Technology {
    let equal = || u8::try_from(100 / tenants.get()).ok().and_then(ComputePercent::new);
    let limit = if share == Share::Equal && tenants.get() > 1 { equal() } else { None };
    Technology::Mps { limit }
}

/// Every sufficient profile, the smallest first.
fn instances(wish: &Wish, supply: &Supply) -> Result<Vec<Candidate>, PassedOver> {
    let fits = |e: &&crate::mig::ProfileEntry| e.profile.is_plain() && e.memory >= wish.memory;
    let mut entries: Vec<_> = supply.table.entries().iter().filter(fits).collect();
    entries.sort_by_key(|e| (e.size, e.profile.compute()));
    let (mut found, mut refused) = (Vec::new(), PassedOver::Memory);
    for entry in entries {
        let Some(technology) = Technology::mig(supply.table, entry.profile) else { continue };
        match most(wish, (u32::from(entry.max), Bound::Instances), |_| technology) {
            Ok(candidates) => found.extend(candidates),
            // The last profile is the largest, so its reason holds for all smaller ones.
            Err(reason) => refused = reason,
        }
    }
    if found.is_empty() { Err(refused) } else { Ok(found) }
}

/// The most tenants that fulfil the wish. The first number that fails ends the search, because each neighbour slows all
/// tenants down.
fn most(
    wish: &Wish,
    (room, bound): (u32, Bound),
    technology: impl Fn(NonZeroU32) -> Technology,
) -> Result<Vec<Candidate>, PassedOver> {
    let mut best: Option<Candidate> = None;
    for tenants in (1..=room).filter_map(NonZeroU32::new) {
        let technology = technology(tenants);
        match kept(wish, technology, tenants) {
            Ok(each) => best = Some(Candidate { technology, tenants, each, bound }),
            Err(bound) => {
                let reason = if bound == Bound::Target { PassedOver::Target } else { PassedOver::Queue };
                return best.map(|best| vec![Candidate { bound, ..best }]).ok_or(reason);
            }
        }
    }
    best.map(|best| vec![best]).ok_or(PassedOver::Memory)
}

/// The prediction for each of so many tenants, or the part of the wish that is not fulfilled.
fn kept(wish: &Wish, technology: Technology, tenants: NonZeroU32) -> Result<Prediction, Bound> {
    // A closed loop waits for its own results, so it may fill the GPU and has no queue.
    let open = wish.workload.duty() < Duty::ALWAYS;
    if open && overloaded(wish, technology.kind(), tenants) {
        return Err(Bound::Load);
    }
    let each = predict_copies(wish.workload, technology, tenants);
    if open && each.busy >= Duty::ALWAYS {
        return Err(Bound::Queue);
    }
    if in_time(wish, &each) { Ok(each) } else { Err(Bound::Target) }
}

fn overloaded(wish: &Wish, kind: Kind, tenants: NonZeroU32) -> bool {
    let sharing = match kind {
        Kind::Mps => Sharing::Mps,
        Kind::TimeSlicing => Sharing::TimeSlicing,
        Kind::Mig | Kind::Whole => return false,
    };
    let all: Vec<_> = (0..tenants.get()).map(|_| wish.workload).collect();
    admits(sharing, &all).is_err()
}

fn in_time(wish: &Wish, each: &Prediction) -> bool {
    let alone = wish.workload.alone();
    match wish.target {
        Target::None => true,
        // The latency alone was measured and not predicted, so it needs no safety margin.
        Target::Mean(most) | Target::Hard(most) if each.mean <= alone => alone <= most,
        Target::Mean(most) | Target::Hard(most) => each.mean <= most.times(SAFE),
    }
}
