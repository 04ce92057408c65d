//! Namespaces' quotas: which quota a pod is charged to, what is charged already, and whether one more pod is within it.
//!
//! A filter counts reservations, held slices and assumed pods. A reservation counts reservations and held slices, by
//! what agents report and what is proposed to them. All reservations are made here, one after the other, so no two can
//! exceed a quota together.
//!
//! Nothing is recorded: what nodes and pods show counts, also for the next leader. For some bound pods the node shows
//! nothing, for example if its agent is not connected. They are charged by the assignment that their Binding wrote into
//! them.

use super::managed_nodes::ManagedNodes;
use super::nodes::Nodes;
use super::pods::Pods;
use crate::assumed::AssumedPods;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use crate::usage::{Entry, Under, Usage};
use hashbrown::{HashMap, HashSet};
use kerf_core::contract::{SliceStatus, Wanted};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use kerf_core::policy::Policies;
use kerf_core::quota::{Cap, Charge, OverQuota};
use kerf_core::request::PodFacts;
use std::sync::Arc;

/// The quotas and what is charged to them.
#[derive(Debug, Default)]
pub struct Quotas {
    policies: Arc<Policies>,
    /// What each policy allows a namespace.
    caps: HashMap<Arc<str>, Cap>,
    /// Whether any quota limits anything. If not, nothing is counted.
    limited: bool,
    /// Slices that nodes show as reserved or held, with the charged namespace and policy.
    nodes: HashMap<NodeName, Vec<Entry>>,
    /// Charges of those pods with slices that their node does not show.
    unshown: HashMap<NodeName, Vec<Entry>>,
    usage: Usage,
}

/// The quota that a pod is charged to.
#[derive(Debug, Clone)]
struct Payer {
    namespace: String,
    policy: Arc<str>,
    cap: Cap,
}

/// A policy's quota, and how much of it a namespace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUse {
    pub policy: Arc<str>,
    /// A namespace that the policy names in full; `None` stands for all others, with the figures of the one that holds
    /// most.
    pub namespace: Option<String>,
    /// What a namespace may hold.
    pub cap: Cap,
    /// What its pods hold or have reserved.
    pub used: Charge,
}

impl Quotas {
    /// Takes other policies. Returns whether they differ.
    pub(super) fn take(&mut self, policies: &Arc<Policies>) -> bool {
        if Arc::ptr_eq(&self.policies, policies) {
            return false;
        }
        let caps = policies.pods.iter().map(|policy| (Arc::from(policy.name()), policy.spec().quota));
        self.caps = caps.collect();
        self.limited = self.caps.values().any(|cap| !cap.is_unlimited());
        self.policies = policies.clone();
        true
    }

    /// How much of each quota is used. Only namespaces that an admin's policy names appear by name, so that the number
    /// of series stays bounded: tenants create namespaces.
    pub(super) fn uses(&self) -> Vec<QuotaUse> {
        let mut uses = Vec::new();
        let limiting = self.policies.pods.iter().filter(|policy| !policy.spec().quota.is_unlimited());
        for policy in limiting {
            let spec = policy.spec();
            let exact = || spec.pods.namespaces.iter().filter(|name| !name.ends_with('*'));
            let is_named = |namespace: &str| exact().any(|name| name == namespace);
            let has_others = exact().count() < spec.pods.namespaces.len() || spec.pods.namespaces.is_empty();
            let named = exact().map(|name| (Some(name.clone()), self.usage.held(name, policy.name())));
            let others = has_others.then(|| (None, self.usage.most(policy.name(), is_named)));
            uses.extend(named.chain(others).map(|(namespace, used)| QuotaUse {
                policy: policy.name().into(),
                namespace,
                cap: spec.quota,
                used,
            }));
        }
        uses
    }

    /// The policy of a pod: the one that its request document names, or, if that no longer exists, the first that
    /// matches.
    fn under(&self, named: Option<&str>, facts: &PodFacts) -> Under {
        let named = named.and_then(|name| self.caps.get_key_value(name));
        let matched = || self.caps.get_key_value(self.policies.for_pod(facts)?.name());
        named.or_else(matched).map_or(Under::Nothing, |(name, _)| Under::Policy(name.clone()))
    }

    fn under_of(&self, pod: Option<&KnownPod>) -> Under {
        match pod {
            Some(pod) if pod.template.request.is_some() => {
                self.under(pod.template.policy.as_deref(), &pod.template.facts)
            }
            _ => Under::Unknown,
        }
    }

    pub(super) fn under_ask(&self, ask: &Ask) -> Under {
        self.under(ask.document.chosen.as_ref().map(|chosen| chosen.policy.as_str()), &ask.facts)
    }

