//! Decides on which nodes kube-scheduler may evict pods for another pod: only where that pod then finds what it asks of
//! kerf.
//!
//! The scheduler's dry run covers CPU, memory and its other filters, but kerf's names are hidden from it. Without this
//! check it would evict on a node whose slices are all held, the pod would be refused there, and its victims would have
//! been killed for nothing.
//!
//! Nodes are dropped, never victims, because the scheduler has only tested that the pod fits without exactly these.

use crate::cluster_index::ClusterIndex;
use crate::scheduling::filter::Candidate;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use thiserror::Error;

/// A node, and the pods that would be evicted there.
pub type Plan<'n> = (&'n str, BTreeSet<PodUid>);

#[derive(Debug, PartialEq, Eq)]
pub struct Preempted<'n> {
    /// The nodes on which the scheduler may evict the victims that it named.
    pub kept: Vec<&'n str>,
    /// The other nodes, each with the reason.
    pub spared: Vec<(&'n str, Spared)>,
}

/// Why no pod is evicted on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum Spared {
    /// The pod would be refused there all the same.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// An evictable pod has already been evicted for it.
    #[error("another pod is being evicted for it")]
    MakingRoom,
    /// Pods were preempted for it on another node.
    #[error("it finds room on its nominated node, once the pods there have left")]
    Nominated,
    /// Its Binding has been made, or may have been.
    #[error("it is being bound")]
    BeingBound,
}

impl Preempted<'_> {
    /// Whether no pod is evicted anywhere, and the end of another pod would change that.
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
    index.scheduling().expire(now);
    let mut answer = Preempted { kept: Vec::new(), spared: Vec::new() };
    let on_all = spared_everywhere(index, pod, plans, now);
    // The pod's own assumed place must not count against it. It stays if room is already being made for the pod.
    if on_all.is_none() {
        index.scheduling().forget_assumed(&pod.uid);
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

/// Writes an Event if the pod would be refused on every node where others could be evicted for it.
pub fn record_answer(index: &mut ClusterIndex, pod: &Candidate, answer: &Preempted<'_>, now: Instant) {
    let is_refused = |(_, why): &(&str, Spared)| matches!(why, Spared::Refused(_));
    if answer.kept.is_empty() && answer.spared.iter().any(is_refused) {
        index.pod_events().spared(&pod.uid, &pod.key, note(&answer.spared), now);
    }
}

/// Why no pod is evicted for this pod on any node. `None` if each node decides for itself.
fn spared_everywhere(
    index: &mut ClusterIndex,
    pod: &Candidate,
    plans: &[Plan<'_>],
    now: Instant,
) -> Option<Spared> {
    if index.bindings().is_pending(&pod.uid) {
        return Some(Spared::BeingBound);
    }
    if index.room_maker().has_begun_for(&pod.uid, now) {
        return Some(Spared::MakingRoom);
    }
    // The victims on the nominated node have left, but the agent has not yet reported their slices as free.
    let elsewhere = |node: &&NodeName| plans.iter().all(|(name, _)| *name != node.as_str());
    let nominated = pod.nominated.as_ref().filter(elsewhere)?;
    let refused_it = index.scheduling().unschedulable().was_offered(&pod.uid, nominated);
    (refused_it && helps(index, pod, nominated.as_str(), &BTreeSet::new()).is_ok())
        .then_some(Spared::Nominated)
}

/// Whether the pod has a place on a node once the victims have left it.
fn helps(
    index: &ClusterIndex,
    pod: &Candidate,
    node: &str,
    victims: &BTreeSet<PodUid>,
) -> Result<(), Refusal> {
    match (index.place_of(&pod.uid), &pod.ask) {
        (Some(place), _) if place.as_str() != node => Err(Refusal::ReservedElsewhere),
        (Some(place), _) => index.preemption().serves_reserved(place),
        (None, Ok(ask)) => index.preemption().serves_without(node, &pod.uid, ask, victims),
        (None, Err(Refusal::NotAdmitted)) if !pod.devices.is_empty() => {
            index.preemption().serves_plain_without(node, &pod.uid, &pod.devices, victims)
        }
        (None, Err(refusal)) => Err(*refusal),
    }
}

/// The number of nodes for each reason.
#[must_use]
pub fn reasons(spared: &[(&str, Spared)]) -> BTreeMap<Spared, usize> {
    let mut reasons = BTreeMap::new();
    for (_, why) in spared {
        *reasons.entry(*why).or_default() += 1;
    }
    reasons
}

/// The message of the Event if no pod is evicted.
fn note(spared: &[(&str, Spared)]) -> String {
    let reasons = reasons(spared);
    let reasons: Vec<String> = reasons.iter().map(|(why, nodes)| format!("{nodes} {why}")).collect();
    format!(
        "no pod is preempted for it: kerf would still refuse it on each node where that would help: {}",
        reasons.join(", ")
    )
}

#[cfg(test)]
#[path = "preempt_tests.rs"]
mod tests;
