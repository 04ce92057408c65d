//! The pods whose processes may run, as the watch last showed them. The watch reports no end of a pod that goes during
//! a gap: the next list just lacks it.

use crate::event::Event;
use crate::pod_view::PodView;
use kerf_core::names::{PodKey, PodUid};
use std::collections::BTreeMap;

/// The live pods that request names of kerf.
#[derive(Debug, Default)]
pub(super) struct Live {
    known: BTreeMap<PodUid, PodKey>,
    /// Pods of the list that is being read, and whether they may run.
    listed: BTreeMap<PodUid, (PodKey, bool)>,
}

impl Live {
    /// Begins a list. The known pods stay until the list is complete, because a list that fails is started again.
    pub(super) fn begin(&mut self) {
        self.listed.clear();
    }

    pub(super) fn list(&mut self, pod: &PodView) {
        if pod.asks() {
            self.listed.insert(pod.uid(), (pod.key(), pod.may_run()));
        }
    }

    /// Ends a list, and returns events for the pods that ended during a gap. How a missing pod ended is unknown, so it
    /// counts as deleted by force.
    pub(super) fn list_is_whole(&mut self) -> Vec<Event> {
        let listed = std::mem::take(&mut self.listed);
        let before = std::mem::take(&mut self.known).into_iter();
        let ends = before.filter_map(|(uid, key)| match listed.get(&uid) {
            None => Some(Event::PodCutOff(key, uid)),
            Some((_, false)) => Some(Event::PodLeft(key, uid)),
            Some((_, true)) => None,
        });
        let ends = ends.collect();
        let live = listed.into_iter().filter(|(_, (_, may_run))| *may_run);
        self.known = live.map(|(uid, (key, _))| (uid, key)).collect();
        ends
    }

    pub(super) fn take(&mut self, pod: &PodView) {
        if pod.asks() && pod.may_run() {
            self.known.insert(pod.uid(), pod.key());
        } else {
            self.known.remove(&pod.uid());
        }
    }

    /// Removes a deleted pod. Returns whether its processes may run on.
    pub(super) fn delete(&mut self, pod: &PodView) -> bool {
        self.known.remove(&pod.uid());
        pod.asks() && pod.may_run()
    }
}
