//! The pods whose processes may run, as the watch showed them last. Of those that go during a gap of the watch it tells nothing:
//! the next list lacks them.

use crate::event::Event;
use crate::pod_view::PodView;
use kerf_core::names::{PodKey, PodUid};
use std::collections::BTreeMap;

/// Those that ask for kerf's names.
#[derive(Debug, Default)]
pub(super) struct Live {
    known: BTreeMap<PodUid, PodKey>,
    /// Those of the list that is being read, and whether they may run.
    listed: BTreeMap<PodUid, (PodKey, bool)>,
}

impl Live {
    /// A list begins. What was known is kept until it is whole: one that fails on its way is begun anew.
    pub(super) fn begin(&mut self) {
        self.listed.clear();
    }

    pub(super) fn list(&mut self, pod: &PodView) {
        if pod.asks() {
            self.listed.insert(pod.uid(), (pod.key(), pod.may_run()));
        }
    }

    /// The list is whole: gives what the watch would have told of the pods that ended during a gap. How one ended that is
    /// missing nobody knows: it may have been deleted by force.
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

    /// The pod is deleted. Whether processes of it may run on.
    pub(super) fn delete(&mut self, pod: &PodView) -> bool {
        self.known.remove(&pod.uid());
        pod.asks() && pod.may_run()
    }
}
