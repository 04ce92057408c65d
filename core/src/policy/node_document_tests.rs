use super::*;
use crate::contract::MPS_REPLICAS_LIMIT;
use crate::plugin_layout::{MigStrategy, PluginLayout, Sharing, TIME_SLICES_LIMIT};
use serde_json::{Value, json};
use std::collections::BTreeMap;

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
        "gpus": [{"select": {"pciBusIds": ["00000000:1B:00.0"]}, "kinds": ["mig"]}, {"kinds": ["mps"], "mps": {"strict": true}}],
        "warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 2}],
        "overUse": "evict",
        "removeRejectedPods": true,
    }));
    let rules: NodeRules = document.try_into().unwrap();
    let policy = rules.managed().unwrap();
    assert_eq!(policy.gpus.len(), 2);
    assert_eq!((policy.over_use, policy.remove_rejected_pods), (OverUse::Evict, true));
    let pool = |pool: &str| BTreeMap::from([("pool".to_owned(), pool.to_owned())]);
    let is_for = |name: &str, labels: BTreeMap<_, _>| rules.nodes.is_for(&name.into(), &labels);
    assert!(is_for("gpu-a-1", pool("a")));
    assert!(!is_for("gpu-b-1", pool("a")));
    assert!(!is_for("gpu-a-1", pool("b")));
}

#[test]
fn an_empty_policy_selects_every_node_and_changes_nothing() {
    let rules: NodeRules = document(json!({})).try_into().unwrap();
    assert!(rules.managed().unwrap().is_default());
    assert!(rules.nodes.is_for(&"any".into(), &BTreeMap::new()));
}

/// The snapshot has the text of every mistake.
#[test]
fn every_mistake_names_its_field() {
    let cases = [
        json!({"match": {"names": ["gpu-*-a"], "labels": {"a b": "c"}}}),
        json!({"gpus": [{"kinds": []}]}),
        json!({"gpus": [{"kinds": ["mig", "mig"], "mps": {"strict": true, "exclusive": false, "computeLimit": "none"}}]}),
        json!({"gpus": [{"kinds": ["mps"], "computeInstances": true,
                         "timeSlicing": {"length": "long", "memoryLimits": true, "replicas": 4}}]}),
        json!({"gpus": [{"timeSlicing": {"replicas": 1}}]}),
        json!({"gpus": [{"kinds": ["mps"], "mig": {"timeSlicing": 2}}]}),
        json!({"gpus": [{"computeInstances": true, "mig": {"timeSlicing": 2}}]}),
        json!({"gpus": [{"select": {"indexes": [1, 1], "models": ["T4-16GB", "T4-16GB"]}}]}),
        json!({"gpus": [{"select": {"uuids": ["0", "GPU-1", "GPU-1"],
                                    "pciBusIds": ["0000:1b:00.0", "00000000:1B:00.0"]}}]}),
        json!({"gpus": [{"kinds": ["mig"]}, {"select": {"uuids": ["GPU-1"]}}]}),
        json!({"gpus": [{"kinds": ["mps"]}], "warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 0},
                                                      {"resource": "nvidia.com/mig-1g.10gb", "count": 1}]}),
        json!({"gpus": [{"kinds": ["mps"], "layout": [{"resource": "nvidia.com/gpu-10gb", "count": 1},
                                                      {"resource": "nvidia.com/gpu-13gb", "count": 2}]}],
               "warm": [{"resource": "nvidia.com/gpu-100gb", "count": 1}]}),
        json!({"warm": [{"resource": "nvidia.com/gpu-25gb.shared", "count": 1}]}),
        json!({"gpus": [{"kinds": ["mps"]}], "warm": [{"resource": "nvidia.com/gpu-1gb", "count": 1}], "overUse": "evict",
               "removeRejectedPods": true, "plugin": {}}),
        json!({"plugin": {"timeSlicing": {"replicas": 4}, "mps": {"replicas": 4}}}),
        json!({"plugin": {"timeSlicing": {"replicas": 1}}}),
        json!({"plugin": {"timeSlicing": {"replicas": 2000}}}),
        json!({"plugin": {"mps": {"replicas": 49}}}),
        json!({"plugin": {"mps": {"replicas": 0}}}),
        json!({"plugin": {"migStrategy": "single", "mps": {"replicas": 2}}}),
        json!({"plugin": {"migConfig": "all-1g.10gb"}}),
        json!({"plugin": {"migStrategy": "mixed", "migConfig": "-x"}}),
    ];
    let mut texts: Vec<String> =
        cases.into_iter().flat_map(|spec| document(spec).problems()).map(|e| e.to_string()).collect();
    let mut other = document(json!({}));
    other.kind = "GpuPolicy".into();
    texts.extend(other.problems().iter().map(ToString::to_string));
    for name in ["default".to_owned(), "a".repeat(60)] {
        let mut plugin = document(json!({"plugin": {}}));
        plugin.metadata.name = name;
        texts.extend(plugin.problems().iter().map(ToString::to_string));
    }
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn the_least_and_the_most_replicas_are_valid() {
    for spec in [
        json!({"gpus": [{"timeSlicing": {"replicas": 2}}]}),
        json!({"plugin": {"timeSlicing": {"replicas": 2}}}),
        json!({"plugin": {"timeSlicing": {"replicas": TIME_SLICES_LIMIT}}}),
        json!({"plugin": {"mps": {"replicas": 2}}}),
        json!({"plugin": {"mps": {"replicas": MPS_REPLICAS_LIMIT}}}),
    ] {
        assert_eq!(document(spec.clone()).problems(), [], "{spec}");
    }
}

#[test]
fn the_name_of_a_layout_has_the_length_of_a_label_at_most() {
    let mut plugin = document(json!({"plugin": {}}));
    plugin.metadata.name = "a".repeat(LAYOUT_NAME_LENGTH_LIMIT);
    assert_eq!(plugin.problems(), []);
    plugin.metadata.name.push('a');
    assert_eq!(plugin.problems().len(), 1);
}

#[test]
fn a_plugin_layout_is_for_static_nodes() {
    let read = |plugin: Value| -> NodeRules { document(json!({"plugin": plugin})).try_into().unwrap() };
    let sliced = read(json!({"timeSlicing": {"replicas": 4, "renameByDefault": true}}));
    assert_eq!(sliced.managed(), None);
    let sharing = Sharing::TimeSlicing { replicas: 4, renamed: true, fail_greater_than_one: false };
    assert_eq!(
        sliced.layout(),
        Some(&PluginLayout { mig_strategy: MigStrategy::None, mig_config: None, sharing })
    );
    let mps = read(json!({"mps": {"replicas": 48}}));
    assert_eq!(mps.layout().unwrap().sharing, Sharing::Mps { replicas: 48, renamed: false });
    let mig = read(json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"}));
    assert_eq!(mig.layout().unwrap().mig_config.as_deref(), Some("all-1g.10gb"));
    let whole = read(json!({"migConfig": "all-disabled"}));
    assert_eq!(whole.layout().unwrap().mig_strategy, MigStrategy::None);
}
