//! The pods with kerf's label: which exist, which have ended, and which the watch does not show.

use super::list::List;
use crate::objects::pod::KnownPod;
use crate::objects::template::Template;
use crate::shared::Shared;
use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodKey, PodUid};

#[derive(Debug, Default)]
pub struct Pods {
    known: HashMap<PodUid, KnownPod>,
    templates: Shared<Template>,
    /// Bound pods whose owners allow their eviction.
    evictable: HashSet<PodUid>,
    /// Pods that exist although the watch does not show them, because their label was removed.
    strays: HashSet<PodUid>,
    /// Pods that the watch no longer shows although nothing announced their end. They stay here until the API server
    /// was asked.
    hidden: HashSet<PodUid>,
    list: List<PodUid>,
}

impl Pods {
    pub fn get(&self, uid: &PodUid) -> Option<&KnownPod> {
        self.known.get(uid)
    }

    pub fn contains(&self, uid: &PodUid) -> bool {
        self.known.contains_key(uid)
    }

    pub fn iter(&self) -> impl Iterator<Item = &KnownPod> {
        self.known.values()
    }

    /// The UID as it is stored, so that it is not stored again.
    pub fn stored_uid(&self, uid: &PodUid) -> Option<&PodUid> {
        self.known.get_key_value(uid).map(|(uid, _)| uid)
    }

    pub fn begin_list(&mut self) {
        self.list.begin();
    }

    /// Ends the list, and returns the pods that it did not contain. `None` if none was started.
    pub fn end_list(&mut self) -> Option<Vec<PodUid>> {
        let shown = self.list.end()?;
        let is_gone = |uid: &&PodUid| !shown.contains(*uid) && !self.strays.contains(*uid);
        Some(self.known.keys().filter(is_gone).cloned().collect())
    }

    /// Whether all pods were listed once.
    pub fn are_listed(&self) -> bool {
        self.list.has_ended()
    }

    pub fn set_watched(&mut self, uid: &PodUid) {
        self.list.add(uid);
        self.strays.remove(uid);
    }

    /// Records that a pod exists although the watch does not show it.
    pub fn set_stray(&mut self, uid: &PodUid) {
        self.strays.insert(uid.clone());
    }

    pub fn is_watched(&self, uid: &PodUid) -> bool {
        self.known.contains_key(uid) && !self.strays.contains(uid)
    }

    /// Forgets which pods are strays, except for those with a reservation, and returns these.
    pub fn retain_strays(&mut self, is_reserved: impl Fn(&PodUid) -> bool) -> impl Iterator<Item = &PodUid> {
        self.strays.retain(is_reserved);
        self.strays.iter()
    }

    /// Ends the term: only a leader looks pods up. Returns the strays, whose end no watch would show.
    pub fn end_term(&mut self) -> HashSet<PodUid> {
        self.hidden.clear();
        std::mem::take(&mut self.strays)
    }

    /// Records that the watch no longer shows a pod, and that the API server is asked about it.
    pub fn hide(&mut self, uid: &PodUid) {
        self.hidden.insert(uid.clone());
    }

    /// Forgets that a pod was hidden or a stray, because the API server does not have it.
    pub fn set_gone(&mut self, uid: &PodUid) {
        self.hidden.remove(uid);
        self.strays.remove(uid);
    }

    /// Whether a pod is being deleted or hidden. A hidden pod was deleted at once, or lost its label, and a lookup will
    /// soon say which.
    pub fn is_leaving(&self, uid: &PodUid) -> bool {
        self.hidden.contains(uid) || self.known.get(uid).is_some_and(|pod| pod.deleting)
    }

    pub fn is_bound(&self, uid: &PodUid) -> bool {
        self.known.get(uid).is_some_and(|pod| pod.node.is_some())
    }

    /// The bound pods whose owners allow their eviction.
    pub fn evictable(&self) -> impl Iterator<Item = &PodUid> {
        self.evictable.iter()
    }

    /// The admitted pods that live and are not bound.
    pub fn admitted(&self) -> impl Iterator<Item = &KnownPod> {
        let pods = self.known.values().filter(|pod| pod.template.request.is_some() && pod.node.is_none());
        pods.filter(|pod| !pod.ended && !pod.deleting)
    }

    /// The pod that is to be stored, with as little memory of its own as it can have: the names and the template that
    /// are stored already are shared, so that those of the event are dropped.
    pub fn reduce(&mut self, mut pod: KnownPod, node: Option<&NodeName>) -> KnownPod {
        pod.template = self.templates.share(pod.template);
        if let Some(before) = self.known.get(&pod.uid) {
            pod.uid = before.uid.clone();
            pod.created = before.created.or(pod.created);
        }
        if let Some(node) = node {
            pod.node = Some(node.clone());
        }
        pod
    }

    /// Stores a pod. Returns what was known of it before.
    pub fn insert(&mut self, pod: KnownPod) -> Option<KnownPod> {
        let uid = pod.uid.clone();
        self.hidden.remove(&uid);
        let before = self.known.insert(uid.clone(), pod);
        self.update_evictable(&uid);
        before
    }

    /// Records that a pod is bound, before the watch shows it.
    pub fn bind(&mut self, uid: &PodUid, key: &PodKey, node: &NodeName) {
        let new = || KnownPod::new(uid.clone(), key.clone(), Template::default());
        self.known.entry(uid.clone()).or_insert_with(new).node = Some(node.clone());
        self.update_evictable(uid);
    }

    pub fn remove(&mut self, uid: &PodUid) -> Option<KnownPod> {
        let known = self.known.remove(uid)?;
        self.evictable.remove(uid);
        Some(known)
    }

    fn update_evictable(&mut self, uid: &PodUid) {
        let is_evictable =
            |pod: &KnownPod| pod.template.movable_to.is_some() && pod.node.is_some() && !pod.ended;
        if self.known.get(uid).is_some_and(is_evictable) {
            self.evictable.insert(uid.clone());
        } else {
            self.evictable.remove(uid);
        }
    }
}
