//! The closeness of a node's GPUs to each other, and the GPUs on which several slices of one pod are best placed.
//!
//! A pair's score is that of NVIDIA's device plugin (`calculateGPUPairScore` in `gpuallocator/besteffort_policy.go` of
//! <https://github.com/NVIDIA/go-gpuallocator>): 100 for each NVLink, and 50, 40, 30, 20 or 10 by what the two have in
//! common on the PCI bus. NVSwitch, which that code leaves out, counts as NVLinks.
//!
//! The rule differs. NVIDIA's plugin divides all free GPUs into sets of the requested size, and takes the best set of
//! the division with the highest sum. kerf takes the best of all sets. Among equals it takes the set that cuts the
//! fewest links to the GPUs that stay free, so that a pod for one GPU breaks up no island while another GPU is free.
//! Among those it takes the first.

use crate::contract::{GpuStatus, PcieAncestor};
use crate::names::GpuUuid;
use std::cmp::Reverse;
use std::sync::Arc;

const NVLINK: u32 = 100;

/// Up to this many sets are all compared: any set of 8 or 12 GPUs, and 4 of 16. Beyond it, a set grows from each GPU by
/// the closest one, and the first candidates are compared with these.
const SETS_LIMIT: usize = 2_000;

/// The scores of all pairs of a node's GPUs. The default means that all pairs are alike, or that nothing is known of
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closeness(Option<Arc<Scores>>);

#[derive(Debug, PartialEq, Eq)]
struct Scores {
    gpus: Vec<GpuUuid>,
    /// All pairs, row by row.
    pairs: Vec<u32>,
}

impl Closeness {
    /// The closeness of a node's GPUs. They are numbered in the order of this list.
    #[must_use]
    pub fn from_gpus(gpus: &[GpuStatus]) -> Self {
        let mut others = (0..gpus.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
        let alike =
            |(one, other): (usize, usize)| score(&gpus[one], &gpus[other]) == score(&gpus[0], &gpus[1]);
        if others.all(alike) {
            return Self::default();
        }
        let pairs = gpus.iter().flat_map(|one| gpus.iter().map(move |other| score(one, other))).collect();
        Self(Some(Arc::new(Scores { gpus: gpus.iter().map(|gpu| gpu.uuid.clone()).collect(), pairs })))
    }

    /// Whether some pairs are closer than others.
    #[must_use]
    pub fn distinguishes_pairs(&self) -> bool {
        self.0.is_some()
    }

    /// The number of a GPU; `None` also if all pairs are alike.
    #[must_use]
    pub fn number(&self, gpu: &GpuUuid) -> Option<usize> {
        self.0.as_ref()?.gpus.iter().position(|known| known == gpu)
    }

    /// Chooses `count` of the `candidates` that are closest to each other and to the `taken` GPUs, in the order of the
    /// candidates. It returns all candidates if there are not more. Among equal sets the first wins, by the order of
    /// the candidates.
    #[must_use]
    pub fn closest(&self, taken: &[usize], candidates: &[usize], count: usize) -> Vec<usize> {
        let Some(scores) = self.0.as_ref().filter(|_| count < candidates.len()) else {
            return candidates.iter().copied().take(count).collect();
        };
        let choice = Choice { scores, taken, candidates };
        let mut best = None;
        let mut see = |set: &[usize]| {
            let value = choice.value(set);
            if best.as_ref().is_none_or(|(other, _)| value > *other) {
                best = Some((value, set.to_vec()));
            }
        };
        if sets(candidates.len(), count) <= SETS_LIMIT {
            each_set(candidates, count, &mut Vec::new(), &mut see);
        } else {
            // The first candidates are compared too, because a set that grows by the closest GPU may end up worse than
            // them.
            see(&candidates[..count]);
            for seed in candidates {
                see(&choice.grown(*seed, count));
            }
        }
        best.map(|(_, set)| set).unwrap_or_default()
    }
}

impl Scores {
    fn pair(&self, one: usize, other: usize) -> u32 {
        self.pairs.get(one * self.gpus.len() + other).copied().unwrap_or(0)
    }

    fn sum_to(&self, gpu: usize, others: &[usize]) -> u32 {
        others.iter().map(|other| self.pair(gpu, *other)).sum()
    }
}

/// The GPUs to choose from, beside those that are taken in any case.
struct Choice<'a> {
    scores: &'a Scores,
    taken: &'a [usize],
    candidates: &'a [usize],
}

impl Choice<'_> {
    /// The value of a set: the score of its pairs, and then the score of the links that it cuts.
    fn value(&self, set: &[usize]) -> (u32, Reverse<u32>) {
        let within: u32 = set.iter().map(|gpu| self.scores.sum_to(*gpu, set)).sum::<u32>() / 2;
        let all: u32 = set.iter().map(|gpu| self.scores.sum_to(*gpu, self.candidates)).sum();
        let taken: u32 = set.iter().map(|gpu| self.scores.sum_to(*gpu, self.taken)).sum();
        (within + taken, Reverse(all - 2 * within))
    }

    /// A set that starts with `seed` and grows by the GPU with the best value, in the order of the candidates.
    fn grown(&self, seed: usize, count: usize) -> Vec<usize> {
        let mut set = vec![seed];
        while set.len() < count {
            let with = |gpu: usize| [set.as_slice(), &[gpu]].concat();
            let others = self.candidates.iter().copied().filter(|gpu| !set.contains(gpu));
            // `max_by_key` would return the last of equal ones, and the first must win.
            let Some(next) = others.min_by_key(|gpu| Reverse(self.value(&with(*gpu)))) else { break };
            set.push(next);
        }
        self.candidates.iter().copied().filter(|gpu| set.contains(gpu)).collect()
    }
}

fn score(one: &GpuStatus, other: &GpuStatus) -> u32 {
    if one.uuid == other.uuid {
        return 0;
    }
    // Both are asked, because only the GPU with the lower index lists the pair.
    let listed = |gpu: &GpuStatus, to: u32| gpu.peers.iter().find(|peer| peer.index == to).copied();
    let peer = listed(one, other.index).or_else(|| listed(other, one.index)).unwrap_or_default();
    NVLINK * peer.nvlinks
        + match peer.pcie {
            Some(PcieAncestor::SingleSwitch) => 50,
            Some(PcieAncestor::MultipleSwitches) => 40,
            Some(PcieAncestor::HostBridge) => 30,
            None if one.numa_node == other.numa_node => 20,
            None => 10,
        }
}

/// The number of sets of `count` among `all` GPUs.
fn sets(all: usize, count: usize) -> usize {
    (0..count.min(all - count)).fold(1, |sets: usize, n| sets.saturating_mul(all - n) / (n + 1))
}

/// Passes all sets of `count` to `see`, in the order of their first members.
fn each_set(gpus: &[usize], count: usize, chosen: &mut Vec<usize>, see: &mut impl FnMut(&[usize])) {
    if chosen.len() == count {
        return see(chosen);
    }
    for (n, gpu) in gpus.iter().enumerate() {
        chosen.push(*gpu);
        each_set(&gpus[n + 1..], count, chosen, see);
        chosen.pop();
    }
}

#[cfg(test)]
#[path = "closeness_tests.rs"]
mod tests;
