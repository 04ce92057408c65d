//! What changes in the index when this replica begins to lead, and when it ends.
//!
//! Watches and agents feed the index for the process's life. What only a leader may know or decide ends with its term
//! ([`ClusterIndex::follow`]), so that a term begins with the cluster and with nothing of the term before.
//!
//! # What a watch was late to show
//!
//! A leader that listed everything after it had taken the Lease knew all that its predecessor had done: the predecessor sends nothing
//! after the Lease's deadline. The watch of a follower may be late by seconds, so what a follower knows may be older than its
//! predecessor's last acts. For each thing that a decision rests on:
//!
//! | what | why it may be old, or is read anew |
//! |---|---|
//! | copies of agents' ledgers | The agent is the truth. It refuses orders of a lower epoch, places that are taken, and the release of a pod whose Binding may be open. |
//! | pods with a reservation and unknown here | They are looked up. |
//! | what pods hold of static nodes, and which nodes are being changed | A device may be held by a pod that the watch has not shown. No pod comes to a static node until Nodes and pods were listed in this term. |
//! | epochs | The Lease's own, and the ConfigMap, are read in each term. What agents have heard is kept. |
//! | CPU, memory, taints, labels; who waits | They rank nodes and wake pods; kube-scheduler and the agents decide. |
//! | quotas | Copies have all reservations. A bound pod that is not shown yet is in its node's copy, as long as that is connected. |

use super::statics::Shower;
use super::{ClusterIndex, lifetime, succession};
use kerf_core::names::NodeName;
use kerf_core::packing::Terms;

/// Whether this replica leads, and how far its term is.
#[derive(Debug, Default)]
pub(super) struct Lead {
    pub leads: bool,
    /// Whether requests are answered. The epoch does not rise any more.
    pub answers: bool,
}

impl ClusterIndex {
    /// The index of a replica that follows, which knows nothing yet and values places on these terms.
    #[must_use]
    pub fn following(terms: Terms) -> Self {
        Self { lead: Lead::default(), ..Self::new(0, terms) }
    }

    /// This replica leads from now on, in this epoch or one above all that it has heard of.
    pub fn lead(&mut self, epoch: u64) {
        self.epoch = epoch.max(self.heard.saturating_add(1));
        self.lead = Lead { leads: true, answers: false };
        self.statics.set_unread(true);
    }

    /// Whether all is known by which a leader answers: everything was listed, what may not be old in this term.
    #[must_use]
    pub fn can_answer(&self) -> bool {
        self.is_listed() && !self.has_unread_statics()
    }

    /// Whether requests are answered, and so the epoch is final.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.lead.answers
    }

    /// Whether there are static nodes, and Nodes and pods are to be listed in this term.
    #[must_use]
    pub fn has_unread_statics(&self) -> bool {
        self.statics.are_unread() && self.statics.names().any(|name| self.is_static(name))
    }

    /// Nodes and pods were listed in this term: what static nodes have is known.
    pub fn statics_read(&mut self) {
        self.statics.set_unread(false);
        let all: Vec<NodeName> = self.statics.names().cloned().collect();
        self.statics_changed(all);
        self.effects.progress = true;
    }

    /// Everything is known: requests are answered from now on.
    pub fn take_over(&mut self) {
        self.lead.answers = true;
        self.effects.progress = true;
        self.look_into_unknown();
    }

    /// This replica leads no more. All goes that only a leader may know: proposals, assumed and pending pods, and what is
    /// promised on static nodes.
    pub fn follow(&mut self) {
        // Each field is named: a new one does not compile before it is decided what the next term may know of it.
        let Self {
            epoch: _,
            heard: _,
            lead,
            nodes: _,
            copies: _,
            fleet: _,
            fractions: _,
            others: _,
            allocatable: _,
            taints: _,
            labels: _,
            shut: _,
            without_user_namespaces: _,
            pods: _,
            movable: _,
            places: _,
            tentatives,
            statics,
            moving,
            moves_nobody: _,
            journeys,
            passed,
            posting,
            uses,
            limits: _,
            predecessor,
            strays,
            hidden,
            listing,
            waiting,
            adopted_waiters,
            quotas,
            told,
            effects: _,
        } = self;
        *lead = Lead::default();
        *tentatives = crate::tentative::Tentatives::default();
        moving.clear();
        journeys.clear();
        passed.clear();
        posting.clear();
        *uses = lifetime::Uses::default();
        *predecessor = succession::Predecessor::default();
        hidden.clear();
        listing.awaited.former_epoch = false;
        *waiting = crate::waiting::Waiting::default();
        *adopted_waiters = false;
        quotas.forget_all();
        *told = super::preempting::Told::default();
        let mut changed = statics.forget_leader();
        let strays = std::mem::take(strays);
        for uid in &strays {
            changed.extend(statics.leave(uid, Shower::Sliced));
        }
        for uid in &strays {
            // No watch shows them, so their end would not be reported.
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
