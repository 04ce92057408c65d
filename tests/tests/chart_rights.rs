//! What the chart allows each service account, verb by verb, and what an enabled feature adds.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use kerf_tests::chart::{by_name, template, template_with};
use kerf_tests::cluster::root;
use serde_json::{Value, json};

const API: &str = "rbac.authorization.k8s.io/v1";

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect()
}

/// The rights of a rule, in the words of `kubectl auth can-i`.
fn of_rule(rule: &Value, place: &str) -> Vec<String> {
    let names = texts(&rule["resourceNames"]);
    let names = if names.is_empty() { String::new() } else { format!(" {}", names.join("|")) };
    let mut rights = Vec::new();
    for group in texts(&rule["apiGroups"]) {
        for resource in texts(&rule["resources"]) {
            let group = if group.is_empty() { String::new() } else { format!(".{group}") };
            let verbs = texts(&rule["verbs"]);
            rights.extend(verbs.iter().map(|verb| format!("{verb} {resource}{group}{names}{place}")));
        }
    }
    rights
}

/// The rights of each account that a binding names.
fn rights(values: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let objects = by_name(&template_with("kerf-system", values).unwrap()).unwrap();
    let mut rights = BTreeMap::<String, BTreeSet<String>>::new();
    for binding in objects.values().filter(|object| object["kind"].as_str().unwrap().ends_with("RoleBinding"))
    {
        let reference = &binding["roleRef"];
        let [kind, role] = [&reference["kind"], &reference["name"]].map(|text| text.as_str().unwrap());
        let place =
            binding["metadata"]["namespace"].as_str().map(|name| format!(" in {name}")).unwrap_or_default();
        let rules = objects.get(&format!("{API} {kind} {role}")).map(|role| role["rules"].clone());
        // The scheduler's roles are Kubernetes' own, so the chart does not contain their rules.
        let given = rules.map_or_else(
            || vec![format!("as {role}")],
            |rules| rules.as_array().unwrap().iter().flat_map(|rule| of_rule(rule, &place)).collect(),
        );
        for subject in binding["subjects"].as_array().unwrap() {
            let account = objects.get(&format!("v1 ServiceAccount {}", subject["name"].as_str().unwrap()));
            let account = account.expect("a binding names an account of the chart");
            let name = account["metadata"]["name"].as_str().unwrap().to_owned();
            rights.entry(name).or_default().extend(given.clone());
        }
    }
    rights
}

#[test]
fn each_account_may_do_what_its_program_does() {
    insta::assert_yaml_snapshot!("rights", rights(&json!({})));
}

#[test]
fn the_extender_has_only_the_rights_that_its_enabled_features_need() {
    // The former version had a right for `recreate`; installs may still set it.
    let of = |moves: bool, recreate: bool, layouts: bool| {
        let extender = json!({"moves": moves, "recreate": recreate, "layouts": layouts});
        rights(&json!({"extender": extender})).remove("kerf-extender").unwrap()
    };
    let none = of(false, false, false);
    let heavy = |right: &&String| {
        let verb = right.split(' ').next().unwrap();
        ["patch", "delete", "update", "create"].contains(&verb) && !right.contains(" in kerf-system")
    };
    assert_eq!(
        none.iter().filter(heavy).collect::<Vec<_>>(),
        [
            "create events.events.k8s.io",
            "create pods/binding",
            "create tokenreviews.authentication.k8s.io",
            "patch events.events.k8s.io",
            "patch gpunodes.kerf.dev",
            // The annotation on pods that have room: without it kube-scheduler does not retry them.
            "patch pods",
        ]
    );
    let layouts = [
        "create configmaps kerf-device-plugin",
        "get clusterpolicies.nvidia.com",
        "get configmaps kerf-device-plugin",
        "list clusterpolicies.nvidia.com",
        "patch clusterpolicies.nvidia.com",
        "patch configmaps kerf-device-plugin",
        "patch nodes",
        "patch nodes/status",
    ];
    for (set, added) in [
        (of(true, false, false), &["create pods/eviction"][..]),
        (of(false, true, false), &[]),
        (of(false, false, true), &layouts),
    ] {
        assert_eq!(set.difference(&none).collect::<Vec<_>>(), added);
        assert!(none.is_subset(&set));
    }
}

/// `OpenShift` admits pods with user 65532 by a constraint that their accounts are bound to: lasting accounts by the
/// component, the test's by the chart.
#[test]
fn openshift_admits_each_pod_that_runs_as_its_images_user() {
    const NONROOT: &str = "system:openshift:scc:nonroot-v2";
    let elsewhere = by_name(&template("kerf-system", &[]).unwrap()).unwrap();
    let openshift = template("kerf-system", &["--api-versions", "security.openshift.io/v1"]).unwrap();
    let openshift = by_name(&openshift).unwrap();
    let added: Vec<&String> = openshift.keys().filter(|name| !elsewhere.contains_key(*name)).collect();
    let name = format!("{API} RoleBinding kerf-test-nonroot");
    assert_eq!(added, [&name]);
    let by_chart = &openshift[&name];
    assert_eq!(by_chart["metadata"]["annotations"]["helm.sh/hook"], "test");

    let text = std::fs::read_to_string(root().join("deploy/components/openshift/programs.yaml")).unwrap();
    let by_component: Value = serde_saphyr::from_str(&text).unwrap();
    let mut bound = BTreeSet::new();
    for binding in [by_chart, &by_component] {
        assert_eq!(binding["roleRef"]["name"], NONROOT);
        for subject in binding["subjects"].as_array().unwrap() {
            assert_eq!(subject["namespace"], "kerf-system");
            bound.insert(subject["name"].as_str().unwrap());
        }
    }
    let pods = openshift.values().filter_map(|object| {
        let place = if object["kind"] == "Pod" { "/spec" } else { "/spec/template/spec" };
        object.pointer(place).filter(|pod| pod["securityContext"]["runAsUser"] == 65532)
    });
    let run: BTreeSet<&str> = pods.map(|pod| pod["serviceAccountName"].as_str().unwrap()).collect();
    assert_eq!(run, bound);
}
