//! Evictions that make room: a pod whose owner allows it restarts elsewhere, so that a bigger one finds room.
//!
//! A MIG instance cannot move with what runs on it. So the pod is evicted, its controller recreates it, and the new pod
//! takes the place that was free. Until then the bigger pod is assumed on the evicted pod's place, so that no other pod
//! gets it.
//!
//! At most one pod is evicted for another. That happens only if the other fits nowhere, and will not fit once the pods
//! are gone that are leaving anyway.

use super::{ClusterIndex, IndexedNode};
use crate::ask::Ask;
use crate::assumed::{AssumedPod, Leaving};
use kerf_core::contract::{ContainerRequest, GpuStatus, RequestDocument};
use kerf_core::kind::Kind;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{GpuUuid, NodeName, PodKey, PodUid};
use kerf_core::packing::{FleetGpu, KindPlan, PlaceId, plans};
use std::collections::{HashMap as Map, HashSet};
use std::time::{Duration, Instant};

/// How long a pod may take to end and its slice to be recut. It is also the pause after a refused eviction. Twice
/// Kubernetes' usual grace period.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A pod that is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    pub uid: PodUid,
    pub pod: PodKey,
    pub node: NodeName,
    /// The UID of the pod that gets the room.
    pub makes_room_for: PodUid,
    /// The namespace and name of that pod.
    pub makes_room_for_pod: PodKey,
}

/// What is done for a pod that fits nowhere.
#[derive(Debug, Clone)]
pub(super) enum MakingRoom {
    /// No pod is evicted for it until then, because others are just leaving a suitable place.
    Awaiting(Instant),
    Begun(Begun),
}

/// An eviction that was begun for a pod.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    evicted: PodUid,
    /// The kinds that are to serve the pod.
    plan: KindPlan,
    leaving: Leaving,
    node: NodeName,
    until: Instant,
    refused: bool,
}

impl ClusterIndex {
    /// Turns evictions off for good.
    pub fn move_nobody(&mut self) {
        self.moves_nobody = true;
    }

