//! Assumed pods: places that pods will most probably take. The scheduler has the filter's answer, but has not bound
//! them yet.
//!
//! Two pods are scheduled one after the other before the first one's bind arrives. Without this overlay both would be
//! sent to the same last free place, and one of them into a backoff. It is a guess and no reservation: it is stored
//! nowhere, it ends by itself, and a bind ignores it.

use crate::objects::ask::Ask;
use crate::usage::{Entry, Usage};
use hashbrown::HashMap;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, PassedKind, SliceState};
use kerf_core::ledger::{self, OwnerInEpoch};
use kerf_core::names::{NodeName, PodUid, SliceId};
use kerf_core::packing::{Fleet, KindPlan};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// How long a pod's bind may take to arrive. A scheduling cycle takes milliseconds, but longer if the scheduler is
/// under load or waits for volumes. If a bind comes later than this, a conflict shows at the bind.
pub const ASSUMED_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct AssumedPod {
    pub pod: OwnerInEpoch,
    pub ask: Ask,
    pub choice: KindChoice,
    pub until: Instant,
    /// The pods that are leaving the place.
    pub leaving: Option<Leaving>,
    /// What the pod is charged, if a quota counts it.
    pub charged: Option<Entry>,
}

/// The kinds that are to serve a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindChoice {
    pub plan: KindPlan,
    /// The kinds that its policy prefers but that were passed over.
    pub passed: Vec<PassedKind>,
}

impl From<KindPlan> for KindChoice {
    fn from(plan: KindPlan) -> Self {
        Self { plan, passed: Vec::new() }
    }
}

/// Pods that are leaving their slices. The slices are free only once the agent reports it, but are expected to be from
/// the first moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaving {
    /// The pods that still have the reservations.
    pub pods: Vec<PodUid>,
    /// The slices that they hold.
    pub slices: Vec<SliceId>,
}

impl Leaving {
    /// Spec and status as they will be once these pods have left.
    #[must_use]
    pub fn gone(&self, spec: &GpuNodeSpec, status: &GpuNodeStatus) -> (GpuNodeSpec, GpuNodeStatus) {
        let leave = |spec: GpuNodeSpec, pod| ledger::release(&spec, pod).unwrap_or(spec);
        let spec = self.pods.iter().fold(spec.clone(), leave);
        let is_free = |id: &SliceId| spec.slices.iter().any(|s| s.id == *id && s.reservation.is_none());
        let mut status = status.clone();
        for slice in &mut status.slices {
            if slice.id.as_ref().is_some_and(|id| self.slices.contains(id) && is_free(id)) {
                (slice.state, slice.holder) = (SliceState::Idle, None);
            }
        }
        (spec, status)
    }
}

#[derive(Debug, Default)]
pub struct AssumedPods {
    /// By node, in the order of their filters.
    by_node: HashMap<NodeName, Vec<AssumedPod>>,
    by_pod: HashMap<PodUid, NodeName>,
    usage: Usage,
}

impl AssumedPods {
    /// Assumes a pod on a node. The pod must have no other place.
    pub fn put(&mut self, node: &NodeName, assumed: AssumedPod) {
        self.by_pod.insert(assumed.pod.uid.clone(), node.clone());
        assumed.charged.iter().for_each(|entry| self.usage.add(entry));
        self.by_node.entry(node.clone()).or_default().push(assumed);
    }

    #[cfg(test)]
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&AssumedPod> {
        self.by_node.get(self.by_pod.get(uid)?)?.iter().find(|assumed| assumed.pod.uid == *uid)
    }

    #[must_use]
    pub fn node_of(&self, uid: &PodUid) -> Option<&NodeName> {
        self.by_pod.get(uid)
    }

