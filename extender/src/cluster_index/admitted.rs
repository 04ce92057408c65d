//! Admitted pods without a node, and whether any node could ever serve one of them.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::pod::KnownPod;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::Refusal;

impl ClusterIndex {
    /// The admitted pods that live and are not bound.
    pub(super) fn admitted(&self) -> impl Iterator<Item = &KnownPod> {
        let pods = self.pods.values().filter(|pod| pod.template.request.is_some() && pod.node.is_none());
        pods.filter(|pod| !pod.ended && !pod.deleting)
    }

    /// Whether some node could serve a pod, now or when others have left. A node with unknown GPUs counts as one that
    /// could. A node that is closed to new pods does not count.
    pub(super) fn may_be_served(&mut self, uid: &PodUid, ask: &Ask) -> bool {
        self.open_nodes().iter().any(|name| {
            let refusal = match self.place(name.as_str(), uid, ask) {
                // Judges by the GPUs that the agent reported last, so that a node that never comes back does not keep
                // the pod hoping.
                Err(Refusal::AgentNotReady) => {
                    self.nodes.get(name).and_then(|node| node.shown_fit(ask, &self.fleet).err())
                }
                place => place.err(),
            };
            !matches!(refusal, Some(Refusal::NeverFits | Refusal::NotSelected | Refusal::NoAgent))
        })
    }

    /// The nodes with GPUs that take new pods.
    pub(super) fn open_nodes(&self) -> Vec<NodeName> {
        let names = self.nodes.names().chain(self.statics.names()).filter(|name| self.machines.is_open(name));
        names.cloned().collect()
    }
}

#[cfg(test)]
#[path = "admitted_tests.rs"]
mod tests;
