//! Which nodes can serve a pod now, and which of them is best. Answered from memory: no API call, no wait.

use crate::ask::Ask;
use crate::cluster_index::{ClusterIndex, Offer};
use crate::tentative::KindChoice;
use k8s_openapi::api::core::v1::Toleration;
use kerf_core::kind::KindLabel;
use kerf_core::ledger::Promisee;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Place, Rank, Refusal, Selection, choose_place};
use kerf_core::static_node::Devices;
use std::collections::BTreeSet;
use std::time::Instant;

/// What one step of a score is worth.
///
/// kube-scheduler multiplies an extender's score by 10 and its weight, and adds its own plugins' scores: by default at
/// most 100 for each unit of their weights, 14 in all. So one step decides over all of them.
const STEP: i64 = 1000;

/// A pod in a scheduling cycle.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace and name.
    pub key: PodKey,
    /// What it asks for.
    pub ask: Result<Ask, Refusal>,
    /// What its containers ask of NVIDIA's device plugin.
    pub devices: Devices,
    /// The taints that it tolerates.
    pub tolerations: Vec<Toleration>,
    /// The node for which the scheduler has preempted others, which it offers alone before it offers all.
    pub nominated: Option<NodeName>,
}

impl Candidate {
    /// By what it is counted.
    #[must_use]
    pub fn kind(&self) -> KindLabel {
        self.ask.as_ref().map(|ask| ask.document.kind_label()).unwrap_or_default()
    }

    /// Whether the scheduler offers only the node for which it has preempted others.
    fn is_nominated_alone(&self, offered: &[&str]) -> bool {
        self.nominated.as_ref().is_some_and(|name| offered == [name.as_str()])
    }
}

/// Every offered node's answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Filtered<'n> {
    /// Nodes that serve the pod by the best kinds that any of them has for it, in the order in which they were offered.
    pub fitting: Vec<&'n str>,
    /// The others.
    pub refused: Vec<(&'n str, Refusal)>,
}

/// Filters `offered` for a pod, and expects it on the best of them.
pub fn filter<'n>(
    index: &mut ClusterIndex,
    pod: &Candidate,
    offered: &[&'n str],
    now: Instant,
) -> Filtered<'n> {
    index.expire(now);
    index.drop_tentative(&pod.uid);
    index.waits_no_longer(&pod.uid);
    if let Some(place) = promised(index, pod, offered) {
        return only(offered, &place);
    }
    let ask = match &pod.ask {
        Ok(ask) => ask,
        Err(Refusal::NotAdmitted) if !pod.devices.is_empty() => return plain(index, pod, offered),
        Err(refusal) => return none(offered, *refusal),
    };
    if let Err(over) = index.within_quota(ask) {
        let refusal = index.held_back(&pod.uid, &pod.key, over, now);
        index.refused(&pod.uid, &pod.key, ask, offered, true);
        return none(offered, refusal);
    }
    let nodes = offered.iter().copied();
    let selection = choose_place(nodes, |name| index.place(name, &pod.uid, ask));
    let Selection { best, equal, outranked, mut refused } = selection;
    if let Some((name, place)) = best {
        let choice = choice(index, pod, ask, place, offered);
        expect(index, pod, ask, choice, name, now);
    } else {
        let quota = refused.iter().any(|(_, refusal)| *refusal == Refusal::QuotaFull);
        index.refused(&pod.uid, &pod.key, ask, offered, quota);
        // All nodes may follow in the same cycle, and one of them have room.
        let waits = pod.is_nominated_alone(offered) || waits_for_preempted(index, pod, ask);
        if index.is_moved_for(&pod.uid, now) || !waits {
            index.make_room(&promisee(index, pod), ask, offered, now);
        }
    }
    refused.extend(outranked.into_iter().map(|name| (name, Refusal::Outranked)));
    Filtered { fitting: equal, refused }
}

/// The kinds of a place, and those that are passed over for it.
fn choice(
    index: &mut ClusterIndex,
    pod: &Candidate,
    ask: &Ask,
    place: Place,
    offered: &[&str],
) -> KindChoice {
    let plan = place.rank.plan(&ask.document).unwrap_or_default();
    if place.rank == Rank::BEST {
        return plan.into();
    }
    let is_complete = !pod.is_nominated_alone(offered);
    let offer = Offer { nodes: offered, is_complete, tolerated: &pod.tolerations };
    KindChoice { passed: index.passed(ask, &plan, offer), plan }
}

