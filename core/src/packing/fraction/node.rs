//! The free resources of one node, and the only ways to take from it and to give back.

use super::amount::{Busy, CpuMilli, GpuMilli};
use super::models::ModelId;
use super::request::{GpuDemand, Part, Request, Sharing};
use crate::units::MemoryMib;
use thiserror::Error;

/// The most GPUs of a node, because a set of them is one word of 64 bits.
pub const GPUS_LIMIT: usize = 64;

/// A node with its free CPU, memory and GPU shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    cpu: CpuMilli,
    memory: MemoryMib,
    model: ModelId,
    gpus: Vec<Gpu>,
    size: Size,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) cpu: CpuMilli,
    pub(super) memory: MemoryMib,
}

/// A GPU with its free share and the state of its sharing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    left: GpuMilli,
    busy: Busy,
    shared: Option<Sharing>,
}

/// A set of GPUs of one node, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct GpuSet(u64);

/// Why a node cannot take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TakeError {
    /// The node has too little free CPU.
    #[error("too little CPU is left")]
    Cpu,
    /// The node has too little free memory.
    #[error("too little memory is left")]
    Memory,
    /// The request does not allow the node's GPU model.
    #[error("another GPU model is asked for")]
    Model,
    /// The request needs another number of GPUs than given.
    #[error("another number of GPUs is asked for")]
    Count,
    /// The GPU of this index has too little left, is too busy, or is shared in another way.
    #[error("GPU {0} cannot take it")]
    Gpu(usize),
}

/// The release does not match an earlier take: the node would have more than its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("more is given back than was taken")]
pub struct ReleaseError;

impl Gpu {
    const FREE: Self = Self { left: GpuMilli::WHOLE, busy: Busy(0), shared: None };

    /// The free thousandths of the GPU.
    #[must_use]
    pub fn left(&self) -> GpuMilli {
        self.left
    }

    /// Whether no pod uses the GPU.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.left == GpuMilli::WHOLE
    }

    /// Whether the GPU can take a part: the share fits, the sharing matches, and the busy limit holds.
    #[must_use]
    pub fn has_room(&self, part: Part) -> bool {
        let busy = self.busy.0.saturating_add(part.busy().0);
        self.left >= part.share()
            && self.shared.is_none_or(|shared| shared == part.sharing())
            // The limit protects neighbours, so the first tenant may exceed it.
            && (self.shared.is_none() || Busy(busy) <= part.sharing().busy_limit())
    }

    fn take(&mut self, part: Part) {
        self.left = GpuMilli(self.left.0 - part.share().0);
        self.busy = Busy(self.busy.0.saturating_add(part.busy().0));
        self.shared = Some(part.sharing());
    }

    fn release(&mut self, part: Part) -> Result<(), ReleaseError> {
        let left = GpuMilli(self.left.0 + part.share().0);
        if left > GpuMilli::WHOLE || self.shared != Some(part.sharing()) {
            return Err(ReleaseError);
        }
        *self = Self { left, busy: Busy(self.busy.0.saturating_sub(part.busy().0)), ..*self };
        if self.is_free() {
            *self = Self::FREE;
        }
        Ok(())
    }
}

impl GpuSet {
    pub(super) fn from_gpu(gpu: usize) -> Self {
        Self(1 << gpu)
    }

    /// The number of GPUs in the set.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set contains no GPU.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The indexes of the GPUs on their node, from 0, in rising order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (next < GPUS_LIMIT).then_some(next)
        })
    }
}

impl FromIterator<usize> for GpuSet {
    /// Indexes of [`GPUS_LIMIT`] and above are left out, because no node has them.
    fn from_iter<I: IntoIterator<Item = usize>>(gpus: I) -> Self {
        Self(gpus.into_iter().filter(|gpu| *gpu < GPUS_LIMIT).fold(0, |set, gpu| set | 1 << gpu))
    }
}

impl Node {
    /// An empty node. GPUs beyond [`GPUS_LIMIT`] are left out.
    #[must_use]
    pub fn new(cpu: CpuMilli, memory: MemoryMib, model: ModelId, gpus: usize) -> Self {
        let gpus = vec![Gpu::FREE; gpus.min(GPUS_LIMIT)];
        Self { cpu, memory, model, gpus, size: Size { cpu, memory } }
    }

