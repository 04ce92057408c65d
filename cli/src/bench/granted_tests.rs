use super::*;
use kerf_core::testing::{gpu_uuid, h100_shape, request};
use kerf_core::units::SizeGb;
use serde_json::json;

fn pod(resource: &str, shapes: &[(Shape, usize)]) -> Pod {
    let assigned = AssignmentDocument {
        version: 1,
        devices: Vec::new(),
        passed: Vec::new(),
        slices: shapes
            .iter()
            .map(|(shape, gpu)| AssignedSlice {
                container: "main".to_owned(),
                id: SliceId::new("s1"),
                gpu: gpu_uuid(*gpu),
                shape: *shape,
            })
            .collect(),
    };
    let mut annotations = serde_json::Map::new();
    annotations.insert(keys::REQUEST.to_owned(), request(resource, 1).to_json().into());
    if !shapes.is_empty() {
        annotations.insert(keys::ASSIGNMENT.to_owned(), assigned.to_json().into());
    }
    serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}})).unwrap()
}

fn share(compute: u8) -> Shape {
    Shape::Mps { size_gb: SizeGb(10), compute: ComputePercent::new(compute) }
}

fn seen(pod: &Pod, kind: Kind, threads: Option<u8>) -> Result<Option<Granted>, String> {
    let gpu = gpu_uuid(0);
    let expected =
        Expected { container: "main", kind, gpu: &gpu, threads: threads.and_then(ComputePercent::new) };
    granted(pod, &expected).map_err(|mismatch| mismatch.to_string())
}

#[test]
fn a_copy_that_got_what_its_row_says_counts() {
    let mps = pod("nvidia.com/gpu-10gb", &[(share(14), 0)]);
    let granted = Granted { id: SliceId::new("s1"), shape: share(14) };
    assert_eq!(seen(&mps, Kind::Mps, Some(14)), Ok(Some(granted)));
    assert_eq!(seen(&pod("nvidia.com/gpu-10gb", &[]), Kind::Mps, Some(14)), Ok(None));
    // A MIG instance has the compute of its profile, and a copy asks for no other part.
    let mig = pod("nvidia.com/mig-1g.10gb", &[(h100_shape("1g.10gb", 0), 0)]);
    assert!(matches!(seen(&mig, Kind::Mig, None), Ok(Some(_))));
    assert_eq!(profile(h100_shape("1g.10gb", 0)).as_deref(), Some("1g.10gb"));
    assert_eq!(profile(share(14)), None);
}

#[test]
fn a_copy_with_another_grant_is_refused_with_the_reason() {
    let refused = |pod: &Pod, threads| seen(pod, Kind::Mps, threads).unwrap_err();
    let slices = pod("nvidia.com/gpu-10gb.shared", &[]);
    assert!(refused(&slices, None).contains("was given nvidia.com/gpu-10gb.shared and not mps"));
    let elsewhere = pod("nvidia.com/gpu-10gb", &[(share(14), 1)]);
    assert!(refused(&elsewhere, Some(14)).contains("on GPU-1 and not on GPU-0"));
    let unlimited = pod("nvidia.com/gpu-10gb", &[(share(100), 0)]);
    assert!(refused(&unlimited, Some(14)).contains("100 % of the compute"));
    let two = pod("nvidia.com/gpu-10gb", &[(share(14), 0), (share(14), 0)]);
    assert!(refused(&two, Some(14)).contains("was assigned"));
    let fixed = json!({"version": 1, "slices": [], "devices": [
        {"container": "main", "resource": "nvidia.com/gpu=mps", "count": 1, "sizeGb": 16}]});
    let mut served = pod("nvidia.com/gpu-10gb", &[]);
    served.metadata.annotations.as_mut().unwrap().insert(keys::ASSIGNMENT.to_owned(), fixed.to_string());
    assert!(
        refused(&served, None)
            .contains("1 device of nvidia.com/gpu (mps, 16 GB) from NVIDIA's device plugin")
    );
    assert!(refused(&Pod::default(), None).contains("webhook has not admitted it"));
}
