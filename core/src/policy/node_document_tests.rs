use super::*;
use serde_json::{Value, json};

fn document(spec: Value) -> NodePolicyDocument {
    let document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "p"}, "spec": spec,
    });
    serde_json::from_value(document).unwrap()
}

#[test]
fn the_rules_are_what_the_document_says() {
    let document = document(json!({
        "match": {"names": ["gpu-a-*"], "labels": {"pool": "a"}},
        "gpus": [{"select": {"indexes": [0]}, "kinds": ["mig"]}, {"kinds": ["mps"], "mps": {"strict": true}}],
        "warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 2}],
        "overUse": "evict",
        "removeRejectedPods": true,
    }));
    let rules: NodeRules = document.try_into().unwrap();
    assert_eq!(rules.policy.gpus.len(), 2);
    assert_eq!((rules.policy.over_use, rules.policy.remove_rejected_pods), (OverUse::Evict, true));
    let pool = |pool: &str| [("pool".to_owned(), pool.to_owned())].into();
    let is_for = |name: &str, labels| rules.mismatch(&name.into(), &labels).is_none();
    assert!(is_for("gpu-a-1", pool("a")));
    assert!(!is_for("gpu-b-1", pool("a")));
    assert!(!is_for("gpu-a-1", pool("b")));
}

#[test]
fn a_policy_that_says_nothing_is_for_every_node_and_changes_nothing() {
    let rules: NodeRules = document(json!({})).try_into().unwrap();
    assert!(rules.policy.is_default());
    assert!(rules.mismatch(&"any".into(), &BTreeMap::new()).is_none());
}

/// Every mistake has its text here.
#[test]
fn every_mistake_names_its_field() {
    let cases = [
        json!({"match": {"names": ["gpu-*-a"], "labels": {"a b": "c"}}}),
        json!({"gpus": [{"kinds": []}]}),
        json!({"gpus": [{"kinds": ["mig", "mig"], "mps": {"strict": true, "exclusive": true, "computeLimit": "none"}}]}),
        json!({"gpus": [{"kinds": ["mps"], "computeInstances": true,
                         "timeSlicing": {"length": "long", "memoryLimits": true, "replicas": 4}}]}),
        json!({"gpus": [{"timeSlicing": {"replicas": 1}}]}),
        json!({"gpus": [{"select": {"indexes": [1, 1], "models": ["T4-16GB", "T4-16GB"]}}]}),
        json!({"gpus": [{"kinds": ["mig"]}, {"select": {"indexes": [0]}}]}),
        json!({"gpus": [{"kinds": ["mps"]}], "warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 0},
                                                      {"resource": "nvidia.com/mig-1g.10gb", "count": 1}]}),
        json!({"gpus": [{"kinds": ["mps"], "layout": [{"resource": "nvidia.com/gpu-10gb", "count": 1},
                                                      {"resource": "nvidia.com/gpu-13gb", "count": 2}]}],
               "warm": [{"resource": "nvidia.com/gpu-100gb", "count": 1}]}),
        json!({"warm": [{"resource": "nvidia.com/gpu-25gb.shared", "count": 1}]}),
    ];
    let mut texts: Vec<String> =
        cases.into_iter().flat_map(|spec| document(spec).problems()).map(|e| e.to_string()).collect();
    let mut other = document(json!({}));
    other.kind = "GpuPolicy".into();
    texts.extend(other.problems().iter().map(ToString::to_string));
    insta::assert_snapshot!(texts.join("\n"));
}
