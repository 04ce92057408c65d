//! Pods in the index: which exist, which have ended, and which must be looked up with the API server.
//!
//! A reservation is released only if its pod is known to be gone. The watch's silence is no proof of that, because a
//! pod whose label is removed leaves the watch and runs on.

use super::statics::Shower;
use super::{ClusterIndex, Why, fractions};
use crate::ask::Ask;
use crate::pod::{Counted, KnownPod};
use kerf_core::contract::{RequestDocument, Reserved, RootProcesses};
use kerf_core::kind::{Kind, KindLabel};
use kerf_core::names::{PodKey, PodUid};
use kerf_core::units::SizeGb;
use std::time::Instant;

impl ClusterIndex {
    /// Starts a list of all pods with kerf's label.
    pub fn pods_listing(&mut self) {
        self.listing.pods.begin();
    }

    /// Ends that list. Pods with a reservation that it did not contain are looked up.
    pub fn pods_listed(&mut self) {
        if let Some(shown) = self.listing.pods.end() {
            let is_gone = |uid: &&PodUid| !shown.contains(*uid) && !self.strays.contains(*uid);
            let gone: Vec<PodUid> = self.pods.keys().filter(is_gone).cloned().collect();
            for uid in &gone {
                self.forget_pod(uid);
            }
            let changed = self.statics.retain(Shower::Sliced, |uid| self.pods.contains_key(uid));
            self.statics_changed(changed);
        }
        self.effects.progress = true;
        self.look_into_unknown();
    }

    /// Updates a pod as the watch shows it.
    pub fn show_pod(&mut self, pod: KnownPod) {
        self.listing.pods.add(&pod.uid);
        self.strays.remove(&pod.uid);
        self.take_pod(pod);
    }

    /// Adds a pod that the API server has although the watch does not show it.
    pub fn show_stray(&mut self, pod: KnownPod) {
        if pod.template.request.is_none() && !self.places.has(&pod.uid) {
            return self.note_holder(&pod, Shower::Others);
        }
        self.strays.insert(pod.uid.clone());
        self.take_pod(pod);
    }

    /// Handles a pod that the watch no longer shows. If its end had begun it is gone; otherwise the API server is
    /// asked.
    pub fn hide_pod(&mut self, last: &KnownPod) {
        let ending = |pod: &KnownPod| pod.deleting || pod.ended;
        let known = self.forget_pod(&last.uid);
        if ending(last) || known.is_some_and(|pod| ending(&pod)) {
            self.pod_gone(&last.uid);
        } else {
            self.statics.hand_over(&last.uid);
            self.drop_assumed(&last.uid);
            if self.leadership.leads() && self.place_of(&last.uid).is_some() {
                self.hidden.insert(last.uid.clone());
                self.effects.unconfirmed.insert(last.uid.clone());
            }
        }
    }

    /// What metrics count a pod by, as far as it is known. If it has a slice, that slice's kind counts.
    #[must_use]
    pub fn counted(&self, uid: &PodUid) -> Counted {
        let counted = self.pods.get(uid).map(KnownPod::counted).unwrap_or_default();
        let node = self.places.get(uid).and_then(|name| self.nodes.get(name));
        let kind = node.and_then(|node| node.kind_of(uid)).map(KindLabel::Of);
        Counted { kind: kind.unwrap_or(counted.kind), ..counted }
    }

    /// Kind and size of a pod's slice, if only its place determines the kind and it has a reservation for exactly one.
    pub(super) fn slice_of_any_kind(&self, uid: &PodUid, ask: &Ask) -> Option<(Kind, SizeGb)> {
        let name = self.places.get(uid).filter(|_| ask.document.kind_label() == KindLabel::Any)?;
        let node = self.nodes.get(name)?;
        let mut slices = node.reserved(uid);
        let (Some(slice), None) = (slices.next(), slices.next()) else { return None };
        Some((slice.shape.kind(), slice.shape.size()))
    }

    /// Whether an MPS daemon accepts commands from the pod's processes, which its policy allows.
    #[must_use]
    pub fn may_command_mps(&self, uid: &PodUid) -> bool {
        let text = self.pods.get(uid).and_then(|pod| pod.template.request.as_deref());
        let document = text.and_then(|text| RequestDocument::parse(text).ok());
        let is_allowed = document.is_some_and(|document| document.root_processes == RootProcesses::Allowed);
        let node = self.places.get(uid).and_then(|name| self.nodes.get(name));
        let mut kinds = node.into_iter().flat_map(|node| node.reserved(uid)).map(|slice| slice.shape.kind());
        is_allowed && (node.is_none() || kinds.any(|kind| kind == Kind::Mps))
    }

    /// Removes a pod that the API server does not have.
    pub fn pod_gone(&mut self, uid: &PodUid) {
        self.forget_pod(uid);
        self.hidden.remove(uid);
        self.strays.remove(uid);
        self.forget_scheduling(uid);
        let changed = self.statics.gone(uid);
        self.statics_changed(changed);
        self.leave(uid, Why::Gone);
    }

