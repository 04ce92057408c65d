//! Updates of nodes: what the API server and the agents report of them, and what follows for quotas and pending pods.

use super::effects::{Effects, ReleaseReason, Released};
use super::leadership::Leadership;
use super::managed_nodes::{NodeCopy, Proposed, Settled};
use super::node_objects::NodeObjects;
use super::nodes::Nodes;
use super::pods::Pods;
use super::quotas::{Quotas, with_slices};
use crate::objects::pod::KnownPod;
use crate::unschedulable::Unschedulable;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::policy::Policies;
use kerf_runtime::gpu_node::GpuNode;
use std::sync::Arc;

/// The nodes, with what follows from a change of one.
#[derive(Debug)]
pub struct NodeUpdates<'i> {
    pub(super) nodes: &'i mut Nodes,
    pub(super) objects: &'i mut NodeObjects,
    pub(super) pods: &'i Pods,
    pub(super) quotas: &'i mut Quotas,
    pub(super) unschedulable: &'i mut Unschedulable,
    pub(super) leadership: &'i Leadership,
    pub(super) effects: &'i mut Effects,
}

impl NodeUpdates<'_> {
    pub fn begin_gpu_node_list(&mut self) {
        self.nodes.managed.begin_list();
    }

    /// Ends a list of all `GpuNodes`: those that it did not contain are gone.
    pub fn end_gpu_node_list(&mut self) {
        for name in &self.nodes.managed.end_list() {
            self.remove_gpu_node(name);
        }
        self.effects.progress = true;
    }

    /// Updates a GpuNode from the API server. The node's slices come from its agent over the connection instead.
    pub fn show_gpu_node(&mut self, shown: &GpuNode) {
        let name = shown.name();
        if self.nodes.managed.update(&name, shown) {
            return;
        }
        self.remove_gpu_node(&name);
        self.nodes.add_managed(&name, shown, self.objects.has_user_namespaces(&name));
        self.settle(&name);
    }

    /// Removes a GpuNode, and with it all reservations on it.
    pub fn remove_gpu_node(&mut self, name: &NodeName) {
        if self.nodes.managed.remove(name) {
            self.quotas.remove_node(name);
            self.charge(name);
            self.effects.changed.insert(name.clone());
            self.devices_changed(name);
        }
    }

    pub fn show_user_namespaces(&mut self, name: &NodeName, has_them: bool) {
        self.objects.set_user_namespaces(name, has_them);
        if self.nodes.managed.set_user_namespaces(name, self.objects.has_user_namespaces(name)) {
            self.nodes.managed.touch(name);
            self.unschedulable.changed(name);
        }
    }

    /// Takes the policies that apply now. If they differ, all slices are charged again, and all pending pods are
    /// checked again.
    pub fn set_policies(&mut self, policies: &Arc<Policies>) {
        if !self.quotas.take(policies) {
            return;
        }
        self.all_devices_changed();
        for name in self.quotas.charged_nodes(&self.nodes.managed, self.pods) {
            self.charge(&name);
            self.unschedulable.changed(&name);
            self.effects.changed.insert(name);
        }
    }

    pub fn objects(&mut self) -> &mut NodeObjects {
        self.objects
    }

    /// Updates the charges after a change of a pod.
    pub(super) fn charge_pod(&mut self, uid: &PodUid, before: Option<&KnownPod>) {
        let (was, is) = (before.and_then(with_slices), self.pods.get(uid).and_then(with_slices));
        if self.quotas.are_limited() && was != is {
            was.into_iter().chain(is).for_each(|name| self.charge(name));
        }
    }

    /// Updates the node on which a pod has a reservation after a change of the pod. One that has ended, or is bound to
    /// another node, leaves it.
    pub(super) fn pod_changed(&mut self, uid: &PodUid) {
        let Some(name) = self.nodes.managed.reservations().get(uid).cloned() else { return };
        self.settle(&name);
        let is_elsewhere = |pod: &KnownPod| pod.node.as_ref().is_some_and(|node| *node != name);
        match self.pods.get(uid) {
            Some(pod) if pod.ended => self.leave(uid, ReleaseReason::Ended),
            Some(pod) if is_elsewhere(pod) => drop(self.release(uid, ReleaseReason::BoundElsewhere)),
            _ => {}
        }
    }

    /// Changes the copy of a node's ledger, and updates what depends on it.
    pub(super) fn update_copy(&mut self, name: &NodeName, act: impl FnOnce(&mut NodeCopy)) {
        if self.nodes.managed.update_copy(name, act) {
            self.settle(name);
        }
    }

    /// Whether this is the connection of a node's agent.
    pub(super) fn is_connected_by(&self, name: &NodeName, connection: u64) -> bool {
        self.nodes.managed.connection_of(name) == Some(connection)
    }

    /// Removes the proposal for a pod after the agent's answer, and returns it.
    pub(super) fn take_proposed(
        &mut self,
        uid: &PodUid,
        name: &NodeName,
        connection: u64,
    ) -> Option<Proposed> {
        if !self.is_connected_by(name, connection) {
            return None;
        }
        let taken = self.nodes.managed.take_proposed(uid, name);
        // An accepted proposal was no longer laid over the copy, so its removal changes nothing.
        if !self.nodes.managed.get(name).is_some_and(|node| node.reports_reservation(uid)) {
            self.update_copy(name, |_| ());
        }
        taken
    }

    /// Forgets all orders that this leader has sent to agents.
    pub(super) fn forget_orders(&mut self) {
        for name in &self.nodes.managed.connected() {
            self.update_copy(name, NodeCopy::forget_orders);
        }
    }

    /// Orders the release of a pod's reservation. Returns false if it may not be released, as far as is known.
    pub(super) fn release(&mut self, uid: &PodUid, reason: ReleaseReason) -> bool {
        let name = self.nodes.managed.reservations().get(uid).cloned();
        name.is_some_and(|name| self.release_on(&name, uid, reason))
    }

    fn release_on(&mut self, name: &NodeName, uid: &PodUid, reason: ReleaseReason) -> bool {
        if !self.leadership.leads() {
            return false;
        }
        let order = self.nodes.managed.release_order(name, uid, self.leadership.epoch(), reason);
        let Some((order, pod)) = order else { return false };
        self.effects.orders.push(order);
        self.update_copy(name, |copy| copy.set_releasing(uid, true));
        self.effects.released.push(Released { uid: uid.clone(), pod, node: name.clone(), reason });
        true
    }

    /// Releases the reservations of pods that have left, as far as that was impossible when they left: because their
    /// Binding was under way, or the agent was not connected. Called after each of the agent's reports.
    pub(super) fn release_left(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.managed.get(name) else { return };
        let reason = |uid: &PodUid| match self.pods.get(uid) {
            Some(pod) if pod.ended => Some(ReleaseReason::Ended),
            Some(pod) => {
                pod.node.as_ref().filter(|node| *node != name).map(|_| ReleaseReason::BoundElsewhere)
            }
            None => node.left().contains_key(uid).then_some(ReleaseReason::Gone),
        };
        let left = node.reserved_pods().iter().filter_map(|uid| Some((uid.clone(), reason(uid)?)));
        for (uid, reason) in left.collect::<Vec<_>>() {
            self.release_on(name, &uid, reason);
        }
    }

    /// A pod that has ended or is gone leaves its slices.
    pub(super) fn leave(&mut self, uid: &PodUid, reason: ReleaseReason) {
        self.nodes.managed.set_left(uid);
        self.release(uid, reason);
    }

    /// Looks up the pods that have a reservation and are not known.
    pub(super) fn look_up_unknown(&mut self) {
        if self.pods.are_listed() {
            let reserved = self.nodes.reserved_pods();
            self.effects.unconfirmed.extend(reserved.filter(|uid| !self.pods.contains(uid)).cloned());
        }
    }

    /// Updates what depends on a managed node's state.
    pub(super) fn settle(&mut self, name: &NodeName) {
        let settled = self.nodes.managed.settle(name, self.pods, self.leadership.leads());
        let Some(Settled { unknown, surplus }) = settled else { return };
        self.effects.unconfirmed.extend(unknown);
        for uid in surplus {
            self.release_on(name, &uid, ReleaseReason::NodeUnusable);
        }
        self.charge(name);
        self.changed(name);
    }

    /// Charges what is reserved and held on a node that is managed, or was.
    fn charge(&mut self, name: &NodeName) {
        self.quotas.charge_managed(name, self.nodes, self.pods);
    }

    /// Records a change of a node, for the binds that wait for it and the pods that may now have room there.
    pub(super) fn changed(&mut self, name: &NodeName) {
        self.unschedulable.changed(name);
        self.effects.changed.insert(name.clone());
    }
}
