//! Decides which nodes can serve a pod now, and which of them is best. It answers from memory: no API call, no wait.

use crate::assumed::KindChoice;
use crate::cluster_index::{ClusterIndex, Offer, over_quota};
use crate::objects::ask::Ask;
use k8s_openapi::api::core::v1::Toleration;
use kerf_core::kind::KindLabel;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Place, Rank, Refusal, choose_place};
use kerf_core::static_node::Devices;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The value of one step of a score.
///
/// kube-scheduler multiplies an extender's score by 10 and its weight, and adds its own plugins' scores: by default at
/// most 100 for each unit of their weights, 14 in all. So one step outweighs all of them.
const STEP: i64 = 1000;
/// The lead of the node on which the filter expects the pod, over others where it costs the same. It is more than what
/// the scheduler's plugins give for a little less CPU in use, and less than what they give for an affinity or an even
/// spread.
const FAVOURITE: i64 = 5;
/// How many nodes pass the filter. The scheduler scores each of them by all its plugins, which at hundreds of nodes
/// costs more than the rest of a scheduling cycle.
const SHORTLIST: usize = 8;

/// A pod in a scheduling cycle.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub uid: PodUid,
    pub key: PodKey,
    /// Its request, or why it cannot be served.
    pub ask: Result<Ask, Refusal>,
    /// What its containers ask of NVIDIA's device plugin.
    pub devices: Devices,
    pub tolerations: Vec<Toleration>,
    /// The node for which the scheduler has preempted others. The scheduler offers this node alone before it offers
    /// all.
    pub nominated: Option<NodeName>,
}

impl Candidate {
    /// The kind of slice that metrics count it by.
    #[must_use]
    pub fn kind(&self) -> KindLabel {
        self.ask.as_ref().map(|ask| ask.document.kind_label()).unwrap_or_default()
    }

    /// Whether the scheduler offers only the node for which it has preempted others.
    fn is_nominated_alone(&self, offered: &[&str]) -> bool {
        self.nominated.as_ref().is_some_and(|name| offered == [name.as_str()])
    }
}

/// The answer for every offered node.
#[derive(Debug, PartialEq, Eq)]
pub struct Filtered<'n> {
    /// Some nodes that serve the pod by the best kinds that any of them has for it: those where it costs least.
    pub fitting: Vec<&'n str>,
    /// The nodes that do not serve it, or only by later kinds.
    pub refused: Vec<(&'n str, Refusal)>,
    /// The pod, if no offered node serves it and one eviction may make room for it.
    pub unserved: Option<Unserved>,
}

/// A pod that needs room.
#[derive(Debug, PartialEq, Eq)]
pub struct Unserved {
    pub owner: OwnerInEpoch,
    pub ask: Ask,
}

/// Filters `offered` for a pod.
///
/// It changes three things in the index: it assumes the pod on the best node, it gives up a reservation that the pod
/// cannot use, and it records a pod that no node serves as unschedulable. It evicts nothing: the caller makes room for
/// [`Filtered::unserved`].
pub fn filter<'n>(
    index: &mut ClusterIndex,
    pod: &Candidate,
    offered: &[&'n str],
    now: Instant,
) -> Filtered<'n> {
    let mut scheduling = index.scheduling();
    scheduling.expire(now);
    scheduling.forget_assumed(&pod.uid);
    scheduling.unschedulable().looked_at(&pod.uid);
    // A reservation comes first, because a pod that has one is refused on every other node.
    if let Some(place) = reserved(index, pod, offered) {
        return only(offered, &place);
    }
    let ask = match &pod.ask {
        Ok(ask) => ask,
        Err(Refusal::NotAdmitted) if !pod.devices.is_empty() => return plain(index, pod, offered),
        Err(refusal) => return none(offered, *refusal),
    };
    if let Err(over) = index.scheduling().within_quota(ask) {
        let refusal = over_quota(&over);
        index.pod_events().held_back(&pod.uid, &pod.key, over, now);
        index.scheduling().unschedulable().refused(&pod.uid, &pod.key, ask, offered, true);
        return none(offered, refusal);
    }
    let mut scheduling = index.scheduling();
    let selection = choose_place(offered.iter().copied(), |name| scheduling.place(name, &pod.uid, ask));
    let refused = selection.refused.iter().copied();
    let outranked = selection.outranked.iter().map(|name| (*name, Refusal::Outranked));
    let refused: Vec<_> = refused.chain(outranked).collect();
    let unserved = if let Some((name, place)) = selection.best {
        let choice = choice(index, pod, ask, place, offered);
        expect(index, pod, ask, choice, name, now);
        None
    } else {
        let quota = refused.iter().any(|(_, refusal)| *refusal == Refusal::QuotaFull);
        index.scheduling().unschedulable().refused(&pod.uid, &pod.key, ask, offered, quota);
        // The scheduler may offer all nodes later in the same cycle, and one of them may have room, so nothing is
        // evicted yet.
        let waits = pod.is_nominated_alone(offered) || waits_for_preempted(index, pod, ask);
        let needs_room = index.room_maker().has_begun_for(&pod.uid, now) || !waits;
        needs_room.then(|| Unserved { owner: owner_in_epoch(index, pod), ask: ask.clone() })
    };
    Filtered { fitting: selection.shortlist(SHORTLIST), refused, unserved }
}

/// The kinds of a place, and those that were passed over for it.
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
    KindChoice { passed: index.scheduling().passed(ask, &plan, offer), plan }
}

