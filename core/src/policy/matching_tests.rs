use super::*;
use crate::policy::{Policies, Policy, PolicyDocument};
use proptest::prelude::*;
use serde_json::json;

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "ab", "aa", "ba"]).prop_map(str::to_owned)
}

fn listed_names() -> impl Strategy<Value = Vec<String>> {
    let pattern =
        (name(), any::<bool>()).prop_map(|(name, star)| if star { format!("{name}*") } else { name });
    prop::collection::vec(prop_oneof![9 => pattern, 1 => Just("*".to_owned())], 0..3)
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(name(), name(), 0..3)
}

prop_compose! {
    fn matches()(
        namespaces in listed_names(), labels in labels(), priority_classes in listed_names(),
        service_accounts in listed_names(), models in prop::collection::vec(name(), 0..3),
    ) -> PodMatch {
        PodMatch { namespaces, labels, priority_classes, service_accounts, models }
    }
}

prop_compose! {
    fn pods()(
        namespace in name(), labels in labels(), priority_class in prop_oneof![Just(String::new()), name()],
        service_account in name(), models in prop::collection::vec(name(), 0..3),
    ) -> PodFacts {
        PodFacts { namespace, labels, priority_class, service_account, models }
    }
}

fn policy(index: usize, pods: &PodMatch) -> Policy {
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": format!("p{index}")},
        "spec": {"match": pods, "defaultIsolation": "memory", "isolation": {"memory": ["mig"]}},
    }))
    .unwrap();
    document.try_into().unwrap_or_else(|error| panic!("{error}"))
}

fn deduplicated(mut pods: PodMatch) -> PodMatch {
    for list in
        [&mut pods.namespaces, &mut pods.priority_classes, &mut pods.service_accounts, &mut pods.models]
    {
        list.sort();
        list.dedup();
    }
    pods
}

/// What `spec.match` says, word for word, in another way than the code.
fn says(pods: &PodMatch, pod: &PodFacts) -> bool {
    let named = |list: &[String], name: &str| {
        list.is_empty()
            || list
                .iter()
                .any(|l| if l.ends_with('*') { name.starts_with(l.trim_end_matches('*')) } else { l == name })
    };
    named(&pods.namespaces, &pod.namespace)
        && named(&pods.priority_classes, &pod.priority_class)
        && named(&pods.service_accounts, &pod.service_account)
        && pods.labels.iter().all(|label| pod.labels.iter().any(|l| l == label))
        && (pods.models.is_empty()
            || (!pod.models.is_empty() && pod.models.iter().all(|m| pods.models.iter().any(|l| l == m))))
}

proptest! {
    #[test]
    fn the_first_policy_that_matches_holds(
        matches in prop::collection::vec(matches().prop_map(deduplicated), 0..8), pod in pods(),
    ) {
        let pods: Vec<Policy> = matches.iter().enumerate().map(|(index, m)| policy(index, m)).collect();
        let policies = Policies { pods, nodes: Vec::new() };
        let first = matches.iter().position(|m| says(m, &pod));
        prop_assert_eq!(policies.of_pod(&pod).map(|p| p.name().to_owned()), first.map(|i| format!("p{i}")));
        prop_assert_eq!(policies.passed(&pod).len(), first.unwrap_or(matches.len()));
    }

    #[test]
    fn what_covers_a_policy_matches_all_that_it_matches(wide in matches(), narrow in matches(), pod in pods()) {
        prop_assert!(!wide.covers(&narrow) || !narrow.is_for(&pod) || wide.is_for(&pod), "{wide:?} {narrow:?}");
    }

    #[test]
    fn a_policy_covers_itself_and_one_for_all_covers_every_one(pods in matches()) {
        prop_assert!(pods.covers(&pods) && PodMatch::default().covers(&pods));
    }
}

#[test]
fn what_keeps_a_policy_away_is_said_by_its_field() {
    let pod = PodFacts {
        namespace: "web".into(),
        labels: [("team".to_owned(), "b".to_owned())].into(),
        models: vec!["T4-16GB".into()],
        ..PodFacts::default()
    };
    let none = PodFacts { namespace: "web".into(), ..PodFacts::default() };
    let cases = [
        (json!({"namespaces": ["ml-*"]}), &pod),
        (json!({"labels": {"team": "a"}}), &pod),
        (json!({"labels": {"team": "a"}}), &none),
        (json!({"priorityClasses": ["high"]}), &pod),
        (json!({"serviceAccounts": ["trainer"]}), &pod),
        (json!({"models": ["H100-80GB"]}), &pod),
        (json!({"models": ["H100-80GB"]}), &none),
    ];
    let text = |(pods, pod): (serde_json::Value, &PodFacts)| {
        let pods: PodMatch = serde_json::from_value(pods).unwrap();
        pods.mismatch(pod).unwrap().to_string()
    };
    insta::assert_snapshot!(cases.map(text).join("\n"));
}
