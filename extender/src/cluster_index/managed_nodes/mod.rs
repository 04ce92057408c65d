//! The managed nodes: what their `GpuNodes` and agents report, what is reserved on them, and where a pod fits best.

mod agents;
mod fractions;
mod node;
mod reservations;
mod table;

pub use agents::NodeOrder;
pub(super) use agents::{NodeCopy, Proposed};
pub(super) use fractions::only_slice;
pub use node::IndexedNode;
pub(super) use node::charge;
pub use reservations::{Reservations, Stages};

use super::list::List;
use super::node_objects::NodeObjects;
use super::pods::Pods;
use crate::assumed::AssumedPods;
use crate::objects::ask::Ask;
use crate::objects::compute::Compute;
use agents::Agents;
use fractions::Fractions;
use hashbrown::HashMap;
use kerf_core::contract::{ContainerRequest, Reserved};
use kerf_core::kind::{Kind, KindLabel};
use kerf_core::ledger::{Order, OrderKind};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Fleet, FleetGpu, KindPlan, Place, PlaceId, Refusal, Terms};
use kerf_core::units::SizeGb;
use kerf_runtime::gpu_node::GpuNode;
use std::collections::BTreeSet;
use std::fmt::Display;
use table::NodeTable;

#[derive(Debug, Default)]
pub struct ManagedNodes {
    nodes: NodeTable,
    agents: Agents,
    /// The MIG GPUs of all serving nodes, because the cost of a place depends on what is left elsewhere.
    fleet: Fleet,
    fractions: Fractions,
    reservations: Reservations,
    list: List<NodeName>,
}

/// What a leader has to do about reservations that a node's agent reports.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Pods that are not known, although all pods were listed.
    pub(super) unknown: Vec<PodUid>,
    /// Pods that have a reservation on another node as well.
    pub(super) surplus: Vec<PodUid>,
}

impl ManagedNodes {
    /// No nodes. `terms` are the weights by which places are valued.
    pub(super) fn new(terms: Terms) -> Self {
        Self { fleet: Fleet::new(terms), ..Self::default() }
    }

    #[must_use]
    pub fn get(&self, name: &NodeName) -> Option<&IndexedNode> {
        self.nodes.get(name)
    }

