//! Sums CPU and memory that pods without kerf's label use, by node.

use crate::objects::compute::Compute;
use crate::objects::pod::KnownPod;
use hashbrown::HashMap;
use kerf_core::names::{NodeName, PodUid};

/// The pods without kerf's label that are bound and live.
#[derive(Debug, Default)]
pub(super) struct UnlabelledPods {
    pods: HashMap<PodUid, (NodeName, Compute)>,
    nodes: HashMap<NodeName, Compute>,
}

impl UnlabelledPods {
    /// What these pods use of a node together.
    pub fn used_on(&self, node: &NodeName) -> Compute {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    /// Updates a pod as the watch shows it.
    pub fn show(&mut self, pod: &KnownPod) {
        let Some(node) = pod.node.as_ref().filter(|_| !pod.ended) else { return self.hide(&pod.uid) };
        if self.pods.get(&pod.uid).is_some_and(|(at, takes)| at == node && *takes == pod.template.compute) {
            return;
        }
        self.hide(&pod.uid);
        self.pods.insert(pod.uid.clone(), (node.clone(), pod.template.compute));
        let taken = self.nodes.entry(node.clone()).or_default();
        *taken = taken.plus(pod.template.compute);
    }

    pub fn hide(&mut self, uid: &PodUid) {
        let Some((node, takes)) = self.pods.remove(uid) else { return };
        let left = self.nodes.get(&node).copied().unwrap_or_default().minus(takes);
        if left == Compute::default() {
            self.nodes.remove(&node);
        } else {
            self.nodes.insert(node, left);
        }
    }

    /// Removes all pods that are not shown.
    pub fn retain(&mut self, is_shown: impl Fn(&PodUid) -> bool) {
        let gone: Vec<PodUid> = self.pods.keys().filter(|uid| !is_shown(uid)).cloned().collect();
        for uid in &gone {
            self.hide(uid);
        }
    }
}
