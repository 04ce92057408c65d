//! On which nodes kube-scheduler may evict pods for a pod: where that pod then finds what it asks of kerf.
//!
//! The scheduler's dry run knows CPU, memory and its other filters; kerf's names are hidden from it. So it would evict
//! on a node whose slices are all held, the pod would be refused there, and others would have been killed for nothing.
//! Nodes are dropped, never victims: the scheduler has tried out that the pod fits without exactly these.

use crate::cluster_index::ClusterIndex;
use crate::filter::Candidate;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use thiserror::Error;

/// A node, and who would be evicted there.
pub type Plan<'n> = (&'n str, BTreeSet<PodUid>);

/// The answer for every node.
#[derive(Debug, PartialEq, Eq)]
pub struct Preempted<'n> {
    /// The nodes on which the scheduler may evict those whom it named.
    pub kept: Vec<&'n str>,
    /// The others.
    pub spared: Vec<(&'n str, Spared)>,
}

/// Why nobody is evicted on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum Spared {
    /// The pod would be refused there all the same.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// A movable pod has been evicted for it.
    #[error("a movable pod makes room for it")]
    Moving,
    /// Pods were preempted for it on another node.
    #[error("it finds room on the node that it is nominated to, once those have left who hold it")]
    Nominated,
    /// It has been bound, as far as is known.
    #[error("it is being bound")]
    BeingBound,
}

impl Preempted<'_> {
    /// Whether nobody is evicted anywhere, and the end of another pod would change that.
    #[must_use]
    pub fn may_change(&self) -> bool {
        let waits = |why: Spared| matches!(why, Spared::Refused(Refusal::NoRoom | Refusal::QuotaFull));
        self.kept.is_empty() && self.spared.iter().any(|(_, why)| waits(*why))
    }
}

/// Decides for each of the scheduler's plans.
pub fn preempt<'n>(
    index: &mut ClusterIndex,
    pod: &Candidate,
    plans: &[Plan<'n>],
    now: Instant,
) -> Preempted<'n> {
    index.expire(now);
    let mut answer = Preempted { kept: Vec::new(), spared: Vec::new() };
    let on_all = spared_everywhere(index, pod, plans, now);
    if on_all.is_none() {
        index.drop_tentative(&pod.uid);
    }
    for (node, victims) in plans {
        let helps = on_all.map_or_else(|| helps(index, pod, node, victims).map_err(Spared::Refused), Err);
        match helps {
            Ok(()) => answer.kept.push(node),
            Err(why) => answer.spared.push((node, why)),
        }
    }
    answer
}

/// Tells the pod if it would be refused wherever others could be evicted for it.
pub fn tell(index: &mut ClusterIndex, pod: &Candidate, answer: &Preempted<'_>, now: Instant) {
    let is_refused = |(_, why): &(&str, Spared)| matches!(why, Spared::Refused(_));
    if answer.kept.is_empty() && answer.spared.iter().any(is_refused) {
        index.spared(&pod.uid, &pod.key, note(&answer.spared), now);
    }
}

/// Why nobody is evicted for the pod at all.
fn spared_everywhere(
    index: &ClusterIndex,
    pod: &Candidate,
    plans: &[Plan<'_>],
    now: Instant,
) -> Option<Spared> {
    if index.is_posting(&pod.uid) {
        return Some(Spared::BeingBound);
    }
    if index.is_moved_for(&pod.uid, now) {
        return Some(Spared::Moving);
    }
    // Where those have left whom the scheduler evicted, and their slices are not free by the agent's word yet.
    let elsewhere = |node: &&NodeName| plans.iter().all(|(name, _)| *name != node.as_str());
    let nominated = pod.nominated.as_ref().filter(elsewhere)?;
    let refused_it = index.was_refused_by(&pod.uid, nominated);
    (refused_it && helps(index, pod, nominated.as_str(), &BTreeSet::new()).is_ok())
        .then_some(Spared::Nominated)
}

/// Whether the pod finds its place on a node once the victims have left it.
fn helps(
    index: &ClusterIndex,
    pod: &Candidate,
    node: &str,
    victims: &BTreeSet<PodUid>,
) -> Result<(), Refusal> {
    match (index.place_of(&pod.uid), &pod.ask) {
        (Some(place), _) if place.as_str() != node => Err(Refusal::ReservedElsewhere),
        (Some(place), _) => index.keeps_promises(place),
        (None, Ok(ask)) => index.serves_without(node, &pod.uid, ask, victims),
        (None, Err(Refusal::NotAdmitted)) if !pod.devices.is_empty() => {
            index.serves_plain_without(node, &pod.uid, &pod.devices, victims)
        }
        (None, Err(refusal)) => Err(*refusal),
    }
}

/// How many nodes there are of each reason.
#[must_use]
pub fn reasons(spared: &[(&str, Spared)]) -> BTreeMap<Spared, usize> {
    let mut reasons = BTreeMap::new();
    for (_, why) in spared {
        *reasons.entry(*why).or_default() += 1;
    }
    reasons
}

/// What the pod is told if nobody is evicted for it.
fn note(spared: &[(&str, Spared)]) -> String {
    let reasons = reasons(spared);
    let reasons: Vec<String> = reasons.iter().map(|(why, nodes)| format!("{nodes} {why}")).collect();
    format!(
        "no pod is preempted for it: where that would make room for the rest of what it asks it is refused all the same: {}",
        reasons.join(", ")
    )
}

#[cfg(test)]
#[path = "preempt_tests.rs"]
mod tests;
