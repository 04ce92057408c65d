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
    /// All nodes that serve the pod by the best one's plan and what that costs, in the order in which they came.
    pub equal: Vec<(N, Cost)>,
    /// Those that serve it by a later plan only.
    pub outranked: Vec<N>,
    /// Those that do not serve it.
    pub refused: Vec<(N, Refusal)>,
}

impl<N: Copy + Ord> Selection<N> {
    /// At most this many nodes of the best one's plan: those where it costs least. Of more than enough that cost the same these are the
    /// best one and others at equal distances, for nodes come sorted by zone or by name, and the first ones would be all alike.
    #[must_use]
    pub fn shortlist(mut self, most: usize) -> Vec<N> {
        let Some((best, place)) = self.best else { return Vec::new() };
        let nodes = &mut self.equal;
        if nodes.len() > most {
            let cheapest: Vec<N> = nodes
                .iter()
                .filter(|(node, cost)| *cost == place.cost && *node != best)
                .map(|(node, _)| *node)
                .collect();
            let others = most.saturating_sub(1);
            if cheapest.len() >= others {
                let spread = (0..others).map(|nth| cheapest[nth * cheapest.len() / others]);
                return std::iter::once(best).chain(spread).collect();
            }
            nodes.select_nth_unstable_by_key(most, |(node, cost)| (*cost, *node));
            nodes.truncate(most);
        }
        nodes.iter().map(|(node, _)| *node).collect()
    }
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
    let rank = best.map(|(_, best)| best.rank);
    let (equal, outranked): (Vec<_>, Vec<_>) =
        places.into_iter().partition(|(_, place)| Some(place.rank) == rank);
    Selection {
        best,
        equal: equal.into_iter().map(|(node, place)| (node, place.cost)).collect(),
        outranked: outranked.into_iter().map(|(node, _)| node).collect(),
        refused,
    }
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
