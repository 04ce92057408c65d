//! Bindings that were sent. Until it is known what became of one, its pod keeps its place, wherever else it could go.
//!
//! An answer that was lost says nothing, nor does a watch that shows the pod unbound: the Binding may yet be made. But no
//! request outlives its time in the API server, and what that says of the pod afterwards is the outcome.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::pod::KnownPod;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::time::{Duration, Instant};

/// How long after its sender gave it up a Binding may still be made, unless a flag says otherwise: the API server ends a request
/// after a minute (`--request-timeout`), whatever it waits for.
pub const UNCERTAIN: Duration = Duration::from_secs(70);

/// A pod's Bindings whose outcome is not known.
#[derive(Debug)]
pub(super) struct Post {
    /// The pod's namespace and name.
    key: PodKey,
    /// When each Binding is given up, at the latest. A later one that is refused says nothing about an earlier one.
    until: Vec<Instant>,
    /// The last filter that found the pod's place unusable.
    held_up: Option<HeldUp>,
}

/// A pod that could go elsewhere.
#[derive(Debug)]
struct HeldUp {
    ask: Ask,
    offered: Vec<NodeName>,
}

impl Post {
    fn new(key: PodKey) -> Self {
        Self { key, until: Vec::new(), held_up: None }
    }

    /// One more Binding, which its sender gives up at `until`.
    fn send(&mut self, until: Instant) {
        self.until.push(until);
        self.held_up = None;
    }

    fn is_over(&self, now: Instant, limit: Duration) -> bool {
        self.until.iter().all(|until| now.saturating_duration_since(*until) >= limit)
    }

    /// The pod's namespace and name.
    pub fn key(&self) -> &PodKey {
        &self.key
    }
}

impl ClusterIndex {
    /// The pod's Binding is about to be sent, and given up at `until`. Until its outcome is seen the promise stays.
    pub fn begin_post(&mut self, uid: &PodUid, key: &PodKey, until: Instant) {
        self.posting.entry(uid.clone()).or_insert_with(|| Post::new(key.clone())).send(until);
    }

    /// The API server refused the Binding that began with this `until`. If the watch does not show the pod, its end may have come
    /// before the reservation, and then no event reports it: the API server is asked.
    pub fn post_refused(&mut self, uid: &PodUid, until: Instant) {
        if let Some(post) = self.posting.get_mut(uid) {
            post.until.retain(|sent| *sent != until);
            if !post.until.is_empty() {
                return;
            }
        }
        self.posting.remove(uid);
        self.release_static(uid);
        if self.places.contains_key(uid) && !self.pods.contains_key(uid) {
            self.effects.unconfirmed.insert(uid.clone());
        }
    }

    /// Whether the pod's Binding was sent and may have been made.
    #[must_use]
    pub fn is_posting(&self, uid: &PodUid) -> bool {
        self.posting.contains_key(uid)
    }

    /// The pod's place is none that it can use of those `offered`, and it keeps it for the Binding that was sent.
    pub fn held_up(&mut self, uid: &PodUid, ask: &Ask, offered: &[&str]) {
        if let Some(post) = self.posting.get_mut(uid) {
            let offered = offered.iter().map(|name| NodeName::new(*name)).collect();
            post.held_up = Some(HeldUp { ask: ask.clone(), offered });
        }
    }

    /// The pods whose Binding cannot be made any more, and of which it is not known whether it was.
    pub(super) fn look_into_posts(&mut self, now: Instant) {
        let over = self.posting.iter().filter(|(_, post)| post.is_over(now, self.limits.request));
        self.effects.unconfirmed.extend(over.map(|(uid, _)| uid.clone()));
    }

    /// A pod as the API server has it, of which that was asked at `asked`.
    pub fn looked_up(&mut self, pod: KnownPod, asked: Instant) {
        let is_watched = self.pods.contains_key(&pod.uid) && !self.strays.contains(&pod.uid);
        if self.posting.get(&pod.uid).is_some_and(|post| post.is_over(asked, self.limits.request)) {
            match &pod.node {
                Some(node) => self.bound(&pod.uid, &pod.key, node),
                None => self.not_bound(&pod.uid),
            }
        }
        if !is_watched {
            self.show_stray(pod);
        }
    }

    /// The Binding was not made. A pod that could have gone elsewhere is told to look again.
    fn not_bound(&mut self, uid: &PodUid) {
        let Some(post) = self.posting.remove(uid) else { return };
        tracing::info!(pod = %post.key, %uid, "a Binding without an answer was not made");
        self.release_static(uid);
        let Some(HeldUp { ask, offered }) = post.held_up else { return };
        self.give_up(uid);
        let names: Vec<&str> = offered.iter().map(NodeName::as_str).collect();
        self.refused(uid, &post.key, &ask, &names, false);
        for name in &offered {
            self.waiting.changed(name);
        }
    }
}

#[cfg(test)]
#[path = "posting_tests.rs"]
mod tests;
