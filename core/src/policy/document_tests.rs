use super::*;
use crate::policy::PolicyFault;
use crate::units::LARGEST_SIZE;
use serde_json::{Value, json};

fn document(changes: Value) -> PolicyDocument {
    let mut spec = json!({"defaultIsolation": "memory", "isolation": {"memory": ["mig", "mps"]}});
    let Value::Object(changes) = changes else { panic!("changes are an object") };
    spec.as_object_mut().unwrap().extend(changes);
    let document = json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"}, "spec": spec});
    serde_json::from_value(document).unwrap()
}

fn faults(changes: Value) -> Vec<PolicyFault> {
    document(changes).problems().into_iter().map(|error| error.fault).collect()
}

#[test]
fn a_class_never_gives_less_than_it_guarantees() {
    assert_eq!(
        faults(json!({"isolation": {"memory": ["mig", "time-slicing"]}})),
        [PolicyFault::TooWeak { class: IsolationClass::Memory, kind: Kind::TimeSlicing }]
    );
}

#[test]
fn a_policy_has_the_documented_limits_if_it_writes_none() {
    let PolicySpec { preemption, max_count, .. } = document(json!({})).spec;
    assert!(!preemption.movable_by_default && preemption.moves_others);
    assert_eq!(max_count, 16);
}

#[test]
fn a_document_is_written_with_its_weights() {
    let weighted = document(json!({"packing": {"weights": {"7g.80gb": 200}}}));
    let written = serde_json::to_value(&weighted).unwrap();
    assert_eq!(serde_json::from_value::<PolicyDocument>(written).unwrap(), weighted);
}

#[test]
fn the_default_class_must_be_allowed() {
    assert_eq!(faults(json!({"defaultIsolation": "none"})), [PolicyFault::Default(IsolationClass::None)]);
}

#[test]
fn a_typo_is_an_error_that_names_it() {
    let error = serde_json::from_value::<PolicySpec>(json!({"defaultIsolaton": "none", "isolation": {}}))
        .unwrap_err();
    assert!(error.to_string().contains("unknown field `defaultIsolaton`"), "{error}");
}

#[test]
fn an_empty_list_is_refused() {
    let matched = json!({"namespaces": []});
    let error = serde_json::from_value::<PodMatch>(matched).unwrap_err().to_string();
    assert!(error.contains("the list is empty"), "{error}");
}

#[test]
fn a_policy_that_leaves_something_to_ask_for_is_valid() {
    for changes in [
        json!({}),
        json!({"sizes": {"minGb": 5, "maxGb": 40, "stepGb": 5}}),
        json!({"sizes": {"maxGb": 10, "stepGb": 10}}),
        json!({"sizes": {"maxGb": 1}}),
        json!({"sizes": {"maxGb": 1000}}),
        json!({"maxPerPod": {"memoryGb": 80, "slices": 2}, "quota": {"memoryGb": 80, "slices": 2}}),
        json!({"match": {"namespaces": ["team-*", "*"], "labels": {"example.com/team": "", "tier": "a_b.c"}}}),
        json!({"tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "yes", "effect": "NoExecute"}]}),
        json!({"sizes": {"minGb": 10}, "maxPerPod": {"memoryGb": 10}}),
        json!({"packing": {"weights": {"7g.80gb": 10_000, "1g.10gb": 1}}, "runtimeClassName": "nvidia.v2"}),
        json!({"models": ["H100-80GB", "T4-16GB"], "kindsByModel": {"T4-16GB": ["mps"]}, "nodeSelector": {"pool": "a"}}),
        json!({"models": ["H100-80GB", "T4-16GB"], "kindsByModel": {"H100-80GB": ["mig"], "T4-16GB": ["mps"]}}),
        json!({"kindsByModel": {"T4-16GB": ["time-slicing"]}}),
        json!({"sizes": {"minGb": LARGEST_SIZE}, "fractionOfGb": LARGEST_SIZE}),
        json!({"match": {"namespaceLabels": {"tier": ""}, "namespaceSelector": {"matchExpressions": [
            {"key": "a", "operator": "In", "values": ["", "b"]}, {"key": "a/b", "operator": "Exists"}]}}}),
        json!({"defaultIsolation": null, "isolation": {}, "deny": "no contract"}),
    ] {
        assert_eq!(document(changes.clone()).problems(), [], "{changes}");
    }
}

/// The snapshot has the text of every mistake. Each names the field, and most the remedy.
#[test]
fn every_mistake_names_its_field() {
    let cases = [
        json!({"match": {"namespaces": ["Team A", "*-a", "a", "a"]}}),
        json!({"match": {"labels": {"-x": "1", "team": "not ok"}}}),
        json!({"match": {"priorityClasses": ["a b"], "serviceAccounts": ["*x"], "models": [" "]}}),
        json!({"isolation": {"memory": []}}),
        json!({"isolation": {"memory": ["mig", "mig"], "hardware": ["mps"]}}),
        json!({"isolation": {}}),
        json!({"tolerations": [{"key": "a", "operator": "Exsts"}, {"key": "a", "effect": "NoSchedul"},
                               {"key": "a", "operator": "Exists", "value": "b"}, {"value": "b"}]}),
        json!({"schedulerName": "Kerf", "maxCount": 0}),
        json!({"sizes": {"minGb": 0, "maxGb": 0, "stepGb": 0}}),
        json!({"sizes": {"minGb": 300}}),
        json!({"sizes": {"minGb": 20, "maxGb": 10}}),
        json!({"sizes": {"minGb": 11, "maxGb": 19, "stepGb": 10}}),
        json!({"maxPerPod": {"memoryGb": 0, "slices": 0}}),
        json!({"sizes": {"minGb": 20}, "maxPerPod": {"memoryGb": 10}}),
        json!({"maxPerPod": {"memoryGb": 80, "slices": 2}, "quota": {"memoryGb": 40, "slices": 1}}),
        json!({"fractionOfGb": 0, "runtimeClassName": "Nvidia"}),
        json!({"packing": {"weights": {"7g.80gb": 0, "1g.10gb": 10_001}}}),
        json!({"defaultIsolation": null}),
        json!({"extends": "other"}),
        json!({"deny": " ", "extends": "other", "maxCount": 2}),
        json!({"models": ["T4-16GB", "T4-16GB", ""], "kindsByModel": {"H100-80GB": [], "L4-24GB": ["mps", "mps"]}}),
        json!({"models": ["T4-16GB"], "kindsByModel": {"T4-16GB": ["whole"]}}),
        json!({"nodeSelector": {"-x": "a", "pool": "not ok"}}),
        json!({"match": {"namespaceLabels": {"-x": "a"}, "namespaceSelector": {}}}),
        json!({"match": {"namespaceSelector": {"matchLabels": {"team": "not ok"}, "matchExpressions": [
            {"key": "-x", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["b"]},
            {"key": "a", "operator": "NotIn", "values": ["b", "b", "not ok"]}]}}}),
    ];
    let mut texts: Vec<String> =
        cases.into_iter().flat_map(|changes| document(changes).problems()).map(|e| e.to_string()).collect();
    let mut other = document(json!({}));
    other.api_version = "kerf.dev/v2".into();
    other.kind = "GpuPolice".into();
    other.metadata.name = "Team A".into();
    texts.extend(other.problems().iter().map(ToString::to_string));
    insta::assert_snapshot!(texts.join("\n"));
}
