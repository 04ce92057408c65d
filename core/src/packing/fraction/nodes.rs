//! The nodes of a fleet with the cost of every usual request on each. Only nodes that changed are computed again.

use super::cost::{Choice, Worth, cost, cost_from};
use super::market::Market;
use super::node::{GpuSet, Node, ReleaseError, TakeError};
use super::request::Request;
use super::supply::Supply;
use super::workload::Workload;
use crate::packing::Cost;
use std::collections::BTreeMap;
use thiserror::Error;

/// The most different requests whose costs are kept, because each takes a number for every node: all take 20 MiB at
/// 5,000 nodes.
const ROWS_LIMIT: usize = 512;

/// The number of a node in a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

impl NodeId {
    /// The number of nodes that were added before it.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

/// The place of a request in the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The node that takes the request.
    pub node: NodeId,
    /// The GPUs of the node; empty for a request without a GPU.
    pub gpus: GpuSet,
    /// The cost of that place.
    pub cost: Cost,
}

/// Why a request was neither taken nor given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// The node was removed, or never added.
    #[error("the node is gone")]
    Gone,
    /// The node has no room for the request.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The request was not taken on the node.
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

/// The nodes of a fleet, their workload, and the costs computed so far.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    /// `None` for a removed node.
    all: Vec<Option<Node>>,
    /// The number of each node's latest change.
    changed: Vec<u64>,
    changes: u64,
    supply: Supply,
    workload: Workload,
    prices: Option<Prices>,
}

/// Results that are valid for one market.
#[derive(Debug, Clone)]
struct Prices {
    market: Market,
    /// The value of each node, with the number of the change for which it was computed.
    worth: Vec<(u64, Worth)>,
    rows: BTreeMap<Request, Row>,
}

/// The cost of one request on every node.
#[derive(Debug, Clone, Default)]
struct Row {
    /// `FULL` if the node has no room.
    costs: Vec<Cost>,
    /// The number of the last change that is contained.
    seen: u64,
}

const FULL: Cost = Cost(i64::MAX);

/// The costs of one request on every node, for callers that ask about single nodes.
#[derive(Debug, Clone, Copy)]
pub struct Costs<'n>(&'n [Cost]);

impl Costs<'_> {
    /// The cost on the node; `None` if there is no room.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> Option<Cost> {
        self.0.get(node.0).copied().filter(|cost| *cost != FULL)
    }
}

impl Nodes {
    /// A fleet without nodes, for a workload that is known beforehand or learned (the default).
    #[must_use]
    pub fn new(workload: Workload) -> Self {
        Self { workload, ..Self::default() }
    }

    /// Adds a node and returns its number.
    pub fn add(&mut self, node: Node) -> NodeId {
        self.supply.add(&node);
        self.prices = None;
        self.all.push(Some(node));
        self.changed.push(0);
        NodeId(self.all.len() - 1)
    }

    /// Replaces a node and what it has left. The node may have been removed before.
    pub fn set(&mut self, id: NodeId, node: Node) {
        let Some(slot) = self.all.get_mut(id.0) else { return };
        let same = |old: &Node| {
            old.size() == node.size() && old.model() == node.model() && old.gpus().len() == node.gpus().len()
        };
        if !slot.as_ref().is_some_and(same) {
            if let Some(old) = slot {
                self.supply.remove(old);
            }
            self.supply.add(&node);
            self.prices = None;
        }
        *slot = Some(node);
        self.has_changed(id);
    }

    /// Removes a node. Its number is never given to another node.
    pub fn remove(&mut self, id: NodeId) {
        if let Some(node) = self.all.get_mut(id.0).and_then(Option::take) {
            self.supply.remove(&node);
            self.prices = None;
        }
    }

    /// The node of this number; `None` after its removal.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.all.get(id.0)?.as_ref()
    }

    /// Adds a pod to the workload. Call it once for each pod, before its first placement.
    pub fn learn(&mut self, request: &Request) {
        if self.workload.learn(request) {
            self.prices = None;
        }
    }

    /// The cheapest place in the fleet, and on the first node among equals.
    pub fn place(&mut self, request: &Request) -> Option<Placement> {
        let costs = self.costs(request);
        let (index, cost) = costs.0.iter().copied().enumerate().min_by_key(|(_, cost)| *cost)?;
        let node = NodeId(index);
        let choice = if cost == FULL { None } else { self.choice(node, request) };
        choice.map(|Choice { cost, gpus }| Placement { node, gpus, cost })
    }

    /// The cost of the request on every node.
    pub fn costs(&mut self, request: &Request) -> Costs<'_> {
        let Self { all, changed, changes, supply, workload, prices } = self;
        let prices = prices.get_or_insert_with(|| Prices::for_workload(workload, supply));
        Costs(prices.costs(request, all, changed, *changes))
    }

    /// The cheapest place on one node; `None` if there is no room.
    pub fn choice(&mut self, node: NodeId, request: &Request) -> Option<Choice> {
        let Self { all, supply, workload, prices, .. } = self;
        let prices = prices.get_or_insert_with(|| Prices::for_workload(workload, supply));
        cost(all.get(node.0)?.as_ref()?, request, &prices.market)
    }

    /// Takes a request on these GPUs of a node.
    pub fn take(&mut self, node: NodeId, request: &Request, gpus: GpuSet) -> Result<(), ChangeError> {
        self.change(node, |node| Ok(node.take(request, gpus)?))
    }

    /// Gives a request on these GPUs back to the node.
    pub fn release(&mut self, node: NodeId, request: &Request, gpus: GpuSet) -> Result<(), ChangeError> {
        self.change(node, |node| Ok(node.release(request, gpus)?))
    }

    fn change(
        &mut self,
        id: NodeId,
        change: impl FnOnce(&mut Node) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        let slot = self.all.get_mut(id.0).ok_or(ChangeError::Gone)?;
        change(slot.as_mut().ok_or(ChangeError::Gone)?)?;
        self.has_changed(id);
        Ok(())
    }

    fn has_changed(&mut self, id: NodeId) {
        self.changes += 1;
        self.changed[id.0] = self.changes;
    }
}

