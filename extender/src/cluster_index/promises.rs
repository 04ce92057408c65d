//! Promises to pods: made at the bind, kept until the pod is gone, and how far their slices are.

use super::journey::is_ready;
use super::{Change, ClusterIndex, IndexedNode, Released, Why};
use crate::ask::Ask;
use crate::metrics::PromiseState;
use crate::tentative::{KindChoice, LIFETIME, Tentative};
use kerf_core::contract::{AssignedSlice, AssignmentDocument, GpuNodeSpec, PassedKind, WantedSlice};
use kerf_core::ledger::{Promisee, reserved};
use kerf_core::names::{NodeName, PodKey, PodUid, SliceId};
use kerf_core::packing::{Refusal, fit};
use std::collections::BTreeSet;
use std::time::Instant;

/// A promise that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The slices.
    pub slices: Vec<WantedSlice>,
    /// Those of them that are to be cut now; the others were idle, or promised before.
    pub cut: BTreeSet<SliceId>,
    /// Whether the pod had it already.
    pub kept: bool,
}

/// Why nothing can be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreservable {
    /// The node cannot serve the pod.
    Refused(Refusal),
    /// Nothing is known of the pod's request.
    UnknownPod,
}

impl From<Refusal> for Unreservable {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// How far a promise is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It is not written yet.
    Writing,
    /// It is written, as of this revision, and the agent does not offer all slices yet.
    Cutting {
        /// The revision.
        revision: u64,
    },
    /// The kubelet offers all slices to the pod.
    Ready(AssignmentDocument),
    /// The pod asks NVIDIA's device plugin and not kerf, which assigns it nothing.
    Bare,
    /// It was lost for this reason.
    Failed(String),
    /// It is gone: the place was taken or the pod has ended.
    Lost,
}

impl ClusterIndex {
    /// Promises slices on a node to a pod. A pod that has a promise there keeps it. `ask` is what was read from the API
    /// server, where the caller has asked it. The pod is served by the kinds that a filter chose for it, else by the best that the
    /// node has; if it has none of the chosen ones left, the pod is refused and has to be filtered anew.
    pub fn reserve(
        &mut self,
        uid: &PodUid,
        key: &PodKey,
        name: &NodeName,
        ask: Option<Ask>,
    ) -> Result<Promise, Unreservable> {
        let promised = self.place_of(uid);
        if promised.is_some_and(|place| place != name) {
            return Err(Refusal::ReservedElsewhere.into());
        }
        if promised.is_some() && !self.is_static(name) {
            let node = self.nodes.get(name).and_then(IndexedNode::working);
            let slices = node.into_iter().flat_map(|spec| reserved(spec, uid)).cloned().collect();
            return Ok(Promise { slices, cut: BTreeSet::new(), kept: true });
        }
        let known = self.statics.promised(uid).and_then(|promised| promised.ask.clone());
        let (ask, choice) = self.ask_of(uid, ask, known)?;
        if self.is_static(name) {
            return self.reserve_static(uid, key, name, ask);
        }
        let pod = Promisee { uid: uid.clone(), key: key.clone(), epoch: self.epoch };
        let node = self.nodes.get(name).ok_or(Refusal::NoAgent)?;
        node.serving()?;
        let KindChoice { plan, passed } = choice.map_or_else(|| self.best_kinds(node, &ask), Ok)?;
        let reserve = Change::Reserve { pod, ask: ask.clone(), plan };
        self.may_promise(node, &ask, &reserve)?;
        let node = self.nodes.get_mut(name).ok_or(Refusal::NoAgent)?;
        node.failures.remove(uid);
        let (spec, status) = node.readable()?;
        let existing: BTreeSet<SliceId> = spec.working().slices.iter().map(|s| s.id.clone()).collect();
        spec.push(reserve, Some(status), &self.fleet)?;
        let slices: Vec<_> = reserved(spec.working(), uid).cloned().collect();
        let cut = slices.iter().map(|s| s.id.clone()).filter(|id| !existing.contains(id)).collect();
        self.settle(name);
        self.note_choice(uid, &ask, passed);
        Ok(Promise { slices, cut, kept: false })
    }

