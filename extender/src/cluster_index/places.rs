//! On which managed node each pod has its reservation.

use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodUid};

#[derive(Debug, Default)]
pub(super) struct Places {
    nodes: HashMap<PodUid, NodeName>,
    /// Those pods that were not bound when they were last asked about.
    unbound: HashSet<PodUid>,
}

impl Places {
    pub fn insert(&mut self, uid: PodUid, node: NodeName) {
        self.unbound.insert(uid.clone());
        self.nodes.insert(uid, node);
    }

    pub fn remove(&mut self, uid: &PodUid) {
        self.unbound.remove(uid);
        self.nodes.remove(uid);
    }

    pub fn get(&self, uid: &PodUid) -> Option<&NodeName> {
        self.nodes.get(uid)
    }

    pub fn has(&self, uid: &PodUid) -> bool {
        self.nodes.contains_key(uid)
    }

    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.nodes.keys()
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The pods that are not bound. A pod for which `is_bound` is true is not asked about again, because no pod is unbound
    /// again. Most reservations are those of bound pods.
    pub fn unbound(&mut self, is_bound: impl Fn(&PodUid) -> bool) -> impl Iterator<Item = &PodUid> {
        self.unbound.retain(|uid| !is_bound(uid));
        self.unbound.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_pod_keeps_its_place_and_is_not_asked_about_again() {
        let [bound, waits] = ["bound", "waits"].map(PodUid::new);
        let mut places = Places::default();
        for uid in [&bound, &waits] {
            places.insert(uid.clone(), "n".into());
        }
        assert_eq!(places.unbound(|uid| *uid == bound).collect::<Vec<_>>(), [&waits]);
        let is_bound = |uid: &PodUid| {
            assert_eq!(*uid, waits);
            false
        };
        assert_eq!(places.unbound(is_bound).collect::<Vec<_>>(), [&waits]);
        assert!(places.has(&bound) && places.count() == 2);
        places.remove(&waits);
        assert_eq!(places.unbound(|_| false).count(), 0);
    }
}
