//! Sums over the usual requests.

use super::amount::{CpuMilli, GpuMilli, real};
use super::models::{MODELS_LIMIT, ModelSet};
use super::request::{GpuDemand, Part, Request, Sharing};
use super::supply::Supply;
use super::workload::{Seen, Workload};
use crate::units::MemoryMib;
use std::collections::BTreeMap;

/// The cap of the demand for a model, in multiples of its GPUs. More demand makes the model no scarcer.
const WANTED_LIMIT: f64 = 2.0;

/// The cap of the demand for CPU, in multiples of the fleet's. More demand makes CPU no tighter.
const TIGHTNESS_LIMIT: f64 = 4.0;

/// All requests that count, with assumed ones until enough have come.
pub(super) struct Demand {
    pub(super) requests: Vec<Usual>,
    /// The thousandths of a GPU of all requests.
    volume: f64,
}

/// The number of requests that are alike, with their memory.
pub(super) struct Usual {
    pub(super) request: Request,
    pub(super) count: f64,
    /// The MiB of all of them.
    memory: f64,
}

impl Usual {
    fn volume(&self) -> f64 {
        f64::from(self.request.gpus.volume()) * self.count
    }
}

impl Demand {
    pub(super) fn from_workload(workload: &Workload, supply: &Supply) -> Self {
        let seen = workload.seen().map(|(request, Seen { count, memory })| Usual {
            request: *request,
            count: f64::from(count),
            memory: real(memory),
        });
        let mut requests: Vec<Usual> = seen.collect();
        // A workload that is known beforehand needs no assumed requests, unless it has none with a GPU.
        if workload.is_learned() || requests.iter().all(|usual| usual.request.gpus == GpuDemand::None) {
            requests.extend(assumed(supply));
        }
        let volume = requests.iter().map(Usual::volume).sum();
        Self { requests, volume }
    }

    pub(super) fn count(&self) -> f64 {
        self.requests.iter().map(|usual| usual.count).sum()
    }

    /// The number of requests for each size of part.
    pub(super) fn parts(&self) -> BTreeMap<GpuMilli, f64> {
        let mut parts = BTreeMap::new();
        for usual in &self.requests {
            if let GpuDemand::Part(part) = usual.request.gpus {
                *parts.entry(part.share()).or_default() += usual.count;
            }
        }
        parts
    }

    /// The CPU (thousandths of a core) and memory (MiB) that pods with a GPU request for each thousandth of a GPU.
    pub(super) fn beside_gpus(&self) -> (f64, f64) {
        let with_gpu = || self.requests.iter().filter(|usual| usual.request.gpus != GpuDemand::None);
        let cpu: f64 = with_gpu().map(|usual| f64::from(usual.request.cpu.0) * usual.count).sum();
        let memory: f64 = with_gpu().map(|usual| usual.memory).sum();
        (cpu / self.volume, memory / self.volume)
    }

    /// The part of all CPU that is requested once all GPUs are requested: 1 is just enough.
    pub(super) fn tightness(&self, supply: &Supply) -> f64 {
        let wanted: f64 =
            self.requests.iter().map(|usual| f64::from(usual.request.cpu.0) * usual.count).sum();
        let had = supply.cpu_per_gpu() / 1000.0;
        if had > 0.0 { (wanted / self.volume / had).min(TIGHTNESS_LIMIT) } else { 0.0 }
    }

    /// For each model, the part of it that requests by model ask for once all GPUs are requested. It is squared,
    /// because a model of which half is requested is hardly scarce. A request that allows several models counts for
    /// each in proportion to its GPUs.
    pub(super) fn scarcity(&self, supply: &Supply) -> Vec<f64> {
        let mut wanted = [0.0; MODELS_LIMIT];
        for usual in self.requests.iter().filter(|usual| usual.request.models != ModelSet::ANY) {
            let allowed = || (0..MODELS_LIMIT).filter(|model| usual.request.allows(*model));
            let all: f64 = allowed().map(|model| supply.gpus_of(model)).sum();
            for model in allowed().filter(|model| supply.gpus_of(*model) > 0.0) {
                wanted[model] += usual.volume() / self.volume * supply.all_gpus() / all;
            }
        }
        wanted.into_iter().map(|part| part.min(WANTED_LIMIT) * part.min(WANTED_LIMIT)).collect()
    }
}

/// The workload that is assumed before any request came: two whole GPUs, a half and a quarter, with 0.7 of their part
/// of the nodes' CPU and memory. Its weight falls with every request that comes.
fn assumed(supply: &Supply) -> impl Iterator<Item = Usual> {
    const PART_OF_THE_NODE: f64 = 0.7;
    let (cpu, memory) = (supply.cpu_per_gpu() * PART_OF_THE_NODE, supply.memory_per_gpu() * PART_OF_THE_NODE);
    [1000_u16, 1000, 500, 250].into_iter().map(move |share| {
        let part = f64::from(share) / 1000.0;
        let gpus = Part::new(GpuMilli(share), Sharing::Mps).map_or(GpuDemand::whole(1), GpuDemand::Part);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, never negative"
        )]
        let cpu = CpuMilli((cpu * part) as u32);
        let request = Request { cpu, memory: MemoryMib(0), gpus, models: ModelSet::ANY };
        Usual { request, count: 1.0, memory: memory * part }
    })
}