    /// What a pod asks for, and the kinds that a filter chose for it. It is expected nowhere any more.
    pub(super) fn ask_of(
        &mut self,
        uid: &PodUid,
        read: Option<Ask>,
        promised: Option<Ask>,
    ) -> Result<(Ask, Option<KindChoice>), Unreservable> {
        let (expected, choice) = self.drop_tentative(uid).map(|t| (t.ask, t.choice)).unzip();
        let ask = match expected.or(read).or(promised) {
            Some(ask) => ask,
            None => self.pods.get(uid).ok_or(Unreservable::UnknownPod)?.ask()?,
        };
        Ok((ask, choice))
    }

    /// The best kinds that a node has for a pod which no filter has sent there.
    pub(super) fn best_kinds(&self, node: &IndexedNode, ask: &Ask) -> Result<KindChoice, Refusal> {
        if !ask.document.containers.iter().any(|container| container.resource.is_neutral()) {
            return Ok(KindChoice::default());
        }
        let spec = node.working().ok_or(Refusal::UnreadableSpec)?;
        let status = node.status.as_ref().map_err(|refusal| *refusal)?;
        let fit = fit(&node.inventory_of(spec, status), &ask.document, &self.fleet)?;
        Ok(fit.rank.plan(&ask.document).unwrap_or_default().into())
    }

    /// A pod was promised slices of the chosen kinds.
    pub(super) fn note_choice(&mut self, uid: &PodUid, ask: &Ask, passed: Vec<PassedKind>) {
        if passed.is_empty() {
            self.passed.remove(uid);
        } else {
            self.passed.insert(uid.clone(), passed);
        }
        // Pods whose name says the kind are learned from as they come.
        if let Some((slice, pod)) = self.slice_of_any_kind(uid, ask).zip(self.pods.get(uid)) {
            self.fractions.learn(slice, pod.compute);
        }
    }

    /// How far the promise of a pod on a node is.
    pub fn progress(&mut self, uid: &PodUid, name: &NodeName) -> Progress {
        if let Some(progress) = self.static_progress(uid, name) {
            return progress;
        }
        let Some(node) = self.nodes.get_mut(name) else {
            return Progress::Failed(Refusal::NoAgent.to_string());
        };
        let Ok(spec) = &node.spec else { return Progress::Writing };
        if reserved(spec.working(), uid).next().is_none() {
            return node.failures.remove(uid).map_or(Progress::Lost, Progress::Failed);
        }
        if !spec.is_committed(uid) {
            return Progress::Writing;
        }
        let committed = spec.committed();
        let ready =
            |slice: &WantedSlice| node.status.as_ref().is_ok_and(|status| is_ready(status, slice, uid));
        if reserved(committed, uid).all(ready) {
            let passed = self.passed.get(uid).cloned().unwrap_or_default();
            return Progress::Ready(assignment(committed, uid, passed));
        }
        let revision = committed.revision;
        self.clear_the_way(uid, name);
        Progress::Cutting { revision }
    }

    /// The node on which a pod has a promise.
    #[must_use]
    pub fn place_of(&self, uid: &PodUid) -> Option<&NodeName> {
        self.places.get(uid).or_else(|| self.statics.promised(uid).map(|promised| &promised.node))
    }

    /// Gives up a promise on a node that the pod cannot use, unless its Binding may have been made. Whether it is given up.
    pub fn give_up(&mut self, uid: &PodUid) -> bool {
        let bound = self.pods.get(uid).is_some_and(|pod| pod.node.is_some());
        !bound && !self.is_posting(uid) && (self.release_static(uid) || self.release(uid, Why::NodeUnusable))
    }

