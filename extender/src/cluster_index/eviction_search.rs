//! Finds the pod whose eviction makes room for another at the lowest cost.

use super::managed_nodes::{IndexedNode, ManagedNodes};
use super::node_objects::NodeObjects;
use super::pods::Pods;
use crate::assumed::AssumedPods;
use crate::objects::ask::Ask;
use kerf_core::contract::{ContainerRequest, GpuStatus, RequestDocument};
use kerf_core::kind::Kind;
use kerf_core::names::{GpuUuid, NodeName, PodUid};
use kerf_core::packing::{FleetGpu, PlaceId};
use std::collections::{HashMap as Map, HashSet};

/// What decides which pod may be evicted.
#[derive(Debug)]
pub(super) struct EvictionSearch<'i> {
    pub managed: &'i mut ManagedNodes,
    pub objects: &'i NodeObjects,
    pub pods: &'i Pods,
    pub assumed: &'i AssumedPods,
}

impl EvictionSearch<'_> {
    /// The pod to evict, and its node.
    pub fn find(
        &mut self,
        request: &ContainerRequest,
        document: &RequestDocument,
        offered: &[&str],
    ) -> Option<(PodUid, NodeName)> {
        // Most clusters have no evictable pods, and then the offered nodes need not be read.
        self.pods.evictable().next()?;
        let evictable = self.evictable_places(document, offered);
        if evictable.is_empty() {
            return None;
        }
        // Only nodes that the scheduler offered, and only those without assumed pods, because the evicted pod must find
        // a place too.
        let offered = offered.iter().copied().filter(|name| self.assumed.are_none_on(name));
        let may_leave = |from: (FleetGpu, PlaceId)| evictable.contains_key(&from);
        let may_come = |from: (FleetGpu, PlaceId), name: &NodeName, node: &IndexedNode| {
            let Some((uid, left)) = evictable.get(&from) else { return false };
            let Some(pod) = self.pods.get(uid) else { return false };
            let Some(to) = pod.template.movable_to.as_ref() else { return false };
            let has_compute =
                || self.objects.machine(name, node.compute()).left().covers(pod.template.compute);
            // On its own node the pod finds the CPU and memory that its eviction frees, so only other nodes are
            // checked.
            to.admit(name, self.objects.labels(name), self.objects.taints(name))
                && (left == name || has_compute())
        };
        let from = self.managed.best_move(request, offered, may_leave, may_come)?;
        evictable.get(&from).cloned()
    }

    /// The places of evictable pods on these nodes: pods that are bound, have one instance and their owner's
    /// permission. Pods that ask for more than their slice's name says are left out, because another place of this name
    /// may not suit them.
    fn evictable_places(
        &self,
        document: &RequestDocument,
        offered: &[&str],
    ) -> Map<(FleetGpu, PlaceId), (PodUid, NodeName)> {
        let offered: HashSet<&str> = offered.iter().copied().collect();
        let place = |uid: &PodUid| {
            let name = self.managed.reservations().get(uid).filter(|name| offered.contains(name.as_str()))?;
            let pod = self.pods.get(uid).filter(|pod| !pod.deleting)?;
            let node = self.managed.get(name)?;
            let mut slices = node.reserved(uid);
            let (slice, None) = (slices.next()?, slices.next()) else { return None };
            let gpu = node.fleet_gpu(slice.gpu)?;
            if !is_admitted(node, slice.gpu, document) {
                return None;
            }
            let place = self.managed.fleet().place(gpu, slice.shape.instance()?)?;
            pod.ask()
                .as_ref()
                .is_ok_and(asks_by_name_alone)
                .then(|| ((gpu, place), (uid.clone(), name.clone())))
        };
        self.pods.evictable().filter_map(place).collect()
    }
}

/// Whether the pod may have a GPU instance of this GPU.
fn is_admitted(node: &IndexedNode, gpu: &GpuUuid, document: &RequestDocument) -> bool {
    let admits = |known: &GpuStatus| {
        document.gpus.admits(gpu, &known.model) && document.allows(Kind::Mig, &known.model)
    };
    let mut of_gpu = node.status().gpus.iter().filter(|known| known.uuid == *gpu);
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
