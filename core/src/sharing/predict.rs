//! The mean latency and throughput of tenants that share a GPU.
//!
//! A tenant is slowed down by busy neighbours. In an open loop the neighbours are the busier the more they are slowed
//! down, because the same inferences take longer. Therefore the slowdowns are a fixed point, which an iteration reaches
//! from below. Tenants that are always busy need one round. For equal tenants that leave nothing idle the fixed point
//! is 1 / (1 - what the others keep busy), the mean of a shared processor. A simulation of random arrivals is at most 6
//! % below that for equal tenants, and 13 % for unequal ones (`open_loop_tests`).

use super::{Duty, Latency, Technology, Throughput, Workload};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// The slowdown by MIG beside the part of the GPU. With 1.05 the only measured slice (A100, `1g.10gb`: 3.9 times the
/// latency alone) is predicted 12 % too slow, and an H200's in the middle of the expected 2.8 to 3.2.
const MIG_FENCE: f64 = 1.05;

/// The slowdown by a limit of threads beside the part of the GPU. It is within 4 % of measurements at 14 % on an H200,
/// with one and with 7 copies, of pictures in two sizes.
const THREAD_FENCE: f64 = 1.2;

/// The power by which slowdowns grow with the copies until the GPU is full. With 1 the line through one and seven
/// copies is 21 % above an H200's three, and with 2 the curve is 7 % below an A100's.
const CROWDING: f64 = 1.5;

/// Slowdowns that still grow after this many rounds count as those of tenants that are always busy. Below 0.99 of
/// saturation 3,000 rounds suffice.
const ROUNDS_LIMIT: u32 = 10_000;

/// A slowdown counts as settled once its relative growth is below this.
const SETTLED: f64 = 1e-12;

/// A workload with its way of using the GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tenant {
    /// The numbers of the workload.
    pub workload: Workload,
    /// The way in which the tenant uses the GPU.
    pub technology: Technology,
}

/// The predicted performance of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// The mean latency of its inferences.
    #[serde(rename = "meanSeconds")]
    pub mean: Latency,
    /// The number of its inferences per second.
    #[serde(rename = "perSecond")]
    pub throughput: Throughput,
    /// The part of the time in which it is busy. In an open loop, 1 means that inferences arrive faster than they are
    /// done.
    pub busy: Duty,
}

/// The sums over the busy neighbours of one tenant.
#[derive(Debug, Clone, Copy, Default)]
struct Crowd {
    busy: f64,
    need: f64,
    pressure: f64,
}

/// A tenant, and the number of tenants equal to it.
type Alike = (Tenant, u32);

/// Predicts each of these tenants of one GPU, in their order. Tenants of different kinds do not affect each other, and
/// neither do tenants with hardware isolation.
#[must_use]
pub fn predict(tenants: &[Tenant]) -> Vec<Prediction> {
    let each: Vec<Alike> = tenants.iter().map(|tenant| (*tenant, 1)).collect();
    tenants.iter().zip(settle(&each)).map(|(tenant, slowdown)| outcome(&tenant.workload, slowdown)).collect()
}

/// Predicts each of so many copies of one workload. Under MIG each copy has an instance.
#[must_use]
pub fn predict_copies(workload: Workload, technology: Technology, copies: NonZeroU32) -> Prediction {
    let slowdowns = settle(&[(Tenant { workload, technology }, copies.get())]);
    outcome(&workload, slowdowns.into_iter().fold(1.0, f64::max))
}

fn outcome(workload: &Workload, slowdown: f64) -> Prediction {
    let mean = workload.alone().times(slowdown);
    let busy = (workload.duty().get() * slowdown).min(1.0);
    Prediction {
        mean,
        throughput: Throughput::from_per_second(busy / mean.seconds()).unwrap_or(Throughput::NONE),
        busy: Duty::new(busy).unwrap_or(Duty::ALWAYS),
    }
}

/// The slowdowns at which all tenants are exactly as busy as causes these slowdowns.
fn settle(tenants: &[Alike]) -> Vec<f64> {
    let mut slowdowns = vec![1.0; tenants.len()];
    for _ in 0..ROUNDS_LIMIT {
        let busy =
            |((tenant, _), slowdown): (&Alike, &f64)| (tenant.workload.duty().get() * slowdown).min(1.0);
        let next = round(tenants, &tenants.iter().zip(&slowdowns).map(busy).collect::<Vec<_>>());
        let settled = next.iter().zip(&slowdowns).all(|(new, old)| new - old <= SETTLED * new);
        slowdowns = next;
        if settled {
            return slowdowns;
        }
    }
    round(tenants, &vec![1.0; tenants.len()])
}

/// The slowdown of each tenant if each is busy for this part of the time.
fn round(tenants: &[Alike], busy: &[f64]) -> Vec<f64> {
    let one = |(index, (tenant, _)): (usize, &Alike)| slowdown(tenant, crowd(index, tenants, busy));
    tenants.iter().enumerate().map(one).collect()
}

/// The neighbours of one of the tenants at `index`, including the others equal to it.
fn crowd(index: usize, tenants: &[Alike], busy: &[f64]) -> Crowd {
    let technology = tenants[index].0.technology;
    let felt = tenants
        .iter()
        .zip(busy)
        .enumerate()
        .filter(|(_, ((other, _), _))| technology.feels(other.technology));
    felt.fold(Crowd::default(), |crowd, (other, ((tenant, copies), busy))| {
        let busy = busy * f64::from(copies - u32::from(other == index));
        Crowd {
            busy: crowd.busy + busy,
            need: crowd.need + busy * tenant.workload.need().get(),
            pressure: crowd.pressure + busy * tenant.workload.pressure().get(),
        }
    })
}

/// The slowdown of a tenant among these neighbours, as a multiple of its latency alone.
fn slowdown(tenant: &Tenant, crowd: Crowd) -> f64 {
    let need = tenant.workload.need().get();
    match tenant.technology {
        Technology::Whole => 1.0,
        Technology::Mig { part, .. } => MIG_FENCE * (need / part.get()).max(1.0),
        Technology::Mps { limit } => {
            // The GPU is full once the needs of all tenants, including this one, exceed the slowdown with room left.
            let crowded = crowded(crowd.busy, crowd.pressure).max(need.min(1.0) + crowd.need);
            // A limit slows its own tenant down. It does not help the neighbours in this model, because it limits
            // threads and not bandwidth.
            let limited = limit.map_or(0.0, |l| THREAD_FENCE * need * 100.0 / f64::from(l.get()));
            crowded.max(limited)
        }
        Technology::TimeSlicing { switching } => {
            // The tenant pays for its own switches too, as soon as another tenant has turns.
            let own = (switching.get() - 1.0) * crowd.busy.min(1.0);
            1.0 + own + switching.get() * crowd.busy
        }
    }
}

/// The slowdown under MPS while the GPU is not full: (1 + p (n^1.5 - 1))^(2/3) for n copies of pressure p. For unequal
/// neighbours p is the mean of their pressures.
pub(super) fn crowded(busy: f64, pressure: f64) -> f64 {
    if busy <= 0.0 {
        return 1.0;
    }
    (1.0 + pressure / busy * ((1.0 + busy).powf(CROWDING) - 1.0)).powf(1.0 / CROWDING)
}

/// The pressure of a workload, from the slowdown of so many copies together.
pub(super) fn pressure(slowdown: f64, copies: u32) -> f64 {
    (slowdown.powf(CROWDING) - 1.0) / (f64::from(copies).powf(CROWDING) - 1.0)
}
