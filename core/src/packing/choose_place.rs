//! Chooses among several nodes for a pod: the best kinds decide first, then the lowest cost.

use super::{Cost, Fit, Rank, Refusal};

/// How good a node is for a pod; less is better. Costs count only within one rank, because other ranks are other kinds
/// of slices with other units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The first of the request's plans that the node can serve.
    pub rank: Rank,
    /// The cost of the pod's slices by that plan.
    pub cost: Cost,
}

impl Fit {
    /// The rank and cost by which nodes are compared.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { rank: self.rank, cost: self.cost }
    }
}

/// The nodes for a pod, sorted by what they offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection<N> {
    /// The best place with its node. The lesser node wins among equal places, so that the scheduler and `kerf simulate`
    /// decide alike.
    pub best: Option<(N, Place)>,
    /// All nodes that serve the pod by the same plan as the best one, with their costs, in the order of the input.
    pub equal: Vec<(N, Cost)>,
    /// Nodes that serve the pod by a later plan only.
    pub outranked: Vec<N>,
    /// Nodes that do not serve the pod, with the reason.
    pub refused: Vec<(N, Refusal)>,
}

impl<N: Copy + Ord> Selection<N> {
    /// At most `most` nodes of the best plan, the cheapest ones. If too many cost the same, it returns the best node
    /// and others at equal distances in the input: nodes come sorted by zone or name, so that the first ones would all
    /// be alike.
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

/// Sorts nodes by the result of `place` for each.
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

#[cfg(test)]
#[path = "choose_place_tests.rs"]
mod tests;
