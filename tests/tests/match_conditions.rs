//! The chart's first match condition is what the webhook keeps it at: core makes the one, the chart's templates the other.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use kerf_core::admission::MatchCondition;
use kerf_core::policy::Dialect;
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
    MatchCondition::of(&dialects.iter().copied().collect::<BTreeSet<_>>()).expression()
}

#[test]
fn the_chart_writes_the_expression_that_core_writes() {
    let mut sets: Vec<Vec<Dialect>> = Dialect::ALL.map(|dialect| vec![dialect]).into();
    sets.extend([vec![], Dialect::ALL.to_vec(), vec![Dialect::Runai, Dialect::Nvidia, Dialect::Kai]]);
    for set in sets {
        let dialects = json!(set).to_string();
        let flags =
            ["--set", "webhook.matchConditions=fixed", "--set-json", &format!("webhook.dialects={dialects}")];
        let (made, flags) = made(&template("kerf-system", &flags).unwrap());
        assert_eq!(made, expression(&set), "{set:?}");
        assert!(flags.contains(&"--match-conditions=off".to_owned()), "{flags:?}");
    }
}

#[test]
fn the_first_expression_is_that_of_the_policies_in_values() {
    let policy = |name: &str, dialects: &str| {
        format!(
            "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {{name: {name}}}\nspec: {{defaultIsolation: memory, isolation: {{memory: [mig]}}{dialects}}}\n"
        )
    };
    let (nvidia, none) = (policy("a", ", dialects: [nvidia]"), policy("b", ", dialects: []"));
    let (silent, two) = (
        policy("c", ""),
        format!("{}---\n{}", policy("d", ", dialects: [hami]"), policy("e", ", dialects: [kai]")),
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
fn a_policy_for_which_the_extender_has_no_right_is_refused_by_name() {
    let policy = |kind: &str, spec: Value| json!({"p.yaml": {"apiVersion": "kerf.dev/v1alpha1", "kind": kind, "metadata": {"name": "p"}, "spec": spec}});
    let layout = policy("GpuNodePolicy", json!({"plugin": {"timeSlicing": {"replicas": 4}}}));
    let recreate = policy("GpuPolicy", json!({"waiting": {"then": "recreate"}}));
    for (files, right) in [(layout, "extender.layouts"), (recreate, "extender.recreate")] {
        let files = format!("policies.files={files}");
        let error = template("kerf-system", &["--set-json", &files]).unwrap_err().to_string();
        assert!(error.contains(&format!("set {right}=true")), "{error}");
        let yaml =
            template("kerf-system", &["--set-json", &files, "--set", &format!("{right}=true")]).unwrap();
        let role = right.replace("extender.", "kerf-extender-");
        let roles = objects(&yaml).unwrap().into_iter().filter(|object| object["metadata"]["name"] == *role);
        assert_eq!(roles.count(), 2, "a ClusterRole and its binding");
    }
    let yaml = template("kerf-system", &["--set", "extender.moves=false"]).unwrap();
    assert!(yaml.contains("--moves=false") && !yaml.contains("name: kerf-extender-moves"));
}
