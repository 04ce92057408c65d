use super::*;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::testing::node_status;
use kerf_core::units::SizeGb;
use serde_json::json;
use std::io::Write as _;
use tempfile::NamedTempFile;

fn gpu_node(name: &str, model: &str) -> Value {
    let status = GpuNodeStatus { neutral_up_to: Some(SizeGb(80)), ..node_status(&[model]) };
    json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name},
           "spec": GpuNodeSpec::default(), "status": status})
}

fn node(name: &str, taints: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}})
}

fn cluster() -> Value {
    let taint = json!([{"key": "team", "value": "ml", "effect": "NoSchedule"}]);
    let nodes = [gpu_node("h100", "H100-80GB"), gpu_node("a30", "A30-24GB"), gpu_node("l4", "L4-24GB")];
    let nodes =
        nodes.into_iter().chain([node("h100", &taint), node("a30", &json!(null)), node("l4", &json!([]))]);
    json!({"apiVersion": "v1", "kind": "List", "items": nodes.collect::<Vec<_>>()})
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn policies() -> Policies {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/default.yaml");
    kerf_runtime::policy_file::read(&shipped).unwrap()
}

fn placed(pods: &str, policies: Option<&Policies>) -> Result<Placed, String> {
    let (snapshot, pods) = (file(&cluster().to_string()), file(pods));
    run(snapshot.path(), pods.path(), policies).map_err(|error| {
        crate::failure::with_causes(&error.into()).replace(&pods.path().display().to_string(), "FILE")
    })
}

fn request(size: u32, kinds: &[&str]) -> Value {
    let name = format!("kerf.dev/gpu-{size}gb");
    let container = json!({"name": "main", "sizeGb": size, "count": 1, "resource": name, "kinds": kinds});
    json!({"version": 1, "isolation": "memory", "containers": [container]})
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the document in place")]
fn admitted(name: &str, size: u32, kinds: &[&str], spec: Value) -> String {
    let annotations = json!({(keys::REQUEST): request(size, kinds).to_string()});
    let metadata = json!({"name": name, "namespace": "ml", "annotations": annotations});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string()
}

fn pods() -> String {
    let kinds = &["mig", "mps"];
    let mut all: Vec<String> = (0..3)
        .map(|number| admitted(&format!("small-{number}"), 12, kinds, json!({"containers": []})))
        .collect();
    let tolerates = json!({"containers": [], "tolerations": [{"key": "team", "operator": "Exists"}]});
    all.push(admitted("tolerant", 12, kinds, tolerates));
    all.push(admitted("large", 96, kinds, json!({"containers": []})));
    all.push(admitted("bound", 12, kinds, json!({"containers": [], "nodeName": "l4"})));
    all.push(request(6, &["mps"]).to_string());
    all.join("\n---\n")
}

#[test]
fn each_pod_is_listed_with_its_slices_and_the_rejected_kinds() {
    let placed = placed(&pods(), None).unwrap();
    insta::assert_snapshot!(format!("{}\n{}", placed.table(false), placed.table(true)));
}

#[test]
fn programs_read_the_same() {
    let json = serde_json::to_value(placed(&pods(), None).unwrap()).unwrap();
    let pods = json["pods"].as_array().unwrap();
    assert_eq!(pods[0]["outcome"], "placed");
    assert_eq!((&pods[2]["node"], &pods[2]["taken"][0]["kind"]), (&json!("l4"), &json!("mps")));
    assert_eq!(
        pods[2]["passed"][0],
        json!({"kind": "mig", "full": 1, "never": 1, "excluded": 1, "tainted": 1})
    );
    assert_eq!((&pods[4]["outcome"], &pods[4]["node"]), (&json!("pending"), &Value::Null));
    assert_eq!(pods[5], json!({"pod": "ml/bound", "outcome": "bound", "node": "l4"}));
}

#[test]
fn the_policies_decide_a_manifest() {
    let pod = |name: &str, limits: Value| {
        let containers = json!([{"name": "main", "resources": {"limits": limits}}]);
        json!({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}).to_string()
    };
    let pods = [
        pod("gpu", json!({"kerf.dev/gpu-6gb": "1"})),
        pod("cpu", json!({"cpu": "1"})),
        pod("greedy", json!({"kerf.dev/gpu-6gb": "17"})),
    ];
    let placed = placed(&pods.join("\n---\n"), Some(&policies())).unwrap();
    let lines: Vec<String> = placed.table(false).lines().map(str::to_owned).collect();
    assert!(lines[1].starts_with("default/gpu     a30   mig   0    1g.6gb at "), "{lines:#?}");
    assert!(lines[2].ends_with("asks for no slice"), "{lines:#?}");
    assert!(lines[3].contains("refused: container main: 17 slices are more than the 16"), "{lines:#?}");
}

#[test]
fn mistakes_are_reported_with_the_field_and_the_remedy() {
    let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
    let mut unreadable = pod.clone();
    unreadable["metadata"]["annotations"] = json!({(keys::REQUEST): "{"});
    for (pods, expected) in [
        (pod.to_string(), "--pods: default/p: metadata.annotations[kerf.dev/request] is missing"),
        (unreadable.to_string(), "--pods: default/p: failed to parse the annotation kerf.dev/request"),
        (
            json!({"kind": "Service", "metadata": {"name": "s"}}).to_string(),
            "--pods: FILE: there is no pod in it",
        ),
        (json!({"version": 9, "containers": []}).to_string(), "--pods: request 1: "),
    ] {
        let error = placed(&pods, None).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = placed(&pod.to_string(), None).unwrap_err();
    assert!(error.ends_with("give its policies by --policy PATH"), "{error}");
    let bad = file("[");
    let error = run(bad.path(), file(&pod.to_string()).path(), None).unwrap_err();
    assert!(matches!(error, PodsError::Snapshot(SnapshotError::List(_))), "{error}");
}

#[test]
fn a_snapshot_may_be_yaml() {
    let yaml = serde_saphyr::to_string(&cluster()).unwrap();
    let (snapshot, pods) = (file(&yaml), file(&pods()));
    let of_yaml = serde_json::to_value(run(snapshot.path(), pods.path(), None).unwrap()).unwrap();
    assert_eq!(of_yaml, serde_json::to_value(placed(&self::pods(), None).unwrap()).unwrap());
}
