//! Namespaces' quotas: which quota a pod is charged to, what is charged already, and whether one more pod is within it.
//!
//! A filter counts reservations, held slices and assumed pods. A reservation counts reservations and held slices, by
//! what agents report and what is proposed to them. All reservations are made here, one after the other, so no two can
//! exceed a quota together.
//!
//! Nothing is recorded: what nodes and pods show counts, also for the next leader. For some bound pods the node shows
//! nothing, for example if its agent is not connected. They are charged by the assignment that their Binding wrote into
//! them.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::pod::KnownPod;
use crate::usage::{Entry, Under, Usage};
use hashbrown::{HashMap, HashSet};
use kerf_core::contract::{SliceStatus, Wanted};
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use kerf_core::policy::Policies;
use kerf_core::quota::{Cap, Charge, OverQuota, depends_on_place};
use kerf_core::request::PodFacts;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest interval between two Events about one pod.
const QUIET: Duration = Duration::from_mins(1);

/// The quotas and what is charged to them.
#[derive(Debug, Default)]
pub(super) struct Quotas {
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
    /// The last Event about each pod, and its time.
    told: HashMap<PodUid, (OverQuota, Instant)>,
}

/// The quota that a pod is charged to.
#[derive(Debug, Clone)]
struct Payer {
    namespace: String,
    policy: Arc<str>,
    cap: Cap,
}

