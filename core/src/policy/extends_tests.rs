use super::*;
use serde_json::json;

fn draft(name: &str, spec: Value) -> PolicyDraft {
    let written = spec.as_object().unwrap().keys().cloned().collect();
    let document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec,
    });
    PolicyDraft::new(serde_json::from_value(document).unwrap(), written)
}

fn resolved(drafts: &[PolicyDraft], name: &str) -> Result<Policy, Vec<String>> {
    let named = |name: &str| drafts.iter().find(|draft| draft.name() == name);
    let resolved = named(name).unwrap().resolve(named);
    resolved.map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn base() -> PolicyDraft {
    draft(
        "base",
        json!({
            "match": {"namespaces": ["base"]}, "defaultIsolation": "memory",
            "isolation": {"memory": ["mig", "mps"], "none": ["time-slicing"]},
            "quota": {"memoryGb": 80, "slices": 4}, "dialects": ["nvidia"], "maxCount": 2,
        }),
    )
}

#[test]
fn a_file_writes_its_own_fields_and_all_outside_of_spec() {
    let draft = draft("small", json!({"extends": "base", "maxCount": 2}));
    assert!(draft.has_written(&Field::from_dotted("spec.maxCount")));
    assert!(!draft.has_written(&Field::from_dotted("spec.quota.slices")), "it is inherited");
    assert!(draft.has_written(&Field::from_dotted("metadata.name")));
}

/// Two policies with weights cannot be in force together.
#[test]
fn the_clusters_weights_are_not_inherited() {
    let mut spec = serde_json::to_value(&base().document.spec).unwrap();
    spec["packing"] = json!({"weights": {"7g.80gb": 200}});
    let drafts = [draft("base", spec), draft("team", json!({"extends": "base", "maxCount": 3}))];
    let pods: Vec<Policy> = ["base", "team"].map(|name| resolved(&drafts, name).unwrap()).into();
    assert_eq!(pods[1].spec().max_count, 3);
    assert_eq!(crate::policy::Policies { pods, nodes: Vec::new() }.conflicts(), []);
}

#[test]
fn a_field_comes_whole_from_the_nearest_policy() {
    let drafts = [
        base(),
        draft(
            "team",
            json!({"extends": "base", "match": {"namespaces": ["team"]}, "quota": {"memoryGb": 160}}),
        ),
        draft(
            "night",
            json!({"extends": "team", "isolation": {"memory": ["mps"]}, "dialects": [], "maxCount": 16}),
        ),
    ];
    let team = resolved(&drafts, "team").unwrap();
    let spec = team.spec();
    assert_eq!((spec.quota.memory_gb, spec.quota.slices, spec.max_count), (Some(160), None, 2));
    assert_eq!(spec.pods.namespaces, ["team"]);
    let night = resolved(&drafts, "night").unwrap();
    let spec = night.spec();
    assert_eq!((spec.quota.memory_gb, spec.max_count, spec.dialects.len()), (Some(160), 16, 0));
    assert_eq!(spec.isolation.len(), 1, "a map is replaced too");
    assert!(spec.pods.is_all(), "match is not inherited");
    assert_eq!(night.lineage().bases, ["team", "base"]);
    let origins: Vec<_> = night.lineage().origins.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let own = |field| (field, "night");
    assert_eq!(
        origins,
        [
            ("defaultIsolation", "base"),
            own("dialects"),
            own("extends"),
            own("isolation"),
            own("maxCount"),
            ("quota", "team")
        ]
    );
}

#[test]
fn an_invalid_extends_is_reported_at_its_field() {
    let drafts = [
        base(),
        draft("deny", json!({"deny": "no"})),
        draft("a", json!({"extends": "b"})),
        draft("b", json!({"extends": "c"})),
        draft("c", json!({"extends": "b"})),
        draft("self", json!({"extends": "self"})),
        draft("lost", json!({"extends": "nobody"})),
        draft("of-deny", json!({"extends": "deny"})),
        draft("both", json!({"extends": "base", "deny": "no"})),
        draft("bad", json!({"extends": "base", "maxPerPod": {"memoryGb": 100}})),
        draft("nothing", json!({"match": {"labels": {"a": "b"}}})),
    ];
    let reported = |name: &&str| resolved(&drafts, name).map(|_| ()).unwrap_err().join("\n");
    let names = ["a", "b", "self", "lost", "of-deny", "both", "bad", "nothing"];
    insta::assert_snapshot!(names.iter().map(reported).collect::<Vec<_>>().join("\n"));
}

/// Inheritance goes through JSON, so every field must survive the round trip; otherwise the inherited value would
/// differ.
#[test]
fn a_policy_that_only_extends_equals_its_base() {
    let all = json!({
        "defaultIsolation": "memory", "isolation": {"memory": ["mig", "whole"]}, "models": ["H100-80GB"],
        "kindsByModel": {"H100-80GB": ["mig"]}, "nodeSelector": {"pool": "a"}, "tolerations": [{"operator": "Exists"}],
        "schedulerName": "", "maxCount": 3, "sizes": {"minGb": 5, "maxGb": 40}, "maxPerPod": {"slices": 2},
        "quota": {"memoryGb": 100}, "dialects": ["hami", "nvidia"], "fractionOfGb": 80, "nodeName": "affinity",
        "environment": "remove", "runtimeClassName": "nvidia", "waiting": {"afterSeconds": 10, "then": "recreate"},
        "preemption": {"movableByDefault": true, "movesOthers": false},
    });
    let drafts = [draft("base", all), draft("same", json!({"extends": "base"}))];
    let (base, same) = (resolved(&drafts, "base").unwrap(), resolved(&drafts, "same").unwrap());
    assert_eq!(base.spec(), same.spec());
}
