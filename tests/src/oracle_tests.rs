//! The oracle itself: each thing that must never be is found, and a sound cluster is left alone.

use kerf_nvml_mock::{MigMode, MockConfig, Model};
use serde_json::json;

use super::*;

fn node(model: Model, held: &[(&str, &str, &str)]) -> NodeTruth {
    let config = MockConfig::new().gpus(model, 1, MigMode::Enabled);
    let held = held.iter().map(|(device, resource, pod)| {
        ((*device).to_owned(), ((*resource).to_owned(), PodKey::new("default", *pod)))
    });
    NodeTruth {
        name: "n".to_owned(),
        gpus: MockState::first_boot(&config).unwrap(),
        held: held.collect(),
        spec: GpuNodeSpec::default(),
        double: Vec::new(),
    }
}

fn pod(name: &str, resource: &str, phase: &str, node: Option<&str>) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]},
        "status": {"phase": phase},
    }))
    .unwrap()
}

fn truth(node: NodeTruth, pods: Vec<Pod>) -> Truth {
    Truth { nodes: vec![node], pods, complaints: Vec::new() }
}

#[test]
fn a_pod_that_waits_beside_a_free_gpu_waits_for_no_reason() {
    let waiting = || vec![pod("p", "nvidia.com/mig-1g.10gb", "Pending", None)];
    assert_eq!(truth(node(Model::H100, &[]), waiting()).unexplained().len(), 1);
    assert!(truth(node(Model::T4, &[]), waiting()).unexplained().is_empty());
    let promised: GpuNodeSpec = serde_json::from_value(json!({"slices": [{
        "id": "s1", "gpu": "GPU-x", "shape": {"kind": "mps", "sizeGb": 1},
        "reservation": {"uid": "u", "namespace": "default", "pod": "p", "container": "main", "resource": "nvidia.com/gpu-1gb", "epoch": 1}
    }]}))
    .unwrap();
    let node = NodeTruth { spec: promised, ..node(Model::H100, &[]) };
    assert!(!truth(node, waiting()).is_settled(), "a promise to a pod that is not bound is half-way");
}

#[test]
fn shares_count_by_the_numbers_in_their_names() {
    let uuid = node(Model::T4, &[]).gpus.gpus[0].uuid.clone();
    let (a, b) = (format!("{uuid}::1"), format!("{uuid}::2"));
    let shared = "nvidia.com/gpu-7gb.shared";
    let full = node(Model::T4, &[(&a, shared, "a"), (&b, shared, "b")]);
    assert!(full.overcommitted().is_empty());
    assert!(full.place_for("nvidia.com/gpu-7gb.shared", 1).is_none());
    assert!(full.place_for("nvidia.com/gpu-1gb.shared", 1).is_some());
    assert!(full.place_for("nvidia.com/gpu-1gb", 1).is_none(), "MPS beside time slices");
    let over = node(Model::T4, &[(&a, shared, "a"), (&b, "nvidia.com/gpu-9gb.shared", "b")]);
    assert_eq!(over.overcommitted().len(), 1);
    let mixed = node(Model::T4, &[(&a, shared, "a"), (&b, "nvidia.com/gpu-1gb", "b")]);
    assert_eq!(truth(mixed, vec![]).violations().len(), 1);
}

#[test]
fn a_pod_that_holds_a_slice_which_is_gone_is_found() {
    let gone = node(Model::H100, &[("MIG-gone", "nvidia.com/mig-1g.10gb", "p")]);
    let violations = truth(gone, vec![]).violations();
    assert!(violations[0].contains("MIG-gone") && violations[0].contains("which is gone"), "{violations:?}");
}

#[test]
fn a_bound_pod_that_does_not_run_is_half_way() {
    let pods = |phase: &str| vec![pod("p", "nvidia.com/mig-1g.10gb", phase, Some("n"))];
    assert!(!truth(node(Model::H100, &[]), pods("Pending")).is_settled());
    assert!(truth(node(Model::H100, &[]), pods("Running")).is_settled());
}
