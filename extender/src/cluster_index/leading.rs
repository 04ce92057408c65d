//! What changes in the index when this replica begins to lead, and when it stops.
//!
//! Watches and agents feed the index for the process's life. What only a leader may know or decide ends with its term
//! ([`ClusterIndex::follow`]), so that a new term begins with the cluster's state and without that of the former term.
//!
//! # What a watch was late to show
//!
//! A leader that listed everything after it had taken the Lease would know all that its predecessor did, because the
//! predecessor sends nothing after the Lease's deadline. But a follower's watch may be seconds late, so its state may
//! be older than its predecessor's last acts. For each kind of data that a decision rests on:
//!
//! - Copies of agents' ledgers: the agent has the truth. It refuses orders of a lower epoch, places that are taken,
//!   and the release of a pod whose Binding may be open.
//! - Pods with a reservation that the index does not have: they are looked up.
//! - What pods hold of static nodes, and which nodes are being changed: a device may be held by a pod that the watch
//!   has not shown. No pod is bound to a static node until Nodes and pods were listed in this term.
//! - Epochs: the Lease's own and the ConfigMap's are read in each term. Those that agents have reported are kept.
//! - CPU, memory, taints, labels; pending pods: they rank nodes and requeue pods; kube-scheduler and the agents
//!   decide.
//! - Quotas: copies have all reservations. A bound pod that the watch has not shown yet is in its node's copy, as
//!   long as the agent is connected.

use super::ClusterIndex;
use super::journey::Journey;
use super::lifetime::Uses;
use super::making_room::MakingRoom;
use super::pending_bindings::PendingBindings;
use super::preempting::Told;
use super::statics::Shower;
use super::succession::Predecessor;
use crate::assumed::AssumedPods;
use crate::unschedulable::Unschedulable;
use hashbrown::HashMap;
use kerf_core::contract::PassedKind;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::{Fleet, Terms};

/// What only a leader has. It ends with the term.
#[derive(Debug, Default)]
pub(super) struct Lead {
    /// Assumed pods.
    pub assumed: AssumedPods,
    /// Evictions that were begun or put off, by the pod that gets the room.
    pub making_room: HashMap<PodUid, MakingRoom>,
    /// Pods with a reservation and no Binding yet.
    pub journeys: HashMap<PodUid, Journey>,
    /// The preferred kinds that were passed over, for pods with a reservation and no Binding yet.
    pub passed: HashMap<PodUid, Vec<PassedKind>>,
    /// Pods whose Binding was sent and whose outcome is not known yet.
    pub pending_bindings: HashMap<PodUid, PendingBindings>,
    /// When reservations were last used.
    pub uses: Uses,
    pub predecessor: Predecessor,
    /// Pods that all offered nodes refused.
    pub unschedulable: Unschedulable,
    /// Whether the pods that a former leader refused were taken over.
    pub adopted_waiters: bool,
    /// The last Events about why no pod is preempted.
    pub told: Told,
}

impl ClusterIndex {
    /// The empty index of a follower. `terms` are the weights by which it will value places.
    #[must_use]
    pub fn following(terms: Terms) -> Self {
        Self { fleet: Fleet::new(terms), ..Self::default() }
    }

    /// Begins a term in this epoch, or in one above every epoch that was seen.
    pub fn lead(&mut self, epoch: u64) {
        self.leadership.begin(epoch);
        self.statics.set_unread(true);
    }

    /// Whether a leader can answer: everything was listed, and what may not be stale was listed in this term.
    #[must_use]
    pub fn can_answer(&self) -> bool {
        self.is_listed() && !self.has_unread_statics()
    }

    /// Whether there are static nodes whose Nodes and pods are still to be listed in this term.
    #[must_use]
    pub fn has_unread_statics(&self) -> bool {
        self.statics.are_unread() && self.statics.names().any(|name| self.is_static(name))
    }

    /// Records that Nodes and pods were listed in this term, so that static nodes are known.
    pub fn statics_read(&mut self) {
        self.statics.set_unread(false);
        let all: Vec<NodeName> = self.statics.names().cloned().collect();
        self.statics_changed(all);
        self.effects.progress = true;
    }

    /// Starts to answer requests, because everything is known.
    pub fn take_over(&mut self) {
        self.leadership.answer();
        self.effects.progress = true;
        self.look_into_unknown();
    }

    /// Ends the term. It drops everything that only a leader may know: proposals, assumed and pending pods, and
    /// reservations on static nodes.
    pub fn follow(&mut self) {
        self.leadership.end();
        self.lead = Lead::default();
        self.hidden.clear();
        self.quotas.forget_all();
        let mut changed = self.statics.forget_leader();
        let strays = std::mem::take(&mut self.strays);
        for uid in &strays {
            changed.extend(self.statics.leave(uid, Shower::Sliced));
        }
        for uid in &strays {
            // No watch shows these pods, so their end would not be reported.
            self.forget_pod(uid);
        }
        self.statics_changed(changed);
        self.forget_orders();
        self.take_effects();
    }
}

#[cfg(test)]
#[path = "leading_tests.rs"]
mod tests;
