use super::*;
use crate::input::documents;
use crate::policy::manifest::{no_pod, pods};
use serde_json::json;
use std::path::PathBuf;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/policy/testdata").join(name).with_extension("yaml")
}

fn found(name: &str) -> Vec<String> {
    let documents = documents(&file(name)).unwrap();
    let shown = |template: Template| {
        let names = template.pod["spec"]["containers"].as_array().unwrap().iter().map(|container| {
            let limits = container["resources"]["limits"].as_object().into_iter().flatten();
            let limits: Vec<String> = limits.map(|(limit, count)| format!(" {limit}={count}")).collect();
            format!("{}{}", container["name"].as_str().unwrap(), limits.concat())
        });
        format!("{}: {}", template.path, names.collect::<Vec<_>>().join(", "))
    };
    let mut found: Vec<String> = templates(&documents[0]).into_iter().map(shown).collect();
    found.sort();
    found
}

#[test]
fn templates_are_found_in_objects_of_any_kind() {
    for (name, expected) in [
        (
            "pytorchjob",
            &[
                "spec.pytorchReplicaSpecs.Master.template: pytorch kerf.dev/gpu-20gb=1",
                "spec.pytorchReplicaSpecs.Worker.template: pytorch kerf.dev/gpu-10gb=1",
            ][..],
        ),
        (
            "rayjob",
            &[
                "spec.rayClusterSpec.headGroupSpec.template: ray-head cpu=2",
                "spec.rayClusterSpec.workerGroupSpecs[0].template: ray-worker",
                "spec.rayClusterSpec.workerGroupSpecs[1].template: ray-worker kerf.dev/gpu-40gb=1",
                "spec.submitterPodTemplate: ray-job-submitter",
            ],
        ),
        (
            "raycluster",
            &[
                "spec.headGroupSpec.template: ray-head",
                "spec.workerGroupSpecs[0].template: ray-worker kerf.dev/gpu-10gb=1",
            ],
        ),
        (
            "jobset",
            &[
                "spec.replicatedJobs[0].template.spec.template: driver",
                "spec.replicatedJobs[1].template.spec.template: train kerf.dev/gpu-80gb=1",
            ],
        ),
        (
            "mpijob",
            &[
                "spec.mpiReplicaSpecs.Launcher.template: launcher",
                "spec.mpiReplicaSpecs.Worker.template: worker kerf.dev/gpu-10gb=1",
            ],
        ),
        (
            "leaderworkerset",
            &[
                "spec.leaderWorkerTemplate.leaderTemplate: vllm-leader kerf.dev/gpu-80gb=1",
                "spec.leaderWorkerTemplate.workerTemplate: vllm-worker kerf.dev/gpu-80gb=1",
            ],
        ),
        ("knative-service", &["spec.template: user-container"]),
        ("rollout", &["spec.template: web kerf.dev/gpu-10gb=1"]),
        (
            "workflow",
            &[
                "spec.templates[1]: main, wait",
                "spec.templates[2]: main, board, wait",
                "spec.templates[3]: left, right kerf.dev/gpu-10gb=1, wait",
                "spec.templates[4]: main cpu=1 kerf.dev/gpu-20gb=1, wait",
                "spec.templates[5]: main, wait",
            ],
        ),
        ("cronworkflow", &["spec.workflowSpec.templates[0]: main kerf.dev/gpu-5gb=1, wait"]),
        ("none", &[]),
    ] {
        assert_eq!(found(name), expected, "{name}");
    }
}

/// The fields besides the containers that decide on Argo's pods, and what is known only when the workflow runs.
#[test]
fn a_pod_of_argos_has_what_the_workflow_and_its_template_say() {
    let documents = documents(&file("workflow")).unwrap();
    let made = templates(&documents[0]);
    let [prepare, train, compare, patched, varied] = made.as_slice() else { panic!("{made:?}") };
    assert_eq!(
        train.pod["metadata"],
        json!({
            "annotations": {"kubectl.kubernetes.io/default-container": "main", "kerf.dev/gpu-memory": "10Gi"},
            "labels": {"team": "vision"},
        })
    );
    assert_eq!(train.pod["spec"]["serviceAccountName"], "workflows");
    assert_eq!(train.pod["spec"]["priorityClassName"], "batch");
    assert_eq!(compare.pod["spec"]["serviceAccountName"], "reader");
    assert_eq!(compare.pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"], "right");
    assert_eq!(prepare.pod["spec"]["containers"][0].get("source"), None);
    for known in [prepare, train, compare, patched] {
        assert_eq!(known.notes, Vec::<String>::new(), "{}", known.path);
    }
    assert_eq!(
        varied.notes,
        ["podSpecPatch of the template has variables or is no mapping, so what it changes is not known"]
    );
    let nightly = templates(&documents_of("cronworkflow")[0]);
    assert_eq!(nightly[0].notes, ["it has variables ({{...}}), and is decided as it is written"]);
}

fn documents_of(name: &str) -> Vec<Value> {
    documents(&file(name)).unwrap()
}

#[test]
fn only_templates_that_need_it_are_named_by_their_paths() {
    let named = |document: &Value| pods(document, "web").iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        named(&documents_of("pytorchjob")[0]),
        [
            "PyTorchJob research/resnet: spec.pytorchReplicaSpecs.Master.template",
            "PyTorchJob research/resnet: spec.pytorchReplicaSpecs.Worker.template",
        ]
    );
    let spec = json!({"containers": [{"name": "main"}]});
    let of = |kind: &str, spec: Value| json!({"kind": kind, "metadata": {"name": "a"}, "spec": spec});
    assert_eq!(named(&of("Pod", spec.clone())), ["Pod web/a"]);
    assert_eq!(named(&of("Revision", spec.clone())), ["Revision web/a"]);
    assert_eq!(named(&of("Deployment", json!({"template": {"spec": spec}}))), ["Deployment web/a"]);
}

#[test]
fn a_manifest_without_pods_is_refused_with_the_known_kinds() {
    let documents = documents_of("none");
    assert!(documents.iter().all(|document| pods(document, "web").is_empty()));
    let why = no_pod(&documents, "web");
    assert!(
        why.contains("but ConfigMap web/settings, LocalQueue research/team; looked for objects of kind Pod"),
        "{why}"
    );
}
