use super::*;
use crate::policy::{Lineage, NodePolicyDocument, PolicyDocument, PolicyIndex, SetFault, Weight};
use serde_json::{Value, json};

fn pod_document(name: &str, changes: Value) -> PolicyDocument {
    let mut spec = json!({"defaultIsolation": "memory", "isolation": {"memory": ["mig"]}});
    spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec,
    });
    serde_json::from_value(document).unwrap()
}

fn pod_policy(name: &str, changes: Value) -> Policy {
    pod_document(name, changes).try_into().unwrap()
}

fn node_rules(name: &str, spec: Value) -> NodeRules {
    let document: NodePolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap();
    document.try_into().unwrap()
}

#[test]
fn a_policy_that_is_never_reached_is_found() {
    let policies = Policies {
        pods: vec![
            pod_policy("ml", json!({"match": {"namespaces": ["ml-*"]}})),
            pod_policy("ml-a", json!({"match": {"namespaces": ["ml-a", "ml-b*"]}})),
            pod_policy("web", json!({"match": {"namespaces": ["web", "ml-a"]}})),
            pod_policy("all", json!({})),
            pod_policy("late", json!({"match": {"labels": {"tier": "gold"}}})),
        ],
        nodes: vec![
            node_rules("a", json!({"match": {"labels": {"pool": "a"}}})),
            node_rules("a-1", json!({"match": {"names": ["a-1"], "labels": {"pool": "a"}}})),
        ],
    };
    let found: Vec<_> = policies.findings().into_iter().map(|f| (f.policy, f.fault)).collect();
    assert_eq!(
        found,
        [
            (PolicyIndex::Pod(1), SetFault::NeverReached("ml".into())),
            (PolicyIndex::Pod(4), SetFault::NeverReached("all".into())),
            (PolicyIndex::Node(1), SetFault::NeverReached("a".into())),
        ]
    );
    assert_eq!(policies.conflicts(), []);
}

#[test]
fn a_policy_that_one_other_extends_may_come_after_one_for_all_pods() {
    let team = pod_document("team", json!({"match": {"namespaces": ["team"]}}));
    let lineage = Lineage { bases: vec!["base".to_owned()], ..Lineage::default() };
    let (all, base) = (pod_policy("all", json!({})), pod_policy("base", json!({})));
    let pods = vec![Policy::from_document(team, lineage), all, base];
    assert_eq!(Policies { pods, nodes: Vec::new() }.findings(), []);
}

#[test]
fn a_class_is_served_if_one_of_its_kinds_may_have_the_smallest_size() {
    for (changes, is_served) in [
        (json!({"isolation": {"memory": ["mps", "mig"]}, "sizes": {"minGb": 140}}), true),
        (
            json!({"isolation": {"memory": ["mig", "mps"]}, "models": ["T4-16GB"], "kindsByModel": {"T4-16GB": ["mig"]}}),
            false,
        ),
    ] {
        let pods = vec![pod_policy("a", changes.clone())];
        assert_eq!(Policies { pods, nodes: Vec::new() }.findings().is_empty(), is_served, "{changes}");
    }
}

#[test]
fn the_first_policy_that_states_weights_states_those_of_the_cluster() {
    let weights = json!({"packing": {"weights": {"7g.80gb": 200}}});
    let pods = vec![pod_policy("a", json!({})), pod_policy("b", weights)];
    let of_cluster = Policies { pods, nodes: Vec::new() }.weights();
    assert_eq!(of_cluster, BTreeMap::from([("7g.80gb".parse().unwrap(), 200)]));
}

#[test]
fn a_wider_namespace_selector_covers_a_narrower_one() {
    let selecting = |name: &str, expressions: Value| {
        pod_policy(name, json!({"match": {"namespaceSelector": {"matchExpressions": expressions}}}))
    };
    let tier =
        |operator: &str, values: Value| json!([{"key": "tier", "operator": operator, "values": values}]);
    for (wide, narrow, is_reached) in [
        (tier("In", json!(["a", "b"])), tier("In", json!(["a"])), false),
        (tier("In", json!(["a"])), tier("In", json!(["a", "b"])), true),
        (tier("Exists", json!([])), tier("In", json!(["a"])), false),
        (tier("NotIn", json!(["a"])), tier("In", json!(["b"])), false),
        (tier("NotIn", json!(["a"])), tier("In", json!(["a", "b"])), true),
        (tier("NotIn", json!(["a"])), tier("DoesNotExist", json!([])), false),
        (tier("NotIn", json!(["a", "b"])), tier("NotIn", json!(["a"])), true),
        (tier("DoesNotExist", json!([])), tier("NotIn", json!(["a"])), true),
        (tier("Exists", json!([])), json!([{"key": "other", "operator": "Exists"}]), true),
    ] {
        let pods = vec![selecting("wide", wide.clone()), selecting("narrow", narrow.clone())];
        let found = Policies { pods, nodes: Vec::new() }.findings();
        assert_eq!(found.is_empty(), is_reached, "{wide} {narrow}");
    }
    let by_label = pod_policy("gold", json!({"match": {"namespaceLabels": {"tier": "gold"}}}));
    let narrower =
        pod_policy("late", json!({"match": {"namespaceLabels": {"tier": "gold"}, "labels": {"a": "b"}}}));
    let everybody = pod_policy("all", json!({}));
    let found = Policies { pods: vec![by_label, everybody, narrower], nodes: Vec::new() }.findings();
    assert_eq!(
        found.into_iter().map(|f| f.fault).collect::<Vec<_>>(),
        [SetFault::NeverReached("gold".into())]
    );
}

