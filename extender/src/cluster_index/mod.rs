//! A replica's view of the cluster: nodes, pods with slices, reservations and assumed pods. Only a leader has assumed
//! pods, and reservations on static nodes.
//!
//! Callers report events to it and ask it questions. It reads no clock and does no I/O. Its [`Effects`] list what
//! callers must do next: send orders to agents, let binds check again, look up pods.

mod agent_reports;
mod another_kind;
mod assuming;
mod bindings;
mod blocking;
mod effects;
mod eviction_search;
mod evictions;
mod leadership;
mod lifetime;
mod list;
mod making_room;
mod managed_nodes;
mod node_labels;
mod node_objects;
mod node_policies;
mod node_updates;
mod nodes;
mod pending;
mod pod_events;
mod pod_updates;
mod pods;
mod preemption;
mod preferred_kinds;
mod proposals;
mod quotas;
mod requeue;
mod reserving;
#[cfg(test)]
pub(crate) mod scene;
mod scheduling;
mod static_nodes;
mod statistics;
mod terms;
mod unlabelled_pods;

pub use bindings::{Bindings, Limits};
pub use effects::{Effects, Eviction};
pub use leadership::Leadership;
pub use making_room::RoomMaker;
pub use managed_nodes::{ManagedNodes, NodeOrder, Stages};
pub use node_policies::{NodePolicies, is_due};
pub use node_updates::NodeUpdates;
pub use pending::{Pending, pending_slices};
pub use pod_events::{HeldBack, NoPreemption, PodEvents};
pub use preemption::Preemption;
pub use preferred_kinds::Offer;
pub use quotas::{QuotaUse, over_quota};
pub use reserving::{Reserved, Reserving, Unreservable};
pub use scheduling::Scheduling;
pub use statistics::Statistics;

use crate::assumed::AssumedPods;
use crate::unschedulable::Unschedulable;
use evictions::Evictions;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Terms;
use node_objects::NodeObjects;
use nodes::Nodes;
use pods::Pods;
use quotas::Quotas;
use std::time::Instant;

/// A replica's view of the cluster. Each part has its own fields and rules. The index lets a part work on others only
/// through their methods.
#[derive(Debug, Default)]
pub struct ClusterIndex {
    leadership: Leadership,
    nodes: Nodes,
    objects: NodeObjects,
    pods: Pods,
    quotas: Quotas,
    assumed: AssumedPods,
    /// Pods that all offered nodes refused.
    unschedulable: Unschedulable,
    bindings: Bindings,
    evictions: Evictions,
    pod_events: PodEvents,
    effects: Effects,
}

impl ClusterIndex {
    /// The empty index of the leader of `epoch`. `terms` are the weights by which it values places.
    #[cfg(test)]
    pub(crate) fn new(epoch: u64, terms: Terms) -> Self {
        Self { leadership: Leadership::new(epoch), ..Self::following(terms) }
    }

    /// The empty index of a follower. `terms` are the weights by which it will value places.
    #[must_use]
    pub fn following(terms: Terms) -> Self {
        Self { nodes: Nodes::new(terms), ..Self::default() }
    }

    /// Takes the effects since the last call.
    pub fn take_effects(&mut self) -> Effects {
        let (held_back, no_preemption) = self.pod_events.take();
        let deposed = self.leadership.take_deposed();
        Effects { held_back, no_preemption, deposed, ..std::mem::take(&mut self.effects) }
    }

    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    pub fn leadership_mut(&mut self) -> &mut Leadership {
        &mut self.leadership
    }

    #[must_use]
    pub fn managed(&self) -> &ManagedNodes {
        &self.nodes.managed
    }

    pub fn bindings(&mut self) -> &mut Bindings {
        &mut self.bindings
    }

    pub fn pod_events(&mut self) -> &mut PodEvents {
        &mut self.pod_events
    }

    /// What watches and agents report of nodes goes through here.
    pub fn nodes(&mut self) -> NodeUpdates<'_> {
        self.reserving().updates
    }

    /// Binds make and release reservations through this.
    pub fn reserving(&mut self) -> Reserving<'_> {
        let updates = NodeUpdates {
            nodes: &mut self.nodes,
            objects: &mut self.objects,
            pods: &self.pods,
            quotas: &mut self.quotas,
            unschedulable: &mut self.unschedulable,
            leadership: &self.leadership,
            effects: &mut self.effects,
        };
        Reserving { updates, bindings: &mut self.bindings, assumed: &mut self.assumed }
    }

    /// Filters, prioritize requests and requeues ask and assume pods through this.
    pub fn scheduling(&mut self) -> Scheduling<'_> {
        self.room_maker().scheduling
    }

    /// Evictions that make room for a pod that no node serves.
    pub fn room_maker(&mut self) -> RoomMaker<'_> {
        let scheduling = Scheduling {
            nodes: &mut self.nodes,
            objects: &self.objects,
            pods: &self.pods,
            quotas: &self.quotas,
            assumed: &mut self.assumed,
            unschedulable: &mut self.unschedulable,
            bindings: &self.bindings,
            epoch: self.leadership.epoch(),
        };
        RoomMaker { scheduling, evictions: &mut self.evictions, effects: &mut self.effects }
    }

    #[must_use]
    pub fn preemption(&self) -> Preemption<'_> {
        let Self { nodes, pods, quotas, assumed, .. } = self;
        Preemption { nodes, pods, quotas, assumed }
    }

    #[must_use]
    pub fn node_policies(&self) -> NodePolicies<'_> {
        let Self { nodes, objects, quotas, .. } = self;
        NodePolicies { managed: &nodes.managed, objects, quotas }
    }

    #[must_use]
    pub fn statistics(&self) -> Statistics<'_> {
        let Self { nodes, objects, pods, quotas, assumed, .. } = self;
        Statistics { managed: &nodes.managed, objects, pods, quotas, assumed }
    }

    /// The node on which a pod has a reservation.
    #[must_use]
    pub fn place_of(&self, uid: &PodUid) -> Option<&NodeName> {
        self.nodes.place_of(uid)
    }

    /// Requeues the pending pods that have room now: returns them, each assumed at its place.
    pub fn requeue(&mut self, now: Instant) -> Vec<(PodUid, PodKey)> {
        if self.is_listed() { self.scheduling().requeue(now) } else { Vec::new() }
    }

    /// Runs what is due by time alone. The caller runs it about once a second.
    pub fn tick(&mut self, now: Instant) {
        if self.is_listed() {
            let request_limit = self.bindings.request_limit();
            self.nodes().reopen_static_nodes(now, request_limit);
            self.effects.unconfirmed.extend(self.bindings.over(now).cloned());
            self.reserving().expire(now);
        }
    }
}

#[cfg(test)]
pub(crate) use bindings::REQUEST_LIMIT;
#[cfg(test)]
use effects::{ReleaseReason, Released};
#[cfg(test)]
use managed_nodes::IndexedNode;
#[cfg(test)]
mod quota_tests;
#[cfg(test)]
mod static_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk_tests;
