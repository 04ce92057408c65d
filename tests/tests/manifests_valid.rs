//! Every supported version of Kubernetes has each field of what the chart and the kustomize manifests install.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use kerf_tests::chart::{kustomize, name_of, objects, template};
use kerf_tests::cluster::root;
use kerf_tests::openapi::Schemas;
use serde_json::{Value, json};

/// API groups of other projects' resources and of kerf's own, which the API server validates by their CRDs.
const OF_CRDS: [&str; 4] =
    ["kerf.dev/", "monitoring.coreos.com/", "cert-manager.io/", "security.openshift.io/"];

/// The newest of each minor version.
fn versions() -> Vec<Schemas> {
    let versions = Schemas::all().unwrap();
    let minors: Vec<&str> = versions.iter().map(|v| v.version().rsplit_once('.').unwrap().0).collect();
    assert_eq!(minors, ["v1.33", "v1.34", "v1.35", "v1.36", "v1.37"]);
    versions
}

fn faults(versions: &[Schemas], what: &str, all: &[Value]) -> Vec<String> {
    assert!(!all.is_empty(), "{what} has no object");
    let theirs = |object: &Value| {
        OF_CRDS.iter().any(|group| object["apiVersion"].as_str().unwrap().starts_with(group))
    };
    let mut found = Vec::new();
    for object in all.iter().filter(|object| !theirs(object)) {
        for version in versions {
            let faults = version.faults(object);
            found.extend(
                faults.iter().map(|f| format!("{what}, {}, {}: {f}", version.version(), name_of(object))),
            );
        }
    }
    found
}

/// Every folder below `folder` that kustomize builds by itself.
fn kustomizations(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            kustomizations(&path, found);
        } else if path.ends_with("kustomization.yaml")
            && !std::fs::read_to_string(&path).unwrap().contains("kind: Component")
        {
            found.push(folder.strip_prefix(root()).unwrap().display().to_string());
        }
    }
}

#[test]
fn every_kubernetes_version_knows_the_charts_objects() {
    let versions = versions();
    let sets: [&[&str]; 4] = [
        &[],
        &["--set", "scheduler.mode=main,extender.clusterIP=10.96.0.77,webhook.certificates=cert-manager"],
        &[
            "--set",
            "networkPolicy.enabled=true,criticalPodsQuota=true,managedNodes.all=true,monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true,monitoring.dashboard.enabled=true",
        ],
        &[
            "--set",
            "nodeAgent.runtimeClassName=nvidia,imagePullSecrets[0].name=a,webhook.hostNetwork=true,webhook.excludedNamespaceLabel=a/b",
        ],
    ];
    let found = sets.iter().flat_map(|set| {
        faults(
            &versions,
            &format!("chart {set:?}"),
            &objects(&template("kerf-system", set).unwrap()).unwrap(),
        )
    });
    assert_eq!(found.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn every_kubernetes_version_knows_the_kustomized_objects() {
    let versions = versions();
    let mut folders = Vec::new();
    kustomizations(&root().join("deploy"), &mut folders);
    folders.sort();
    assert!(
        folders.contains(&"deploy/base".to_owned()) && folders.contains(&"deploy/cert-manager".to_owned())
    );
    let found = folders
        .iter()
        .flat_map(|folder| faults(&versions, folder, &objects(&kustomize(folder).unwrap()).unwrap()));
    assert_eq!(found.collect::<Vec<_>>(), Vec::<String>::new());
}

/// Tests the judge itself, which must find what the API server would accept silently.
#[test]
fn a_mistake_in_a_manifest_is_found() {
    let versions = versions();
    let all = objects(&template("kerf-system", &[]).unwrap()).unwrap();
    let webhook = all.iter().find(|o| name_of(o) == "apps/v1 Deployment kerf-webhook").unwrap();
    let with = |pointer: &str, field: &str, value: Value| {
        let mut wrong = webhook.clone();
        wrong.pointer_mut(pointer).unwrap()[field] = value;
        faults(&versions[3..4], "chart", &[wrong])
    };
    let container = "/spec/template/spec/containers/0";
    let start = "chart, v1.36.4, apps/v1 Deployment kerf-webhook: spec.template.spec.";
    assert_eq!(
        with(container, "readyProbe", json!({})),
        [format!("{start}containers[0].readyProbe: no such field")]
    );
    assert_eq!(
        with("/spec/template/spec", "hostPID", json!("true")),
        [format!("{start}hostPID: string, which must be boolean")]
    );
    assert_eq!(
        with("", "kind", json!("Deploiment")),
        ["chart, v1.36.4, apps/v1 Deploiment kerf-webhook: : apps/v1 Deploiment is no kind of this version"]
    );
}
