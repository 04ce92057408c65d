//! What a place on a node costs, and on which GPUs it is cheapest.
//!
//! The cost is what the fleet loses, in thousandths of a GPU until it is made a [`Cost`]:
//! - the gap: what the GPU's gap was worth and no longer is ([`super::gap`]), so that shares meet that fill a GPU up;
//! - fragmentation: what the usual requests could use of the node and no longer can, as in FGD ([`super::wanted`]);
//! - balance: what of the node's GPUs could come to use beside its CPU and memory and no longer can, times the price of
//!   CPU and of the node's model, so that neither is stranded behind the other and a scarce model is kept;
//! - best fit: what is left on the node, so that it rather fills a node up.
//!
//! The weights were found on Alibaba's trace of 2023 by FGD's protocol, on other shuffles than those that are reported.
//! They stand in the middle of where the result is flat: halving or doubling any one of them moves the mean over 17
//! workloads by at most 0.16 points. With balance above four times fragmentation, nodes for several GPUs are broken up.

use super::amount::{CpuMilli, GpuMilli};
use super::market::Market;
use super::node::{Gpu, GpuSet, Node};
use super::request::{GpuDemand, Order, Part, Request};
use super::wanted::Uses;
use crate::packing::Cost;
use crate::units::MemoryMib;

/// A gap that is lost outweighs the other terms: its value is exact, theirs are guesses.
const GAP: f64 = 4.0;
const FRAGMENTATION: f64 = 0.5;
/// The price of balance where CPU is just enough. It grows with the third power of how tight CPU is.
const BALANCE: f64 = 0.7;
/// The price of a model of which all is wanted by requests that name it.
const SCARCITY: f64 = 2.0;
/// Per core that is left on the node.
const CORE_LEFT: f64 = 0.25;
/// Per thousandth of a GPU that is left on the node.
const GPU_LEFT: f64 = 1.0 / 256.0;
/// What a neighbour's thousandth costs a part that should spread: more than all other terms.
const NEIGHBOUR: f64 = 8.0;

/// [`Cost`] counts a GPU as 8 memory slices of a million each.
const COST_PER_MILLI: f64 = 8_000.0;

/// A place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// What it costs.
    pub cost: Cost,
    /// Which GPUs; none for a request without a GPU.
    pub gpus: GpuSet,
}

/// The cheapest place on the node; of equal ones that on the first GPUs. `None` if there is no room.
#[must_use]
pub fn cost(node: &Node, request: &Request, market: &Market) -> Option<Choice> {
    cost_from(node, &Worth::of(node, market), request, market)
}

/// What a node is worth as it is. It is the same for all requests, so that it need not be found anew for each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    usable: f64,
    balanced: f64,
}

impl Worth {
    /// What a node is worth that is gone.
    pub(super) const NOTHING: Self = Self { usable: 0.0, balanced: 0.0 };

    pub(super) fn of(node: &Node, market: &Market) -> Self {
        let uses = market.uses(node, node.cpu());
        Self {
            usable: used_by_one(node, &uses) + uses.of_several(free(node)),
            balanced: market.balanced(f64::from(node.gpu_left()), node.cpu(), node.memory()),
        }
    }
}

/// As [`cost()`], of a node whose worth is known.
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

/// What the node would have left.
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
    node.gpus().iter().map(|gpu| uses.of_one(gpu.left())).sum()
}

/// What the usual requests lose with these GPUs, all of which are free, and with the CPU.
fn fragmentation(node: &Node, worth: &Worth, cpu: CpuMilli, taken: GpuSet, market: &Market) -> f64 {
    let uses = market.uses(node, cpu);
    let gone: f64 = taken.iter().map(|_| uses.of_one(GpuMilli::WHOLE)).sum();
    let usable = used_by_one(node, &uses) - gone + uses.of_several(free(node) - taken.len());
    FRAGMENTATION * (worth.usable - usable)
}

/// The GPU on which a part wastes least: gap and fragmentation.
fn packed(node: &Node, worth: &Worth, part: Part, cpu: CpuMilli, market: &Market) -> Option<(f64, GpuSet)> {
    let (uses, free) = (market.uses(node, cpu), free(node));
    let lost = |gpu: &Gpu| {
        let after = GpuMilli(gpu.left().0 - part.share().0);
        let gap = market.gaps.value(gpu.left()) - market.gaps.value(after);
        let gained = uses.of_one(after) - uses.of_one(gpu.left());
        GAP * gap - FRAGMENTATION * (gained + uses.of_several(free - usize::from(gpu.is_free())))
    };
    let room = node.gpus().iter().enumerate().filter(|(_, gpu)| gpu.has_room(part));
    let (index, best) = room.map(|(index, gpu)| (index, lost(gpu))).min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some((best + FRAGMENTATION * (worth.usable - used_by_one(node, &uses)), GpuSet::of(index)))
}

/// The GPU with the fewest neighbours.
fn spread(node: &Node, part: Part) -> Option<(f64, GpuSet)> {
    let taken = |gpu: &Gpu| GpuMilli::WHOLE.0 - gpu.left().0;
    let room = node.gpus().iter().enumerate().filter(|(_, gpu)| gpu.has_room(part));
    let (index, gpu) = room.min_by_key(|(_, gpu)| taken(gpu))?;
    Some((NEIGHBOUR * f64::from(taken(gpu)), GpuSet::of(index)))
}
