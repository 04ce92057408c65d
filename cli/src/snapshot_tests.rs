use super::*;
use kerf_core::contract::{GpuNodeStatus, WantedSlice};
use kerf_core::names::SliceId;
use kerf_core::testing::{gpu_uuid, h100_shape, node_status, slice_status};
use serde_json::{Value, json};

/// A node with H100s, and the slices `(GPU, profile, start, pod)` that pods hold.
fn object(name: &str, gpus: usize, held: &[(usize, &str, u8, &str)]) -> Value {
    let mut status: GpuNodeStatus = node_status(&vec!["H100-80GB"; gpus]);
    let wanted: Vec<WantedSlice> = held
        .iter()
        .enumerate()
        .map(|(n, (gpu, profile, start, pod))| WantedSlice {
            id: SliceId::new(format!("s{n}")),
            gpu: gpu_uuid(*gpu),
            shape: h100_shape(profile, *start),
            reservation: serde_json::from_value(json!({
                "uid": format!("uid-{pod}"), "namespace": "team", "pod": pod, "container": "main",
                "resource": format!("nvidia.com/mig-{profile}"), "epoch": 1
            }))
            .unwrap(),
        })
        .collect();
    status.slices = wanted.iter().map(|slice| slice_status(slice, true)).collect();
    json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name},
           "status": status})
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[test]
fn a_snapshot_report_has_room_obstacles_and_a_useful_eviction() {
    let one = object("n1", 1, &[(0, "1g.10gb", 0, "small"), (0, "1g.10gb", 4, "other")]);
    let two = object("n2", 1, &[(0, "4g.40gb", 0, "big"), (0, "2g.20gb", 4, "mid")]);
    insta::assert_snapshot!(report(&list(&[one, two]), Terms::default()).unwrap().to_string());
}

#[test]
fn a_snapshot_of_another_version_is_refused_with_the_field() {
    let mut other = object("n2", 1, &[]);
    other["apiVersion"] = json!("kerf.dev/v2");
    let error = report(&list(&[object("n1", 1, &[]), other]), Terms::default()).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "items[1].apiVersion: \"kerf.dev/v2\", and this program reads \"kerf.dev/v1alpha1\""
        )
    );
    let mut broken = object("n1", 1, &[]);
    broken["status"]["gpus"] = json!("none");
    let error = report(&list(&[broken]), Terms::default()).unwrap_err().to_string();
    assert!(error.starts_with("items[0].status (n1): "), "{error}");
    assert!(report("[", Terms::default()).unwrap_err().to_string().contains("kubectl get gpunodes -o json"));
}
