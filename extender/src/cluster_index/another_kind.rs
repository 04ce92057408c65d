//! Whether a pod whose resource name fixes its kind could be served by another kind of its class.

use super::scheduling::Scheduling;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use hashbrown::HashMap;
use kerf_core::contract::{ContainerRequest, RequestDocument, RootProcesses};
use kerf_core::kind::Kind;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Place;
use kerf_core::policy::{Policies, Policy};
use kerf_core::resource::{ResourceName, neutral_size};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A pod that another kind would serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnotherKind {
    container: String,
    /// The resource name that the container has.
    name: ResourceName,
    pending: Duration,
    /// The kind that would serve it.
    kind: Kind,
    node: NodeName,
}

impl fmt::Display for AnotherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, name, pending, kind, node } = self;
        let seconds = pending.as_secs();
        write!(
            f,
            "no node has free capacity of {name} for container {container}, which has been pending for {seconds} s; {node} could serve it by {kind}: create the pod anew (of a Job, the Job), and it can be given that"
        )
    }
}

/// By request text: the open nodes that would serve the request by other kinds, the best first. `None` if a node serves
/// the request as it is.
type Alternatives = HashMap<Arc<str>, Option<(Ask, Vec<(Place, NodeName)>)>>;

impl Scheduling<'_> {
    /// Finds, among pods that have been pending for these times, those that another kind would serve, on a node that
    /// they may go to.
    pub fn served_by_another_kind(
        &mut self,
        pending: &BTreeMap<PodUid, Duration>,
    ) -> Vec<(PodUid, PodKey, AnotherKind)> {
        let mut known = Alternatives::new();
        let mut found = Vec::new();
        for (uid, pending) in pending {
            let Some(pod) = self.pods.get(uid).cloned() else { continue };
            if let Some(other) = self.another_kind_for(&pod, *pending, &mut known) {
                found.push((pod.uid, pod.key, other));
            }
        }
        found
    }

    fn another_kind_for(
        &mut self,
        pod: &KnownPod,
        pending: Duration,
        known: &mut Alternatives,
    ) -> Option<AnotherKind> {
        let ask = pod.ask().ok()?;
        // Another kind would not help a pod that its namespace's quota holds back.
        self.within_quota(&ask).ok()?;
        let alternatives = known.entry(ask.text.clone()).or_insert_with(|| self.alternatives(&pod.uid, &ask));
        let (anew, places) = alternatives.as_ref()?;
        let may_go = |name: &NodeName| {
            let (labels, taints) = (self.objects.labels(name), self.objects.taints(name));
            pod.template.pending_to.as_ref().is_some_and(|to| to.admit_by_any_kind(name, labels, taints))
        };
        let (place, node) = places.iter().find(|(_, name)| may_go(name))?;
        let plan = place.rank.plan(&anew.document)?;
        let mut pairs = ask.document.containers.iter().zip(&anew.document.containers);
        let (container, kind) = pairs.find_map(|(before, after)| {
            let kind = plan.kind(after.resource).filter(|kind| before.only_kind() != Some(*kind))?;
            Some((before, kind))
        })?;
        let (name, node) = (container.resource, node.clone());
        Some(AnotherKind { container: container.name.clone(), name, pending, kind, node })
    }

    fn alternatives(&mut self, uid: &PodUid, ask: &Ask) -> Option<(Ask, Vec<(Place, NodeName)>)> {
        let anew = by_any_kind(&ask.document, self.quotas.policies())?;
        let anew = Ask::read(Some(&anew.to_json())).ok()?.of(ask.facts.clone());
        let open = self.open_nodes();
        if open.iter().any(|name| self.place(name.as_str(), uid, ask).is_ok()) {
            return None;
        }
        let place = |name: NodeName| Some((self.place(name.as_str(), uid, &anew).ok()?, name));
        let mut places: Vec<(Place, NodeName)> = open.into_iter().filter_map(place).collect();
        places.sort();
        Some((anew, places))
    }
}

/// The same request with all kinds of its class. `None` if the pod itself names its kinds, or if its policy no longer
/// exists.
fn by_any_kind(document: &RequestDocument, policies: &Policies) -> Option<RequestDocument> {
    let chosen = document.chosen.as_ref()?;
    let policy = policies.pods.iter().find(|policy| policy.name() == chosen.policy)?;
    let mut anew = document.clone();
    anew.kinds_by_model.clone_from(&policy.spec().kinds_by_model);
    let is_chosen = |container: &ContainerRequest| {
        let name = container.resource;
        let is_fixed = name.is_neutral() || name.is_plugins() || container.profile.is_some();
        !is_fixed && !chosen.named.contains(&container.name)
    };
    for container in anew.containers.iter_mut().filter(|container| is_chosen(container)) {
        container.kinds = kinds(policy, document, container);
        container.resource = ResourceName::Neutral(neutral_size(container.size_gb)?);
    }
    (anew.containers != document.containers).then_some(anew)
}

/// The kinds of the pod's class that may serve a container.
fn kinds(policy: &Policy, document: &RequestDocument, container: &ContainerRequest) -> Vec<Kind> {
    let may = |kind: &Kind| match kind {
        Kind::Mps => document.root_processes != RootProcesses::KeptOut,
        Kind::TimeSlicing => container.compute.is_none(),
        Kind::Mig | Kind::Whole => true,
    };
    policy.kinds(document.isolation).unwrap_or_default().iter().copied().filter(may).collect()
}
