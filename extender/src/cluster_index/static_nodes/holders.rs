//! What pods hold of NVIDIA's device plugin, as the watches of pods show it.

use super::super::node_updates::NodeUpdates;
use super::PodWatch;
use crate::objects::pod::KnownPod;
use kerf_core::names::PodUid;

/// The nodes, for changes of pods that hold devices.
#[derive(Debug)]
pub struct DeviceHolders<'i>(NodeUpdates<'i>);

impl<'i> NodeUpdates<'i> {
    #[must_use]
    pub fn holders(self) -> DeviceHolders<'i> {
        DeviceHolders(self)
    }
}

impl DeviceHolders<'_> {
    /// Ends a list of all pods without kerf's label: pods that it did not contain are gone.
    pub fn end_unlabelled_list(&mut self) {
        self.0.effects.progress = true;
        if let Some(shown) = self.0.objects.end_unlabelled_list() {
            let changed = self.0.nodes.static_nodes.retain(PodWatch::Unlabelled, |uid| shown.contains(uid));
            self.0.nodes_changed(changed);
        }
    }

    pub fn show_unlabelled(&mut self, pod: &KnownPod) {
        self.0.objects.show_unlabelled(pod);
        self.hold_unlabelled(pod);
    }

    /// Removes a pod without kerf's label: it is gone, has ended, or has the label now.
    pub fn hide_unlabelled(&mut self, uid: &PodUid) {
        self.0.objects.hide_unlabelled(uid);
        let changed = self.0.nodes.static_nodes.leave(uid, PodWatch::Unlabelled);
        self.0.nodes_changed(changed);
    }

    /// Ends a list of all pods with kerf's label: pods that the index no longer has are gone.
    pub(in crate::cluster_index) fn end_labelled_list(&mut self) {
        let changed = self.0.nodes.static_nodes.retain(PodWatch::Labelled, |uid| self.0.pods.contains(uid));
        self.0.nodes_changed(changed);
    }

    /// Counts what a pod with kerf's label holds of NVIDIA's device plugin.
    pub(in crate::cluster_index) fn hold_labelled(&mut self, pod: &KnownPod) {
        self.hold(pod, PodWatch::Labelled);
    }

    /// The same for a pod without the label.
    pub(in crate::cluster_index) fn hold_unlabelled(&mut self, pod: &KnownPod) {
        self.hold(pod, PodWatch::Unlabelled);
    }

    /// Records that a pod lost kerf's label and lives on.
    pub(in crate::cluster_index) fn hand_over(&mut self, uid: &PodUid) {
        self.0.nodes.static_nodes.hand_over(uid);
    }

    /// Records that a pod is gone, and with it what it held or had reserved.
    pub(in crate::cluster_index) fn free(&mut self, uid: &PodUid) {
        let changed = self.0.nodes.static_nodes.gone(uid);
        self.0.nodes_changed(changed);
    }

    fn hold(&mut self, pod: &KnownPod, by: PodWatch) {
        let changed = self.0.nodes.static_nodes.hold(pod, by);
        self.0.nodes_changed(changed);
    }
}