#[test]
fn labels_of_namespaces_are_read_if_one_policy_selects_by_them() {
    let (gold, all) =
        (json!({"match": {"namespaceLabels": {"tier": "gold"}}}), json!({"match": {"labels": {"a": "b"}}}));
    let read = |specs: &[&Value]| {
        let pods = specs.iter().map(|spec| pod_policy("a", (*spec).clone())).collect();
        Policies { pods, nodes: Vec::new() }.read_namespace_labels()
    };
    assert!(read(&[&all, &gold]) && !read(&[&all]) && !read(&[]));
}

#[test]
fn policies_that_cannot_be_in_force_together_are_found() {
    let weights = |of: &str| json!({"match": {"namespaces": [of]}, "packing": {"weights": {"7g.80gb": 200}}});
    let policies = Policies {
        pods: vec![pod_policy("a", weights("a")), pod_policy("a", weights("b"))],
        nodes: vec![node_rules("a", json!({})), node_rules("a", json!({}))],
    };
    let conflicts = policies.conflicts();
    assert!(conflicts.iter().all(|found| found.fault.weight() == Weight::Refused));
    let found: Vec<_> = conflicts.into_iter().map(|f| (f.policy, f.field.to_string())).collect();
    assert_eq!(
        found,
        [
            (PolicyIndex::Pod(1), "metadata.name".to_owned()),
            (PolicyIndex::Node(1), "metadata.name".to_owned()),
            (PolicyIndex::Pod(1), "spec.packing.weights".to_owned()),
        ]
    );
}

/// The snapshot has the text of every finding.
#[test]
fn every_finding_names_its_field() {
    let policies = Policies {
        pods: vec![
            pod_policy("a", json!({"packing": {"weights": {"7g.80gb": 200}}})),
            pod_policy("a", json!({"match": {"models": ["H100"]}, "packing": {"weights": {"1g.10gb": 50}}})),
            pod_policy("b", json!({"models": ["T5"]})),
            pod_policy("c", json!({"kindsByModel": {"T6": ["mps"]}})),
            pod_policy("d", json!({"match": {"namespaces": ["c"]}, "dialects": ["nvidia"]})),
            pod_policy(
                "e",
                json!({"isolation": {"memory": ["mps"]}, "sizes": {"minGb": 140}, "waiting": {"then": "recreate"}}),
            ),
            pod_policy("f", json!({"isolation": {"memory": ["mig"]}, "models": ["T4-16GB"]})),
        ],
        nodes: vec![node_rules("n", json!({"gpus": [{"select": {"models": ["T4-16GB", "T5"]}}]}))],
    };
    let found = policies.conflicts().into_iter().chain(policies.findings());
    insta::assert_snapshot!(found.map(|f| f.to_string()).collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_first_policy_that_names_a_node_holds_for_it() {
    let policies = Policies {
        pods: Vec::new(),
        nodes: vec![
            node_rules("a", json!({"match": {"names": ["gpu-a*"], "labels": {"pool": "a"}}})),
            node_rules("rest", json!({"match": {"names": ["gpu-*"]}})),
        ],
    };
    let of = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let labels: BTreeMap<_, _> = labels.collect();
        policies.for_node(&name.into(), &labels).map(|rules| rules.name.clone())
    };
    assert_eq!(of("gpu-a1", &[("pool", "a")]).as_deref(), Some("a"));
    assert_eq!(of("gpu-a1", &[]).as_deref(), Some("rest"));
    assert_eq!(of("cpu-1", &[("pool", "a")]), None);
}

#[test]
fn plugin_layouts_and_policies_of_managed_nodes_are_independent() {
    let layout = json!({"plugin": {"timeSlicing": {"replicas": 4}}});
    let policies = Policies {
        nodes: vec![
            node_rules("all", json!({})),
            node_rules("sliced", layout.clone()),
            node_rules("late", layout),
        ],
        ..Policies::default()
    };
    let found = policies.for_node(&"n".into(), &BTreeMap::new()).map(|rules| rules.name.as_str());
    assert_eq!(found, Some("all"));
    assert_eq!(policies.layouts().map(|policy| policy.name).collect::<Vec<_>>(), ["sliced", "late"]);
    let late = SetFault::NeverReached("sliced".into());
    assert_eq!(policies.findings().into_iter().map(|f| f.fault).collect::<Vec<_>>(), [late]);
}
