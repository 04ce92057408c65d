//! The number of shares of one kind that a GPU can hold together.

use crate::contract::{GpuRule, Shape};
use crate::kind::Kind;
use crate::units::MemoryMib;

/// Whether a GPU with this much memory can have all these shares of one kind.
pub(crate) fn are_within(
    rule: &GpuRule,
    kind: Kind,
    memory: MemoryMib,
    beside: MemoryMib,
    mps_shares: Option<u32>,
    shapes: &[Shape],
) -> bool {
    // Each share is compared with the GPU too, because `memoryPercent` lets all shares together exceed the GPU, but
    // none by itself.
    shapes.iter().all(|shape| shape.size().share_memory() <= memory.saturating_sub(beside))
        && Room::new(rule, kind, memory, beside, mps_shares).after(shapes.iter().copied()).is_some()
}

/// The room that a GPU has left for shares of one kind.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    total: MemoryMib,
    pub(crate) memory: MemoryMib,
    /// The compute left for MPS shares, in hundredths of the GPU's MiB. Other kinds have no such limit.
    compute: u64,
    shares: usize,
}

impl Room {
    pub(crate) fn new(
        rule: &GpuRule,
        kind: Kind,
        total: MemoryMib,
        beside: MemoryMib,
        mps_shares: Option<u32>,
    ) -> Self {
        let most = |shares: Option<u32>| shares.map_or(usize::MAX, |most| most as usize);
        let (memory, replicas) = (total.saturating_sub(beside), most(rule.replicas(kind)));
        if kind != Kind::Mps {
            return Self { total, memory, compute: u64::MAX, shares: replicas };
        }
        let memory = rule.mps.memory_percent.limit_for(memory);
        let compute = total.0.saturating_mul(rule.mps.memory_percent.percent());
        Self { total, memory, compute, shares: replicas.min(most(mps_shares)) }
    }

    /// The room after these shares; `None` if they do not fit.
    pub(crate) fn after(self, shapes: impl IntoIterator<Item = Shape>) -> Option<Self> {
        shapes.into_iter().try_fold(self, |left, shape| {
            Some(Self {
                total: left.total,
                memory: MemoryMib(left.memory.0.checked_sub(shape.size().share_memory().0)?),
                compute: left.compute.checked_sub(shape.compute_of(left.total))?,
                shares: left.shares.checked_sub(1)?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SizeGb;

    #[test]
    fn a_share_may_take_all_the_memory_of_a_gpu_and_no_more() {
        let are_within = |memory: u64, percent: u16, gb: &[u32]| {
            let shapes: Vec<_> =
                gb.iter().map(|gb| Shape::Mps { size_gb: SizeGb(*gb), compute: None }).collect();
            let mut rule = GpuRule::default();
            rule.mps.memory_percent = percent.try_into().unwrap();
            are_within(&rule, Kind::Mps, MemoryMib(memory + 1024), MemoryMib(1024), Some(2), &shapes)
        };
        assert!(are_within(4096, 100, &[4]) && !are_within(4095, 100, &[4]));
        assert!(are_within(4096, 100, &[1, 3]) && !are_within(4096, 100, &[2, 3]));
        assert!(are_within(4096, 200, &[4, 4]) && !are_within(4096, 200, &[1, 5]));
        assert!(!are_within(4096, 100, &[1, 1, 1]), "the number of shares is limited");
    }
}
