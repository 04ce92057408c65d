//! What a replica knows of the cluster: nodes, pods with slices, reservations and assumed pods. Only a leader has
//! assumed pods, and reservations on static nodes.
//!
//! Callers report events to it and ask it questions. It reads no clock and does no I/O. What callers must do next it
//! puts into its [`Effects`]: orders to agents, binds that must check again, pods to look up.

mod admitted;
mod another_kind;
mod blocking;
mod copy;
mod effects;
mod fixed;
mod fractions;
mod journey;
mod leadership;
mod leading;
mod leaving;
mod lifetime;
mod list;
mod machines;
mod making_room;
mod node;
mod node_labels;
mod node_policies;
mod nodes;
mod others;
mod passed;
mod pending;
mod pending_bindings;
mod places;
mod pods;
mod preempting;
mod proposals;
mod quotas;
mod requeue;
mod reservations;
#[cfg(test)]
pub(crate) mod scene;
mod standing;
mod statics;
mod succession;

pub use copy::NodeOrder;
pub use effects::{Effects, Released, Why};
pub use journey::Stages;
pub use leadership::Leadership;
use leading::Lead;
pub use lifetime::Limits;
use list::List;
pub use making_room::Eviction;
pub use node::IndexedNode;
pub use node_policies::{UnknownNode, is_due};
pub use passed::Offer;
pub use pending::{Pending, pending_slices};
pub use pending_bindings::UNCERTAIN;
pub use preempting::NobodyPreempted;
pub use quotas::{HeldBack, QuotaUse};
pub use reservations::Unreservable;

use crate::ask::Ask;
use crate::compute::Compute;
use crate::pod::KnownPod;
use crate::shared::Shared;
use crate::template::Template;
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::core::v1::Taint;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::{Fleet, Place, Rank, Refusal, Terms};
use kerf_runtime::gpu_node::GpuNode;

/// A replica's view of the cluster.
#[derive(Debug, Default)]
pub struct ClusterIndex {
    leadership: Leadership,
    /// What the next term may not know.
    lead: Lead,
    nodes: nodes::Nodes,
    /// What the connected agents report.
    copies: HashMap<NodeName, copy::NodeCopy>,
    /// The MIG GPUs of all serving nodes, because the cost of a place depends on what is left elsewhere.
    fleet: Fleet,
    /// The shared GPUs of all nodes.
    fractions: fractions::Fractions,
    /// What the Node objects say.
    machines: machines::Machines,
    pods: HashMap<PodUid, KnownPod>,
    templates: Shared<Template>,
    /// Bound pods whose owners allow their eviction.
    movable: HashSet<PodUid>,
    /// The node on which each pod with a reservation has its slices.
    places: places::Places,
    /// What NVIDIA's device plugin serves.
    statics: statics::Statics,
    /// Whether no pod is ever evicted, because the program lacks the right to.
    moves_nobody: bool,
    limits: Limits,
    /// Pods that exist although the watch does not show them, because their label was removed.
    strays: HashSet<PodUid>,
    /// Pods that the watch no longer shows although nothing announced their end. They stay here until the API server
    /// was asked.
    hidden: HashSet<PodUid>,
    /// What a list that is under way has shown so far.
    listing: Listing,
    quotas: quotas::Quotas,
    effects: Effects,
}

#[derive(Debug, Default)]
struct Listing {
    nodes: List<NodeName>,
    pods: List<PodUid>,
    machines: List<NodeName>,
    others: List<PodUid>,
}

impl ClusterIndex {
    /// The empty index of the leader of `epoch`. `terms` are the weights by which it values places.
    #[must_use]
    pub fn new(epoch: u64, terms: Terms) -> Self {
        Self { leadership: Leadership::new(epoch), fleet: Fleet::new(terms), ..Self::default() }
    }

    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    pub fn leadership_mut(&mut self) -> &mut Leadership {
        &mut self.leadership
    }

