//! The sum of the nodes' resources while they are empty.

use super::amount::real;
use super::models::MODELS_LIMIT;
use super::node::Node;

/// The resources of all nodes of a fleet together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supply {
    cpu: u64,
    memory: u64,
    gpus: Vec<u64>,
}

impl Default for Supply {
    fn default() -> Self {
        Self { cpu: 0, memory: 0, gpus: vec![0; MODELS_LIMIT] }
    }
}

impl Supply {
    /// Adds the size of a node.
    pub fn add(&mut self, node: &Node) {
        let gpus = &mut self.gpus[node.model().index()];
        *gpus = gpus.saturating_add(node.gpus().len() as u64);
        self.cpu = self.cpu.saturating_add(u64::from(node.size().cpu.0));
        self.memory = self.memory.saturating_add(node.size().memory.0);
    }

    /// Subtracts the size of a node.
    pub fn remove(&mut self, node: &Node) {
        let gpus = &mut self.gpus[node.model().index()];
        *gpus = gpus.saturating_sub(node.gpus().len() as u64);
        self.cpu = self.cpu.saturating_sub(u64::from(node.size().cpu.0));
        self.memory = self.memory.saturating_sub(node.size().memory.0);
    }

    pub(super) fn gpus_of(&self, model: usize) -> f64 {
        real(self.gpus[model])
    }

    /// The number of all GPUs; 1 if there is none, so that callers can divide by it.
    pub(super) fn all_gpus(&self) -> f64 {
        real(self.gpus.iter().sum::<u64>()).max(1.0)
    }

    pub(super) fn cpu_per_gpu(&self) -> f64 {
        real(self.cpu) / self.all_gpus()
    }

    pub(super) fn memory_per_gpu(&self) -> f64 {
        real(self.memory) / self.all_gpus()
    }
}
