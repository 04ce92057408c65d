//! Where a pod goes among several nodes: to one that serves it by the best kinds, and of these where it costs least.

use super::fit::{by_plan, fit_first};
use super::{Cost, Fit, Fleet, Rank, Refusal};
use crate::contract::RequestDocument;
use crate::inventory::NodeInventory;
use crate::names::NodeName;
use std::collections::BTreeMap;

/// How good a node is for a pod: of two the lesser one is better. Costs of two ranks say nothing about each other, for they are
/// of other kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// By which of its plans the pod is served.
    pub rank: Rank,
    /// What that costs.
    pub cost: Cost,
}

impl Fit {
    /// How good it is.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { rank: self.rank, cost: self.cost }
    }
}

/// What a pod may have of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection<N> {
    /// The least place; of equal ones that of the least node.
    pub best: Option<(N, Place)>,
    /// All nodes that serve the pod by the best one's plan, in the order in which they came.
    pub equal: Vec<N>,
    /// Those that serve it by a later plan only.
    pub outranked: Vec<N>,
    /// Those that do not serve it.
    pub refused: Vec<(N, Refusal)>,
}

/// Sorts nodes by what `place` says of each.
pub fn choose_place<N: Copy + Ord>(
    nodes: impl IntoIterator<Item = N>,
    mut place: impl FnMut(N) -> Result<Place, Refusal>,
) -> Selection<N> {
    let mut places: Vec<(N, Place)> = Vec::new();
    let mut refused = Vec::new();
    for node in nodes {
        match place(node) {
            Ok(place) => places.push((node, place)),
            Err(refusal) => refused.push((node, refusal)),
        }
    }
    let best = places.iter().copied().min_by_key(|(node, place)| (*place, *node));
    let of_rank = |is_best: bool| {
        let same = places
            .iter()
            .filter(|(_, place)| (best.map(|(_, best)| best.rank) == Some(place.rank)) == is_best);
        same.map(|(node, _)| *node).collect()
    };
    Selection { best, equal: of_rank(true), outranked: of_rank(false), refused }
}

/// What a pod may have of nodes of `fleet`, each looked at by [`fit`](super::fit()).
#[must_use]
pub fn choose_among<'n>(
    request: &RequestDocument,
    nodes: impl IntoIterator<Item = (&'n NodeName, &'n NodeInventory)>,
    fleet: &Fleet,
) -> Selection<&'n NodeName> {
    let nodes: BTreeMap<&NodeName, &NodeInventory> = nodes.into_iter().collect();
    let planned = by_plan(request);
    choose_place(nodes.keys().copied(), |name| {
        fit_first(nodes[name], request, &planned, fleet).map(|fit| fit.place())
    })
}

#[cfg(test)]
#[path = "choose_place_tests.rs"]
mod tests;
