//! Assumes pods on the nodes where they will most probably be bound.

use super::nodes::Nodes;
use super::quotas::Quotas;
use crate::assumed::{AssumedPod, AssumedPods};
use crate::objects::ask::Ask;
use crate::unschedulable::Unschedulable;
use crate::usage::Entry;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::quota::Charge;
use std::time::Instant;

/// The assumed pods, with what follows from a change of one: filters read its node anew, and pending pods may have room
/// there.
#[derive(Debug)]
pub(super) struct Assuming<'i> {
    pub assumed: &'i mut AssumedPods,
    pub nodes: &'i mut Nodes,
    pub quotas: &'i Quotas,
    pub unschedulable: &'i mut Unschedulable,
}

impl Assuming<'_> {
    /// Assumes a pod on a node, and nowhere else.
    pub fn assume(&mut self, node: &NodeName, assumed: AssumedPod) {
        self.forget(&assumed.pod.uid);
        let charged = self.charge(node, &assumed.pod, &assumed.ask);
        self.put(node, AssumedPod { charged, ..assumed });
    }

    /// Assumes a pod again as it was.
    pub fn put(&mut self, node: &NodeName, assumed: AssumedPod) {
        self.assumed.put(node, assumed);
        self.touch(node);
    }

    /// Ends a pod's assumed place, and returns it with its node.
    pub fn forget(&mut self, uid: &PodUid) -> Option<(NodeName, AssumedPod)> {
        let own = self.assumed.take(uid)?;
        self.touch(&own.0);
        Some(own)
    }

    /// Drops assumed pods that were not bound in time.
    pub fn expire(&mut self, now: Instant) {
        for node in self.assumed.expire(now) {
            self.touch(&node);
        }
    }

    /// What the pod will be charged for a place on a node, for as long as it is assumed there.
    fn charge(&self, name: &NodeName, pod: &OwnerInEpoch, ask: &Ask) -> Option<Entry> {
        if !self.quotas.count(ask) {
            return None;
        }
        let name = name.as_str();
        let by_place = self.nodes.charge_depends_on_place(name, ask);
        let charge = by_place.then(|| self.nodes.charge(name, &pod.uid, ask, self.assumed));
        let charge = charge.and_then(Result::ok).unwrap_or_else(|| Charge::least(&ask.document));
        Some(Entry { namespace: pod.key.namespace.clone(), under: self.quotas.under_ask(ask), charge })
    }

    fn touch(&mut self, name: &NodeName) {
        if self.nodes.touch(name) {
            self.unschedulable.changed(name);
        }
    }
}
