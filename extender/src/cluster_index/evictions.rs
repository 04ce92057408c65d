//! The evictions that make room, by the pod that gets the room.

use crate::assumed::Leaving;
use hashbrown::HashMap;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::KindPlan;
use std::time::Instant;

/// What is done for a pod that fits nowhere.
#[derive(Debug, Clone)]
pub(super) enum MakingRoom {
    /// No pod is evicted for it until then, because others are just leaving a suitable place.
    Awaiting(Instant),
    Begun(Begun),
}

#[derive(Debug, Clone)]
pub(super) struct Begun {
    pub evicted: PodUid,
    /// The kinds that are to serve the pod.
    pub plan: KindPlan,
    pub leaving: Leaving,
    pub node: NodeName,
    pub until: Instant,
    pub refused: bool,
}

/// Evictions that were begun or put off.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    by_pod: HashMap<PodUid, MakingRoom>,
    /// Whether no pod is ever evicted, because the program lacks the right to.
    are_forbidden: bool,
}

impl Evictions {
    pub fn forbid(&mut self) {
        self.are_forbidden = true;
    }

    pub fn are_forbidden(&self) -> bool {
        self.are_forbidden
    }

    pub fn get(&self, uid: &PodUid) -> Option<&MakingRoom> {
        self.by_pod.get(uid)
    }

    pub fn set(&mut self, uid: &PodUid, making_room: MakingRoom) {
        self.by_pod.insert(uid.clone(), making_room);
    }

    pub fn forget(&mut self, uid: &PodUid) {
        self.by_pod.remove(uid);
    }

    /// Whether a pod was evicted for this pod and its place is kept.
    pub fn have_begun_for(&self, uid: &PodUid, now: Instant) -> bool {
        match self.by_pod.get(uid) {
            Some(MakingRoom::Begun(begun)) => !begun.refused && begun.until > now,
            Some(MakingRoom::Awaiting(_)) | None => false,
        }
    }

    /// Records that the API server refused the eviction for this pod. Returns whether there was one.
    pub fn refuse(&mut self, uid: &PodUid) -> bool {
        let Some(MakingRoom::Begun(begun)) = self.by_pod.get_mut(uid) else { return false };
        begun.refused = true;
        true
    }

    pub fn end_term(&mut self) {
        self.by_pod.clear();
    }
}
