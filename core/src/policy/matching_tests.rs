use super::*;
use crate::policy::{LabelOperator, Policies, Policy, PolicyDocument};
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
        namespace_labels in labels(), namespace_selector in prop::option::of(selectors()),
    ) -> PodMatch {
        PodMatch {
            namespaces, namespace_labels, namespace_selector, labels, priority_classes, service_accounts, models,
        }
    }
}

fn selectors() -> impl Strategy<Value = NamespaceSelector> {
    use LabelOperator::{DoesNotExist, Exists, In, NotIn};
    let values = prop::collection::btree_set(name(), 1..3);
    let expression = (name(), prop::sample::select(vec![In, NotIn, Exists, DoesNotExist]), values).prop_map(
        |(key, operator, values)| {
            let takes_values = matches!(operator, In | NotIn);
            LabelExpression { key, operator, values: values.into_iter().filter(|_| takes_values).collect() }
        },
    );
    (prop::collection::btree_map(name(), name(), 1..3), prop::collection::vec(expression, 0..3))
        .prop_map(|(match_labels, match_expressions)| NamespaceSelector { match_labels, match_expressions })
}

prop_compose! {
    fn pods()(
        namespace in name(), labels in labels(), priority_class in prop_oneof![Just(String::new()), name()],
        service_account in name(), models in prop::collection::vec(name(), 0..3),
        namespace_labels in prop::option::of(labels()),
    ) -> PodFacts {
        PodFacts { namespace, namespace_labels, labels, priority_class, service_account, models }
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

/// An independent implementation of `spec.match`, to compare with.
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
        && says_of_namespace(pods, pod)
}

fn says_of_namespace(pods: &PodMatch, pod: &PodFacts) -> bool {
    let Some(labels) = &pod.namespace_labels else {
        return pods.namespace_labels.is_empty() && pods.namespace_selector.is_none();
    };
    let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    let meets = |e: &LabelExpression| match (e.operator, labels.get(&e.key)) {
        (LabelOperator::In, found) => found.is_some_and(|found| e.values.iter().any(|value| value == found)),
        (LabelOperator::NotIn, found) => {
            found.is_none_or(|found| e.values.iter().all(|value| value != found))
        }
        (LabelOperator::Exists, found) => found.is_some(),
        (LabelOperator::DoesNotExist, found) => found.is_none(),
    };
    let selector = pods.namespace_selector.clone().unwrap_or_default();
    pods.namespace_labels.iter().all(has)
        && selector.match_labels.iter().all(has)
        && selector.match_expressions.iter().all(meets)
}

proptest! {
    #[test]
    fn the_first_policy_that_matches_holds(
        matches in prop::collection::vec(matches().prop_map(deduplicated), 0..8), pod in pods(),
    ) {
        let pods: Vec<Policy> = matches.iter().enumerate().map(|(index, m)| policy(index, m)).collect();
        let policies = Policies { pods, nodes: Vec::new() };
        let first = matches.iter().position(|m| says(m, &pod));
        prop_assert_eq!(policies.for_pod(&pod).map(|p| p.name().to_owned()), first.map(|i| format!("p{i}")));
        prop_assert_eq!(policies.passed(&pod).len(), first.unwrap_or(matches.len()));
        // If the labels are not known, the pod may get a later policy only if no earlier one could match it by some
        // labels.
        let could = |m: &PodMatch| {
            says(&PodMatch { namespace_labels: BTreeMap::new(), namespace_selector: None, ..m.clone() }, &pod)
        };
        let unsure = matches.iter().position(|m| m.reads_namespace_labels() && could(m));
        let unsure = unsure.filter(|at| pod.namespace_labels.is_none() && first.is_none_or(|first| *at < first));
        match policies.decided(&pod) {
            Ok(found) => prop_assert_eq!((found, unsure), (policies.for_pod(&pod), None)),
            Err(undecided) => prop_assert_eq!(Some(undecided.policy), unsure.map(|at| format!("p{at}"))),
        }
    }

    #[test]
    fn a_covering_policy_matches_every_pod_of_the_covered_one(wide in matches(), narrow in matches(), pod in pods()) {
        prop_assert!(!wide.covers(&narrow) || !narrow.is_for(&pod) || wide.is_for(&pod), "{wide:?} {narrow:?}");
    }

    #[test]
    fn a_policy_covers_itself_and_one_for_all_covers_every_one(pods in matches()) {
        prop_assert!(pods.covers(&pods) && PodMatch::default().covers(&pods));
    }
}

#[test]
fn a_policy_for_models_covers_one_for_some_of_them() {
    let of = |models: &[&str]| PodMatch {
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        ..PodMatch::default()
    };
    let wide = of(&["H100-80GB", "T4-16GB"]);
    assert!(wide.covers(&of(&["T4-16GB"])) && of(&[]).covers(&wide));
    assert!(!wide.covers(&of(&[])), "which matches pods for any model");
    assert!(!wide.covers(&of(&["T4-16GB", "L4-24GB"])));
}

#[test]
fn a_mismatch_names_its_field() {
    let pod = PodFacts {
        namespace: "web".into(),
        labels: [("team".to_owned(), "b".to_owned())].into(),
        models: vec!["T4-16GB".into()],
        ..PodFacts::default()
    };
    let none =
        PodFacts { namespace: "web".into(), namespace_labels: Some(BTreeMap::new()), ..PodFacts::default() };
    let cases = [
        (json!({"namespaces": ["ml-*"]}), &pod),
        (json!({"labels": {"team": "a"}}), &pod),
        (json!({"labels": {"team": "a"}}), &none),
        (json!({"priorityClasses": ["high"]}), &pod),
        (json!({"serviceAccounts": ["trainer"]}), &pod),
        (json!({"models": ["H100-80GB"]}), &pod),
        (json!({"models": ["H100-80GB"]}), &none),
        (json!({"namespaceLabels": {"tier": "gold"}}), &pod),
        (json!({"namespaceLabels": {"tier": "gold"}}), &none),
        (json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}), &none),
        (
            json!({"namespaceSelector": {"matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["gold", "silver"]}]}}),
            &none,
        ),
        (json!({"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}), &none),
    ];
    let text = |(pods, pod): (serde_json::Value, &PodFacts)| {
        let pods: PodMatch = serde_json::from_value(pods).unwrap();
        pods.mismatch(pod).unwrap().to_string()
    };
    insta::assert_snapshot!(cases.map(text).join("\n"));
}
