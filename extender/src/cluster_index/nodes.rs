//! All nodes with GPUs, managed and static, and the questions whose answers do not depend on which of the two a node is.
//!
//! A node with a GpuNode is managed, whatever its labels say. Every other node is asked as a static one, which refuses
//! what it does not know.

use super::managed_nodes::ManagedNodes;
use super::node_objects::NodeObjects;
use super::static_nodes::StaticNodes;
use crate::assumed::AssumedPods;
use crate::objects::ask::Ask;
use crate::objects::compute::Compute;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Cost, Place, Rank, Refusal, Terms};
use kerf_core::quota::{Charge, depends_on_place};
use kerf_core::static_node::{Devices, Spot};
use kerf_runtime::gpu_node::GpuNode;

#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub managed: ManagedNodes,
    /// What NVIDIA's device plugin serves.
    pub static_nodes: StaticNodes,
}

impl Nodes {
    /// No nodes. `terms` are the weights by which places on managed nodes are valued.
    pub fn new(terms: Terms) -> Self {
        Self { managed: ManagedNodes::new(terms), ..Self::default() }
    }

    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.managed.names().chain(self.static_nodes.names())
    }

    /// Whether a node is static. One with a GpuNode is not.
    pub fn is_static(&self, name: &NodeName) -> bool {
        self.static_nodes.contains(name.as_str()) && !self.managed.contains(name.as_str())
    }

    pub fn has_static(&self) -> bool {
        self.static_nodes.names().any(|name| !self.managed.contains(name.as_str()))
    }

    /// Adds a node whose GpuNode is seen for the first time.
    pub fn add_managed(&mut self, name: &NodeName, shown: &GpuNode, has_user_namespaces: Option<bool>) {
        // The node is managed from now on, because it has a GpuNode, so reservations of static devices no longer apply.
        self.static_nodes.release_on(name);
        self.managed.add(name, shown, has_user_namespaces);
    }

    /// Records that what filters read of a node has changed. Returns whether there is such a node.
    pub fn touch(&mut self, name: &NodeName) -> bool {
        self.managed.touch(name) || self.static_nodes.contains(name.as_str())
    }

    /// The node on which a pod has a reservation.
    pub fn place_of(&self, uid: &PodUid) -> Option<&NodeName> {
        let on_static = || self.static_nodes.reservation(uid).map(|reserved| &reserved.node);
        self.managed.reservations().get(uid).or_else(on_static)
    }

    pub fn is_reserved(&self, uid: &PodUid) -> bool {
        self.place_of(uid).is_some()
    }

    /// Whether devices of NVIDIA's device plugin are reserved for a pod.
    pub fn has_devices_for(&self, uid: &PodUid) -> bool {
        self.static_nodes.reservation(uid).is_some()
    }

    /// The pod with this UID that has a reservation.
    pub fn reserved_pod(&self, uid: &PodUid) -> Option<PodKey> {
        let on_static = self.static_nodes.reservation(uid).map(|reserved| reserved.key.clone());
        on_static.or_else(|| self.managed.reserved_pod(uid))
    }

    /// The pods that have a reservation.
    pub fn reserved_pods(&self) -> impl Iterator<Item = &PodUid> {
        self.managed.reservations().pods().chain(self.static_nodes.reservations().map(|(uid, _)| uid))
    }

    /// Those of them that are not bound. A pod on a managed node for which `is_bound` is true is not asked about again.
    pub fn unbound_pods(&mut self, is_bound: impl Fn(&PodUid) -> bool) -> impl Iterator<Item = &PodUid> {
        let Self { managed, static_nodes } = self;
        let on_static = static_nodes.reservations().map(|(uid, _)| uid);
        managed.reservations_mut().unbound(is_bound).chain(on_static)
    }

    /// The best place for a pod's `ask` on a node.
    pub fn place(
        &mut self,
        name: &str,
        uid: &PodUid,
        ask: &Ask,
        assumed: &AssumedPods,
        objects: &NodeObjects,
        wanted: impl FnOnce() -> Compute,
    ) -> Result<Place, Refusal> {
        self.managed.place(name, ask, assumed, objects, wanted).unwrap_or_else(|| {
            let spot = self.static_nodes.place(name, uid, ask, assumed)?;
            Ok(Place { rank: Rank::BEST, cost: spot.cost })
        })
    }

    /// Whether the charge of a pod depends on its place on this node.
    pub fn charge_depends_on_place(&self, name: &str, ask: &Ask) -> bool {
        !self.managed.contains(name) || depends_on_place(&ask.document)
    }

    /// What a pod would be charged for its place on a node.
    pub fn charge(
        &self,
        name: &str,
        uid: &PodUid,
        ask: &Ask,
        assumed: &AssumedPods,
    ) -> Result<Charge, Refusal> {
        match self.managed.get_key_value(name) {
            Some((_, node)) => node.charge(ask, self.managed.fleet()),
            None => self.static_nodes.place(name, uid, ask, assumed).map(|spot| spot.charge),
        }
    }

    /// Whether a node has room for a pod that asks NVIDIA's device plugin and not kerf.
    pub fn plain_fit(&self, name: &str, uid: &PodUid, asked: &Devices) -> Result<Cost, Refusal> {
        self.check_plain(name)?;
        self.static_nodes.fit(name, uid, asked)
    }

    /// The same once these pods are gone.
    pub fn plain_fit_without(
        &self,
        name: &str,
        asked: &Devices,
        is_gone: impl Fn(&PodUid) -> bool,
    ) -> Result<(), Refusal> {
        self.check_plain(name)?;
        self.static_nodes.fit_without(name, asked, is_gone).map(drop)
    }

    fn check_plain(&self, name: &str) -> Result<(), Refusal> {
        if self.managed.contains(name) { Err(Refusal::NotAdmitted) } else { Ok(()) }
    }

    /// A pod's place on a node that is not managed, once these pods are gone.
    pub fn unmanaged_place_without(
        &self,
        name: &str,
        ask: &Ask,
        assumed: &AssumedPods,
        is_gone: impl Fn(&PodUid) -> bool,
    ) -> Result<Spot, Refusal> {
        self.static_nodes.place_without(name, ask, assumed, is_gone)
    }

    /// Whether pods with a reservation on a node may be bound to it.
    pub fn check_serving(&self, name: &NodeName) -> Result<(), Refusal> {
        match self.managed.get(name) {
            Some(node) => node.serving(),
            None => self.static_nodes.check_open(name.as_str()),
        }
    }

    /// The pods that hold devices of a node, static or not.
    pub fn holders_on(&self, name: &str) -> impl Iterator<Item = &PodUid> {
        self.static_nodes.holders_on(name).map(|(uid, _)| uid)
    }

    /// What pods hold of a static node, as quotas charge it.
    pub fn device_charges(&self, name: &str) -> impl Iterator<Item = (&PodUid, Charge)> {
        let held = self.static_nodes.holders_on(name);
        held.filter_map(move |(uid, devices)| Some((uid, self.static_nodes.charge(name, devices)?)))
    }

    /// What pods with a request to kerf have reserved there, as quotas charge it.
    pub fn reserved_device_charges(&self, name: &NodeName) -> impl Iterator<Item = (&PodKey, &Ask, Charge)> {
        let reserved = self.static_nodes.reservations().filter(move |(_, reserved)| reserved.node == *name);
        reserved.filter_map(move |(_, reserved)| {
            let charge = self.static_nodes.charge(name.as_str(), &reserved.devices)?;
            Some((&reserved.key, reserved.ask.as_ref()?, charge))
        })
    }
}