    /// The quota that a pod is charged to; `None` if no quota counts it.
    fn payer(&self, ask: &Ask) -> Option<Payer> {
        let Under::Policy(policy) = self.limited.then(|| self.under_ask(ask))? else { return None };
        let cap = *self.caps.get(&policy).filter(|cap| !cap.is_unlimited())?;
        Some(Payer { namespace: ask.facts.namespace.clone(), policy, cap })
    }

    /// What a payer's pods hold or have reserved, and assumed pods will.
    fn expected(&self, payer: &Payer, assumed: &AssumedPods) -> Charge {
        self.held(payer).plus(assumed.usage().held(&payer.namespace, &payer.policy))
    }

    fn held(&self, payer: &Payer) -> Charge {
        self.usage.held(&payer.namespace, &payer.policy)
    }

    /// Whether the namespace's quota allows this pod, if the place does not matter.
    pub(super) fn admit(&self, ask: &Ask, assumed: &AssumedPods) -> Result<(), OverQuota> {
        let Some(payer) = self.payer(ask) else { return Ok(()) };
        payer.check(self.expected(&payer, assumed), Charge::least(&ask.document))
    }

    /// The same for a place with this charge, which is only asked for if a quota counts the pod.
    pub(super) fn admit_at(
        &self,
        ask: &Ask,
        assumed: &AssumedPods,
        charge: impl FnOnce() -> Result<Charge, Refusal>,
    ) -> Result<(), Refusal> {
        let Some(payer) = self.payer(ask) else { return Ok(()) };
        payer.check(self.expected(&payer, assumed), charge()?).map_err(|over| over_quota(&over))
    }

    /// Whether a pod's namespace may get a reservation with this charge. Assumed pods of others do not count.
    pub(super) fn admit_reservation(&self, ask: &Ask, charge: Charge) -> Result<(), Refusal> {
        let Some(payer) = self.payer(ask) else { return Ok(()) };
        payer.check(self.held(&payer), charge).map_err(|over| over_quota(&over))
    }

    /// Whether some quota counts a pod.
    pub(super) fn count(&self, ask: &Ask) -> bool {
        self.payer(ask).is_some()
    }

    pub(super) fn are_limited(&self) -> bool {
        self.limited
    }

    /// Charges what is reserved and held on a node that is managed, or was.
    pub(super) fn charge_managed(&mut self, name: &NodeName, nodes: &Nodes, pods: &Pods) {
        if !self.limited {
            return self.remove_node(name);
        }
        let on_node = pods_on(name, nodes, pods);
        let Some(node) = nodes.managed.get(name) else { return self.charge_unshown(name, on_node) };
        let wanted: Vec<Wanted<'_>> = node.wanted().collect();
        let reserved_entries = wanted.iter().filter_map(|slice| self.reserved_entry(slice, pods));
        let slices = &node.status().slices;
        let held = slices.iter().filter(|slice| !is_reserved(&wanted, slice)).filter_map(held_entry);
        let entries = summed(reserved_entries.chain(held));
        let reserved = wanted.iter().filter_map(|slice| Some(slice.reservation?.uid.clone()));
        let holders = slices.iter().filter_map(|slice| Some(slice.holder.as_ref()?.key()));
        let (reserved, holders): (HashSet<PodUid>, HashSet<PodKey>) = (reserved.collect(), holders.collect());
        charge(&mut self.usage, &mut self.nodes, name, entries);
        let is_shown = |pod: &KnownPod| reserved.contains(&pod.uid) || holders.contains(&pod.key);
        self.charge_unshown(name, on_node.filter(|pod| !is_shown(pod)));
    }

