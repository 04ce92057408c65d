//! The mean latency and throughput of tenants that share a GPU.
//!
//! A tenant is slowed down by how busy its neighbours are, and they are busier the more they are slowed down: in an open
//! loop the same inferences take longer. So the slowdowns are a fixed point, reached from below by going round. For
//! tenants that are always busy it is there after one round; for alike tenants that leave nothing idle it is
//! 1 / (1 - what the others keep busy), the mean of a processor that is shared. A simulation of random arrivals is at most
//! 6 % below that for alike tenants, and 13 % for unlike ones (`open_loop_tests`).

use super::{Duty, Latency, Technology, Throughput, Workload};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// What a fence costs beside the part of the GPU that it leaves: with 1.05 the one measured MIG slice (A100, `1g.10gb`:
/// 3.9 times the latency alone) is predicted 12 % too slow, and an H200's in the middle of the 2.8 to 3.2 that are
/// expected of it.
const MIG_FENCE: f64 = 1.05;

/// What a limit of threads costs beside the part of the GPU that it leaves: within 4 % of what was measured at 14 % on an H200,
/// with one copy and with 7, of two sizes of picture.
const THREAD_FENCE: f64 = 1.2;

/// How slowdowns grow with the copies before the GPU is full: by this power. With 1 the line through one and seven copies lies
/// 21 % above an H200's three, with 2 the curve lies 7 % below an A100's.
const CROWDING: f64 = 1.5;

/// Rounds after which slowdowns that still grow are taken for those of tenants that are always busy. Below 0.99 of
/// saturation 3,000 suffice.
const MOST_ROUNDS: u32 = 10_000;

/// A slowdown that grows by less, relative to itself, has settled.
const SETTLED: f64 = 1e-12;

/// A workload and how it gets at the GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tenant {
    /// The workload.
    pub workload: Workload,
    /// How it gets at the GPU.
    pub technology: Technology,
}

/// What becomes of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// The mean latency of its inferences.
    #[serde(rename = "meanSeconds")]
    pub mean: Latency,
    /// Its inferences per second.
    #[serde(rename = "perSecond")]
    pub throughput: Throughput,
    /// The part of the time in which it is busy. Inferences of an open loop that come to 1 come faster than they are done.
    pub busy: Duty,
}

/// What the busy neighbours of one tenant come to.
#[derive(Debug, Clone, Copy, Default)]
struct Crowd {
    busy: f64,
    need: f64,
    pressure: f64,
}

/// Tenants that are alike in everything, and how many they are.
type Alike = (Tenant, u32);

/// What becomes of each of these tenants of one GPU, in their order. Tenants of different kinds do not feel each other,
/// nor do those who are fenced.
#[must_use]
pub fn predict(tenants: &[Tenant]) -> Vec<Prediction> {
    let each: Vec<Alike> = tenants.iter().map(|tenant| (*tenant, 1)).collect();
    tenants.iter().zip(settle(&each)).map(|(tenant, slowdown)| outcome(&tenant.workload, slowdown)).collect()
}

/// What becomes of each of so many copies of one workload. Copies in MIG instances have one each.
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

/// The slowdowns at which everybody is as busy as makes them so.
fn settle(tenants: &[Alike]) -> Vec<f64> {
    let mut slowdowns = vec![1.0; tenants.len()];
    for _ in 0..MOST_ROUNDS {
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

/// Everybody's slowdown when each is busy for this part of the time.
fn round(tenants: &[Alike], busy: &[f64]) -> Vec<f64> {
    let one = |(index, (tenant, _)): (usize, &Alike)| slowdown(tenant, crowd(index, tenants, busy));
    tenants.iter().enumerate().map(one).collect()
}

/// The neighbours of one of the tenants at `index`, whose own likes are among them.
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

/// How many times as long as alone a tenant takes in this crowd.
fn slowdown(tenant: &Tenant, crowd: Crowd) -> f64 {
    let need = tenant.workload.need().get();
    match tenant.technology {
        Technology::Whole => 1.0,
        Technology::Mig { part, .. } => MIG_FENCE * (need / part.get()).max(1.0),
        Technology::Mps { limit } => {
            // The GPU is full when the needs of all, its own with them, come to more than what is felt with room left.
            let crowded = crowded(crowd.busy, crowd.pressure).max(need.min(1.0) + crowd.need);
            // A limit slows its own tenant down. What it leaves to the neighbours is not counted in their favour, for it
            // limits threads and not bandwidth.
            let limited = limit.map_or(0.0, |l| THREAD_FENCE * need * 100.0 / f64::from(l.get()));
            crowded.max(limited)
        }
        Technology::TimeSlicing { switching } => {
            // Its own turns are switched to as well, as soon as somebody else has any.
            let own = (switching.get() - 1.0) * crowd.busy.min(1.0);
            1.0 + own + switching.get() * crowd.busy
        }
    }
}

/// The slowdown under MPS while the GPU is not full: 1 + p (n^1.5 - 1), to the power of 2/3, for n copies of pressure p; for
/// unlike neighbours with the mean of theirs.
pub(super) fn crowded(busy: f64, pressure: f64) -> f64 {
    if busy <= 0.0 {
        return 1.0;
    }
    (1.0 + pressure / busy * ((1.0 + busy).powf(CROWDING) - 1.0)).powf(1.0 / CROWDING)
}

/// The pressure of a workload of which so many copies together are slowed down so.
pub(super) fn pressure(slowdown: f64, copies: u32) -> f64 {
    (slowdown.powf(CROWDING) - 1.0) / (f64::from(copies).powf(CROWDING) - 1.0)
}