/// The score of each of `offered`, which passed the filter: the best place first, equal ones by name. No two are equal,
/// so that the scheduler chooses the node on which the filter expects the pod.
pub fn prioritize<'n>(
    index: &mut ClusterIndex,
    pod: &Candidate,
    offered: &[&'n str],
    now: Instant,
) -> Vec<(&'n str, i64)> {
    let favourite = index.place_of(&pod.uid).or(index.expected_on(&pod.uid)).cloned();
    let favourite = favourite.as_ref().map(NodeName::as_str).filter(|name| offered.contains(name));
    let before = if favourite.is_none() { index.drop_tentative(&pod.uid) } else { None };
    let mut ranked: Vec<(bool, Option<Place>, &str)> = Vec::with_capacity(offered.len());
    for &name in offered {
        let place = if let Ok(ask) = &pod.ask {
            index.place(name, &pod.uid, ask)
        } else {
            let cost = index.plain_fit(name, &pod.uid, &pod.devices);
            cost.map(|cost| Place { rank: Rank::BEST, cost })
        };
        ranked.push((favourite != Some(name), place.ok(), name));
    }
    // `None` is greater than any place here: those that cannot serve the pod any more come last.
    ranked.sort_by_key(|(other, place, name)| (*other, place.is_none(), *place, *name));
    if let (None, Ok(ask), Some((_, Some(place), name))) = (favourite, &pod.ask, ranked.first()) {
        let plan = place.rank.plan(&ask.document).unwrap_or_default();
        let same = before.map(|tentative| tentative.choice).filter(|choice| choice.plan == plan);
        expect(index, pod, ask, same.unwrap_or_else(|| plan.into()), name, now);
    }
    let scored = ranked.iter().rev().zip(1_i64..).map(|((other, place, name), rank)| {
        let serves = place.is_some() || !other;
        (*name, if serves { rank.saturating_mul(STEP) } else { 0 })
    });
    scored.collect()
}

/// The node on which the pod has a promise that it can use. One that it cannot use is given up, so that a cordoned node
/// or a dead agent does not hold the pod for ever; unless its Binding may yet be made, until that is known.
fn promised(index: &mut ClusterIndex, pod: &Candidate, offered: &[&str]) -> Option<NodeName> {
    let place = index.place_of(&pod.uid)?.clone();
    let serving = match index.node(&place) {
        Some(node) => node.serving().is_ok(),
        None => index.is_open(&place),
    };
    let usable = serving && offered.contains(&place.as_str());
    if !usable && index.give_up(&pod.uid) {
        return None;
    }
    if let (false, Ok(ask)) = (usable, &pod.ask) {
        index.held_up(&pod.uid, ask, offered);
    }
    Some(place)
}

/// Whether pods were preempted for the pod, and it finds its place once they have left: then nobody else is evicted for it.
fn waits_for_preempted(index: &ClusterIndex, pod: &Candidate, ask: &Ask) -> bool {
    let nobody = BTreeSet::new();
    pod.nominated
        .as_ref()
        .is_some_and(|node| index.serves_without(node.as_str(), &pod.uid, ask, &nobody).is_ok())
}

/// Filters for a pod that asks NVIDIA's device plugin and not kerf: where our names are hidden from the scheduler, nobody else
/// counts them.
fn plain<'n>(index: &ClusterIndex, pod: &Candidate, offered: &[&'n str]) -> Filtered<'n> {
    let mut filtered = Filtered { fitting: Vec::new(), refused: Vec::new() };
    for &name in offered {
        match index.plain_fit(name, &pod.uid, &pod.devices) {
            Ok(_) => filtered.fitting.push(name),
            Err(refusal) => filtered.refused.push((name, refusal)),
        }
    }
    filtered
}

fn only<'n>(offered: &[&'n str], place: &NodeName) -> Filtered<'n> {
    let (fitting, others): (Vec<_>, Vec<_>) = offered.iter().partition(|name| **name == place.as_str());
    let refused = others.into_iter().map(|name| (name, Refusal::ReservedElsewhere)).collect();
    Filtered { fitting, refused }
}

fn none<'n>(offered: &[&'n str], refusal: Refusal) -> Filtered<'n> {
    Filtered { fitting: Vec::new(), refused: offered.iter().map(|name| (*name, refusal)).collect() }
}

fn expect(
    index: &mut ClusterIndex,
    pod: &Candidate,
    ask: &Ask,
    choice: KindChoice,
    name: &str,
    now: Instant,
) {
    index.expect(promisee(index, pod), ask.clone(), choice, &NodeName::new(name), now);
}

fn promisee(index: &ClusterIndex, pod: &Candidate) -> Promisee {
    Promisee { uid: pod.uid.clone(), key: pod.key.clone(), epoch: index.epoch() }
}

#[cfg(test)]
#[path = "move_tests.rs"]
mod move_tests;
#[cfg(test)]
#[path = "filter_tests.rs"]
pub(crate) mod tests;