    /// Charges the pods that run on a node but that it does not show.
    fn charge_unshown<'p>(&mut self, name: &NodeName, pods: impl Iterator<Item = &'p KnownPod>) {
        let entry = |pod: &KnownPod| {
            let under = self.under_of(Some(pod));
            Some(Entry { namespace: pod.key.namespace.clone(), under, charge: pod.assigned? })
        };
        let entries = summed(pods.filter_map(entry));
        charge(&mut self.usage, &mut self.unshown, name, entries);
    }

    fn reserved_entry(&self, slice: &Wanted<'_>, pods: &Pods) -> Option<Entry> {
        let reservation = slice.reservation?;
        Some(Entry {
            namespace: reservation.namespace.to_owned(),
            under: self.under_of(pods.get(reservation.uid)),
            charge: Charge::for_slice(reservation.resource, slice.shape),
        })
    }

    /// Charges what pods with kerf's label hold of a static node, or have reserved there.
    pub(super) fn charge_devices(&mut self, name: &NodeName, nodes: &Nodes, pods: &Pods) {
        if !self.limited {
            return self.remove_node(name);
        }
        let held = nodes.device_charges(name.as_str()).filter_map(|(uid, charge)| {
            let pod = pods.get(uid).filter(|pod| pod.template.request.is_some())?;
            Some(Entry { namespace: pod.key.namespace.clone(), under: self.under_of(Some(pod)), charge })
        });
        let reserved = nodes.reserved_device_charges(name).map(|(key, ask, charge)| Entry {
            namespace: key.namespace.clone(),
            under: self.under_ask(ask),
            charge,
        });
        let entries = held.chain(reserved).collect();
        charge(&mut self.usage, &mut self.nodes, name, entries);
    }

    /// The nodes that may have something to charge: the managed ones, and those of pods that no node shows.
    pub(super) fn charged_nodes(&self, managed: &ManagedNodes, pods: &Pods) -> HashSet<NodeName> {
        let of_pods = pods.iter().filter_map(with_slices);
        managed.names().chain(of_pods).chain(self.unshown.keys()).cloned().collect()
    }

    pub(super) fn policies(&self) -> &Policies {
        &self.policies
    }

    pub(super) fn remove_node(&mut self, name: &NodeName) {
        charge(&mut self.usage, &mut self.nodes, name, Vec::new());
        charge(&mut self.usage, &mut self.unshown, name, Vec::new());
    }
}

impl Payer {
    fn check(&self, held: Charge, asked: Charge) -> Result<(), OverQuota> {
        if self.cap.admits(held.plus(asked)) {
            return Ok(());
        }
        let (namespace, policy) = (self.namespace.clone(), self.policy.to_string());
        Err(OverQuota { namespace, policy, cap: self.cap, held, asked })
    }
}

/// The refusal that every node gets for an exceeded quota.
#[must_use]
pub fn over_quota(over: &OverQuota) -> Refusal {
    if over.is_for_ever() { Refusal::OverQuota } else { Refusal::QuotaFull }
}

/// The pods with slices on a node, as they themselves say.
fn pods_on<'p>(name: &'p NodeName, nodes: &'p Nodes, pods: &'p Pods) -> impl Iterator<Item = &'p KnownPod> {
    let pods = nodes.holders_on(name.as_str()).filter_map(|uid| pods.get(uid));
    pods.filter(move |pod| with_slices(pod) == Some(name))
}

/// The node of a pod that lives and has slices there.
pub(super) fn with_slices(pod: &KnownPod) -> Option<&NodeName> {
    pod.node.as_ref().filter(|_| pod.assigned.is_some() && !pod.ended)
}

/// The same entries, with one for each namespace and policy.
fn summed(entries: impl Iterator<Item = Entry>) -> Vec<Entry> {
    let mut sums: Vec<Entry> = Vec::new();
    for entry in entries {
        let is_same = |sum: &&mut Entry| (&sum.namespace, &sum.under) == (&entry.namespace, &entry.under);
        match sums.iter_mut().find(is_same) {
            Some(sum) => sum.charge = sum.charge.plus(entry.charge),
            None => sums.push(entry),
        }
    }
    sums
}

/// Replaces what is charged under `name`.
fn charge(
    usage: &mut Usage,
    charged: &mut HashMap<NodeName, Vec<Entry>>,
    name: &NodeName,
    entries: Vec<Entry>,
) {
    for entry in &entries {
        usage.add(entry);
    }
    let before =
        if entries.is_empty() { charged.remove(name) } else { charged.insert(name.clone(), entries) };
    before.into_iter().flatten().for_each(|entry| usage.take(&entry));
}

fn is_reserved(wanted: &[Wanted<'_>], slice: &SliceStatus) -> bool {
    let wanted = wanted.iter().find(|wanted| slice.id.as_ref() == Some(wanted.id));
    wanted.is_some_and(|wanted| wanted.reservation.is_some())
}

/// The charge of a slice whose holder has no reservation: an ended pod that the kubelet still lists, or a pod that
/// bypassed kerf.
fn held_entry(slice: &SliceStatus) -> Option<Entry> {
    let holder = slice.holder.as_ref()?;
    let size = Charge { memory_gb: slice.shape.size().0.into(), slices: 1 };
    let charge = slice.resource.map_or(size, |name| Charge::for_slice(name, slice.shape));
    Some(Entry { namespace: holder.namespace.clone(), under: Under::Unknown, charge })
}
