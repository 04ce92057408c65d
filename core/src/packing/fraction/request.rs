//! A pod's request, as far as it decides about node and GPUs.

use super::amount::{Busy, CpuMilli, GpuMilli};
use super::models::ModelSet;
use crate::units::MemoryMib;
use std::num::NonZeroU8;

/// One pod's request for CPU, memory and GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// The CPU that the pod requests.
    pub cpu: CpuMilli,
    /// The memory of the node that the pod requests.
    pub memory: MemoryMib,
    /// The GPUs or the part of one.
    pub gpus: GpuDemand,
    /// The GPU models that the pod accepts.
    pub models: ModelSet,
}

/// The part of a GPU, or the number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuDemand {
    /// No GPU: the pod takes CPU and memory only.
    None,
    /// A share of one GPU.
    Part(Part),
    /// This number of whole GPUs, each without other pods.
    Whole(NonZeroU8),
}

/// A part of one GPU, with the way of sharing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    share: GpuMilli,
    sharing: Sharing,
    order: Order,
    busy: Busy,
}

/// The way in which tenants share one GPU. A GPU is shared in one way at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// Tenants run side by side behind an MPS daemon.
    Mps,
    /// Tenants take turns by time slicing.
    TimeSlicing,
}

impl Sharing {
    /// The limit for what all tenants of one GPU keep busy, before they slow each other down.
    ///
    /// MPS runs tenants side by side, and queues stay short up to 0.7 of the GPU. Time slicing costs 7 to 11 % for each
    /// switch (measured on A100 and H200), so its limit is 0.6.
    #[must_use]
    pub fn busy_limit(self) -> Busy {
        match self {
            Self::Mps => Busy(700),
            Self::TimeSlicing => Busy(600),
        }
    }
}

/// The GPUs that a part prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Prefers GPUs in use, where the part wastes least.
    Pack,
    /// Prefers the GPUs with the fewest neighbours.
    Spread,
}

impl Part {
    /// A part of `share`; `None` for zero and for a whole GPU or more. MPS packs and time slices spread, unless
    /// [`ordered`](Self::ordered) changes that.
    #[must_use]
    pub fn new(share: GpuMilli, sharing: Sharing) -> Option<Self> {
        let order = if sharing == Sharing::Mps { Order::Pack } else { Order::Spread };
        let part = Self { share, sharing, order, busy: Busy::UNKNOWN };
        (GpuMilli(0) < share && share < GpuMilli::WHOLE).then_some(part)
    }

    /// The same part with this preference.
    #[must_use]
    pub fn ordered(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The thousandths of the GPU.
    #[must_use]
    pub fn share(self) -> GpuMilli {
        self.share
    }

    /// The way of sharing the GPU.
    #[must_use]
    pub fn sharing(self) -> Sharing {
        self.sharing
    }

    /// The GPUs that the part prefers.
    #[must_use]
    pub fn order(self) -> Order {
        self.order
    }

    /// The load of the tenant on the GPU.
    #[must_use]
    pub fn busy(self) -> Busy {
        self.busy
    }
}

#[cfg(test)]
impl Part {
    /// The same part of a tenant with this load.
    pub(super) fn with_busy(self, busy: Busy) -> Self {
        Self { busy, ..self }
    }
}

impl GpuDemand {
    /// A demand of `count` whole GPUs; zero means no GPU.
    #[must_use]
    pub fn whole(count: u8) -> Self {
        NonZeroU8::new(count).map_or(Self::None, Self::Whole)
    }

    /// The demand in thousandths of a GPU.
    #[must_use]
    pub fn volume(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Part(part) => u32::from(part.share.0),
            Self::Whole(count) => 1000 * u32::from(count.get()),
        }
    }
}

impl Request {
    pub(super) fn allows(&self, model: usize) -> bool {
        self.models.has(model)
    }

    /// The request without the properties that the workload ignores: the way of sharing, and the node's memory, which
    /// varies most.
    pub(super) fn kind(&self) -> Self {
        let gpus = match self.gpus {
            GpuDemand::Part(part) => GpuDemand::Part(Part {
                sharing: Sharing::Mps,
                order: Order::Pack,
                busy: Busy::UNKNOWN,
                ..part
            }),
            other => other,
        };
        Self { memory: MemoryMib::default(), gpus, ..*self }
    }
}
