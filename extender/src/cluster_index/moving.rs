//! One move: a pod whose owner allows it restarts elsewhere, so that a bigger one finds room.
//!
//! A MIG instance cannot move with what runs on it. So the pod is evicted, its controller makes another, and that finds
//! the place that was free. Until then the bigger pod is expected on what is left, so that nobody else gets it. A pod has
//! at most one other moved for it, and only where it fits nowhere.

use super::{ClusterIndex, IndexedNode};
use crate::ask::Ask;
use crate::tentative::{Leaving, Tentative};
use kerf_core::contract::{ContainerRequest, GpuNodeStatus, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::ledger::{Promisee, reserved};
use kerf_core::names::{GpuUuid, NodeName, PodKey, PodUid};
use kerf_core::packing::{FleetGpu, PlaceId};
use kerf_core::request::GpuSelection;
use std::collections::{HashMap as Map, HashSet as Set};
use std::time::{Duration, Instant};

/// How long a pod may take to end and its slice to be cut anew; also how long nothing is tried after a refused eviction.
/// Twice Kubernetes' usual grace period.
const PATIENCE: Duration = Duration::from_mins(1);

/// A pod that is to restart elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace and name.
    pub pod: PodKey,
    /// Where it runs.
    pub node: NodeName,
    /// The pod that finds room by it.
    pub makes_room_for: PodUid,
    /// That pod's namespace and name.
    pub makes_room_for_pod: PodKey,
}

/// A move that was begun for a pod.
#[derive(Debug, Clone)]
pub(super) struct Moving {
    leaving: Leaving,
    node: NodeName,
    until: Instant,
    refused: bool,
}

impl ClusterIndex {
    /// Makes room for a pod that all `offered` nodes refused, if one move does.
    pub fn make_room(&mut self, pod: &Promisee, ask: &Ask, offered: &[&str], now: Instant) {
        if let Some(moving) = self.moving.get(&pod.uid).cloned() {
            return self.go_on(pod, ask, moving, now);
        }
        if ask.document.moves_nobody {
            return;
        }
        let Some(request) = single_instance(ask) else { return };
        let Some((leaving, node)) = self.find_move(request, &ask.document.gpus, offered) else { return };
        let Some(key) = self.pods.get(&leaving).map(|p| p.key.clone()) else { return };
        let spec = self.nodes.get(&node).and_then(IndexedNode::working);
        let slices =
            spec.into_iter().flat_map(|spec| reserved(spec, &leaving)).map(|s| s.id.clone()).collect();
        let leaving = Leaving { pod: leaving, slices };
        let moving =
            Moving { leaving: leaving.clone(), node: node.clone(), until: now + PATIENCE, refused: false };
        self.expect_after(pod, ask, &moving);
        self.moving.insert(pod.uid.clone(), moving);
        self.effects.evictions.push(Eviction {
            uid: leaving.pod,
            pod: key,
            node,
            makes_room_for: pod.uid.clone(),
            makes_room_for_pod: pod.key.clone(),
        });
    }

    /// Goes on with a move that was begun. Once the other has left nobody else restarts for the pod, whatever refuses it;
    /// its place is kept for a while, for the agent has not told yet that it is free.
    fn go_on(&mut self, pod: &Promisee, ask: &Ask, mut moving: Moving, now: Instant) {
        let Some(leaving) = self.pods.get(&moving.leaving.pod).filter(|p| p.node.is_some() && !p.ended)
        else {
            if moving.until > now {
                self.expect_after(pod, ask, &moving);
            }
            return;
        };
        if leaving.deleting {
            // Its grace period may be long. An eviction whose answer was lost was made after all.
            (moving.until, moving.refused) = (now + PATIENCE, false);
            self.moving.insert(pod.uid.clone(), moving.clone());
        }
        if moving.until <= now {
            self.moving.remove(&pod.uid);
        } else if !moving.refused {
            self.expect_after(pod, ask, &moving);
        }
    }

    /// The API server does not let the pod be evicted that was to make room: its disruption budget, most often.
    pub fn eviction_refused(&mut self, makes_room_for: &PodUid) {
        if let Some(moving) = self.moving.get_mut(makes_room_for) {
            moving.refused = true;
            self.drop_tentative(makes_room_for);
        }
    }

