//! What is left of one node, and the only ways to take from it and to give back.

use super::amount::{Busy, CpuMilli, GpuMilli};
use super::models::ModelId;
use super::request::{GpuDemand, Part, Request, Sharing};
use crate::units::MemoryMib;
use thiserror::Error;

/// The most GPUs that a node may have: a set of them is one word.
pub const MOST_GPUS: usize = 64;

/// What is left of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    cpu: CpuMilli,
    memory: MemoryMib,
    model: ModelId,
    gpus: Vec<Gpu>,
    size: Size,
}

/// What an empty node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) cpu: CpuMilli,
    pub(super) memory: MemoryMib,
}

/// What is left of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    left: GpuMilli,
    busy: Busy,
    shared: Option<Sharing>,
}

/// GPUs of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct GpuSet(u64);

/// Why a request cannot be taken from a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TakeError {
    /// Too little CPU is left.
    #[error("too little CPU is left")]
    Cpu,
    /// Too little memory is left.
    #[error("too little memory is left")]
    Memory,
    /// The request does not allow this model.
    #[error("another GPU model is asked for")]
    Model,
    /// The number of GPUs is not what was asked for.
    #[error("another number of GPUs is asked for")]
    Count,
    /// A GPU has too little left, is too busy, or is shared in another way.
    #[error("GPU {0} cannot take it")]
    Gpu(usize),
}

/// A request cannot be given back: the node would have more than it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("more is given back than was taken")]
pub struct ReleaseError;

impl Gpu {
    const FREE: Self = Self { left: GpuMilli::WHOLE, busy: Busy(0), shared: None };

    /// How much is left.
    #[must_use]
    pub fn left(&self) -> GpuMilli {
        self.left
    }

    /// Whether nobody uses it.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.left == GpuMilli::WHOLE
    }

    /// Whether it has room for a part.
    #[must_use]
    pub fn has_room(&self, part: Part) -> bool {
        let busy = self.busy.0.saturating_add(part.busy().0);
        self.left >= part.share()
            && self.shared.is_none_or(|shared| shared == part.sharing())
            // Who comes alone may keep a whole GPU busy.
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
    pub(super) fn of(gpu: usize) -> Self {
        Self(1 << gpu)
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The GPUs' places on their node, from 0, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (next < MOST_GPUS).then_some(next)
        })
    }
}

impl FromIterator<usize> for GpuSet {
    /// Places of [`MOST_GPUS`] and above are left out: no node has them.
    fn from_iter<I: IntoIterator<Item = usize>>(gpus: I) -> Self {
        Self(gpus.into_iter().filter(|gpu| *gpu < MOST_GPUS).fold(0, |set, gpu| set | 1 << gpu))
    }
}

impl Node {
    /// A node of which nothing is taken. Of more than [`MOST_GPUS`] GPUs the rest is left out.
    #[must_use]
    pub fn new(cpu: CpuMilli, memory: MemoryMib, model: ModelId, gpus: usize) -> Self {
        let gpus = vec![Gpu::FREE; gpus.min(MOST_GPUS)];
        Self { cpu, memory, model, gpus, size: Size { cpu, memory } }
    }

    /// The node when others leave so much of its CPU and memory; at most what it has.
    #[must_use]
    pub fn with_left(self, cpu: CpuMilli, memory: MemoryMib) -> Self {
        Self { cpu: cpu.min(self.size.cpu), memory: memory.min(self.size.memory), ..self }
    }

    /// CPU left.
    #[must_use]
    pub fn cpu(&self) -> CpuMilli {
        self.cpu
    }

    /// Memory left.
    #[must_use]
    pub fn memory(&self) -> MemoryMib {
        self.memory
    }

    /// The model of its GPUs.
    #[must_use]
    pub fn model(&self) -> ModelId {
        self.model
    }

    /// Its GPUs.
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// All that is left of its GPUs, in thousandths of one.
    #[must_use]
    pub fn gpu_left(&self) -> u32 {
        self.gpus.iter().map(|gpu| u32::from(gpu.left.0)).sum()
    }

    /// Whether CPU, memory and model will do, whatever the GPUs.
    pub(super) fn may_take(&self, request: &Request) -> Result<(), TakeError> {
        if self.cpu < request.cpu {
            return Err(TakeError::Cpu);
        }
        if self.memory < request.memory {
            return Err(TakeError::Memory);
        }
        // A pod without a GPU does not mind the model.
        let minds = request.gpus != GpuDemand::None;
        if minds && !request.models.contains(self.model) { Err(TakeError::Model) } else { Ok(()) }
    }

    /// Takes a request on these GPUs.
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

    /// Gives back what [`take`](Self::take) took. Nothing is changed on an error.
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
                // Parts that fill a GPU leave nothing either, but it is shared.
                GpuDemand::Whole(_) if gpu.left == GpuMilli(0) && gpu.shared.is_none() => *gpu = Gpu::FREE,
                GpuDemand::Whole(_) | GpuDemand::None => return Err(ReleaseError),
            }
        }
        (self.cpu, self.memory, self.gpus) = (cpu, memory, gpus);
        Ok(())
    }
}