    /// Makes room for a pod that all `offered` nodes refused, if one eviction suffices.
    pub fn make_room(&mut self, pod: &OwnerInEpoch, ask: &Ask, offered: &[&str], now: Instant) {
        let until = match self.lead.making_room.get(&pod.uid).cloned() {
            Some(MakingRoom::Begun(begun)) => return self.go_on(pod, ask, begun, now),
            Some(MakingRoom::Awaiting(until)) => until,
            None => now + TIMEOUT,
        };
        self.lead.making_room.remove(&pod.uid);
        if ask.document.moves_nobody || self.moves_nobody {
            return;
        }
        let Some((request, plan)) = single_instance(ask) else { return };
        let Some((evicted, node)) = self.find_move(&request, &ask.document, offered) else { return };
        // A pod that does not leave in time delays an eviction, but does not prevent it.
        let left = if until > now { self.place_being_left(ask, offered) } else { None };
        if let Some((node, plan, leaving)) = left {
            self.lead.making_room.insert(pod.uid.clone(), MakingRoom::Awaiting(until));
            return self.expect_after(pod, ask, plan, &node, leaving, until);
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
        let Some(key) = self.pods.get(&evicted).map(|p| p.key.clone()) else { return };
        let Some(known) = self.nodes.get(&node) else { return };
        let slices = known.reserved(&evicted).map(|slice| slice.id.clone()).collect();
        let leaving = Leaving { pods: vec![evicted.clone()], slices };
        let until = now + TIMEOUT;
        self.expect_after(pod, ask, plan.clone(), &node, leaving.clone(), until);
        let begun =
            Begun { evicted: evicted.clone(), plan, leaving, node: node.clone(), until, refused: false };
        self.lead.making_room.insert(pod.uid.clone(), MakingRoom::Begun(begun));
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
        let evicted = self.pods.get(&begun.evicted).filter(|p| p.node.is_some() && !p.ended);
        let (is_gone, deleting) = (evicted.is_none(), evicted.is_some_and(|evicted| evicted.deleting));
        if deleting {
            // Its grace period may be long. If the eviction's answer was lost, the eviction was made after all.
            (begun.until, begun.refused) = (now + TIMEOUT, false);
            self.lead.making_room.insert(pod.uid.clone(), MakingRoom::Begun(begun.clone()));
        }
        if begun.until > now && (is_gone || !begun.refused) {
            self.expect_after(pod, ask, begun.plan, &begun.node, begun.leaving, begun.until);
        } else if begun.until <= now && !is_gone {
            self.lead.making_room.remove(&pod.uid);
        }
    }

    /// Whether a pod was evicted for this pod and its place is kept.
    #[must_use]
    pub fn is_moved_for(&self, uid: &PodUid, now: Instant) -> bool {
        match self.lead.making_room.get(uid) {
            Some(MakingRoom::Begun(begun)) => !begun.refused && begun.until > now,
            Some(MakingRoom::Awaiting(_)) | None => false,
        }
    }

    /// Records that the API server refused the eviction, most often because of a disruption budget.
    pub fn eviction_refused(&mut self, makes_room_for: &PodUid) {
        if let Some(MakingRoom::Begun(begun)) = self.lead.making_room.get_mut(makes_room_for) {
            begun.refused = true;
            self.drop_assumed(makes_room_for);
        }
    }

    fn expect_after(
        &mut self,
        pod: &OwnerInEpoch,
        ask: &Ask,
        plan: KindPlan,
        node: &NodeName,
        leaving: Leaving,
        until: Instant,
    ) {
        self.drop_assumed(&pod.uid);
        let charged = self.expected_charge(node, pod, ask);
        let (pod, ask, leaving) = (pod.clone(), ask.clone(), Some(leaving));
        self.lead.assumed.put(node, AssumedPod { pod, ask, choice: plan.into(), until, leaving, charged });
        self.touch(node);
    }

    /// The pod to evict, and its node.
    fn find_move(
        &mut self,
        request: &ContainerRequest,
        document: &RequestDocument,
        offered: &[&str],
    ) -> Option<(PodUid, NodeName)> {
        if self.movable.is_empty() {
            return None;
        }
        let movable = self.places_of_movable(document, offered);
        if movable.is_empty() {
            return None;
        }
        // Only nodes that the scheduler offered, and only those without assumed pods, because the evicted pod must find
        // a place too.
        let offered = offered.iter().filter(|name| self.lead.assumed.are_none_on(name));
        let nodes = offered.filter_map(|name| self.nodes.get_key_value(name));
        let gpus =
            nodes.flat_map(|(name, node)| node.fleet_gpus.iter().map(move |(_, gpu)| (*gpu, (name, node))));
        let open: Map<FleetGpu, (&NodeName, &IndexedNode)> = gpus.collect();
        let class = self.fleet.class(request);
        let may_leave =
            |gpu: FleetGpu, place: PlaceId| movable.contains_key(&(gpu, place)) && open.contains_key(&gpu);
        let compute_left = |name: &NodeName, node: &IndexedNode| self.machines.machine(name, node).left();
        let may_come = |from: (FleetGpu, PlaceId), to: FleetGpu| {
            let (Some((uid, left)), Some((name, node))) = (movable.get(&from), open.get(&to)) else {
                return false;
            };
            let Some((pod, to)) =
                self.pods.get(uid).and_then(|pod| Some((pod, pod.template.movable_to.as_ref()?)))
            else {
                return false;
            };
            to.admit(name, self.machines.labels(name), self.machines.taints(name))
                && (left == *name || compute_left(name, node).covers(pod.template.compute))
        };
        let found = self.fleet.best_move(class, may_leave, may_come)?;
        movable.get(&(found.gpu, found.moved)).cloned()
    }

    /// The places of evictable pods on these nodes: pods that are bound, have one instance and their owner's
    /// permission. Pods that ask for more than their slice's name says are left out, because another place of this name
    /// may not suit them.
    fn places_of_movable(
        &self,
        document: &RequestDocument,
        offered: &[&str],
    ) -> Map<(FleetGpu, PlaceId), (PodUid, NodeName)> {
        let offered: HashSet<&str> = offered.iter().copied().collect();
        let place = |uid: &PodUid| {
            let name = self.places.get(uid).filter(|name| offered.contains(name.as_str()))?;
            let pod = self.pods.get(uid).filter(|pod| !pod.deleting)?;
            let node = self.nodes.get(name)?;
            let mut slices = node.reserved(uid);
            let (slice, None) = (slices.next()?, slices.next()) else { return None };
            let (_, gpu) = node.fleet_gpus.iter().find(|(uuid, _)| uuid == slice.gpu)?;
            if !is_admitted(node, slice.gpu, document) {
                return None;
            }
            let place = self.fleet.place(*gpu, slice.shape.instance()?)?;
            pod.ask()
                .as_ref()
                .is_ok_and(asks_by_name_alone)
                .then(|| ((*gpu, place), (uid.clone(), name.clone())))
        };
        self.movable.iter().filter_map(place).collect()
    }
}

/// Whether the pod may have a GPU instance of this GPU.
fn is_admitted(node: &IndexedNode, gpu: &GpuUuid, document: &RequestDocument) -> bool {
    let admits = |known: &GpuStatus| {
        document.gpus.admits(gpu, &known.model) && document.allows(Kind::Mig, &known.model)
    };
    let mut of_gpu = node.status.gpus.iter().filter(|known| known.uuid == *gpu);
    is_of_any_gpu(document) || of_gpu.any(admits)
}

/// Whether a pod may have slices of all GPUs.
fn is_of_any_gpu(document: &RequestDocument) -> bool {
    document.gpus.is_all() && document.kinds_by_model.is_empty()
}

/// Whether any slice of its name on any GPU suits the pod.
fn asks_by_name_alone(ask: &Ask) -> bool {
    let by_name = |container: &ContainerRequest| container.memory.is_none() && container.compute.is_none();
    is_of_any_gpu(&ask.document) && ask.document.containers.iter().all(by_name)
}

/// The request of a pod that can be served by one GPU instance and nothing else, and the plan for that.
fn single_instance(ask: &Ask) -> Option<(ContainerRequest, KindPlan)> {
    plans(&ask.document).into_iter().find_map(|plan| match &*ask.document.planned(&plan).containers {
        [only] if only.count == 1 && only.only_kind() == Some(Kind::Mig) => Some((only.clone(), plan)),
        _ => None,
    })
}
