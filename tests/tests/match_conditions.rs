//! The chart's first match condition equals the one that the webhook restores. Core makes the one, the chart's
//! templates the other.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use kerf_core::admission::MatchCondition;
use kerf_core::request::Dialect;
use kerf_tests::chart::{kustomize, objects, template};
use serde_json::{Value, json};

/// The expression in a stream of manifests, and the flags of the webhook.
fn made(yaml: &str) -> (String, Vec<String>) {
    let objects = objects(yaml).unwrap();
    let of = |kind: &str, name: &str| {
        objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
    };
    let pods = &of("MutatingWebhookConfiguration", "kerf")["webhooks"][0];
    assert_eq!(
        (&pods["name"], &pods["matchConditions"][0]["name"]),
        (&json!("pods.kerf.dev"), &json!("asks-for-gpus"))
    );
    let flags = &of("Deployment", "kerf-webhook")["spec"]["template"]["spec"]["containers"][0]["args"];
    (
        pods["matchConditions"][0]["expression"].as_str().unwrap().to_owned(),
        serde_json::from_value(flags.clone()).unwrap(),
    )
}

fn expression(dialects: &[Dialect]) -> String {
    MatchCondition::for_dialects(&dialects.iter().copied().collect::<BTreeSet<_>>()).expression()
}

/// A `GpuPolicy`, with its dialects as JSON; null for none given.
fn policy(name: &str, dialects: &Value) -> Value {
    let mut policy = json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name},
        "spec": {"defaultIsolation": "memory", "isolation": {"memory": ["mig"]}}});
    if !dialects.is_null() {
        policy["spec"]["dialects"] = dialects.clone();
    }
    policy
}

#[test]
fn a_fixed_condition_without_a_dialect_of_a_policy_is_rejected() {
    let fixed = |dialects: Value, policies: Value| {
        let webhook = format!("webhook={}", json!({"matchConditions": "fixed", "dialects": dialects}));
        let policies = format!("policies={policies}");
        template("kerf-system", &["--set-json", &webhook, "--set-json", &policies])
    };
    let of_two = json!({"default": false, "files": {
        "10-a.yaml": policy("a", &json!(["nvidia"])),
        "20-b.yaml": format!("{}\n---\n{}", policy("b", &json!([])), policy("c", &json!(null)))}});
    for (dialects, policies, file, missing) in [
        (json!([]), json!({"default": true}), "default.yaml", "mig"),
        (json!(["mig"]), of_two.clone(), "10-a.yaml", "nvidia"),
        (json!(["nvidia"]), of_two.clone(), "20-b.yaml", "mig"),
    ] {
        let error = fixed(dialects, policies).unwrap_err().to_string();
        let parts = ["webhook.dialects", file, missing, &format!("add {missing}")];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    fixed(json!(["mig", "nvidia", "kai"]), of_two).unwrap();
}

#[test]
fn the_chart_writes_the_expression_that_core_writes() {
    let mut sets: Vec<Vec<Dialect>> = Dialect::ALL.map(|dialect| vec![dialect]).into();
    sets.extend([vec![], Dialect::ALL.to_vec(), vec![Dialect::Runai, Dialect::Nvidia, Dialect::Kai]]);
    for set in sets {
        let values = json!({"matchConditions": "fixed", "dialects": set});
        let policies = json!({"default": false, "files": {"10-a.yaml": policy("a", &json!(set))}});
        let (values, policies) = (format!("webhook={values}"), format!("policies={policies}"));
        let made_yaml = template("kerf-system", &["--set-json", &values, "--set-json", &policies]).unwrap();
        let (made, flags) = made(&made_yaml);
        assert_eq!(made, expression(&set), "{set:?}");
        assert!(flags.contains(&"--match-conditions=off".to_owned()), "{flags:?}");
    }
}

#[test]
fn the_first_expression_is_that_of_the_policies_in_values() {
    let text = |name: &str, dialects: &str| {
        format!(
            "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {{name: {name}}}\nspec: {{defaultIsolation: memory, isolation: {{memory: [mig]}}{dialects}}}\n"
        )
    };
    let (nvidia, none) = (text("a", ", dialects: [nvidia]"), text("b", ", dialects: []"));
    let (silent, two) = (
        text("c", ""),
        format!("{}---\n{}", text("d", ", dialects: [hami]"), text("e", ", dialects: [kai]")),
    );
    for (files, default, dialects) in [
        (json!({}), true, vec![Dialect::Mig]),
        (json!({"10-a.yaml": nvidia}), true, vec![Dialect::Mig, Dialect::Nvidia]),
        (json!({"10-b.yaml": none}), false, vec![]),
        (json!({"10-c.yaml": silent}), false, vec![Dialect::Mig]),
        (json!({"10-d.yaml": two}), false, vec![Dialect::Hami, Dialect::Kai]),
    ] {
        let files = format!("policies.files={files}");
        let default = format!("policies.default={default}");
        let (made, flags) =
            made(&template("kerf-system", &["--set-json", &files, "--set", &default]).unwrap());
        assert_eq!(made, expression(&dialects), "{files}");
        assert!(!flags.contains(&"--match-conditions=off".to_owned()), "{flags:?}");
    }
    assert_eq!(made(&kustomize("deploy/base").unwrap()).0, expression(&[Dialect::Mig]));
}

#[test]
fn a_policy_that_needs_a_missing_right_is_rejected_by_name() {
    let policy = |kind: &str, spec: Value| json!({"p.yaml": {"apiVersion": "kerf.dev/v1alpha1", "kind": kind, "metadata": {"name": "p"}, "spec": spec}});
    let layout = policy("GpuNodePolicy", json!({"plugin": {"timeSlicing": {"replicas": 4}}}));
    let files = format!("policies.files={layout}");
    let error = template("kerf-system", &["--set-json", &files]).unwrap_err().to_string();
    assert!(error.contains("set extender.layouts=true"), "{error}");
    let yaml = template("kerf-system", &["--set-json", &files, "--set", "extender.layouts=true"]).unwrap();
    let objects = objects(&yaml).unwrap().into_iter();
    let roles = objects.filter(|object| object["metadata"]["name"] == "kerf-extender-layouts");
    assert_eq!(roles.count(), 2, "a ClusterRole and its binding");
    let yaml = template("kerf-system", &["--set", "extender.moves=false"]).unwrap();
    assert!(yaml.contains("--moves=false") && !yaml.contains("name: kerf-extender-moves"));
}
