//! Scarcity: the usual requests against the nodes' resources. All prices of places come from here.

use super::amount::{CpuMilli, mib};
use super::demand::Demand;
use super::gap::GapValues;
use super::models::MODELS_LIMIT;
use super::node::Node;
use super::request::{GpuDemand, Request};
use super::supply::Supply;
use super::wanted::{Sizes, Uses, Wanted};
use super::workload::Workload;
use crate::units::MemoryMib;

/// The values of cores, GPUs and models to the usual requests.
#[derive(Debug, Clone)]
pub struct Market {
    pub(super) gaps: GapValues,
    /// The thousandths of a core that usual GPU pods request for each thousandth of a GPU.
    cpu_per_gpu: f64,
    /// The MiB of node memory that they request for each thousandth of a GPU.
    memory_per_gpu: f64,
    /// The part of all CPU that is requested once all GPUs are requested.
    tightness: f64,
    /// The scarcity of each model.
    scarcity: Vec<f64>,
    /// The models of the fleet.
    present: Vec<usize>,
    /// The demand for each model.
    wanted: Vec<Wanted>,
    sizes: Sizes,
}

impl Market {
    /// The prices for this workload on these nodes.
    #[must_use]
    pub fn for_workload(workload: &Workload, supply: &Supply) -> Self {
        let demand = Demand::from_workload(workload, supply);
        let parts = demand.parts();
        let sizes = Sizes::from_parts(&parts);
        let (cpu_per_gpu, memory_per_gpu) = demand.beside_gpus();
        let present: Vec<usize> = (0..MODELS_LIMIT).filter(|model| supply.gpus_of(*model) > 0.0).collect();
        let mut wanted = vec![Wanted::default(); MODELS_LIMIT];
        for model in &present {
            wanted[*model] = Wanted::from_demand(&demand, *model, &sizes);
        }
        Self {
            gaps: GapValues::from_counts(&parts),
            cpu_per_gpu,
            memory_per_gpu,
            tightness: demand.tightness(supply),
            scarcity: demand.scarcity(supply),
            present,
            wanted,
            sizes,
        }
    }

    /// The uses that the usual requests have for GPUs of this node's model beside this much CPU.
    pub(super) fn uses(&self, node: &Node, cpu: CpuMilli) -> Uses<'_> {
        self.wanted[node.model().index()].uses(&self.sizes, cpu)
    }

    /// The part of `gpu` thousandths that can be used beside this CPU and memory. The scarcest resource has the highest
    /// value: with plenty of CPU a GPU counts in full and a core not at all, and vice versa.
    pub(super) fn balanced(&self, gpu: f64, cpu: CpuMilli, memory: MemoryMib) -> f64 {
        let cpu = gpu * self.cpu_per_gpu / f64::from(cpu.0).max(1.0);
        let memory = gpu * self.memory_per_gpu / mib(memory).max(1.0);
        gpu / (1.0 + cpu * cpu + memory * memory).sqrt()
    }

    /// The third power of CPU's tightness beside the GPUs: 1 is just enough.
    pub(super) fn tightness_cubed(&self) -> f64 {
        self.tightness * self.tightness * self.tightness
    }

    /// How much scarcer a node's model is than the least scarce model that the request allows.
    pub(super) fn excess_scarcity(&self, node: &Node, request: &Request) -> f64 {
        let needs_gpu = request.gpus != GpuDemand::None;
        let is_allowed = |model: &&usize| !needs_gpu || request.allows(**model);
        let least =
            self.present.iter().filter(is_allowed).map(|model| self.scarcity[*model]).reduce(f64::min);
        least.map_or(0.0, |least| self.scarcity[node.model().index()] - least)
    }
}