/// Scores each of `offered`, which passed the filter: the cheaper the place, the higher the score. Equal places have
/// equal scores, except for the node on which the filter expects the pod. So the scheduler's own preferences decide
/// between equal nodes.
pub fn prioritize<'n>(
    index: &mut ClusterIndex,
    pod: &Candidate,
    offered: &[&'n str],
    now: Instant,
) -> Vec<(&'n str, i64)> {
    let favourite = index.place_of(&pod.uid).cloned();
    let mut scheduling = index.scheduling();
    let favourite = favourite.or_else(|| scheduling.assumed_on(&pod.uid).cloned());
    let favourite = favourite.as_ref().map(NodeName::as_str).filter(|name| offered.contains(name));
    let before = if favourite.is_none() { scheduling.forget_assumed(&pod.uid) } else { None };
    let mut places: Vec<(&str, Option<Place>)> = Vec::with_capacity(offered.len());
    for &name in offered {
        let place = if let Ok(ask) = &pod.ask {
            scheduling.place(name, &pod.uid, ask)
        } else {
            let cost = scheduling.plain_fit(name, &pod.uid, &pod.devices);
            cost.map(|cost| Place { rank: Rank::BEST, cost })
        };
        places.push((name, place.ok()));
    }
    let best = places.iter().filter_map(|(name, place)| Some(((*place)?, *name))).min();
    if let (None, Ok(ask), Some((place, name))) = (favourite, &pod.ask, best) {
        let plan = place.rank.plan(&ask.document).unwrap_or_default();
        let same = before.map(|assumed| assumed.choice).filter(|choice| choice.plan == plan);
        expect(index, pod, ask, same.unwrap_or_else(|| plan.into()), name, now);
    }
    scores(&places, favourite.or(best.map(|(_, name)| name)))
}

/// Turns places into scores. The favourite is among the best whatever its place would cost another pod, because the
/// place may already be the pod's own.
fn scores<'n>(places: &[(&'n str, Option<Place>)], favourite: Option<&str>) -> Vec<(&'n str, i64)> {
    let distinct: BTreeSet<Place> = places.iter().filter_map(|(_, place)| *place).collect();
    let steps: BTreeMap<Place, i64> = distinct.into_iter().rev().zip((1..).map(|step| step * STEP)).collect();
    let most = steps.values().max().copied().unwrap_or(STEP);
    let score = |name: &str, place: &Option<Place>| match place {
        _ if favourite == Some(name) => most + FAVOURITE,
        Some(place) => steps[place],
        None => 0,
    };
    places.iter().map(|(name, place)| (*name, score(name, place))).collect()
}

/// The node on which the pod has a reservation that it can use. One that it cannot use is released, so that a cordoned
/// node or a dead agent does not hold the pod for ever. If its Binding may still be made, the reservation stays until
/// that is known.
fn reserved(index: &mut ClusterIndex, pod: &Candidate, offered: &[&str]) -> Option<NodeName> {
    let place = index.place_of(&pod.uid)?.clone();
    let serves = index.preemption().serves_reserved(&place).is_ok();
    let usable = serves && offered.contains(&place.as_str());
    if !usable && index.reserving().give_up(&pod.uid) {
        return None;
    }
    if let (false, Ok(ask)) = (usable, &pod.ask) {
        index.bindings().hold_up(&pod.uid, ask, offered);
    }
    Some(place)
}

/// Whether pods were preempted for this pod, and it has a place once they have left. Then no other pod is evicted for
/// it.
fn waits_for_preempted(index: &ClusterIndex, pod: &Candidate, ask: &Ask) -> bool {
    let nobody = BTreeSet::new();
    pod.nominated
        .as_ref()
        .is_some_and(|node| index.preemption().serves_without(node.as_str(), &pod.uid, ask, &nobody).is_ok())
}

/// Filters for a pod that asks NVIDIA's device plugin and not kerf. If NVIDIA's names are hidden from the scheduler, no
/// other program counts these devices.
fn plain<'n>(index: &mut ClusterIndex, pod: &Candidate, offered: &[&'n str]) -> Filtered<'n> {
    let scheduling = index.scheduling();
    let mut filtered = Filtered { fitting: Vec::new(), refused: Vec::new(), unserved: None };
    for &name in offered {
        match scheduling.plain_fit(name, &pod.uid, &pod.devices) {
            Ok(_) => filtered.fitting.push(name),
            Err(refusal) => filtered.refused.push((name, refusal)),
        }
    }
    filtered
}

fn only<'n>(offered: &[&'n str], place: &NodeName) -> Filtered<'n> {
    let (fitting, others): (Vec<_>, Vec<_>) = offered.iter().partition(|name| **name == place.as_str());
    let refused = others.into_iter().map(|name| (name, Refusal::ReservedElsewhere)).collect();
    Filtered { fitting, refused, unserved: None }
}

fn none<'n>(offered: &[&'n str], refusal: Refusal) -> Filtered<'n> {
    let refused = offered.iter().map(|name| (*name, refusal)).collect();
    Filtered { fitting: Vec::new(), refused, unserved: None }
}

fn expect(
    index: &mut ClusterIndex,
    pod: &Candidate,
    ask: &Ask,
    choice: KindChoice,
    name: &str,
    now: Instant,
) {
    let owner = owner_in_epoch(index, pod);
    index.scheduling().assume(owner, ask.clone(), choice, &NodeName::new(name), now);
}

fn owner_in_epoch(index: &ClusterIndex, pod: &Candidate) -> OwnerInEpoch {
    OwnerInEpoch { uid: pod.uid.clone(), key: pod.key.clone(), epoch: index.leadership().epoch() }
}

#[cfg(test)]
#[path = "move_tests.rs"]
mod move_tests;
#[cfg(test)]
#[path = "filter_tests.rs"]
pub(crate) mod tests;
#[cfg(test)]
#[path = "turn_tests.rs"]
mod turn_tests;