impl Prices {
    fn for_workload(workload: &Workload, supply: &Supply) -> Self {
        Self { market: Market::for_workload(workload, supply), worth: Vec::new(), rows: BTreeMap::new() }
    }

    fn costs(&mut self, request: &Request, nodes: &[Option<Node>], changed: &[u64], now: u64) -> &[Cost] {
        let Self { market, worth, rows } = self;
        if worth.is_empty() {
            let valued = |(node, changed): (&Option<Node>, &u64)| {
                (*changed, node.as_ref().map_or(Worth::NOTHING, |node| Worth::from_node(node, market)))
            };
            *worth = nodes.iter().zip(changed).map(valued).collect();
        }
        // All rows are dropped, because requests that are in use get theirs again with their next pod.
        if rows.len() >= ROWS_LIMIT && !rows.contains_key(request) {
            rows.clear();
        }
        let row = rows.entry(*request).or_default();
        let new = row.costs.is_empty();
        row.costs.resize(nodes.len(), FULL);
        for index in 0..nodes.len() {
            if !new && changed[index] <= row.seen {
                continue;
            }
            // The cost is copied, because equal nodes often follow each other, at least while they are empty.
            if new && index > 0 && nodes[index] == nodes[index - 1] {
                row.costs[index] = row.costs[index - 1];
                continue;
            }
            let Some(node) = &nodes[index] else { continue };
            if worth[index].0 != changed[index] {
                worth[index] = (changed[index], Worth::from_node(node, market));
            }
            let choice = cost_from(node, &worth[index].1, request, market);
            row.costs[index] = choice.map_or(FULL, |choice| choice.cost);
        }
        row.seen = now;
        &row.costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::fraction::{CpuMilli, GpuDemand, ModelSet, Models};
    use crate::units::MemoryMib;

    fn request(cpu: u32) -> Request {
        let gpus = GpuDemand::whole(1);
        Request { cpu: CpuMilli(cpu), memory: MemoryMib(0), gpus, models: ModelSet::ANY }
    }

    fn two_nodes() -> (Nodes, [NodeId; 2]) {
        let model = Models::default().intern("T4").unwrap();
        let mut fleet = Nodes::new(Workload::known([&request(1)]));
        let ids = [4, 8].map(|gpus| fleet.add(Node::new(CpuMilli(64_000), MemoryMib(1024), model, gpus)));
        (fleet, ids)
    }

    fn rows(fleet: &mut Nodes) -> &mut BTreeMap<Request, Row> {
        &mut fleet.prices.as_mut().unwrap().rows
    }

    #[test]
    fn only_nodes_that_changed_are_computed_again() {
        let (mut fleet, ids) = two_nodes();
        let asked = request(1);
        let take = |fleet: &mut Nodes, node| fleet.take(node, &asked, [0].into_iter().collect()).unwrap();
        take(&mut fleet, ids[0]);
        fleet.costs(&asked);
        // No computation results in these costs.
        rows(&mut fleet).get_mut(&asked).unwrap().costs.fill(Cost(-1));
        take(&mut fleet, ids[1]);
        let costs = fleet.costs(&asked);
        assert_eq!(ids.map(|id| costs.on_node(id) == Some(Cost(-1))), [true, false]);
    }

    #[test]
    fn costs_are_dropped_only_for_a_new_request_beyond_the_limit() {
        let (mut fleet, _) = two_nodes();
        let most = u32::try_from(ROWS_LIMIT).unwrap();
        let mut kept = |cpu| {
            fleet.costs(&request(cpu));
            rows(&mut fleet).len()
        };
        assert_eq!((0..most).map(&mut kept).last(), Some(ROWS_LIMIT));
        assert_eq!([0, most].map(kept), [ROWS_LIMIT, 1]);
    }
}