    /// The leader's epoch. It may rise until requests are answered.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.leadership.epoch()
    }

    /// Whether nodes and pods have been listed once, so that filters may be answered.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        let Listing { nodes, pods, machines, others } = &self.listing;
        let is_awaited =
            machines.is_awaited() || others.is_awaited() || self.leadership.awaits_former_epoch();
        nodes.has_ended() && pods.has_ended() && !is_awaited
    }

    /// Takes the effects since the last call.
    pub fn take_effects(&mut self) -> Effects {
        Effects { deposed: self.leadership.take_deposed(), ..std::mem::take(&mut self.effects) }
    }

    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &IndexedNode)> {
        self.nodes.iter()
    }

    #[must_use]
    pub fn node(&self, name: &NodeName) -> Option<&IndexedNode> {
        self.nodes.get(name)
    }

    /// Starts a list of all `GpuNodes`.
    pub fn nodes_listing(&mut self) {
        self.listing.nodes.begin();
    }

    /// Ends a list of all `GpuNodes`: those that it did not contain are gone.
    pub fn nodes_listed(&mut self) {
        if let Some(shown) = self.listing.nodes.end() {
            let gone: Vec<_> = self.nodes.names().filter(|name| !shown.contains(*name)).cloned().collect();
            for name in &gone {
                self.remove_node(name);
            }
        }
        self.effects.progress = true;
    }

    /// Updates a GpuNode from the API server. The node's slices come from its agent over the connection instead.
    pub fn show_node(&mut self, shown: &GpuNode) {
        let name = shown.name();
        self.listing.nodes.add(&name);
        if let Some(node) = self.nodes.get_mut(&name).filter(|node| node.object == shown.metadata.uid) {
            return node.show(shown);
        }
        self.remove_node(&name);
        self.statics.release_on(&name);
        let mut node = IndexedNode::of(shown);
        node.user_namespaces = self.machines.has_user_namespaces(&name);
        node.show(shown);
        self.nodes.insert(name.clone(), node);
        self.lay_copy(&name);
        self.settle(&name);
    }

    /// Removes a GpuNode, and with it all reservations on it.
    pub fn remove_node(&mut self, name: &NodeName) {
        if let Some(mut node) = self.nodes.remove(name) {
            self.keep_copy(name, &mut node);
            node.fleet_gpus.into_iter().for_each(|(_, gpu)| self.fleet.remove(gpu));
            for uid in &node.promised {
                self.places.remove(uid);
                self.lead.journeys.remove(uid);
            }
            self.fractions.remove(name);
            self.quotas.remove_node(name);
            self.charge_node(name);
            self.effects.changed.insert(name.clone());
            self.static_changed(name.clone());
        }
    }

    /// Sets what the Node of this name has for pods; `None` if it is gone.
    pub fn show_allocatable(&mut self, name: NodeName, allocatable: Option<Compute>) {
        self.machines.set_allocatable(name, allocatable);
    }

    /// Sets the taints of the Node of this name; none if it is gone.
    pub fn show_taints(&mut self, name: NodeName, taints: Vec<Taint>) {
        self.machines.set_taints(name, taints);
    }

    /// Sets whether the Node of this name takes no new pods. The scheduler applies that rule itself, and pods may
    /// tolerate it, so the node is not refused here. But its free slices do not count as room for pending pods.
    pub fn show_shut(&mut self, name: NodeName, is_shut: bool) {
        self.machines.set_shut(name, is_shut);
    }

    /// Sets whether pods may run in user namespaces on the Node of this name.
    pub fn show_user_namespaces(&mut self, name: &NodeName, has_them: bool) {
        self.machines.set_user_namespaces(name, has_them);
        let has_them = self.machines.has_user_namespaces(name);
        if let Some(node) = self.nodes.get_mut(name).filter(|node| node.user_namespaces != has_them) {
            node.user_namespaces = has_them;
            self.touch(name);
        }
    }

    /// The best place for a pod's `ask` on a node.
    pub fn place(&mut self, name: &str, uid: &PodUid, ask: &Ask) -> Result<Place, Refusal> {
        let Some(found) = self.nodes.place(name, ask, &self.lead.assumed, &self.fleet) else {
            let cost = self.static_cost(name, uid, ask)?;
            return Ok(Place { rank: Rank::BEST, cost });
        };
        let found = found?;
        let shared = found.share.and_then(|shape| {
            let (key, node) = self.nodes.get_key_value(name)?;
            let machine = self.machines.machine(key, node);
            let wanted = self.pods.get(uid).map(|pod| pod.template.compute).unwrap_or_default();
            self.fractions.cost(key, node, machine, shape, wanted)
        });
        self.within_quota_on(name, ask)?;
        Ok(Place { cost: shared.unwrap_or(found.place.cost), ..found.place })
    }

    /// Raises the epoch over the one that a former leader wrote, if any.
    pub fn rise_over(&mut self, former: Option<u64>) {
        self.effects.progress = true;
        if former.is_none() {
            self.nobody_led_before();
        }
        self.leadership.rise_over(former);
    }

    /// Updates what depends on a node's state.
    fn settle(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let mut promised = node.promised_now();
        node.forget_left(&promised);
        if let Some(copy) = self.copies.get(name) {
            promised.retain(|uid| !copy.releasing.contains(uid));
        }
        for uid in node.promised.difference(&promised) {
            if self.places.get(uid) == Some(name) {
                self.places.remove(uid);
                self.lead.journeys.remove(uid);
            }
        }
        for uid in promised.difference(&node.promised) {
            let pod = self.pods.get(uid);
            // A pod that is bound elsewhere has left this node.
            if pod.and_then(|pod| pod.node.as_ref()).is_some_and(|node| node != name) {
                continue;
            }
            // The end of a pod that ended earlier, for example while the agent was not connected, is reported by no
            // event.
            let is_unknown = pod.is_none() && self.listing.pods.has_ended() && node.reports_reservation(uid);
            if is_unknown && self.leadership.leads() {
                self.effects.unconfirmed.insert(uid.clone());
            }
            self.places.insert(uid.clone(), name.clone());
        }
        let known = promised.iter().filter_map(|uid| self.pods.get(uid));
        node.compute = known.map(|pod| pod.template.compute).fold(Compute::default(), Compute::plus);
        node.promised = promised;
        node.join(&mut self.fleet);
        self.nodes.touch(name);
        self.charge_node(name);
        self.lead.unschedulable.changed(name);
        self.effects.changed.insert(name.clone());
    }
}

#[cfg(test)]
mod quota_tests;
#[cfg(test)]
mod static_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk_tests;