    /// The node with only this much CPU and memory left, because other pods use the rest; at most the node's size.
    #[must_use]
    pub fn with_left(self, cpu: CpuMilli, memory: MemoryMib) -> Self {
        Self { cpu: cpu.min(self.size.cpu), memory: memory.min(self.size.memory), ..self }
    }

    /// The free CPU of the node.
    #[must_use]
    pub fn cpu(&self) -> CpuMilli {
        self.cpu
    }

    /// The free memory of the node.
    #[must_use]
    pub fn memory(&self) -> MemoryMib {
        self.memory
    }

    /// The model of all its GPUs.
    #[must_use]
    pub fn model(&self) -> ModelId {
        self.model
    }

    /// The GPUs of the node, by index.
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// The free thousandths of all its GPUs together.
    #[must_use]
    pub fn gpu_left(&self) -> u32 {
        self.gpus.iter().map(|gpu| u32::from(gpu.left.0)).sum()
    }

    /// Whether CPU, memory and model suffice, whatever the GPUs have.
    pub(super) fn may_take(&self, request: &Request) -> Result<(), TakeError> {
        if self.cpu < request.cpu {
            return Err(TakeError::Cpu);
        }
        if self.memory < request.memory {
            return Err(TakeError::Memory);
        }
        // The model does not matter to a pod without a GPU.
        let needs_gpu = request.gpus != GpuDemand::None;
        if needs_gpu && !request.models.contains(self.model) { Err(TakeError::Model) } else { Ok(()) }
    }

    /// Takes a request on these GPUs; nothing changes on an error.
    pub fn take(&mut self, request: &Request, on: GpuSet) -> Result<(), TakeError> {
        self.may_take(request)?;
        let wanted = match request.gpus {
            GpuDemand::None => 0,
            GpuDemand::Part(_) => 1,
            GpuDemand::Whole(count) => usize::from(count.get()),
        };
        if on.len() != wanted {
            return Err(TakeError::Count);
        }
        let full = |gpu: &Gpu| match &request.gpus {
            GpuDemand::Part(part) => !gpu.has_room(*part),
            GpuDemand::Whole(_) | GpuDemand::None => !gpu.is_free(),
        };
        if let Some(gpu) = on.iter().find(|gpu| self.gpus.get(*gpu).is_none_or(full)) {
            return Err(TakeError::Gpu(gpu));
        }
        self.cpu = CpuMilli(self.cpu.0 - request.cpu.0);
        self.memory = self.memory.saturating_sub(request.memory);
        for gpu in on.iter() {
            match &request.gpus {
                GpuDemand::Part(part) => self.gpus[gpu].take(*part),
                GpuDemand::Whole(_) | GpuDemand::None => self.gpus[gpu].left = GpuMilli(0),
            }
        }
        Ok(())
    }

    /// Gives back what [`take`](Self::take) took; nothing changes on an error.
    pub fn release(&mut self, request: &Request, on: GpuSet) -> Result<(), ReleaseError> {
        let cpu = CpuMilli(self.cpu.0.checked_add(request.cpu.0).ok_or(ReleaseError)?);
        let memory = MemoryMib(self.memory.0.checked_add(request.memory.0).ok_or(ReleaseError)?);
        if cpu > self.size.cpu || memory > self.size.memory {
            return Err(ReleaseError);
        }
        let mut gpus = self.gpus.clone();
        for gpu in on.iter() {
            let gpu = gpus.get_mut(gpu).ok_or(ReleaseError)?;
            match &request.gpus {
                GpuDemand::Part(part) => gpu.release(*part)?,
                // Parts that fill a GPU leave nothing either, but then it is shared and not taken as a whole.
                GpuDemand::Whole(_) if gpu.left == GpuMilli(0) && gpu.shared.is_none() => *gpu = Gpu::FREE,
                GpuDemand::Whole(_) | GpuDemand::None => return Err(ReleaseError),
            }
        }
        (self.cpu, self.memory, self.gpus) = (cpu, memory, gpus);
        Ok(())
    }
}
