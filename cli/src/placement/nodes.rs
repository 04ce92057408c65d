//! The nodes of a snapshot, and what pods take of them.

use super::choice::{Exclusion, Taken, TakenSlice};
use crate::plugin_nodes::PluginNode;
use k8s_openapi::api::core::v1::Taint;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, RequestDocument};
use kerf_core::inventory::NodeInventory;
use kerf_core::ledger::{OwnerInEpoch, reserve};
use kerf_core::names::{GpuUuid, NodeName};
use kerf_core::packing::{Fit, Fleet, FleetGpu, KindPlan, Place, Rank, Refusal, Terms, fit};
use kerf_core::static_node::{Devices, place, sum};
use kerf_runtime::destinations::Destinations;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kerf_runtime::plugin_pod::PluginPod;
use kube::ResourceExt as _;
use std::collections::BTreeMap;

/// The taint of a cordoned Node. It is assumed for each cordoned Node, because kube-scheduler does so even before a
/// controller has written it.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "static nodes are called so everywhere")]
pub struct Nodes {
    managed: BTreeMap<NodeName, Result<Managed, Refusal>>,
    static_nodes: BTreeMap<NodeName, Static>,
    machines: BTreeMap<NodeName, Machine>,
    fleet: Fleet,
}

#[derive(Debug)]
struct Managed {
    spec: GpuNodeSpec,
    status: GpuNodeStatus,
    inventory: NodeInventory,
    gpus: Vec<Option<FleetGpu>>,
}

#[derive(Debug)]
struct Static {
    node: PluginNode,
    since: Vec<Devices>,
}

impl Nodes {
    /// Managed nodes, each with its spec and status, or why they cannot be used.
    pub fn new(
        nodes: impl IntoIterator<Item = (NodeName, Result<(GpuNodeSpec, GpuNodeStatus), Refusal>)>,
        terms: Terms,
    ) -> Self {
        let mut fleet = Fleet::new(terms);
        let managed = nodes.into_iter().map(|(name, read)| {
            let ready = read.and_then(|(spec, status)| {
                if status.is_ready() { Ok((spec, status)) } else { Err(Refusal::AgentNotReady) }
            });
            let managed = ready.map(|(spec, status)| {
                let inventory = NodeInventory::from_spec(&spec, &status);
                let gpus = inventory.gpus.iter().map(|gpu| gpu.join(&mut fleet, None)).collect();
                Managed { spec, status, inventory, gpus }
            });
            (name, managed)
        });
        let managed = managed.collect();
        Self { managed, static_nodes: BTreeMap::new(), machines: BTreeMap::new(), fleet }
    }

    #[must_use]
    pub fn from_objects(objects: &[GpuNode]) -> Self {
        let read = |object: &GpuNode| {
            let spec = object.read_desired().map_err(|_| Refusal::UnreadableSpec)?;
            let status = object.read_status().map_err(|_| Refusal::UnreadableStatus)?;
            Ok((spec, status.unwrap_or_default()))
        };
        Self::new(objects.iter().map(|object| (object.name(), read(object))), Terms::default())
    }

