//! Pods that nobody serves: those that every offered node refused, and those for which no node is offered.
//!
//! A pod has an affinity to nodes that can have its kind of slice. Where no node can any more, or none could yet when it came,
//! kube-scheduler finds none to ask about, and nobody refuses the pod.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::pod::KnownPod;
use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use std::sync::Arc;

impl ClusterIndex {
    /// The pods that have been refused, or that no node could ever serve, and wait; but for those whose quota is full, that
    /// are expected somewhere, or that somebody else keeps from being scheduled.
    #[must_use]
    pub fn refused_pods(&mut self) -> Vec<(PodUid, PodKey, Ask)> {
        let waiters = self.waiting.pods().filter(|waiter| !waiter.held_back && self.may_wait(&waiter.uid));
        let mut refused: Vec<_> =
            waiters.map(|waiter| (waiter.uid.clone(), waiter.key.clone(), waiter.ask.clone())).collect();
        refused.extend(self.never_offered());
        refused
    }

    /// Whether a pod has nothing yet, and is expected nowhere.
    #[must_use]
    pub fn may_wait(&self, uid: &PodUid) -> bool {
        self.place_of(uid).is_none() && !self.is_posting(uid) && self.expected_on(uid).is_none()
    }

    /// The pods that nobody was asked about, because no node could serve them. Nodes are asked once for all pods of a
    /// template.
    fn never_offered(&mut self) -> Vec<(PodUid, PodKey, Ask)> {
        let pods = self.not_asked_about();
        let mut asks: HashMap<Arc<str>, Option<Ask>> = HashMap::new();
        let mut found = Vec::new();
        for KnownPod { uid, key, request, facts, .. } in pods {
            let Some(text) = request else { continue };
            let ask = asks.entry(text).or_insert_with_key(|text| {
                let ask = Ask::read(Some(text)).ok()?;
                (!self.may_be_served(&uid, &ask)).then_some(ask)
            });
            let Some(ask) = ask.clone().map(|ask| ask.of(facts)) else { continue };
            if self.within_quota(&ask).is_ok() {
                found.push((uid, key, ask));
            }
        }
        found
    }

    /// The pods that could be scheduled, and that no filter has refused.
    pub(super) fn not_asked_about(&self) -> Vec<KnownPod> {
        let refused: HashSet<&PodUid> = self.waiting.pods().map(|waiter| &waiter.uid).collect();
        let known = self.demand.pods().filter(|uid| !refused.contains(uid) && self.may_wait(uid));
        known.filter_map(|uid| self.pods.get(uid)).filter(|pod| pod.can_be_scheduled()).cloned().collect()
    }

    /// Whether a node could serve a pod, now or when others have left. What is not known of a node could; one that takes no
    /// new pods is offered to nobody.
    pub(super) fn may_be_served(&mut self, uid: &PodUid, ask: &Ask) -> bool {
        self.open_nodes().iter().any(|name| {
            let refusal = match self.cost(name.as_str(), uid, ask) {
                // By the GPUs that its agent showed last, so that a node which never comes back does not stand for a hope.
                Err(Refusal::AgentNotReady | Refusal::AgentSilent) => {
                    self.nodes.get(name).and_then(|node| node.shown_fit(ask, &self.fleet).err())
                }
                cost => cost.err(),
            };
            !matches!(refusal, Some(Refusal::NeverFits | Refusal::NotSelected | Refusal::NoAgent))
        })
    }

    /// The nodes with GPUs that take new pods.
    pub(super) fn open_nodes(&self) -> Vec<NodeName> {
        let names = self.nodes.keys().chain(self.statics.names()).filter(|name| !self.shut.contains(*name));
        names.cloned().collect()
    }
}

#[cfg(test)]
#[path = "refused_tests.rs"]
mod tests;
