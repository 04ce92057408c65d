//! Updates of pods with kerf's label: which exist, which have ended, and which must be looked up with the API server.
//!
//! A reservation is released only if its pod is known to be gone. The watch's silence is no proof of that, because a
//! pod whose label is removed leaves the watch and runs on.

use super::ClusterIndex;
use super::effects::ReleaseReason;
use super::managed_nodes::only_slice;
use crate::objects::pod::KnownPod;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::time::Instant;

impl ClusterIndex {
    pub fn begin_pod_list(&mut self) {
        self.pods.begin_list();
    }

    /// Ends that list. Pods with a reservation that it did not contain are looked up.
    pub fn end_pod_list(&mut self) {
        if let Some(gone) = self.pods.end_list() {
            for uid in &gone {
                self.remove_pod(uid);
            }
            self.nodes().holders().end_labelled_list();
        }
        self.effects.progress = true;
        self.nodes().look_up_unknown();
    }

    /// Updates a pod as the watch shows it.
    pub fn show_pod(&mut self, pod: KnownPod) {
        self.pods.set_watched(&pod.uid);
        self.update_pod(pod);
    }

    /// Handles a pod that the watch no longer shows. If its end had begun it is gone; otherwise the API server is
    /// asked.
    pub fn hide_pod(&mut self, last: &KnownPod) {
        let ending = |pod: &KnownPod| pod.deleting || pod.ended;
        let known = self.remove_pod(&last.uid);
        if ending(last) || known.is_some_and(|pod| ending(&pod)) {
            self.pod_gone(&last.uid);
        } else {
            self.nodes().holders().hand_over(&last.uid);
            self.scheduling().forget_assumed(&last.uid);
            if self.leadership.leads() && self.place_of(&last.uid).is_some() {
                self.pods.hide(&last.uid);
                self.effects.unconfirmed.insert(last.uid.clone());
            }
        }
    }

    /// Removes a pod that the API server does not have.
    pub fn pod_gone(&mut self, uid: &PodUid) {
        self.remove_pod(uid);
        self.pods.set_gone(uid);
        self.forget_scheduling(uid);
        self.nodes().holders().free(uid);
        self.nodes().leave(uid, ReleaseReason::Gone);
    }

    /// Handles a pod from the API server, which was asked for at `asked`.
    pub fn looked_up(&mut self, pod: KnownPod, asked: Instant) {
        let is_watched = self.pods.is_watched(&pod.uid);
        if self.bindings.is_over(&pod.uid, asked) {
            match &pod.node {
                Some(node) => self.bound(&pod.uid, &pod.key, node),
                None => self.reserving().not_bound(&pod.uid),
            }
        }
        if !is_watched {
            self.show_stray(pod);
        }
    }

    /// Adds a pod that the API server has although the watch does not show it.
    pub fn show_stray(&mut self, pod: KnownPod) {
        if pod.template.request.is_none() && !self.nodes.managed.reservations().has(&pod.uid) {
            return self.nodes().holders().hold_unlabelled(&pod);
        }
        self.pods.set_stray(&pod.uid);
        self.update_pod(pod);
    }

    /// Records that the pod is bound, before the watch shows it.
    pub fn bound(&mut self, uid: &PodUid, key: &PodKey, node: &NodeName) {
        self.bindings.set_bound(uid);
        if self.nodes.managed.reservations().has(uid) {
            self.pods.bind(uid, key, node);
        }
    }

    /// Checks everything again, to find changes that no event has reported.
    pub fn resync(&mut self, now: Instant) {
        self.nodes().look_up_unknown();
        self.effects.unconfirmed.extend(self.bindings.over(now).cloned());
        let reservations = self.nodes.managed.reservations();
        let strays = self.pods.retain_strays(|uid| reservations.has(uid));
        self.effects.unconfirmed.extend(strays.cloned());
    }

    fn update_pod(&mut self, pod: KnownPod) {
        let node = pod.node.as_ref().and_then(|name| self.nodes.managed.get_key_value(name.as_str()));
        let pod = self.pods.reduce(pod, node.map(|(name, _)| name));
        if pod.node.is_some() || pod.ended {
            self.forget_scheduling(&pod.uid);
        }
        let uid = pod.uid.clone();
        // A pod counts as demand when it is first seen. Otherwise each event would count it again.
        if let (false, Ok(ask)) = (self.pods.contains(&uid), pod.ask()) {
            let slice = only_slice(&ask).or_else(|| self.nodes.managed.slice_of_any_kind(&uid, &ask));
            if let Some(slice) = slice {
                self.nodes.managed.learn(slice, pod.template.compute);
            }
        }
        self.nodes().holders().hold_labelled(&pod);
        let before = self.pods.insert(pod);
        let has_changed = before.as_ref() != self.pods.get(&uid);
        self.nodes().charge_pod(&uid, before.as_ref());
        if has_changed {
            self.nodes().pod_changed(&uid);
        }
    }

    /// Forgets how a pod was scheduled, which is bound, has ended or is gone.
    fn forget_scheduling(&mut self, uid: &PodUid) {
        self.bindings.forget(uid);
        self.unschedulable.forget(uid);
        self.evictions.forget(uid);
        self.pod_events.forget(uid);
        self.scheduling().forget_assumed(uid);
    }

    pub(super) fn remove_pod(&mut self, uid: &PodUid) -> Option<KnownPod> {
        let known = self.pods.remove(uid)?;
        self.nodes().charge_pod(uid, Some(&known));
        Some(known)
    }
}
