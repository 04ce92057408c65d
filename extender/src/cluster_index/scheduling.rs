//! What a scheduling cycle asks: where a pod fits, at which cost, and that it is assumed there.

use super::assuming::Assuming;
use super::bindings::Bindings;
use super::node_objects::NodeObjects;
use super::nodes::Nodes;
use super::pods::Pods;
use super::preemption::Preemption;
use super::quotas::Quotas;
use crate::assumed::{ASSUMED_TIMEOUT, AssumedPod, AssumedPods, KindChoice};
use crate::objects::ask::Ask;
use crate::unschedulable::Unschedulable;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::{Cost, Place, Refusal};
use kerf_core::quota::OverQuota;
use kerf_core::static_node::Devices;
use std::time::Instant;

/// The nodes and pods as a scheduling cycle reads them, and the pods that it assumes.
#[derive(Debug)]
pub struct Scheduling<'i> {
    pub(super) nodes: &'i mut Nodes,
    pub(super) objects: &'i NodeObjects,
    pub(super) pods: &'i Pods,
    pub(super) quotas: &'i Quotas,
    pub(super) assumed: &'i mut AssumedPods,
    pub(super) unschedulable: &'i mut Unschedulable,
    pub(super) bindings: &'i Bindings,
    pub(super) epoch: u64,
}

impl Scheduling<'_> {
    /// The best place for a pod's `ask` on a node.
    pub fn place(&mut self, name: &str, uid: &PodUid, ask: &Ask) -> Result<Place, Refusal> {
        let pods = self.pods;
        let wanted = || pods.get(uid).map(|pod| pod.template.compute).unwrap_or_default();
        let place = self.nodes.place(name, uid, ask, self.assumed, self.objects, wanted)?;
        if self.nodes.charge_depends_on_place(name, ask) {
            let charge = || self.nodes.charge(name, uid, ask, self.assumed);
            self.quotas.admit_at(ask, self.assumed, charge)?;
        }
        Ok(place)
    }

    /// Whether a node has room for a pod that asks NVIDIA's device plugin and not kerf.
    pub fn plain_fit(&self, name: &str, uid: &PodUid, asked: &Devices) -> Result<Cost, Refusal> {
        self.nodes.plain_fit(name, uid, asked)
    }

    /// Whether the namespace's quota allows this pod, if the place does not matter.
    pub fn within_quota(&self, ask: &Ask) -> Result<(), OverQuota> {
        self.quotas.admit(ask, self.assumed)
    }

    /// The nodes with GPUs that take new pods.
    pub(super) fn open_nodes(&self) -> Vec<NodeName> {
        self.nodes.names().filter(|name| self.objects.is_open(name)).cloned().collect()
    }

    /// Whether some node could serve a pod, now or when others have left. A node with unknown GPUs counts as one that
    /// could. A node that is closed to new pods does not count.
    pub(super) fn may_be_served(&mut self, uid: &PodUid, ask: &Ask) -> bool {
        self.open_nodes().iter().any(|name| {
            let refusal = match self.place(name.as_str(), uid, ask) {
                // The GPUs that the agent reported last decide. Otherwise a node that never comes back would count as
                // one that could serve any pod.
                Err(Refusal::AgentNotReady) => {
                    let node = self.nodes.managed.get(name);
                    node.and_then(|node| node.shown_fit(ask, self.nodes.managed.fleet()).err())
                }
                place => place.err(),
            };
            !matches!(refusal, Some(Refusal::NeverFits | Refusal::NotSelected | Refusal::NoAgent))
        })
    }

    /// Assumes a pod on the node where it will most probably be bound, with the kinds that serve it there.
    pub fn assume(&mut self, pod: OwnerInEpoch, ask: Ask, choice: KindChoice, name: &NodeName, now: Instant) {
        let until = now + ASSUMED_TIMEOUT;
        self.assuming().assume(name, AssumedPod { pod, ask, choice, until, leaving: None, charged: None });
    }

    #[must_use]
    pub fn assumed_on(&self, uid: &PodUid) -> Option<&NodeName> {
        self.assumed.node_of(uid)
    }

    pub(super) fn is_reserved(&self, uid: &PodUid) -> bool {
        self.nodes.is_reserved(uid)
    }

    /// Ends a pod's assumed place, and returns it.
    pub fn forget_assumed(&mut self, uid: &PodUid) -> Option<AssumedPod> {
        self.assuming().forget(uid).map(|(_, assumed)| assumed)
    }

    /// Drops assumed pods that were not bound in time.
    pub fn expire(&mut self, now: Instant) {
        self.assuming().expire(now);
    }

    /// The pods that all offered nodes refused.
    pub fn unschedulable(&mut self) -> &mut Unschedulable {
        self.unschedulable
    }

    pub(super) fn assuming(&mut self) -> Assuming<'_> {
        Assuming {
            assumed: self.assumed,
            nodes: self.nodes,
            quotas: self.quotas,
            unschedulable: self.unschedulable,
        }
    }

    pub(super) fn preemption(&self) -> Preemption<'_> {
        Preemption { nodes: self.nodes, pods: self.pods, quotas: self.quotas, assumed: self.assumed }
    }
}

#[cfg(test)]
#[path = "admitted_tests.rs"]
mod tests;
