//! The cost of a place on a node, and the GPUs on which it is cheapest.
//!
//! The cost is the fleet's loss, in thousandths of a GPU until it becomes a [`Cost`]:
//! - gap: the loss in value of the GPU's gap ([`super::gap`]), so that shares that fill a GPU up meet there;
//! - fragmentation: the part of the node that usual requests could use and no longer can, as in FGD
//!   ([`super::wanted`]);
//! - balance: the part of the node's GPUs that can no longer be used beside its CPU and memory, times the prices of CPU
//!   and of the node's model, so that neither is stranded behind the other and scarce models are kept free;
//! - best fit: everything that is left on the node, so that nodes fill up.
//!
//! The weights were found on Alibaba's trace of 2023 by FGD's protocol, on other shuffles than the reported ones. They
//! are in the middle of a flat region: halving or doubling one of them moves the mean over 17 workloads by at most 0.16
//! points. If balance is above four times fragmentation, nodes for several GPUs are broken up.

use super::amount::{CpuMilli, GpuMilli};
use super::market::Market;
use super::node::{Gpu, GpuSet, Node};
use super::request::{GpuDemand, Order, Part, Request};
use super::wanted::Uses;
use crate::packing::Cost;
use crate::units::MemoryMib;

/// The loss of a gap outweighs the other terms, because its value is exact and theirs are estimates.
const GAP: f64 = 4.0;
const FRAGMENTATION: f64 = 0.5;
/// The price of balance while CPU is just enough. It grows with the third power of CPU's tightness.
const BALANCE: f64 = 0.7;
/// The price of a model if the requests by model ask for all its GPUs.
const SCARCITY: f64 = 2.0;
/// The cost of each core that is left on the node.
const CORE_LEFT: f64 = 0.25;
/// The cost of each thousandth of a GPU that is left on the node.
const GPU_LEFT: f64 = 1.0 / 256.0;
/// The cost of a neighbour's thousandth for a part that should spread. It exceeds all other terms together.
const NEIGHBOUR: f64 = 8.0;

/// [`Cost`] counts a GPU as 8 memory slices of a million each.
const COST_PER_MILLI: f64 = 8_000.0;

/// A place on a node with its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The loss of the fleet if the place is taken.
    pub cost: Cost,
    /// The GPUs of the node; empty for a request without a GPU.
    pub gpus: GpuSet,
}

/// The cheapest place on the node, and on the first GPUs among equals. `None` if there is no room.
#[must_use]
pub fn cost(node: &Node, request: &Request, market: &Market) -> Option<Choice> {
    cost_from(node, &Worth::from_node(node, market), request, market)
}

/// The value of a node as it is. It is the same for all requests and therefore computed once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    usable: f64,
    balanced: f64,
}

impl Worth {
    /// The value of a node that was removed.
    pub(super) const NOTHING: Self = Self { usable: 0.0, balanced: 0.0 };

    pub(super) fn from_node(node: &Node, market: &Market) -> Self {
        let uses = market.uses(node, node.cpu());
        Self {
            usable: used_by_one(node, &uses) + uses.for_several(free(node)),
            balanced: market.balanced(f64::from(node.gpu_left()), node.cpu(), node.memory()),
        }
    }
}

/// Like [`cost()`], for a node whose value is already computed.
pub(super) fn cost_from(node: &Node, worth: &Worth, request: &Request, market: &Market) -> Option<Choice> {
    node.may_take(request).ok()?;
    let left = Left {
        cpu: CpuMilli(node.cpu().0 - request.cpu.0),
        memory: node.memory().saturating_sub(request.memory),
        gpu: node.gpu_left().saturating_sub(request.gpus.volume()),
    };
    let (on_gpus, gpus) = match &request.gpus {
        GpuDemand::None => {
            (fragmentation(node, worth, left.cpu, GpuSet::default(), market), GpuSet::default())
        }
        GpuDemand::Whole(count) => {
            let gpus = free_gpus(node, usize::from(count.get()))?;
            (fragmentation(node, worth, left.cpu, gpus, market), gpus)
        }
        GpuDemand::Part(part) => match part.order() {
            Order::Pack => packed(node, worth, *part, left.cpu, market)?,
            Order::Spread => spread(node, *part)?,
        },
    };
    let balance = worth.balanced - market.balanced(f64::from(left.gpu), left.cpu, left.memory);
    let price = BALANCE * market.tightness_cubed() + SCARCITY * market.excess_scarcity(node, request);
    let fit = CORE_LEFT * f64::from(left.cpu.0) / 1000.0 + GPU_LEFT * f64::from(left.gpu);
    Some(Choice { cost: rounded(on_gpus + price * balance + fit), gpus })
}

/// The resources that the request leaves on the node.
struct Left {
    cpu: CpuMilli,
    memory: MemoryMib,
    gpu: u32,
}

fn rounded(cost: f64) -> Cost {
    #[expect(clippy::cast_possible_truncation, reason = "it saturates, and costs are far smaller")]
    Cost((cost * COST_PER_MILLI).round() as i64)
}

fn free_gpus(node: &Node, count: usize) -> Option<GpuSet> {
    let free = node.gpus().iter().enumerate().filter(|(_, gpu)| gpu.is_free());
    let gpus: GpuSet = free.take(count).map(|(index, _)| index).collect();
    (gpus.len() == count).then_some(gpus)
}

fn free(node: &Node) -> usize {
    node.gpus().iter().filter(|gpu| gpu.is_free()).count()
}

fn used_by_one(node: &Node, uses: &Uses<'_>) -> f64 {
    node.gpus().iter().map(|gpu| uses.for_one(gpu.left())).sum()
}

/// The loss of the usual requests if a pod takes the GPUs in `taken`, which are all free, and leaves `cpu`.
fn fragmentation(node: &Node, worth: &Worth, cpu: CpuMilli, taken: GpuSet, market: &Market) -> f64 {
    let uses = market.uses(node, cpu);
    let gone: f64 = taken.iter().map(|_| uses.for_one(GpuMilli::WHOLE)).sum();
    let usable = used_by_one(node, &uses) - gone + uses.for_several(free(node) - taken.len());
    FRAGMENTATION * (worth.usable - usable)
}

/// The GPU on which a part loses the least gap value and fragmentation.
fn packed(node: &Node, worth: &Worth, part: Part, cpu: CpuMilli, market: &Market) -> Option<(f64, GpuSet)> {
    let (uses, free) = (market.uses(node, cpu), free(node));
    let lost = |gpu: &Gpu| {
        let after = GpuMilli(gpu.left().0 - part.share().0);
        let gap = market.gaps.value(gpu.left()) - market.gaps.value(after);
        let gained = uses.for_one(after) - uses.for_one(gpu.left());
        GAP * gap - FRAGMENTATION * (gained + uses.for_several(free - usize::from(gpu.is_free())))
    };
    let room = node.gpus().iter().enumerate().filter(|(_, gpu)| gpu.has_room(part));
    let (index, best) = room.map(|(index, gpu)| (index, lost(gpu))).min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some((best + FRAGMENTATION * (worth.usable - used_by_one(node, &uses)), GpuSet::from_gpu(index)))
}

fn spread(node: &Node, part: Part) -> Option<(f64, GpuSet)> {
    let taken = |gpu: &Gpu| GpuMilli::WHOLE.0 - gpu.left().0;
    let room = node.gpus().iter().enumerate().filter(|(_, gpu)| gpu.has_room(part));
    let (index, gpu) = room.min_by_key(|(_, gpu)| taken(gpu))?;
    Some((NEIGHBOUR * f64::from(taken(gpu)), GpuSet::from_gpu(index)))
}