    /// Forgets how a pod was scheduled, which is bound, has ended or is gone.
    fn forget_scheduling(&mut self, uid: &PodUid) {
        self.lead.pending_bindings.remove(uid);
        self.waits_no_longer(uid);
        self.lead.making_room.remove(uid);
        self.quotas.forget(uid);
        self.lead.told.forget(uid);
        self.drop_assumed(uid);
        self.lead.passed.remove(uid);
    }

    /// A pod that has ended or is gone leaves its slices. Its node's agent notices that too, sooner or later.
    fn leave(&mut self, uid: &PodUid, why: Why) {
        let place = self.places.get(uid).cloned().zip(self.reserved_for(uid));
        if let Some((name, pod)) = place
            && let Some(node) = self.nodes.get_mut(&name)
        {
            node.left.insert(uid.clone(), pod);
        }
        self.release(uid, why);
    }

    /// Checks everything again, to find what an event should have reported but did not.
    pub fn resync(&mut self, now: Instant) {
        self.look_into_unknown();
        self.look_into_posts(now);
        let strays = self.strays.iter().filter(|uid| self.places.has(uid));
        self.effects.unconfirmed.extend(strays.cloned());
        self.strays.retain(|uid| self.places.has(uid));
    }

    /// The pod with this UID that has a reservation, or whose Binding was sent.
    #[must_use]
    pub fn promised_pod(&self, uid: &PodUid) -> Option<PodKey> {
        if let Some(promised) = self.statics.promised(uid) {
            return Some(promised.key.clone());
        }
        self.reserved_for(uid).or_else(|| Some(self.lead.pending_bindings.get(uid)?.key().clone()))
    }

    fn reserved_for(&self, uid: &PodUid) -> Option<PodKey> {
        let node = self.nodes.get(self.places.get(uid)?)?;
        node.reserved(uid).find_map(|slice| slice.reservation).map(Reserved::key)
    }

    fn take_pod(&mut self, mut pod: KnownPod) {
        self.hidden.remove(&pod.uid);
        pod.template = self.templates.share(pod.template);
        if let Some(before) = self.pods.get(&pod.uid) {
            pod.uid = before.uid.clone();
            pod.created = before.created.or(pod.created);
        }
        // The names that are already stored are shared, so that those of the event are dropped.
        let node = pod.node.as_ref().and_then(|name| self.nodes.get_key_value(name.as_str()));
        if let Some((name, _)) = node {
            pod.node = Some(name.clone());
        }
        if pod.node.is_some() || pod.ended {
            self.forget_scheduling(&pod.uid);
        }
        let uid = pod.uid.clone();
        if let (false, Ok(ask)) = (self.pods.contains_key(&uid), pod.ask()) {
            let slice = fractions::only_slice(&ask).or_else(|| self.slice_of_any_kind(&uid, &ask));
            if let Some(slice) = slice {
                self.fractions.learn(slice, pod.template.compute);
            }
        }
        self.note_holder(&pod, Shower::Sliced);
        let before = self.pods.insert(uid.clone(), pod);
        let changed = before.as_ref() != self.pods.get(&uid);
        self.note_movable(&uid);
        self.charge_pod(&uid, before.as_ref());
        let Some(name) = self.places.get(&uid).filter(|_| changed).cloned() else { return };
        self.settle(&name);
        let is_elsewhere = |pod: &KnownPod| pod.node.as_ref().is_some_and(|node| *node != name);
        match self.pods.get(&uid) {
            Some(pod) if pod.ended => self.leave(&uid, Why::Ended),
            Some(pod) if is_elsewhere(pod) => drop(self.release(&uid, Why::BoundElsewhere)),
            _ => {}
        }
    }

    /// Removes all that is known of a pod.
    pub(super) fn forget_pod(&mut self, uid: &PodUid) -> Option<KnownPod> {
        let known = self.pods.remove(uid)?;
        self.note_movable(uid);
        self.charge_pod(uid, Some(&known));
        Some(known)
    }

    pub(super) fn note_movable(&mut self, uid: &PodUid) {
        let is_movable =
            |pod: &KnownPod| pod.template.movable_to.is_some() && pod.node.is_some() && !pod.ended;
        if self.pods.get(uid).is_some_and(is_movable) {
            self.movable.insert(uid.clone());
        } else {
            self.movable.remove(uid);
        }
    }

    pub(super) fn look_into_unknown(&mut self) {
        if self.listing.pods.has_ended() {
            let unknown = self.places.pods().filter(|uid| !self.pods.contains_key(*uid));
            self.effects.unconfirmed.extend(unknown.cloned());
            let bound =
                self.statics.promises().map(|(uid, _)| uid).filter(|uid| !self.pods.contains_key(*uid));
            self.effects.unconfirmed.extend(bound.cloned());
        }
    }
}