    #[must_use]
    pub fn with_static<'n>(mut self, nodes: impl IntoIterator<Item = (&'n String, &'n PluginNode)>) -> Self {
        let of_name = |(name, node): (&String, &PluginNode)| {
            (NodeName::new(name), Static { node: node.clone(), since: Vec::new() })
        };
        self.static_nodes.extend(nodes.into_iter().map(of_name));
        self
    }

    /// Adds the Nodes, whose labels and taints exclude pods. A node without its Node excludes no pod.
    #[must_use]
    pub fn with_machines(mut self, machines: impl IntoIterator<Item = Machine>) -> Self {
        self.machines.extend(machines.into_iter().map(|machine| (machine.name(), machine)));
        for (name, managed) in &mut self.managed {
            if let (Ok(managed), Some(machine)) = (managed, self.machines.get(name)) {
                managed.inventory.user_namespaces = Some(machine.has_user_namespaces());
            }
        }
        self
    }

    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.managed.keys().chain(self.static_nodes.keys())
    }

    #[must_use]
    pub fn know_machines(&self) -> bool {
        self.names().next().is_some() && self.names().all(|name| self.machines.contains_key(name))
    }

    pub(super) fn exclusion(&self, name: &NodeName, pod: &Destinations) -> Option<Exclusion> {
        let machine = self.machines.get(name)?;
        let labels = Some(machine.labels());
        if !pod.admit(name, labels, None) {
            return Some(Exclusion::Labels);
        }
        let is_cordoned = machine.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        let cordoned = is_cordoned.then(|| Taint {
            key: CORDONED.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
        let mut taints = machine.taints().iter().cloned().chain(cordoned);
        taints
            .find(|taint| !pod.admit(name, labels, Some(std::slice::from_ref(taint))))
            .map(Exclusion::from_taint)
    }

    pub(super) fn place(
        &self,
        name: &NodeName,
        request: &RequestDocument,
    ) -> Result<(Place, Taken), Refusal> {
        if let Some(it) = self.static_nodes.get(name) {
            let spot = it.place(request)?;
            return Ok((Place { rank: Rank::BEST, cost: spot.1 }, Taken::Devices(spot.0)));
        }
        let managed = self.managed.get(name).ok_or(Refusal::NoAgent)?.as_ref().map_err(|refusal| *refusal)?;
        let fit = fit(&managed.inventory, request, &self.fleet)?;
        Ok((fit.place(), Taken::Slices(managed.slices(&fit))))
    }

    pub(super) fn has_by(
        &self,
        name: &NodeName,
        request: &RequestDocument,
        plan: &KindPlan,
    ) -> Result<(), Refusal> {
        self.place(name, &request.planned(plan)).map(drop)
    }

    /// Places a pod on a node by the planned kinds, so that the next pod finds that capacity taken.
    pub fn take(
        &mut self,
        name: &NodeName,
        request: &RequestDocument,
        plan: &KindPlan,
        pod: &OwnerInEpoch,
    ) -> Result<(), Refusal> {
        let planned = request.planned(plan);
        if let Some(it) = self.static_nodes.get_mut(name) {
            let (devices, _) = it.place(&planned)?;
            it.since.push(devices);
            return Ok(());
        }
        let managed =
            self.managed.get_mut(name).ok_or(Refusal::NoAgent)?.as_mut().map_err(|refusal| *refusal)?;
        managed.spec = reserve(&managed.spec, &managed.status, &planned, pod, &self.fleet)?;
        // This is carried over, because the Node has this property and the GpuNode has not.
        let user_namespaces = managed.inventory.user_namespaces;
        managed.inventory =
            NodeInventory { user_namespaces, ..NodeInventory::from_spec(&managed.spec, &managed.status) };
        for (gpu, known) in managed.inventory.gpus.iter().zip(&mut managed.gpus) {
            // The fleet must see the GPU as it is now, because its prices decide on the next pod.
            *known = gpu.join(&mut self.fleet, *known);
        }
        Ok(())
    }
}

impl Managed {
    fn slices(&self, fit: &Fit) -> Vec<TakenSlice> {
        let index = |uuid: &GpuUuid| {
            self.status.gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| (gpu.index, gpu.model.clone()))
        };
        let slice = |placed: &kerf_core::packing::Placed| {
            let (index, model) = index(&placed.gpu).unwrap_or_default();
            TakenSlice {
                container: placed.container.clone(),
                resource: placed.resource,
                kind: placed.shape.kind(),
                shape: placed.shape,
                gpu: placed.gpu.clone(),
                gpu_index: index,
                model,
            }
        };
        fit.slices.iter().map(slice).collect()
    }
}

impl Static {
    fn place(&self, request: &RequestDocument) -> Result<(Devices, kerf_core::packing::Cost), Refusal> {
        if self.node.node.is_changing {
            return Err(Refusal::LayoutChanging);
        }
        if self.node.pods.iter().any(PluginPod::has_slices) {
            return Err(Refusal::SlicesLeft);
        }
        let taken: Vec<Devices> = self.since.iter().cloned().chain([self.node.taken()]).collect();
        let spot = place(&self.node.node, &sum(&taken), request)?;
        Ok((spot.devices, spot.cost))
    }
}