/// A pod that is pending because of its namespace's quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBack {
    pub uid: PodUid,
    pub pod: PodKey,
    pub over: OverQuota,
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
    fn take(&mut self, policies: &Arc<Policies>) -> bool {
        if Arc::ptr_eq(&self.policies, policies) {
            return false;
        }
        let caps = policies.pods.iter().map(|policy| (Arc::from(policy.name()), policy.spec().quota));
        self.caps = caps.collect();
        self.limited = self.caps.values().any(|cap| !cap.is_unlimited());
        self.policies = policies.clone();
        true
    }

    /// How much of each quota is used. Tenants create namespaces, so only those that an admin's policy names appear by
    /// name; the number of series stays bounded.
    fn uses(&self) -> Vec<QuotaUse> {
        let mut uses = Vec::new();
        let limiting = self.policies.pods.iter().filter(|policy| !policy.spec().quota.is_unlimited());
        for policy in limiting {
            let spec = policy.spec();
            let exact = || spec.pods.namespaces.iter().filter(|name| !name.ends_with('*'));
            let is_named = |namespace: &str| exact().any(|name| name == namespace);
            let has_others = exact().count() < spec.pods.namespaces.len() || spec.pods.namespaces.is_empty();
            let named = exact().map(|name| (Some(name.clone()), self.usage.of(name, policy.name())));
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
        let matched = || self.caps.get_key_value(self.policies.of_pod(facts)?.name());
        named.or_else(matched).map_or(Under::Nothing, |(name, _)| Under::Policy(name.clone()))
    }

    pub(super) fn under_of(&self, pod: Option<&KnownPod>) -> Under {
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

    /// What a payer's pods hold or have reserved.
    fn held(&self, payer: &Payer) -> Charge {
        self.usage.of(&payer.namespace, &payer.policy)
    }

    fn charge_node(&mut self, name: &NodeName, entries: Vec<Entry>) {
        charge(&mut self.usage, &mut self.nodes, name, entries);
    }

    fn charge_unshown(&mut self, name: &NodeName, entries: Vec<Entry>) {
        charge(&mut self.usage, &mut self.unshown, name, entries);
    }

    pub(super) fn policies(&self) -> &Policies {
        &self.policies
    }

    pub(super) fn remove_node(&mut self, name: &NodeName) {
        self.charge_node(name, Vec::new());
        self.charge_unshown(name, Vec::new());
    }

    pub(super) fn forget_all(&mut self) {
        self.told.clear();
    }

    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.told.remove(uid);
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
fn refusal(over: &OverQuota) -> Refusal {
    if over.is_for_ever() { Refusal::OverQuota } else { Refusal::QuotaFull }
}

impl ClusterIndex {
    /// Takes the policies that apply now. If they differ, all slices are charged again, and all pending pods are
    /// checked again.
    pub fn set_policies(&mut self, policies: &Arc<Policies>) {
        if !self.quotas.take(policies) {
            return;
        }
        let statics: Vec<NodeName> =
            self.statics.names().filter(|name| self.is_static(name)).cloned().collect();
        self.statics_changed(statics);
        let of_pods = self.pods.values().filter_map(with_slices);
        let names = self.nodes.names().chain(of_pods).chain(self.quotas.unshown.keys());
        let names: HashSet<NodeName> = names.cloned().collect();
        for name in &names {
            self.charge_node(name);
            self.lead.unschedulable.changed(name);
            self.effects.changed.insert(name.clone());
        }
    }

    /// How much of each policy's quota is used.
    #[must_use]
    pub fn quota_uses(&self) -> Vec<QuotaUse> {
        self.quotas.uses()
    }

    /// Whether a pod's namespace may have this pod too, as far as that does not depend on the place.
    pub fn within_quota(&self, ask: &Ask) -> Result<(), OverQuota> {
        let Some(payer) = self.quotas.payer(ask) else { return Ok(()) };
        payer.check(self.expected(&payer), Charge::least(&ask.document))
    }

    /// The same on a node, for a pod whose charge depends on its place there.
    pub(super) fn within_quota_on(&self, node: &str, ask: &Ask) -> Result<(), Refusal> {
        if !depends_on_place(&ask.document) {
            return Ok(());
        }
        let (Some(payer), Some((_, node))) = (self.quotas.payer(ask), self.nodes.get_key_value(node)) else {
            return Ok(());
        };
        let charge = node.charge(ask, &self.fleet)?;
        payer.check(self.expected(&payer), charge).map_err(|over| refusal(&over))
    }

    /// The same for a place with this charge.
    pub(super) fn within_quota_for(&self, ask: &Ask, charge: Charge) -> Result<(), Refusal> {
        let Some(payer) = self.quotas.payer(ask) else { return Ok(()) };
        payer.check(self.expected(&payer), charge).map_err(|over| refusal(&over))
    }

    /// Whether a pod's namespace may get a reservation with this charge. Assumed pods of others do not count.
    pub(super) fn may_hold(&self, ask: &Ask, charge: Charge) -> Result<(), Refusal> {
        let Some(payer) = self.quotas.payer(ask) else { return Ok(()) };
        payer.check(self.quotas.held(&payer), charge).map_err(|over| refusal(&over))
    }

    /// Charges what pods hold of a static node, or have reserved there.
    pub(super) fn charge_static(&mut self, name: &NodeName) {
        if !self.quotas.limited {
            return self.quotas.remove_node(name);
        }
        let entries = self.static_entries(name);
        self.quotas.charge_node(name, entries);
    }

    /// Handles a pod that its quota refuses. It gets an Event if the reason has changed, at most once a minute.
    pub fn held_back(&mut self, uid: &PodUid, key: &PodKey, over: OverQuota, now: Instant) -> Refusal {
        let refusal = refusal(&over);
        let told = self.quotas.told.get(uid);
        if told.is_none_or(|(before, at)| *before != over && now.saturating_duration_since(*at) >= QUIET) {
            self.quotas.told.insert(uid.clone(), (over.clone(), now));
            self.effects.held_back.push(HeldBack { uid: uid.clone(), pod: key.clone(), over });
        }
        refusal
    }

    /// What the pod will be charged for a place on a node, for as long as it is assumed there.
    pub(super) fn expected_charge(&self, name: &NodeName, pod: &OwnerInEpoch, ask: &Ask) -> Option<Entry> {
        self.quotas.payer(ask)?;
        let least = Charge::least(&ask.document);
        let node = self.nodes.get(name).filter(|_| depends_on_place(&ask.document));
        let charge = node.and_then(|node| node.charge(ask, &self.fleet).ok());
        let charge = charge.or_else(|| self.static_charge(name, &pod.uid, ask)).unwrap_or(least);
        Some(Entry { namespace: pod.key.namespace.clone(), under: self.quotas.under_ask(ask), charge })
    }

    /// Charges what is reserved and held on a node.
    pub(super) fn charge_node(&mut self, name: &NodeName) {
        if !self.quotas.limited {
            return self.quotas.remove_node(name);
        }
        let Some(node) = self.nodes.get(name) else {
            return self.charge_pods(name, |_, _| false);
        };
        let wanted: Vec<Wanted<'_>> = node.wanted().collect();
        let promised = wanted.iter().filter_map(|slice| self.promised_entry(slice));
        let slices = &node.status.slices;
        let held = slices.iter().filter(|slice| !is_promised(&wanted, slice)).filter_map(held_entry);
        let entries = summed(promised.chain(held));
        let reserved = wanted.iter().filter_map(|slice| Some(slice.reservation?.uid.clone()));
        let holders = slices.iter().filter_map(|slice| Some(slice.holder.as_ref()?.key()));
        let (reserved, holders): (HashSet<PodUid>, HashSet<PodKey>) = (reserved.collect(), holders.collect());
        self.quotas.charge_node(name, entries);
        self.charge_pods(name, |uid, key| reserved.contains(uid) || holders.contains(key));
    }

    /// Charges the pods that run on a node but that it does not show.
    fn charge_pods(&mut self, name: &NodeName, is_shown: impl Fn(&PodUid, &PodKey) -> bool) {
        let entry = |pod: &KnownPod| {
            let under = self.quotas.under_of(Some(pod));
            Some(Entry { namespace: pod.key.namespace.clone(), under, charge: pod.assigned? })
        };
        let pods = self.statics.holders_on(name.as_str()).filter_map(|(uid, _)| self.pods.get(uid));
        let pods = pods.filter(|pod| with_slices(pod) == Some(name) && !is_shown(&pod.uid, &pod.key));
        let entries = summed(pods.filter_map(entry));
        self.quotas.charge_unshown(name, entries);
    }

    /// Updates the charges after a change of a pod.
    pub(super) fn charge_pod(&mut self, uid: &PodUid, before: Option<&KnownPod>) {
        let (was, is) = (before.and_then(with_slices), self.pods.get(uid).and_then(with_slices));
        if self.quotas.limited && was != is {
            for name in was.into_iter().chain(is).cloned().collect::<Vec<_>>() {
                self.charge_node(&name);
            }
        }
    }

    fn promised_entry(&self, slice: &Wanted<'_>) -> Option<Entry> {
        let promised = slice.reservation?;
        Some(Entry {
            namespace: promised.namespace.to_owned(),
            under: self.quotas.under_of(self.pods.get(promised.uid)),
            charge: Charge::of_slice(promised.resource, slice.shape),
        })
    }

    fn expected(&self, payer: &Payer) -> Charge {
        let Payer { namespace, policy, .. } = payer;
        self.quotas.held(payer).plus(self.lead.assumed.usage().of(namespace, policy))
    }
}

/// The node of a pod that lives and has slices there.
fn with_slices(pod: &KnownPod) -> Option<&NodeName> {
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

fn is_promised(wanted: &[Wanted<'_>], slice: &SliceStatus) -> bool {
    let wanted = wanted.iter().find(|wanted| slice.id.as_ref() == Some(wanted.id));
    wanted.is_some_and(|wanted| wanted.reservation.is_some())
}

/// The charge of a slice whose holder has no reservation: an ended pod that the kubelet still lists, or a pod that
/// bypassed kerf.
fn held_entry(slice: &SliceStatus) -> Option<Entry> {
    let holder = slice.holder.as_ref()?;
    let size = Charge { memory_gb: slice.shape.size().0.into(), slices: 1 };
    let charge = slice.resource.map_or(size, |name| Charge::of_slice(name, slice.shape));
    Some(Entry { namespace: holder.namespace.clone(), under: Under::Unknown, charge })
}
