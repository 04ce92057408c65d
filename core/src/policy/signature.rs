//! Signatures that rule out most policies for a pod without comparing strings. Two words hold a policy's requirements
//! on labels and names, and two more hold a pod's labels and names. If they do not agree, the policy does not match the
//! pod. If they agree, it may match. Comparing words is fast, because the policies' strings are scattered over memory.
//!
//! Each label, with its value, is two bits of a word, as in a Bloom filter: a pod's word must have all bits of the
//! policy's. The other word has a lane for each list of names: the policy's lane must have the bits of the pod's name.

use super::matching::PodMatch;
use crate::request::PodFacts;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::BitOr;

/// The width of a lane, in bits; three lanes fit into a word.
const LANE: u32 = 21;
/// The lane that has the bits of every name.
const ANY: u64 = (1 << LANE) - 1;

/// The labels and names that a policy requires, or that a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signature {
    labels: u64,
    names: u64,
}

impl Signature {
    pub(super) fn from_match(asked: &PodMatch) -> Self {
        let lists = [&asked.namespaces, &asked.priority_classes, &asked.service_accounts];
        Self { labels: labels(&asked.labels), names: lanes(lists.map(|list| meant(list))) }
    }

    pub(super) fn from_pod(pod: &PodFacts) -> Self {
        let names = [&pod.namespace, &pod.priority_class, &pod.service_account];
        Self { labels: labels(&pod.labels), names: lanes(names.map(|name| bits(name, LANE))) }
    }

    /// Whether a policy with this signature may match a pod with that one.
    pub(super) fn may_be_for(self, pod: Self) -> bool {
        self.labels & !pod.labels == 0 && pod.names & !self.names == 0
    }
}

fn labels(labels: &BTreeMap<String, String>) -> u64 {
    labels.iter().map(|label| bits(&label, u64::BITS)).reduce(BitOr::bitor).unwrap_or_default()
}

/// The bits of all names in a list. An empty list means all names. A list with `*` also gets all bits, because its
/// names cannot be enumerated.
fn meant(list: &[String]) -> u64 {
    let meant = |name: &String| if name.ends_with('*') { ANY } else { bits(name, LANE) };
    list.iter().map(meant).reduce(BitOr::bitor).unwrap_or(ANY)
}

fn lanes([first, second, third]: [u64; 3]) -> u64 {
    first | second << LANE | third << (2 * LANE)
}

/// Two bits, possibly the same, among the lowest `width`.
fn bits(what: &impl Hash, width: u32) -> u64 {
    // This hasher has fixed keys, so that a policy's label and a pod's hash alike.
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    let hash = hasher.finish();
    let width = u64::from(width);
    1 << (hash % width) | 1 << ((hash >> 32) % width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(team: &str) -> PodFacts {
        PodFacts {
            namespace: "research".to_owned(),
            labels: [("team".to_owned(), team.to_owned()), ("app".to_owned(), "trainer".to_owned())].into(),
            service_account: "runner".to_owned(),
            ..PodFacts::default()
        }
    }

    fn may_be_for(asked: &PodMatch, pod: &PodFacts) -> bool {
        Signature::from_match(asked).may_be_for(Signature::from_pod(pod))
    }

    #[test]
    fn signatures_rule_out_most_policies_for_other_pods() {
        let labels = |team: &str| PodMatch {
            labels: [("team".to_owned(), team.to_owned())].into(),
            ..PodMatch::default()
        };
        let account =
            |name: &str| PodMatch { service_accounts: vec![name.to_owned()], ..PodMatch::default() };
        let others = || (0..1000).map(|team| format!("team-{team}"));
        let by_label = others().filter(|team| may_be_for(&labels(team), &pod("ours"))).count();
        let by_name = others().filter(|name| may_be_for(&account(name), &pod("ours"))).count();
        assert!(by_label < 50 && by_name < 50, "{by_label} by label, {by_name} by name");
        assert!(may_be_for(&labels("ours"), &pod("ours")) && may_be_for(&account("runner"), &pod("ours")));
    }

    /// Otherwise a policy for every priority class would depend on the namespace.
    #[test]
    fn a_name_has_no_bits_outside_of_its_lane() {
        let outside = (0..1000).map(|name| format!("name-{name}")).find(|name| bits(name, LANE) > ANY);
        assert_eq!(outside, None);
    }

    #[test]
    fn a_pattern_or_an_empty_list_rules_out_no_pod() {
        let beginnings = PodMatch {
            namespaces: vec!["other".to_owned(), "research*".to_owned()],
            priority_classes: Vec::new(),
            ..PodMatch::default()
        };
        for asked in [PodMatch::default(), beginnings] {
            assert!(
                may_be_for(&asked, &pod("ours")) && may_be_for(&asked, &PodFacts::default()),
                "{asked:?}"
            );
        }
    }
}