    /// What namespaces are charged for all assumed pods.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    pub fn asks_on(&self, node: &str) -> impl Iterator<Item = &Ask> {
        self.by_node.get(node).into_iter().flatten().map(|assumed| &assumed.ask)
    }

    #[must_use]
    pub fn are_none_on(&self, node: &str) -> bool {
        !self.by_node.contains_key(node)
    }

    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.by_pod.keys()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.by_pod.len()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }

    /// Removes a pod's place, and returns it with its node.
    pub fn take(&mut self, uid: &PodUid) -> Option<(NodeName, AssumedPod)> {
        let node = self.by_pod.remove(uid)?;
        let here = self.by_node.get_mut(&node)?;
        let found = here.iter().position(|t| t.pod.uid == *uid)?;
        let assumed = here.remove(found);
        assumed.charged.iter().for_each(|entry| self.usage.take(entry));
        if here.is_empty() {
            self.by_node.remove(&node);
        }
        Some((node, assumed))
    }

    /// Removes the expired places, and returns their nodes.
    pub fn expire(&mut self, now: Instant) -> Vec<NodeName> {
        let over = self.by_node.values().flatten().filter(|t| t.until <= now).map(|t| t.pod.uid.clone());
        let over: Vec<PodUid> = over.collect();
        over.iter().filter_map(|uid| self.take(uid)).map(|(node, _)| node).collect()
    }

    /// A node's spec with the probable places as if they were reserved. One whose place is gone is skipped.
    #[must_use]
    pub fn laid_over<'s>(
        &self,
        node: &NodeName,
        spec: &'s GpuNodeSpec,
        status: &GpuNodeStatus,
        fleet: &Fleet,
    ) -> Cow<'s, GpuNodeSpec> {
        let mut view = Cow::Borrowed(spec);
        for assumed in self.by_node.get(node).into_iter().flatten() {
            let AssumedPod { pod, ask, choice, leaving, .. } = assumed;
            let request = ask.document.planned(&choice.plan);
            let next = match leaving.as_ref().map(|leaving| leaving.gone(&view, status)) {
                Some((spec, status)) => ledger::reserve(&spec, &status, &request, pod, fleet),
                None => ledger::reserve(&view, status, &request, pod, fleet),
            };
            view = next.map_or(view, Cow::Owned);
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::testing::{node_status, owner_in_epoch, request};

    fn assumed_pod(pod: &str, until: Instant) -> AssumedPod {
        let ask = Ask::read(Some(&request("nvidia.com/mig-3g.40gb", 1).to_json())).unwrap();
        let choice = KindChoice::default();
        AssumedPod { pod: owner_in_epoch(pod), ask, choice, until, leaving: None, charged: None }
    }

    fn pods(assumed: &AssumedPods) -> Vec<String> {
        let status = node_status(&["H100-80GB"]);
        let (spec, fleet) = (GpuNodeSpec::default(), Fleet::default());
        let view = assumed.laid_over(&"n".into(), &spec, &status, &fleet).into_owned();
        view.slices.into_iter().filter_map(|s| Some(s.reservation?.pod)).collect()
    }

    #[test]
    fn assumed_pods_take_places_in_order_until_none_is_left() {
        let (mut assumed, now) = (AssumedPods::default(), Instant::now());
        for pod in ["a", "b", "c"] {
            assumed.put(&"n".into(), assumed_pod(pod, now + ASSUMED_TIMEOUT));
        }
        assert_eq!(pods(&assumed), ["a", "b"], "an H100 has two places for 3g.40gb");
        assert_eq!(assumed.take(&owner_in_epoch("a").uid).map(|(node, _)| node), Some("n".into()));
        assert_eq!(pods(&assumed), ["b", "c"]);
        assert_eq!(assumed.node_of(&owner_in_epoch("a").uid), None);
    }

    #[test]
    fn an_assumed_place_expires() {
        let (mut assumed, now) = (AssumedPods::default(), Instant::now());
        assumed.put(&"n".into(), assumed_pod("a", now + ASSUMED_TIMEOUT));
        assumed.put(&"n".into(), assumed_pod("b", now + ASSUMED_TIMEOUT * 2));
        assert!(assumed.expire(now).is_empty());
        assert_eq!(assumed.expire(now + ASSUMED_TIMEOUT), [NodeName::from("n")]);
        assert_eq!(pods(&assumed), ["b"]);
        assert_eq!(assumed.expire(now + ASSUMED_TIMEOUT * 2).len(), 1);
        assert!(assumed.by_node.is_empty() && assumed.is_empty());
    }
}
