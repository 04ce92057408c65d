//! Which pods the kubelet may be about to allocate for.

use crate::names::PodUid;
use std::collections::BTreeMap;

/// What is known of the Bindings of pods that have reservations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bindings(BTreeMap<PodUid, Binding>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    /// The status has said that all the pod's slices are ready: the extender may have sent its Binding.
    Possible,
    /// The API server shows it.
    Made,
    /// The pod was bound, and has ended.
    Over,
}

impl Bindings {
    /// Takes which of the pods that have reservations the API server shows as bound and not ended. Call it before an offer.
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

    /// Takes what the status says, before it is published: for each reservation its pod, and whether the slice is ready.
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