    fn expect_after(&mut self, pod: &Promisee, ask: &Ask, moving: &Moving) {
        self.drop_tentative(&pod.uid);
        let (until, leaving) = (moving.until, Some(moving.leaving.clone()));
        let charged = self.expected_charge(&moving.node, pod, ask);
        let tentative = Tentative { pod: pod.clone(), ask: ask.clone(), until, leaving, charged };
        self.tentatives.put(&moving.node, tentative);
        self.touch(&moving.node);
    }

    /// The pod that leaves, and its node.
    fn find_move(
        &mut self,
        request: &ContainerRequest,
        gpus: &GpuSelection,
        offered: &[&str],
    ) -> Option<(PodUid, NodeName)> {
        let movable = self.movable(gpus, offered);
        if movable.is_empty() {
            return None;
        }
        // Only what the scheduler offered, and nothing that others are expected to take: what is moved must find a place.
        let open: Set<FleetGpu> = offered
            .iter()
            .filter(|name| self.tentatives.are_none_on(name))
            .filter_map(|name| self.nodes.get(*name))
            .flat_map(|node| node.fleet_gpus.iter().map(|(_, gpu)| *gpu))
            .collect();
        let class = self.fleet.class(request);
        let may = |gpu: FleetGpu, place: PlaceId| movable.contains_key(&(gpu, place)) && open.contains(&gpu);
        let found = self.fleet.best_move(class, may)?;
        if !open.contains(&found.to) {
            return None;
        }
        movable.get(&(found.gpu, found.moved)).cloned()
    }

    /// The places of pods that may be moved, on these GPUs: bound, with one instance, their owner's word on them. Not of
    /// those that want more than their slice's name says: another place by this name may not do for them.
    fn movable(&self, gpus: &GpuSelection, offered: &[&str]) -> Map<(FleetGpu, PlaceId), (PodUid, NodeName)> {
        let pods = self.pods.iter().filter(|(_, pod)| pod.movable && pod.node.is_some());
        let pods = pods.filter(|(_, pod)| !pod.ended && !pod.deleting);
        let pods = pods.filter(|(_, pod)| pod.ask().as_ref().is_ok_and(asks_by_name_alone));
        let place = |(uid, _): (&PodUid, _)| {
            let name = self.places.get(uid).filter(|name| offered.contains(&name.as_str()))?;
            let node = self.nodes.get(name)?;
            let mut slices = reserved(node.working()?, uid);
            let (slice, None): (&WantedSlice, _) = (slices.next()?, slices.next()) else { return None };
            let (_, gpu) = node.fleet_gpus.iter().find(|(uuid, _)| *uuid == slice.gpu)?;
            if !is_admitted(node, &slice.gpu, gpus) {
                return None;
            }
            let place = self.fleet.place(*gpu, slice.shape.instance()?)?;
            Some(((*gpu, place), (uid.clone(), name.clone())))
        };
        pods.filter_map(place).collect()
    }
}

/// Whether a GPU of the node is of those that a pod may have.
fn is_admitted(node: &IndexedNode, gpu: &GpuUuid, gpus: &GpuSelection) -> bool {
    let admits = |status: &GpuNodeStatus| {
        status.gpus.iter().any(|known| known.uuid == *gpu && gpus.admits(gpu, &known.model))
    };
    gpus.is_all() || node.status.as_ref().is_ok_and(admits)
}

/// Whether any slice of its name on any GPU will do for the pod.
fn asks_by_name_alone(ask: &Ask) -> bool {
    let by_name = |container: &ContainerRequest| container.memory.is_none() && container.compute.is_none();
    ask.document.gpus.is_all() && ask.document.containers.iter().all(by_name)
}

/// The request of a pod that wants one GPU instance and nothing else.
fn single_instance(ask: &Ask) -> Option<&ContainerRequest> {
    match ask.document.containers.as_slice() {
        [only] if only.count == 1 && only.kind() == Kind::Mig => Some(only),
        _ => None,
    }
}
