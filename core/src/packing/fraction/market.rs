//! What is scarce: what the usual requests want, beside what the nodes have. All prices of places come from here.

use super::amount::{CpuMilli, mib};
use super::demand::Demand;
use super::gap::GapValues;
use super::models::MOST_MODELS;
use super::node::Node;
use super::request::{GpuDemand, Request};
use super::supply::Supply;
use super::wanted::{Sizes, Uses, Wanted};
use super::workload::Workload;
use crate::units::MemoryMib;

/// What a core, a GPU and a model are worth to the usual requests.
#[derive(Debug, Clone)]
pub struct Market {
    pub(super) gaps: GapValues,
    /// Thousandths of a core that the usual GPU pods want per thousandth of a GPU.
    cpu_per_gpu: f64,
    /// MiB of the node's memory that they want per thousandth of a GPU.
    memory_per_gpu: f64,
    /// The part of all CPU that is wanted by the time all GPUs are.
    tightness: f64,
    /// By model.
    scarcity: Vec<f64>,
    /// The models of the fleet.
    present: Vec<usize>,
    /// By model.
    wanted: Vec<Wanted>,
    sizes: Sizes,
}

impl Market {
    /// What is scarce when this workload meets these nodes.
    #[must_use]
    pub fn of(workload: &Workload, supply: &Supply) -> Self {
        let demand = Demand::of(workload, supply);
        let parts = demand.parts();
        let sizes = Sizes::of(&parts);
        let (cpu_per_gpu, memory_per_gpu) = demand.beside_gpus();
        let present: Vec<usize> = (0..MOST_MODELS).filter(|model| supply.gpus_of(*model) > 0.0).collect();
        let mut wanted = vec![Wanted::default(); MOST_MODELS];
        for model in &present {
            wanted[*model] = Wanted::of(&demand, *model, &sizes);
        }
        Self {
            gaps: GapValues::of(&parts),
            cpu_per_gpu,
            memory_per_gpu,
            tightness: demand.tightness(supply),
            scarcity: demand.scarcity(supply),
            present,
            wanted,
            sizes,
        }
    }

    /// What the usual requests can make of the GPUs of a node of this node's model, with so much CPU.
    pub(super) fn uses(&self, node: &Node, cpu: CpuMilli) -> Uses<'_> {
        self.wanted[node.model().index()].uses(&self.sizes, cpu)
    }

    /// The part of `gpu` thousandths that can come to use beside so much CPU and memory. Of what is short beside the
    /// others most is worth most: with CPU in plenty a GPU counts in full and a core for nothing, and the other way round.
    pub(super) fn balanced(&self, gpu: f64, cpu: CpuMilli, memory: MemoryMib) -> f64 {
        if gpu <= 0.0 {
            return 0.0;
        }
        let cpu = gpu * self.cpu_per_gpu / f64::from(cpu.0).max(1.0);
        let memory = gpu * self.memory_per_gpu / mib(memory).max(1.0);
        gpu / (1.0 + cpu * cpu + memory * memory).sqrt()
    }

    /// How tight CPU is beside the GPUs, to the third power: 1 is just enough.
    pub(super) fn tightness_cubed(&self) -> f64 {
        self.tightness * self.tightness * self.tightness
    }

    /// How much scarcer a node's model is than the least scarce one that would do for the request.
    pub(super) fn excess_scarcity(&self, node: &Node, request: &Request) -> f64 {
        let minds = request.gpus != GpuDemand::None;
        let will_do = |model: &&usize| !minds || request.allows(**model);
        let least = self.present.iter().filter(will_do).map(|model| self.scarcity[*model]).reduce(f64::min);
        least.map_or(0.0, |least| self.scarcity[node.model().index()] - least)
    }
}
