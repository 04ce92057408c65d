//! How close a node's GPUs are to each other, and which of them several slices of one pod had best be on.
//!
//! A pair's score is that of NVIDIA's device plugin (`calculateGPUPairScore` in `gpuallocator/besteffort_policy.go` of
//! <https://github.com/NVIDIA/go-gpuallocator>): 100 for each NVLink, and by what the two have in common on the PCI bus 50, 40, 30,
//! 20 or 10. NVSwitch, which that code leaves out, counts as NVLinks.
//!
//! The rule differs. NVIDIA's divides all free GPUs into sets of the wanted size, and takes the best set of the division whose sum is
//! highest. Here the best set of all is taken; of equal ones that which cuts the least off the GPUs that stay free, so that a
//! pod for one GPU breaks up no island while another GPU is free; of equal ones the first.

use crate::contract::{GpuStatus, PcieAncestor};
use crate::names::GpuUuid;
use std::cmp::Reverse;
use std::sync::Arc;

const NVLINK: u32 = 100;

/// Up to so many sets are compared each with each: all of 8 GPUs or 12, and 4 of 16. Beyond, a set grows from each of the
/// GPUs by the closest one.
const MOST_SETS: usize = 2_000;

/// Scores of all pairs of a node's GPUs; the default where all pairs are alike, or nothing is known of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closeness(Option<Arc<Scores>>);

#[derive(Debug, PartialEq, Eq)]
struct Scores {
    gpus: Vec<GpuUuid>,
    /// Row by row.
    pairs: Vec<u32>,
}

impl Closeness {
    /// The closeness of a node's GPUs, which are numbered as they are listed here.
    #[must_use]
    pub fn of(gpus: &[GpuStatus]) -> Self {
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
    pub fn tells_apart(&self) -> bool {
        self.0.is_some()
    }

    /// The number of a GPU; `None` also where all pairs are alike.
    #[must_use]
    pub fn number(&self, gpu: &GpuUuid) -> Option<usize> {
        self.0.as_ref()?.gpus.iter().position(|known| known == gpu)
    }

    /// `count` of the `candidates` that go best with each other and with the `taken` GPUs, in the order of the candidates; all of
    /// them where they are no more. Of equal sets it is the first, by the order of the candidates.
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
        if sets(candidates.len(), count) <= MOST_SETS {
            each_set(candidates, count, &mut Vec::new(), &mut see);
        } else {
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

    fn to(&self, gpu: usize, others: &[usize]) -> u32 {
        others.iter().map(|other| self.pair(gpu, *other)).sum()
    }
}

/// GPUs to choose from, beside those that are taken in any case.
struct Choice<'a> {
    scores: &'a Scores,
    taken: &'a [usize],
    candidates: &'a [usize],
}

impl Choice<'_> {
    /// What a set is worth: the score of its pairs, and what it leaves of the others' links.
    fn value(&self, set: &[usize]) -> (u32, Reverse<u32>) {
        let within: u32 = set.iter().map(|gpu| self.scores.to(*gpu, set)).sum::<u32>() / 2;
        let all: u32 = set.iter().map(|gpu| self.scores.to(*gpu, self.candidates)).sum();
        let taken: u32 = set.iter().map(|gpu| self.scores.to(*gpu, self.taken)).sum();
        (within + taken, Reverse(all - 2 * within))
    }

    /// A set that begins with `seed`, each next GPU being that with the best value; in the order of the candidates.
    fn grown(&self, seed: usize, count: usize) -> Vec<usize> {
        let mut set = vec![seed];
        while set.len() < count {
            let with = |gpu: usize| [set.as_slice(), &[gpu]].concat();
            let others = self.candidates.iter().copied().filter(|gpu| !set.contains(gpu));
            // The first of equal ones, which `max_by_key` would not give.
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
    let listed = |of: &GpuStatus, to: u32| of.peers.iter().find(|peer| peer.index == to).copied();
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

/// How many sets of `count` there are of so many.
fn sets(of: usize, count: usize) -> usize {
    (0..count.min(of - count)).fold(1, |sets: usize, n| sets.saturating_mul(of - n) / (n + 1))
}

/// Shows all sets of `count`, in the order of their first members.
fn each_set(of: &[usize], count: usize, chosen: &mut Vec<usize>, see: &mut impl FnMut(&[usize])) {
    if chosen.len() == count {
        return see(chosen);
    }
    for (n, gpu) in of.iter().enumerate() {
        chosen.push(*gpu);
        each_set(&of[n + 1..], count, chosen, see);
        chosen.pop();
    }
}

#[cfg(test)]
#[path = "closeness_tests.rs"]
mod tests;