    pub(super) fn get_key_value(&self, name: &str) -> Option<(&NodeName, &IndexedNode)> {
        self.nodes.get_key_value(name)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.nodes.contains(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeName, &IndexedNode)> {
        self.nodes.iter()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.names()
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub(super) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    pub(super) fn reservations_mut(&mut self) -> &mut Reservations {
        &mut self.reservations
    }

    pub(super) fn begin_list(&mut self) {
        self.list.begin();
    }

    /// Ends the list, and returns the nodes that it did not contain.
    pub(super) fn end_list(&mut self) -> Vec<NodeName> {
        let Some(shown) = self.list.end() else { return Vec::new() };
        self.nodes.names().filter(|name| !shown.contains(*name)).cloned().collect()
    }

    /// Whether all `GpuNodes` were listed once.
    pub(super) fn are_listed(&self) -> bool {
        self.list.has_ended()
    }

    /// Updates the node of a GpuNode. Returns false if there is none, or only that of a GpuNode of the same name that
    /// was deleted.
    pub(super) fn update(&mut self, name: &NodeName, shown: &GpuNode) -> bool {
        self.list.add(name);
        let node = self.nodes.get_mut(name).filter(|node| node.object == shown.metadata.uid);
        node.map(|node| node.show(shown)).is_some()
    }

    /// Adds the node of a GpuNode. Its agent may have reported before the object was seen.
    pub(super) fn add(&mut self, name: &NodeName, shown: &GpuNode, user_namespaces: Option<bool>) {
        let mut node = IndexedNode::from_gpu_node(shown);
        node.user_namespaces = user_namespaces;
        node.show(shown);
        if let Some(copy) = self.agents.get_mut(name) {
            copy.fill(&mut node);
        }
        self.nodes.insert(name.clone(), node);
    }

    /// Removes the node of a GpuNode, and with it all reservations on it. Returns whether there was one.
    pub(super) fn remove(&mut self, name: &NodeName) -> bool {
        let Some(mut node) = self.nodes.remove(name) else { return false };
        // The agent will not report its status again if the GpuNode is created anew, so the copy gets it back.
        if let Some(copy) = self.agents.get_mut(name) {
            copy.swap(&mut node);
        }
        node.fleet_gpus.into_iter().for_each(|(_, gpu)| self.fleet.remove(gpu));
        node.reserved_pods.iter().for_each(|uid| self.reservations.remove(uid));
        self.fractions.remove(name);
        true
    }

    /// Sets whether pods may run in user namespaces on a node. Returns whether that has changed.
    pub(super) fn set_user_namespaces(&mut self, name: &NodeName, has_them: Option<bool>) -> bool {
        let Some(node) = self.nodes.get_mut(name) else { return false };
        std::mem::replace(&mut node.user_namespaces, has_them) != has_them
    }

    /// Records that what filters read of a node has changed. Returns whether there is such a node.
    pub(super) fn touch(&mut self, name: &NodeName) -> bool {
        self.nodes.touch(name)
    }

    /// The best place for `ask` on a node, beside all reservations and assumed pods; `None` if there is no such node.
    /// The cost of a share depends also on the CPU and memory that the pod asks for.
    pub(super) fn place(
        &mut self,
        name: &str,
        ask: &Ask,
        assumed: &AssumedPods,
        objects: &NodeObjects,
        wanted: impl FnOnce() -> Compute,
    ) -> Option<Result<Place, Refusal>> {
        let found = match self.nodes.place(name, ask, assumed, &self.fleet)? {
            Ok(found) => found,
            Err(refusal) => return Some(Err(refusal)),
        };
        let cost = found.share.and_then(|shape| {
            let (key, node) = self.nodes.get_key_value(name)?;
            self.fractions.cost(key, node, objects.machine(key, node.compute), shape, wanted())
        });
        Some(Ok(Place { cost: cost.unwrap_or(found.place.cost), ..found.place }))
    }

    /// Whether this one of its plans can serve `ask` on each node, for the nodes that `select` gives something for.
    pub(super) fn places_by<S>(
        &mut self,
        ask: &Ask,
        plan: &KindPlan,
        assumed: &AssumedPods,
        select: impl Fn(&NodeName) -> Option<S>,
    ) -> impl Iterator<Item = (S, Result<(), Refusal>)> {
        let fleet = &self.fleet;
        let nodes = self.nodes.read(assumed, fleet);
        nodes.filter_map(move |(name, node)| Some((select(name)?, node.place_by(ask, plan, fleet))))
    }

    /// The place whose pod must leave so that `request` gets room at the lowest cost. Pods leave and come only on
    /// `offered` nodes.
    pub(super) fn best_move<'o>(
        &mut self,
        request: &ContainerRequest,
        offered: impl Iterator<Item = &'o str>,
        may_leave: impl Fn((FleetGpu, PlaceId)) -> bool,
        may_come: impl Fn((FleetGpu, PlaceId), &NodeName, &IndexedNode) -> bool,
    ) -> Option<(FleetGpu, PlaceId)> {
        let Self { nodes, fleet, .. } = self;
        let nodes = offered.filter_map(|name| nodes.get_key_value(name));
        let gpus =
            nodes.flat_map(|(name, node)| node.fleet_gpus.iter().map(move |(_, gpu)| (*gpu, (name, node))));
        let open: HashMap<FleetGpu, (&NodeName, &IndexedNode)> = gpus.collect();
        let class = fleet.class(request);
        let may_leave = |gpu, place| may_leave((gpu, place)) && open.contains_key(&gpu);
        let may_come = |from, to| open.get(&to).is_some_and(|(name, node)| may_come(from, name, node));
        let found = fleet.best_eviction(class, may_leave, may_come)?;
        Some((found.gpu, found.victim))
    }

    /// Updates the demand that the prices of shares are based on: a pod asks for this slice.
    pub(super) fn learn(&mut self, slice: (Kind, SizeGb), wanted: Compute) {
        self.fractions.learn(slice, wanted);
    }

    /// Kind and size of a pod's slice, if only its place determines the kind and it has a reservation for exactly one.
    pub(super) fn slice_of_any_kind(&self, uid: &PodUid, ask: &Ask) -> Option<(Kind, SizeGb)> {
        let node = self.node_of(uid).filter(|_| ask.document.kind_label() == KindLabel::Any)?;
        let mut slices = node.reserved(uid);
        let (Some(slice), None) = (slices.next(), slices.next()) else { return None };
        Some((slice.shape.kind(), slice.shape.size()))
    }

    /// The node on which a pod has a reservation.
    pub(super) fn node_of(&self, uid: &PodUid) -> Option<&IndexedNode> {
        self.nodes.get(self.reservations.get(uid)?)
    }

    /// The pod with this UID that has a reservation.
    pub(super) fn reserved_pod(&self, uid: &PodUid) -> Option<PodKey> {
        self.node_of(uid)?.reserved(uid).find_map(|slice| slice.reservation).map(Reserved::key)
    }

    /// Records that a pod has ended or is gone. Its node's agent notices that too, sooner or later.
    pub(super) fn set_left(&mut self, uid: &PodUid) {
        let Some(pod) = self.reserved_pod(uid) else { return };
        if let Some(node) = self.reservations.get(uid).and_then(|name| self.nodes.get_mut(name)) {
            node.left.insert(uid.clone(), pod);
        }
    }

    /// Updates what depends on a node's state. `None` if there is no such node.
    pub(super) fn settle(&mut self, name: &NodeName, pods: &Pods, leads: bool) -> Option<Settled> {
        let node = self.nodes.get_mut(name)?;
        let mut reserved_pods = node.reserved_pods_now();
        node.forget_left(&reserved_pods);
        if let Some(copy) = self.agents.get(name) {
            reserved_pods.retain(|uid| !copy.is_releasing(uid));
        }
        for uid in node.reserved_pods.difference(&reserved_pods) {
            if self.reservations.get(uid) == Some(name) {
                self.reservations.remove(uid);
            }
        }
        let mut settled = Settled::default();
        for uid in reserved_pods.difference(&node.reserved_pods) {
            let pod = pods.get(uid);
            // A pod that is bound elsewhere has left this node.
            if pod.and_then(|pod| pod.node.as_ref()).is_some_and(|node| node != name) {
                continue;
            }
            // The end of a pod that ended earlier, for example while the agent was not connected, is reported by no
            // event.
            if leads && pod.is_none() && pods.are_listed() && node.reports_reservation(uid) {
                settled.unknown.push(uid.clone());
            }
            // Its release was lost, and the pod was sent to another node since. Otherwise that node's reservation would
            // belong to no place. A follower takes the newest report, because it did not propose the place that it has.
            let is_elsewhere = self.reservations.get(uid).is_some_and(|place| place != name);
            let is_bound = pod.is_some_and(|pod| pod.node.is_some());
            if leads && is_elsewhere && !is_bound && node.reports_unmarked(uid) {
                settled.surplus.push(uid.clone());
                continue;
            }
            self.reservations.insert(uid.clone(), name.clone());
        }
        let known = reserved_pods.iter().filter_map(|uid| pods.get(uid));
        node.compute = known.map(|pod| pod.template.compute).fold(Compute::default(), Compute::plus);
        node.reserved_pods = reserved_pods;
        node.join(&mut self.fleet);
        self.nodes.touch(name);
        Some(settled)
    }

    /// The copy of a node's ledger, if its agent is connected.
    pub(super) fn copy(&self, name: &NodeName) -> Option<&NodeCopy> {
        self.agents.get(name)
    }

    /// The id of the connection of a node's agent, if it is connected.
    #[must_use]
    pub fn connection_of(&self, name: &NodeName) -> Option<u64> {
        self.agents.connection_of(name)
    }

    /// Begins a connection of a node's agent, unless it is known.
    pub(super) fn connect(&mut self, name: &NodeName, connection: u64) {
        if self.agents.connect(name, connection)
            && let Some(node) = self.nodes.get_mut(name)
        {
            (node.status, node.policy) = Default::default();
        }
    }

    /// Ends the connection of a node's agent. Returns whether there is a node, which is then to be settled.
    pub(super) fn disconnect(&mut self, name: &NodeName) -> bool {
        let has_node = self.update_copy(name, |copy| *copy = NodeCopy::default());
        self.agents.remove(name);
        has_node
    }

    /// Changes a node's copy. Returns whether there is a node, which is then to be settled. Status and policy are in
    /// the node, if there is one, except while `act` runs.
    pub(super) fn update_copy(&mut self, name: &NodeName, act: impl FnOnce(&mut NodeCopy)) -> bool {
        let Some(copy) = self.agents.get_mut(name) else { return false };
        let Some(node) = self.nodes.get_mut(name) else {
            act(copy);
            return false;
        };
        copy.swap(node);
        act(copy);
        copy.fill(node);
        true
    }

    /// Removes the proposal for a pod from its node's copy.
    pub(super) fn take_proposed(&mut self, uid: &PodUid, name: &NodeName) -> Option<Proposed> {
        self.agents.get_mut(name)?.take_proposed(uid)
    }

    /// The order to release a pod's reservation on a node, and the pod. `None` if it may not be released, as far as is
    /// known.
    pub(super) fn release_order(
        &self,
        name: &NodeName,
        uid: &PodUid,
        epoch: u64,
        reason: impl Display,
    ) -> Option<(NodeOrder, PodKey)> {
        let copy = self.agents.get(name)?;
        let pod = copy.releasable(self.nodes.get(name)?, uid)?;
        let kind = OrderKind::Release { uid: uid.clone(), why: reason.to_string() };
        let (node, connection) = (name.clone(), copy.connection()?);
        Some((NodeOrder { node, connection, order: Order { epoch, kind } }, pod))
    }

    /// The agents that began or ceased to be late with an answer, and whether they are late now.
    pub(super) fn changed_agents(&self, unresponsive: &BTreeSet<NodeName>) -> Vec<(NodeName, bool)> {
        self.agents.changed(unresponsive)
    }

    pub(super) fn connected(&self) -> Vec<NodeName> {
        self.agents.names()
    }

    pub(super) fn proposal_count(&self) -> usize {
        self.agents.proposal_count()
    }
}
