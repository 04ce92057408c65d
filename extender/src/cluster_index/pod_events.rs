//! The Events about pods that are not scheduled: each pod gets one if the reason has changed, at most once a minute.

use hashbrown::HashMap;
use kerf_core::names::{PodKey, PodUid};
use kerf_core::quota::OverQuota;
use std::time::{Duration, Instant};

/// The shortest interval between two Events about one pod.
const INTERVAL: Duration = Duration::from_mins(1);

/// A pod that is pending because of its namespace's quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBack {
    pub uid: PodUid,
    pub pod: PodKey,
    pub over: OverQuota,
}

/// A pod that no other pod is preempted for, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPreemption {
    pub uid: PodUid,
    pub pod: PodKey,
    pub message: String,
}

/// The Events that are due, and the last ones about each pod.
#[derive(Debug, Default)]
pub struct PodEvents {
    over_quota: Last<OverQuota>,
    no_preemption: Last<String>,
    held_back_due: Vec<HeldBack>,
    no_preemption_due: Vec<NoPreemption>,
}

impl PodEvents {
    /// Handles a pod that its quota refuses.
    pub fn held_back(&mut self, uid: &PodUid, key: &PodKey, over: OverQuota, now: Instant) {
        if self.over_quota.is_due(uid, &over, now) {
            self.held_back_due.push(HeldBack { uid: uid.clone(), pod: key.clone(), over });
        }
    }

    /// Handles a pod that no other pod is preempted for.
    pub fn spared(&mut self, uid: &PodUid, pod: &PodKey, message: String, now: Instant) {
        if self.no_preemption.is_due(uid, &message, now) {
            let (uid, pod) = (uid.clone(), pod.clone());
            self.no_preemption_due.push(NoPreemption { uid, pod, message });
        }
    }

    /// Takes the Events that are due since the last call.
    pub(super) fn take(&mut self) -> (Vec<HeldBack>, Vec<NoPreemption>) {
        (std::mem::take(&mut self.held_back_due), std::mem::take(&mut self.no_preemption_due))
    }

    /// Forgets a pod that is bound, has ended or is gone. An Event that is due stays so.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.over_quota.0.remove(uid);
        self.no_preemption.0.remove(uid);
    }
}

/// The last reason that an Event gave for each pod, and its time.
#[derive(Debug)]
struct Last<T>(HashMap<PodUid, (T, Instant)>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone + PartialEq> Last<T> {
    fn is_due(&mut self, uid: &PodUid, reason: &T, now: Instant) -> bool {
        let last = self.0.get(uid);
        let is_due = last
            .is_none_or(|(before, at)| before != reason && now.saturating_duration_since(*at) >= INTERVAL);
        if is_due {
            self.0.insert(uid.clone(), (reason.clone(), now));
        }
        is_due
    }
}
