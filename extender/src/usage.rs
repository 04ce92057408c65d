//! What each namespace holds under each policy, in sums that follow every change, so that asking for one costs nothing.

use hashbrown::HashMap;
use kerf_core::policy::Charge;
use std::sync::Arc;

/// The policy under which slices are charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Under {
    /// This one.
    Policy(Arc<str>),
    /// None: no policy is for the pod.
    Nothing,
    /// Nothing is known of the pod, so that it may be any.
    Unknown,
}

/// A part of what a namespace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The namespace.
    pub namespace: String,
    /// Whose part it is.
    pub under: Under,
    /// How much.
    pub charge: Charge,
}

/// What namespaces hold.
#[derive(Debug, Default)]
pub struct Usage(HashMap<String, Namespace>);

#[derive(Debug, Default)]
struct Namespace {
    policies: HashMap<Arc<str>, Charge>,
    unknown: Charge,
}

impl Usage {
    /// Adds a part.
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

    /// Takes a part away that was added.
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

    /// What a namespace holds under a policy, with all that may be under it.
    #[must_use]
    pub fn of(&self, namespace: &str, policy: &str) -> Charge {
        let namespace = self.0.get(namespace);
        let sum = |namespace: &Namespace| {
            namespace.policies.get(policy).copied().unwrap_or_default().plus(namespace.unknown)
        };
        namespace.map(sum).unwrap_or_default()
    }

    /// The most memory and the most slices that any one namespace holds under a policy, without those that are `apart`.
    #[must_use]
    pub fn most(&self, policy: &str, apart: impl Fn(&str) -> bool) -> Charge {
        let others = self.0.keys().filter(|namespace| !apart(namespace));
        others.map(|namespace| self.of(namespace, policy)).fold(Charge::default(), |most, held| Charge {
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
    fn what_may_be_under_any_policy_counts_under_each() {
        let mut usage = Usage::default();
        let p = entry(Under::Policy("p".into()), 2);
        let unknown = entry(Under::Unknown, 1);
        for entry in [&p, &unknown, &entry(Under::Nothing, 5)] {
            usage.add(entry);
        }
        let slices = |usage: &Usage, policy| usage.of("a", policy).slices;
        assert_eq!((slices(&usage, "p"), slices(&usage, "q")), (3, 1));
        assert_eq!(usage.of("b", "p"), Charge::default());
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
