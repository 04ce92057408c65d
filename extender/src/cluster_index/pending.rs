//! Why pods are pending. This is for metrics only: no decision reads it.

use super::scheduling::Scheduling;
use super::statistics::Statistics;
use crate::metric_labels::PendingReason;
use crate::objects::ask::Ask;
use crate::objects::pod::{Counted, KnownPod};
use hashbrown::HashMap;
use kerf_core::contract::RequestDocument;
use kerf_core::names::PodUid;
use kerf_core::resource::ResourceName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pending pod with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub uid: PodUid,
    pub counted: Counted,
    /// The text of its request document.
    pub request: Arc<str>,
    pub reason: PendingReason,
}

/// Why requests that the scheduler did not ask about are pending, by the request's text, which pods of one template
/// share.
type Chances = HashMap<Arc<str>, Option<(Ask, PendingReason)>>;

impl Scheduling<'_> {
    /// The admitted pods that are not bound yet, each with what keeps it pending.
    pub fn pending(&mut self) -> Vec<Pending> {
        let mut chances = Chances::new();
        let mut pending = Vec::new();
        for (pod, known) in self.with_known_reasons() {
            let Some(request) = pod.template.request.clone() else { continue };
            let reason = known.unwrap_or_else(|| self.reason_of_nodes(&pod, &request, &mut chances));
            pending.push(Pending {
                counted: self.statistics().counted(&pod.uid),
                uid: pod.uid,
                request,
                reason,
            });
        }
        pending
    }

    fn with_known_reasons(&self) -> Vec<(KnownPod, Option<PendingReason>)> {
        let held_back: HashMap<&PodUid, bool> = self.unschedulable.pods().collect();
        let known = |pod: &KnownPod| self.known_reason(pod, held_back.get(&pod.uid).copied());
        self.pods.admitted().map(|pod| (pod.clone(), known(pod))).collect()
    }

    /// Why a pod is pending, as far as that is known without its nodes.
    fn known_reason(&self, pod: &KnownPod, held_back: Option<bool>) -> Option<PendingReason> {
        if pod.gated {
            return Some(PendingReason::Gated);
        }
        if self.is_reserved(&pod.uid) || self.bindings.is_pending(&pod.uid) {
            return Some(PendingReason::Reserved);
        }
        match held_back {
            Some(true) => Some(PendingReason::Quota),
            Some(false) => Some(PendingReason::Full),
            None => self.assumed_on(&pod.uid).map(|_| PendingReason::Room),
        }
    }

    /// The reason of a pod that the scheduler did not ask about, or has not asked about since there may be room for it.
    fn reason_of_nodes(
        &mut self,
        pod: &KnownPod,
        request: &Arc<str>,
        chances: &mut Chances,
    ) -> PendingReason {
        let chance = chances.entry(request.clone()).or_insert_with(|| {
            let ask = Ask::read(Some(request)).ok()?;
            let chance = self.chance(&pod.uid, &ask);
            Some((ask, chance))
        });
        // Every node refuses a request that cannot be read.
        let Some((ask, chance)) = chance.clone() else { return PendingReason::Never };
        let is_within = self.within_quota(&ask.of(pod.template.facts.clone())).is_ok();
        if is_within { chance } else { PendingReason::Quota }
    }

    fn chance(&mut self, uid: &PodUid, ask: &Ask) -> PendingReason {
        let open = self.open_nodes();
        let has_room = open.iter().any(|name| self.place(name.as_str(), uid, ask).is_ok());
        if has_room {
            PendingReason::Room
        } else if self.may_be_served(uid, ask) {
            PendingReason::Full
        } else {
            PendingReason::Never
        }
    }

    /// The pods that could be scheduled but have no reservation, no Binding under way and no assumed place.
    #[must_use]
    pub fn unplaced(&self) -> Vec<PodUid> {
        let is_unplaced = |pod: &&KnownPod| {
            let uid = &pod.uid;
            let has_place = self.is_reserved(uid) || self.bindings.is_pending(uid);
            !pod.gated && !has_place && self.assumed_on(uid).is_none()
        };
        self.pods.admitted().filter(is_unplaced).map(|pod| pod.uid.clone()).collect()
    }

    fn statistics(&self) -> Statistics<'_> {
        let Scheduling { nodes, objects, pods, quotas, assumed, .. } = self;
        Statistics { managed: &nodes.managed, objects, pods, quotas, assumed }
    }
}

/// The slices of those pods that capacity alone keeps pending, by resource name.
#[must_use]
pub fn pending_slices(pending: &[Pending]) -> BTreeMap<ResourceName, u32> {
    let mut slices = BTreeMap::new();
    let mut templates: HashMap<&str, Option<RequestDocument>> = HashMap::new();
    let wants = |reason| matches!(reason, PendingReason::Room | PendingReason::Full | PendingReason::Never);
    for pod in pending.iter().filter(|pod| wants(pod.reason)) {
        let read = |text: &&str| RequestDocument::parse(text).ok();
        let Some(document) = templates.entry(&pod.request).or_insert_with_key(read) else { continue };
        for holding in &*document.holdings() {
            let count: &mut u32 = slices.entry(holding.resource).or_default();
            *count = count.saturating_add(holding.count);
        }
    }
    slices
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
