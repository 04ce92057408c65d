//! What a pod asks for, as far as it decides about the node and the GPUs.

use super::amount::{Busy, CpuMilli, GpuMilli};
use super::models::ModelSet;
use crate::units::MemoryMib;
use std::num::NonZeroU8;

/// One pod's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// CPU.
    pub cpu: CpuMilli,
    /// Memory of the node.
    pub memory: MemoryMib,
    /// GPUs.
    pub gpus: GpuDemand,
    /// The models that will do.
    pub models: ModelSet,
}

/// How much of which GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuDemand {
    /// No GPU: the pod takes CPU and memory only.
    None,
    /// A part of one GPU.
    Part(Part),
    /// So many GPUs, each alone.
    Whole(NonZeroU8),
}

/// A part of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    share: GpuMilli,
    sharing: Sharing,
    order: Order,
    busy: Busy,
}

/// How the tenants of one GPU share it. A GPU is shared in one way at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// Side by side behind an MPS daemon.
    Mps,
    /// In turns.
    TimeSlicing,
}

impl Sharing {
    /// What the tenants of one GPU may keep busy together before they feel each other.
    ///
    /// MPS serves tenants side by side, and waits stay short up to 0.7 of the GPU; time slices pay 7 to 11 % for each
    /// switch (measured on A100 and H200), so they stop at 0.6.
    #[must_use]
    pub fn busy_limit(self) -> Busy {
        match self {
            Self::Mps => Busy(700),
            Self::TimeSlicing => Busy(600),
        }
    }
}

/// Which GPUs a part goes to first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// To GPUs in use, where it wastes least.
    Pack,
    /// To the GPUs with the fewest neighbours.
    Spread,
}

impl Part {
    /// `share` of a GPU; `None` if that is nothing, or a whole GPU or more. MPS packs and time slices spread, unless
    /// [`ordered`](Self::ordered) says otherwise.
    #[must_use]
    pub fn new(share: GpuMilli, sharing: Sharing) -> Option<Self> {
        let order = if sharing == Sharing::Mps { Order::Pack } else { Order::Spread };
        let part = Self { share, sharing, order, busy: Busy::UNKNOWN };
        (GpuMilli(0) < share && share < GpuMilli::WHOLE).then_some(part)
    }

    /// The same part, with this order.
    #[must_use]
    pub fn ordered(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The same part, of a tenant that keeps so much busy.
    #[must_use]
    pub fn busy_for(self, busy: Busy) -> Self {
        Self { busy, ..self }
    }

    /// How much of the GPU.
    #[must_use]
    pub fn share(self) -> GpuMilli {
        self.share
    }

    /// How it is shared.
    #[must_use]
    pub fn sharing(self) -> Sharing {
        self.sharing
    }

    /// Where it goes first.
    #[must_use]
    pub fn order(self) -> Order {
        self.order
    }

    /// What the tenant keeps busy.
    #[must_use]
    pub fn busy(self) -> Busy {
        self.busy
    }
}

impl GpuDemand {
    /// `count` whole GPUs, which may be none.
    #[must_use]
    pub fn whole(count: u8) -> Self {
        NonZeroU8::new(count).map_or(Self::None, Self::Whole)
    }

    /// All of it, in thousandths of a GPU.
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
    /// Whether the model with this index is allowed.
    pub(super) fn allows(&self, model: usize) -> bool {
        self.models.has(model)
    }

    /// What makes requests alike for the workload: not how a part is shared, nor the node's memory, which varies most.
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
        Self { memory: MemoryMib(0), gpus, ..*self }
    }
}
