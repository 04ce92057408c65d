//! The pods for which the kubelet may be about to allocate.

use crate::names::PodUid;
use std::collections::BTreeMap;

/// The known Bindings of pods with reservations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bindings(BTreeMap<PodUid, Binding>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    /// The status has reported all of the pod's slices as ready, so the extender may have sent its Binding.
    Possible,
    /// The API server shows the Binding.
    Made,
    /// The pod was bound and has ended.
    Over,
}

impl Bindings {
    /// Updates the Bindings of `reserved` pods; `is_bound` returns whether the API server shows a pod as bound and not
    /// ended. Call it before an offer.
    pub fn take_pods<'r>(
        &mut self,
        reserved: impl IntoIterator<Item = &'r PodUid>,
        is_bound: impl Fn(&PodUid) -> bool,
    ) {
        let before = std::mem::take(&mut self.0);
        let binding = |uid: &PodUid| match before.get(uid) {
            _ if is_bound(uid) => Some(Binding::Made),
            Some(Binding::Made | Binding::Over) => Some(Binding::Over),
            other => other.copied(),
        };
        self.0 = reserved.into_iter().filter_map(|uid| Some((uid.clone(), binding(uid)?))).collect();
    }

    /// Adds what the status will report: for each reservation its pod, and whether the slice is ready. Call it before
    /// the status is published, because the extender may send a Binding as soon as it reads one.
    pub fn take_status<'r>(&mut self, reserved: impl IntoIterator<Item = (&'r PodUid, bool)>) {
        let mut ready: BTreeMap<&PodUid, bool> = BTreeMap::new();
        for (uid, is_ready) in reserved {
            *ready.entry(uid).or_insert(true) &= is_ready;
        }
        for (uid, _) in ready.into_iter().filter(|(_, all)| *all) {
            self.0.entry(uid.clone()).or_insert(Binding::Possible);
        }
    }

    /// Whether the kubelet may be about to allocate for the pod.
    #[must_use]
    pub fn may_be(&self, uid: &PodUid) -> bool {
        matches!(self.0.get(uid), Some(Binding::Possible | Binding::Made))
    }

    /// Whether the pod has ended, and only its reservation is left.
    #[must_use]
    pub fn is_over(&self, uid: &PodUid) -> bool {
        self.0.get(uid) == Some(&Binding::Over)
    }
}
