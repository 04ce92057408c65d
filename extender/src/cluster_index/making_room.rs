//! Evictions that make room: a pod whose owner allows it restarts elsewhere, so that a bigger one finds room.
//!
//! A MIG instance cannot move with what runs on it. So the pod is evicted, its controller recreates it, and the new pod
//! takes the place that was free. Until then the bigger pod is assumed on the evicted pod's place, so that no other pod
//! gets it.
//!
//! At most one pod is evicted for another. That happens only if the other fits nowhere, and will not fit once the pods
//! are gone that are leaving anyway.

use super::effects::{Effects, Eviction};
use super::eviction_search::EvictionSearch;
use super::evictions::{Begun, Evictions, MakingRoom};
use super::scheduling::Scheduling;
use crate::assumed::{AssumedPod, Leaving};
use crate::objects::ask::Ask;
use kerf_core::contract::ContainerRequest;
use kerf_core::kind::Kind;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::{KindPlan, plans};
use std::time::{Duration, Instant};

/// How long a pod may take to end and its slice to be recut. It is also the pause after a refused eviction. Twice
/// Kubernetes' usual grace period.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The nodes and pods, for evictions that make room.
#[derive(Debug)]
pub struct RoomMaker<'i> {
    pub(super) scheduling: Scheduling<'i>,
    pub(super) evictions: &'i mut Evictions,
    pub(super) effects: &'i mut Effects,
}

impl RoomMaker<'_> {
    /// Turns evictions off for good.
    pub fn forbid(&mut self) {
        self.evictions.forbid();
    }

    /// Makes room for a pod that all `offered` nodes refused, if one eviction suffices.
    pub fn make_room(&mut self, pod: &OwnerInEpoch, ask: &Ask, offered: &[&str], now: Instant) {
        let until = match self.evictions.get(&pod.uid).cloned() {
            Some(MakingRoom::Begun(begun)) => return self.go_on(pod, ask, begun, now),
            Some(MakingRoom::Awaiting(until)) => until,
            None => now + TIMEOUT,
        };
        self.evictions.forget(&pod.uid);
        if ask.document.never_evicts || self.evictions.are_forbidden() {
            return;
        }
        let Some((request, plan)) = single_instance(ask) else { return };
        let Some((evicted, node)) = self.search().find(&request, &ask.document, offered) else { return };
        // A pod that does not leave in time delays an eviction, but does not prevent it.
        let left =
            if until > now { self.scheduling.preemption().place_being_left(ask, offered) } else { None };
        if let Some((node, plan, leaving)) = left {
            self.evictions.set(&pod.uid, MakingRoom::Awaiting(until));
            return self.assume_after(pod, ask, plan, &node, leaving, until);
        }
        self.evict(pod, ask, plan, (evicted, node), now);
    }

    fn evict(
        &mut self,
        pod: &OwnerInEpoch,
        ask: &Ask,
        plan: KindPlan,
        (evicted, node): (PodUid, NodeName),
        now: Instant,
    ) {
        let Some(key) = self.scheduling.pods.get(&evicted).map(|p| p.key.clone()) else { return };
        let Some(known) = self.scheduling.nodes.managed.get(&node) else { return };
        let slices = known.reserved(&evicted).map(|slice| slice.id.clone()).collect();
        let leaving = Leaving { pods: vec![evicted.clone()], slices };
        let until = now + TIMEOUT;
        self.assume_after(pod, ask, plan.clone(), &node, leaving.clone(), until);
        let begun =
            Begun { evicted: evicted.clone(), plan, leaving, node: node.clone(), until, refused: false };
        self.evictions.set(&pod.uid, MakingRoom::Begun(begun));
        self.effects.evictions.push(Eviction {
            uid: evicted,
            pod: key,
            node,
            makes_room_for: pod.uid.clone(),
            makes_room_for_pod: pod.key.clone(),
        });
    }

    /// Continues an eviction that was begun. Once the evicted pod has left, no other pod is evicted for this one, even
    /// if nodes still refuse it. Its place is kept for a while, because the agent has not yet reported it as free.
    fn go_on(&mut self, pod: &OwnerInEpoch, ask: &Ask, mut begun: Begun, now: Instant) {
        let evicted = self.scheduling.pods.get(&begun.evicted).filter(|p| p.node.is_some() && !p.ended);
        let (is_gone, deleting) = (evicted.is_none(), evicted.is_some_and(|evicted| evicted.deleting));
        if deleting {
            // Its grace period may be long. If the eviction's answer was lost, the eviction was made after all.
            (begun.until, begun.refused) = (now + TIMEOUT, false);
            self.evictions.set(&pod.uid, MakingRoom::Begun(begun.clone()));
        }
        if begun.until > now && (is_gone || !begun.refused) {
            self.assume_after(pod, ask, begun.plan, &begun.node, begun.leaving, begun.until);
        } else if begun.until <= now && !is_gone {
            self.evictions.forget(&pod.uid);
        }
    }

    /// Whether a pod was evicted for this pod and its place is kept.
    #[must_use]
    pub fn has_begun_for(&self, uid: &PodUid, now: Instant) -> bool {
        self.evictions.have_begun_for(uid, now)
    }

    /// Records that the API server refused the eviction, most often because of a disruption budget.
    pub fn refuse(&mut self, makes_room_for: &PodUid) {
        if self.evictions.refuse(makes_room_for) {
            self.scheduling.forget_assumed(makes_room_for);
        }
    }

    fn assume_after(
        &mut self,
        pod: &OwnerInEpoch,
        ask: &Ask,
        plan: KindPlan,
        node: &NodeName,
        leaving: Leaving,
        until: Instant,
    ) {
        let (pod, ask, leaving) = (pod.clone(), ask.clone(), Some(leaving));
        let assumed = AssumedPod { pod, ask, choice: plan.into(), until, leaving, charged: None };
        self.scheduling.assuming().assume(node, assumed);
    }

    fn search(&mut self) -> EvictionSearch<'_> {
        let Scheduling { nodes, objects, pods, assumed, .. } = &mut self.scheduling;
        EvictionSearch { managed: &mut nodes.managed, objects, pods, assumed }
    }
}

/// The request of a pod that can be served by one GPU instance and nothing else, and the plan for that.
fn single_instance(ask: &Ask) -> Option<(ContainerRequest, KindPlan)> {
    plans(&ask.document).into_iter().find_map(|plan| match &*ask.document.planned(&plan).containers {
        [only] if only.count == 1 && only.only_kind() == Some(Kind::Mig) => Some((only.clone(), plan)),
        _ => None,
    })
}
