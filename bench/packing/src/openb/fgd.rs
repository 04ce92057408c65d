//! FGD (Weng, USENIX ATC'23), from its description: it takes the node on which the usual pods lose least. Scores are
//! integers and the first node wins among equals, as in its authors' simulator; without that it allocates 2 to 5 points
//! less. Memory counts only for whether a pod fits.

use std::collections::BTreeMap;

use super::replay::{Decider, Left, Place};
use super::trace::{Node, Pod};
use crate::report::as_f64;

/// The usual pods are the most frequent ones that together are this part of all pods.
const USUAL: f64 = 0.95;

/// FGD with the scores of every node for each kind of pod.
pub struct Fgd {
    usual: Vec<(Pod, f64)>,
    rows: BTreeMap<Pod, Scores>,
    /// The nodes that got a pod, in order.
    changed: Vec<usize>,
    nodes: usize,
}

/// Scores of all nodes, as of the first `seen` changes.
struct Scores {
    by_node: Vec<Option<Score>>,
    seen: usize,
}

#[derive(Clone)]
struct Score {
    value: i64,
    gpus: Vec<usize>,
}

impl Fgd {
    /// Prepares FGD for a workload of these pods.
    pub fn new(nodes: &[Node], pods: &[Pod]) -> Self {
        Self { usual: usual(pods), rows: BTreeMap::new(), changed: Vec::new(), nodes: nodes.len() }
    }

    fn score(usual: &[(Pod, f64)], left: &Left, pod: &Pod) -> Option<Score> {
        let room: Vec<usize> = (0..left.gpus.len()).filter(|gpu| left.gpus[*gpu] >= pod.milli).collect();
        if !left.may_take(pod) || room.len() < usize::from(pod.gpus) {
            return None;
        }
        let before = unusable(usual, left);
        let choices: Vec<Vec<usize>> = match pod.gpus {
            1 if pod.milli < 1000 => room.into_iter().map(|gpu| vec![gpu]).collect(),
            count => vec![room[..usize::from(count)].to_vec()],
        };
        let mut best: Option<Score> = None;
        for gpus in choices {
            let mut after = left.clone();
            after.take(pod, &gpus).ok()?;
            let growth = unusable(usual, &after) - before;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "from 0 to 100; the authors cut it off as well"
            )]
            let value = (100.0 / (1.0 + (growth / 1000.0).exp())) as i64;
            if best.as_ref().is_none_or(|best| value > best.value) {
                best = Some(Score { value, gpus });
            }
        }
        best
    }
}

impl Decider for Fgd {
    fn decide(&mut self, left: &[Left], pod: &Pod) -> Option<Place> {
        let Self { usual, rows, changed, nodes } = self;
        let row = rows.entry(pod.clone()).or_insert_with(|| Scores {
            by_node: (0..*nodes).map(|node| Self::score(usual, &left[node], pod)).collect(),
            seen: changed.len(),
        });
        for node in &changed[row.seen..] {
            row.by_node[*node] = Self::score(usual, &left[*node], pod);
        }
        row.seen = changed.len();
        let scores = row.by_node.iter().enumerate().filter_map(|(node, score)| Some((node, score.as_ref()?)));
        let (node, best) =
            scores.reduce(|best, other| if other.1.value > best.1.value { other } else { best })?;
        changed.push(node);
        Some(Place { node, gpus: best.gpus.clone() })
    }
}

/// The most frequent pods, by everything except their memory, with their parts.
fn usual(pods: &[Pod]) -> Vec<(Pod, f64)> {
    let mut counts: BTreeMap<Pod, usize> = BTreeMap::new();
    for pod in pods {
        *counts.entry(Pod { memory: 0, ..pod.clone() }).or_default() += 1;
    }
    let mut counts: Vec<(Pod, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut sum = 0;
    counts.retain(|(_, count)| {
        let wanted = as_f64(sum) < USUAL * as_f64(pods.len());
        sum += if wanted { *count } else { 0 };
        wanted
    });
    counts.into_iter().map(|(pod, count)| (pod, as_f64(count) / as_f64(sum))).collect()
}

/// The part of a node's GPUs that the usual pods cannot use, as a mean, in thousandths of a GPU.
fn unusable(usual: &[(Pod, f64)], left: &Left) -> f64 {
    let sum = |gpus: &mut dyn Iterator<Item = &u16>| gpus.map(|gpu| f64::from(*gpu)).sum::<f64>();
    let all = sum(&mut left.gpus.iter());
    let lost = |pod: &Pod| {
        let room = left.gpus.iter().filter(|gpu| **gpu >= pod.milli).count();
        let model = pod.models.is_empty() || pod.models.contains(&left.model);
        let fits = pod.gpus > 0 && model && left.cpu >= pod.cpu && room >= usize::from(pod.gpus);
        if fits { sum(&mut left.gpus.iter().filter(|gpu| **gpu < pod.milli)) } else { all }
    };
    usual.iter().map(|(pod, part)| part * lost(pod)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pod(cpu: u32, gpus: u8, milli: u16) -> Pod {
        Pod { cpu, memory: 1, gpus, milli, models: BTreeSet::new() }
    }

    #[test]
    fn what_the_usual_pods_cannot_use_is_as_published() {
        let usual = [(pod(2, 1, 500), 0.5), (pod(8, 1, 1000), 0.25), (pod(1, 0, 0), 0.25)];
        let left = Left { cpu: 4, memory: 9, gpus: vec![1000, 400], model: "T4".to_owned() };
        // Shares cannot use 400, whole GPUs find too little CPU, and pods without a GPU use none.
        assert!((unusable(&usual, &left) - (0.5 * 400.0 + 0.25 * 1400.0 + 0.25 * 1400.0)).abs() < 1e-9);
    }

    #[test]
    fn the_rarest_pods_are_not_usual() {
        let pods: Vec<Pod> = [vec![pod(1, 1, 500); 19], vec![pod(2, 1, 500)]].concat();
        assert_eq!(usual(&pods), [(Pod { memory: 0, ..pod(1, 1, 500) }, 1.0)]);
    }
}
