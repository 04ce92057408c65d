//! Bindings that were sent. Until the outcome is known, the pod keeps its place, even if it could go elsewhere.
//!
//! A lost answer says nothing, and neither does a watch that shows the pod unbound, because the Binding may still be
//! made. But no request outlives its time in the API server. After that time the API server's state of the pod is the
//! outcome.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::pod::KnownPod;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::time::{Duration, Instant};

/// How long after its sender stopped waiting a Binding may still be made, unless a flag says otherwise. The API server
/// ends a request after a minute (`--request-timeout`), whatever it waits for.
pub const UNCERTAIN: Duration = Duration::from_secs(70);

/// A pod's Bindings whose outcome is not known.
#[derive(Debug)]
pub(super) struct PendingBindings {
    key: PodKey,
    /// When the sender of each Binding stops waiting, at the latest. Each is kept, because the refusal of a later one
    /// says nothing about an earlier one.
    until: Vec<Instant>,
    /// The last filter that found the pod's place unusable.
    held_up: Option<HeldUp>,
}

/// The request and the nodes of a pod that could go elsewhere.
#[derive(Debug)]
struct HeldUp {
    ask: Ask,
    offered: Vec<NodeName>,
}

impl PendingBindings {
    fn new(key: PodKey) -> Self {
        Self { key, until: Vec::new(), held_up: None }
    }

    /// Adds a Binding whose sender stops waiting at `until`.
    fn send(&mut self, until: Instant) {
        self.until.push(until);
        self.held_up = None;
    }

    fn is_over(&self, now: Instant, limit: Duration) -> bool {
        self.until.iter().all(|until| now.saturating_duration_since(*until) >= limit)
    }

    pub fn key(&self) -> &PodKey {
        &self.key
    }
}

impl ClusterIndex {
    /// Records that the pod's Binding is about to be sent. The reservation stays until its outcome is seen.
    pub fn begin_binding(&mut self, uid: &PodUid, key: &PodKey, until: Instant) {
        self.lead
            .pending_bindings
            .entry(uid.clone())
            .or_insert_with(|| PendingBindings::new(key.clone()))
            .send(until);
    }

    /// Removes the Binding with this `until`, which the API server refused. If the watch does not show the pod, its end
    /// may have come before the reservation, and then no event reports it. So the API server is asked.
    pub fn post_refused(&mut self, uid: &PodUid, until: Instant) {
        if let Some(post) = self.lead.pending_bindings.get_mut(uid) {
            post.until.retain(|sent| *sent != until);
            if !post.until.is_empty() {
                return;
            }
        }
        self.lead.pending_bindings.remove(uid);
        self.release_static(uid);
        if self.places.has(uid) && !self.pods.contains_key(uid) {
            self.effects.unconfirmed.insert(uid.clone());
        }
    }

    /// Whether the pod's Binding was sent and may have been made.
    #[must_use]
    pub fn is_posting(&self, uid: &PodUid) -> bool {
        self.lead.pending_bindings.contains_key(uid)
    }

    /// Records a filter in which the pod could not use its place on any of `offered`, but keeps it for the Binding that
    /// was sent.
    pub fn held_up(&mut self, uid: &PodUid, ask: &Ask, offered: &[&str]) {
        if let Some(post) = self.lead.pending_bindings.get_mut(uid) {
            let offered = offered.iter().map(|name| NodeName::new(*name)).collect();
            post.held_up = Some(HeldUp { ask: ask.clone(), offered });
        }
    }

    /// Looks up the pods whose Binding can no longer be made, but whose outcome is not known.
    pub(super) fn look_into_posts(&mut self, now: Instant) {
        let over =
            self.lead.pending_bindings.iter().filter(|(_, post)| post.is_over(now, self.limits.request));
        self.effects.unconfirmed.extend(over.map(|(uid, _)| uid.clone()));
    }

    /// Handles a pod from the API server, which was asked for at `asked`.
    pub fn looked_up(&mut self, pod: KnownPod, asked: Instant) {
        let is_watched = self.pods.contains_key(&pod.uid) && !self.strays.contains(&pod.uid);
        if self
            .lead
            .pending_bindings
            .get(&pod.uid)
            .is_some_and(|post| post.is_over(asked, self.limits.request))
        {
            match &pod.node {
                Some(node) => self.bound(&pod.uid, &pod.key, node),
                None => self.not_bound(&pod.uid),
            }
        }
        if !is_watched {
            self.show_stray(pod);
        }
    }

    /// Handles a Binding that was not made. A pod that could have gone elsewhere is requeued.
    fn not_bound(&mut self, uid: &PodUid) {
        let Some(post) = self.lead.pending_bindings.remove(uid) else { return };
        tracing::info!(pod = %post.key, %uid, "a Binding without an answer was not made");
        self.release_static(uid);
        let Some(HeldUp { ask, offered }) = post.held_up else { return };
        self.give_up(uid);
        let names: Vec<&str> = offered.iter().map(NodeName::as_str).collect();
        self.refused(uid, &post.key, &ask, &names, false);
        for name in &offered {
            self.lead.unschedulable.changed(name);
        }
    }
}

#[cfg(test)]
#[path = "pending_bindings_tests.rs"]
mod tests;
