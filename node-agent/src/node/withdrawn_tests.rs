//! What happens to a slice that the kubelet no longer offers, and that it may have picked for a pod before.

use super::tests::{ONE, Scene, admitted, grants, mig, wanted};
use kerf_core::names::DeviceId;
use std::time::Duration;

/// A pod that is bound and not admitted yet. The kubelet has just acknowledged that it no longer offers the other
/// slice of the pod's name, whose place a bigger slice needs.
fn withdrawn_beside_a_bound_pod() -> Scene {
    let mut scene = Scene::new(&["H100-80GB"]);
    let bound = wanted("s2", mig("1g.10gb", 0, 1), Some(("b", ONE)));
    scene.want(vec![wanted("s1", mig("1g.10gb", 2, 1), Some(("a", ONE))), bound.clone()]);
    scene.settle();
    let mut pods = admitted("b");
    for pod in pods.values_mut() {
        pod.admitted = false;
    }
    scene.node.on_pods(pods);
    scene.want(vec![bound, wanted("s3", mig("2g.20gb", 2, 2), Some(("c", "nvidia.com/mig-2g.20gb")))]);
    scene.acknowledge();
    scene.list_holders();
    scene
}

#[test]
fn a_withdrawn_slice_stays_while_the_kubelet_may_have_picked_it_for_a_bound_pod() {
    let mut scene = withdrawn_beside_a_bound_pod();
    for _ in 0..3 {
        let decision = scene.decide();
        assert!(grants(&decision, "MIG-1") && decision.step.is_none(), "its `Allocate` may be on its way");
    }
    scene.kubelet.entry(ONE.parse().unwrap()).or_default().insert(DeviceId::new("MIG-1"));
    scene.allocate("b", ONE, "MIG-1");
    scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 2:1", "1g.10gb at 0:1"], "nothing is taken from the pod");
}

#[test]
fn a_withdrawn_slice_goes_once_the_bound_pod_has_another() {
    let mut scene = withdrawn_beside_a_bound_pod();
    scene.allocate("b", ONE, "MIG-2");
    scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 0:1", "2g.20gb at 2:2"]);
}

#[test]
fn a_withdrawn_slice_goes_after_two_seconds_if_the_bound_pod_gets_nothing() {
    let mut scene = withdrawn_beside_a_bound_pod();
    let end = scene.now + Duration::from_secs(2);
    while scene.now < end {
        scene.now = scene.decide().next.due_at.expect("it is looked at again");
    }
    scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 0:1", "2g.20gb at 2:2"]);
}
