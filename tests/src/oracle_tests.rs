//! Tests of the oracle itself: each violation is found, and a sound cluster has none.

use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::testing::request;
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
        slices: Vec::new(),
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
    Truth { nodes: vec![node], pods, rejected: Vec::new(), bare: Vec::new() }
}

#[test]
fn a_pod_that_waits_beside_a_free_gpu_waits_for_no_reason() {
    let waiting = || vec![pod("p", "nvidia.com/mig-1g.10gb", "Pending", None)];
    assert_eq!(truth(node(Model::H100, &[]), waiting()).unexplained().len(), 1);
    assert!(truth(node(Model::T4, &[]), waiting()).unexplained().is_empty());
    let slices = reserved("GPU-x", &json!({"kind": "mps", "sizeGb": 1}));
    let node = NodeTruth { slices, ..node(Model::H100, &[]) };
    assert!(!truth(node, waiting()).is_settled(), "a reservation of a pod that is not bound is half-way");
}

#[test]
fn shares_count_by_the_numbers_in_their_names() {
    let uuid = node(Model::T4, &[]).gpus.gpus[0].uuid.clone();
    let (a, b) = (format!("{uuid}::1"), format!("{uuid}::2"));
    let shared = "nvidia.com/gpu-7gb.shared";
    let full = node(Model::T4, &[(&a, shared, "a"), (&b, shared, "b")]);
    assert!(full.overcommitted().is_empty());
    assert!(full.place_for(TIME_SLICING, 7, 1).is_none());
    assert!(full.place_for(TIME_SLICING, 1, 1).is_some());
    assert!(full.place_for(MPS, 1, 1).is_none(), "MPS beside time slices");
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

const TEN: &str = "kerf.dev/gpu-10gb";

/// A pod whose request document lists these kinds for its neutral name.
fn neutral(name: &str, kinds: &[Kind]) -> Pod {
    let mut pod = pod(name, TEN, "Pending", None);
    let mut document = request(TEN, 1);
    document.containers[0].kinds = kinds.to_vec();
    pod.metadata.annotations = Some([(keys::REQUEST.to_owned(), document.to_json())].into());
    pod
}

/// A slice `s1` of the node's GPU, reserved for the pod `p` under a neutral name.
fn reserved(gpu: &str, shape: &serde_json::Value) -> Vec<WantedSlice> {
    let reservation = json!({
        "uid": "u", "namespace": "default", "pod": "p", "container": "main", "resource": TEN, "epoch": 1,
    });
    let slice = json!({"id": "s1", "gpu": gpu, "shape": shape, "reservation": reservation});
    serde_json::from_value(json!([slice])).unwrap()
}

#[test]
fn a_neutral_pod_waits_for_no_reason_if_any_of_its_kinds_has_room() {
    let waits =
        |model, kinds: &[Kind]| truth(node(model, &[]), vec![neutral("p", kinds)]).unexplained().len();
    assert_eq!(waits(Model::H100, &[Kind::Mps, Kind::Mig]), 1);
    assert_eq!(waits(Model::H100, &[Kind::Mps, Kind::TimeSlicing]), 0, "the GPU is in MIG mode");
    assert_eq!(waits(Model::T4, &[Kind::Mig, Kind::Mps]), 1);
    assert_eq!(waits(Model::T4, &[Kind::Mig, Kind::Whole]), 1, "10 GB are more than half of a T4");
    assert_eq!(waits(Model::L40S, &[Kind::Mig, Kind::Whole]), 0, "and less than half of an L40S");
    let bare = pod("p", TEN, "Pending", None);
    assert!(truth(node(Model::H100, &[]), vec![bare]).unexplained().is_empty(), "it has no document");
}

#[test]
fn a_slice_held_by_a_neutral_name_matches_the_nodes_reservation() {
    let uuid = node(Model::T4, &[]).gpus.gpus[0].uuid.clone();
    let device = format!("{uuid}::1");
    let held = |shape: serde_json::Value| NodeTruth {
        slices: reserved(&uuid, &shape),
        ..node(Model::T4, &[(&device, TEN, "p")])
    };
    let share = held(json!({"kind": "mps", "sizeGb": 10}));
    assert!(share.place_for(MPS, 4, 1).is_some() && share.place_for(TIME_SLICING, 4, 1).is_none());
    assert!(share.held_otherwise().is_empty());
    let whole = held(json!({"kind": "whole", "sizeGb": 16}));
    assert!(whole.place_for(MPS, 1, 1).is_none(), "the pod holds the whole GPU");
    let unknown = node(Model::T4, &[(&device, TEN, "p")]);
    assert!(unknown.place_for(MPS, 1, 1).is_none(), "a device of unknown kind counts as the whole GPU");
    let other = format!("{uuid}::2");
    let mixed = NodeTruth {
        held: [&device, &other]
            .map(|id| (id.clone(), (TEN.to_owned(), PodKey::new("default", id.as_str()))))
            .into(),
        ..held(json!({"kind": "mps", "sizeGb": 10}))
    };
    assert_eq!(mixed.overcommitted().len(), 1);
}

#[test]
fn a_pod_that_holds_another_kind_than_it_has_reserved_is_found() {
    let uuid = node(Model::T4, &[]).gpus.gpus[0].uuid.clone();
    let device = format!("{uuid}::7");
    let slices = reserved(&uuid, &json!({"kind": "mps", "sizeGb": 10}));
    let node = NodeTruth { slices, ..node(Model::T4, &[(&device, TEN, "p")]) };
    let found = node.held_otherwise();
    assert!(found[0].contains("has reserved") && found[0].contains("mps"), "{found:?}");
}