    /// The pod is bound. The watch will show the same later.
    pub fn bound(&mut self, uid: &PodUid, key: &PodKey, node: &NodeName) {
        self.posting.remove(uid);
        self.passed.remove(uid);
        self.uses.note_bound(uid);
        if !self.places.contains_key(uid) {
            return;
        }
        let mut pod = self.pods.get(uid).cloned().unwrap_or_else(|| crate::pod::KnownPod {
            has_slices: false,
            asks_for_nothing: false,
            uid: uid.clone(),
            key: key.clone(),
            node: None,
            ended: false,
            compute: crate::compute::Compute::default(),
            devices: kerf_core::static_node::Devices::new(),
            deleting: false,
            gated: false,
            movable_to: None,
            pending_to: None,
            request: None,
            policy: None,
            facts: std::sync::Arc::default(),
            counted: crate::pod::Counted::default(),
        });
        pod.node = Some(node.clone());
        self.pods.insert(uid.clone(), pod);
    }

    /// Says where a pod will most probably be bound, and by which kinds it is served there.
    pub fn expect(&mut self, pod: Promisee, ask: Ask, choice: KindChoice, name: &NodeName, now: Instant) {
        self.drop_tentative(&pod.uid);
        let charged = self.expected_charge(name, &pod, &ask);
        let tentative = Tentative { pod, ask, choice, until: now + LIFETIME, leaving: None, charged };
        self.tentatives.put(name, tentative);
        self.touch(name);
    }

    /// The node on which a pod is expected.
    #[must_use]
    pub fn expected_on(&self, uid: &PodUid) -> Option<&NodeName> {
        self.tentatives.node_of(uid)
    }

    /// Expects a pod no longer, and gives what was expected.
    pub fn drop_tentative(&mut self, uid: &PodUid) -> Option<Tentative> {
        let (node, tentative) = self.tentatives.take(uid)?;
        self.touch(&node);
        Some(tentative)
    }

    /// Drops expectations that did not come true in time, and agents that have not followed in time.
    pub fn expire(&mut self, now: Instant) {
        for node in self.tentatives.expire(now) {
            self.touch(&node);
        }
        self.notice_silence(now);
    }

    /// How many pods have a promise, by how far it is.
    #[must_use]
    pub fn promise_counts(&self) -> [(PromiseState, usize); 3] {
        let nodes = self.nodes.values().filter_map(|node| Some((node.spec.as_ref().ok()?, &node.promised)));
        let committed = nodes.map(|(spec, uids)| uids.iter().filter(|uid| spec.is_committed(uid)).count());
        let committed: usize = committed.sum();
        [
            (PromiseState::Tentative, self.tentatives.len()),
            (PromiseState::Writing, self.places.len().saturating_sub(committed)),
            (PromiseState::Committed, committed),
        ]
    }

    pub(super) fn release(&mut self, uid: &PodUid, why: Why) -> bool {
        let (Some(name), Some(pod)) = (self.places.get(uid).cloned(), self.promised_pod(uid)) else {
            return false;
        };
        if self.keeps_ledger(&name) {
            return self.order_release(uid, pod, &name, why);
        }
        let Some(node) = self.nodes.get_mut(&name) else { return false };
        let status = node.status.as_ref().ok();
        let change = Change::Release(uid.clone());
        let released = node.spec.as_mut().is_ok_and(|s| s.push(change, status, &self.fleet) == Ok(true));
        if released {
            let released = Released { uid: uid.clone(), pod, node: name.clone(), why };
            node.note_left(std::slice::from_ref(&released));
            self.effects.released.push(released);
            self.settle(&name);
        }
        released
    }

    pub(super) fn touch(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.touch();
            self.waiting.changed(name);
        } else if self.is_static(name) {
            self.waiting.changed(name);
        }
    }
}

pub(super) fn assignment(spec: &GpuNodeSpec, uid: &PodUid, passed: Vec<PassedKind>) -> AssignmentDocument {
    let slices = reserved(spec, uid).filter_map(|slice| {
        Some(AssignedSlice {
            container: slice.reservation.as_ref()?.container.clone(),
            id: slice.id.clone(),
            gpu: slice.gpu.clone(),
            shape: slice.shape,
        })
    });
    AssignmentDocument { version: 1, slices: slices.collect(), devices: Vec::new(), passed }
}
