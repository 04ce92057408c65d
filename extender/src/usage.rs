//! Sums what each namespace holds under each policy. The sums follow every change, so that a query is cheap.

use hashbrown::HashMap;
use kerf_core::quota::Charge;
use std::sync::Arc;

/// The policy that slices are charged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Under {
    /// They are charged to this policy.
    Policy(Arc<str>),
    /// No policy selects the pod, so no quota counts it.
    Nothing,
    /// The pod is unknown, so its policy may be any.
    Unknown,
}

/// A part of what a namespace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub namespace: String,
    pub under: Under,
    pub charge: Charge,
}

/// The sums of what namespaces hold.
#[derive(Debug, Default)]
pub struct Usage(HashMap<String, Namespace>);

#[derive(Debug, Default)]
struct Namespace {
    policies: HashMap<Arc<str>, Charge>,
    unknown: Charge,
}

impl Usage {
    pub fn add(&mut self, entry: &Entry) {
        let namespace = self.0.entry_ref(entry.namespace.as_str()).or_default();
        match &entry.under {
            Under::Policy(policy) => {
                let sum = namespace.policies.entry_ref(policy).or_default();
                *sum = sum.plus(entry.charge);
            }
            Under::Unknown => namespace.unknown = namespace.unknown.plus(entry.charge),
            Under::Nothing => {}
        }
    }

    /// Subtracts a part that was added before.
    pub fn take(&mut self, entry: &Entry) {
        let Some(namespace) = self.0.get_mut(&entry.namespace) else { return };
        match &entry.under {
            Under::Policy(policy) => {
                let left = namespace.policies.get(policy).map(|sum| sum.minus(entry.charge));
                match left {
                    Some(left) if left == Charge::default() => drop(namespace.policies.remove(policy)),
                    Some(left) => drop(namespace.policies.insert(policy.clone(), left)),
                    None => {}
                }
            }
            Under::Unknown => namespace.unknown = namespace.unknown.minus(entry.charge),
            Under::Nothing => {}
        }
        if namespace.policies.is_empty() && namespace.unknown == Charge::default() {
            self.0.remove(&entry.namespace);
        }
    }

    /// What a namespace holds under a policy. Slices that may belong to any policy count in full, so that a quota is
    /// never exceeded.
    #[must_use]
    pub fn held(&self, namespace: &str, policy: &str) -> Charge {
        let namespace = self.0.get(namespace);
        let sum = |namespace: &Namespace| {
            namespace.policies.get(policy).copied().unwrap_or_default().plus(namespace.unknown)
        };
        namespace.map(sum).unwrap_or_default()
    }

    /// The highest memory and the highest number of slices that any one namespace holds under a policy, each for
    /// itself. Namespaces that are `apart` are left out.
    #[must_use]
    pub fn most(&self, policy: &str, apart: impl Fn(&str) -> bool) -> Charge {
        let others = self.0.keys().filter(|namespace| !apart(namespace));
        others.map(|namespace| self.held(namespace, policy)).fold(Charge::default(), |most, held| Charge {
            memory_gb: most.memory_gb.max(held.memory_gb),
            slices: most.slices.max(held.slices),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(under: Under, slices: u64) -> Entry {
        Entry { namespace: "a".to_owned(), under, charge: Charge { memory_gb: slices * 10, slices } }
    }

    #[test]
    fn a_charge_of_an_unknown_policy_counts_under_each() {
        let mut usage = Usage::default();
        let p = entry(Under::Policy("p".into()), 2);
        let unknown = entry(Under::Unknown, 1);
        for entry in [&p, &unknown, &entry(Under::Nothing, 5)] {
            usage.add(entry);
        }
        let slices = |usage: &Usage, policy| usage.held("a", policy).slices;
        assert_eq!((slices(&usage, "p"), slices(&usage, "q")), (3, 1));
        assert_eq!(usage.held("b", "p"), Charge::default());
        usage.add(&Entry { namespace: "b".to_owned(), ..entry(Under::Policy("p".into()), 9) });
        assert_eq!(usage.most("p", |_| false).slices, 9);
        assert_eq!(usage.most("p", |namespace| namespace == "b").slices, 3);
        usage.take(&Entry { namespace: "b".to_owned(), ..entry(Under::Policy("p".into()), 9) });
        usage.take(&p);
        assert_eq!(slices(&usage, "p"), 1);
        usage.take(&unknown);
        assert!(usage.0.is_empty(), "a namespace that holds nothing is forgotten");
    }
}
