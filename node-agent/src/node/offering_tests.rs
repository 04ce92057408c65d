//! Tests which of several unlike slices of one name the kubelet is offered, and for which pod.

use super::events::NodeEvent;
use super::tests::{ONE, Scene, admitted, devices, grants, mig, slice, wanted};
use kerf_core::contract::{GpuNodeStatus, Shape, SliceState};

fn small(start: u8) -> Shape {
    mig("1g.10gb", start, 1)
}

fn large(start: u8) -> Shape {
    mig("1g.20gb", start, 2)
}

#[test]
fn a_pod_with_a_slice_still_being_cut_does_not_block_another_pod() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s3", large(4), None)]);
    scene.settle();
    let of_a = |id, start| wanted(id, small(start), Some(("a", ONE)));
    scene.want(vec![of_a("s1", 0), of_a("s2", 1), wanted("s3", large(4), Some(("b", ONE)))]);
    let step = scene.decide().step.unwrap();
    scene.run(step);
    scene.acknowledge();
    let status = scene.decide().status;
    assert!(slice(&status, "s1").device.is_some() && slice(&status, "s2").device.is_none());
    let found = |status: &GpuNodeStatus| ["s1", "s2", "s3"].map(|id| slice(status, id).state);
    assert_eq!(found(&status), [SliceState::Preparing, SliceState::Preparing, SliceState::Ready]);
    // A pod with ready slices may be bound.
    assert_eq!(found(&scene.settle()), [SliceState::Waiting, SliceState::Waiting, SliceState::Ready]);
    let device = slice(&status, "s3").device.clone().unwrap();
    scene.allocate("b", ONE, device.as_str());
    assert_eq!(found(&scene.settle()), [SliceState::Ready, SliceState::Ready, SliceState::Held]);
}

#[test]
fn a_slice_that_was_ready_before_a_restart_precedes_earlier_reservations() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let later = wanted("s2", large(4), Some(("b", ONE)));
    scene.want(vec![later.clone()]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Ready);
    scene.restart_agent();
    scene.want(vec![wanted("s1", small(0), Some(("a", ONE))), later]);
    let status = scene.settle();
    let found = ["s1", "s2"].map(|id| slice(&status, id).state);
    assert_eq!(found, [SliceState::Waiting, SliceState::Ready]);
}

#[test]
fn a_device_that_the_kubelet_frees_early_is_not_granted_in_place_of_another() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let first = wanted("s1", small(0), Some(("a", ONE)));
    scene.want(vec![first.clone()]);
    scene.settle();
    let device = slice(&scene.decide().status, "s1").device.clone().unwrap();
    scene.allocate("a", ONE, device.as_str());
    scene.node.on_pods(admitted("a"));
    assert!(grants(&scene.decide(), device.as_str()), "it is offered to no other pod");
    // The pod may have ended without the agent's knowledge.
    scene.want(vec![first.clone(), wanted("s2", small(3), Some(("b", ONE)))]);
    scene.settle();
    assert!(grants(&scene.decide(), device.as_str()), "it is as good as the other");
    scene.want(vec![first, wanted("s3", large(4), Some(("b", ONE)))]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s3").state, SliceState::Ready);
    let decision = scene.decide();
    assert!(devices(&decision.healthy).contains(&device.as_str()));
    assert!(!grants(&decision, device.as_str()));
}

#[test]
fn an_allocation_keeps_other_slices_waiting_until_its_pod_is_admitted() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let both = || vec![wanted("s1", small(0), Some(("a", ONE))), wanted("s2", large(4), Some(("b", ONE)))];
    scene.want(both());
    let status = scene.settle();
    let device = slice(&status, "s1").device.clone().unwrap();
    let now = scene.tick();
    scene.node.on_allocated(ONE.parse().unwrap(), vec![device.clone()], now);
    assert_eq!(slice(&scene.decide().status, "s2").state, SliceState::Waiting);
    scene.allocate("a", ONE, device.as_str());
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
}

#[test]
fn a_pod_that_may_be_bound_lacks_a_name_until_it_has_its_device() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let lacking = |scene: &Scene, may_be_bound| {
        let names = scene.node.facts.offering().lacking(|_| may_be_bound);
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    scene.want(vec![wanted("s1", small(0), Some(("a", ONE))), wanted("s2", large(4), None)]);
    scene.decide();
    assert_eq!(lacking(&scene, true), [ONE], "the slice does not exist yet");
    let device = slice(&scene.settle(), "s1").device.clone().unwrap();
    assert_eq!(lacking(&scene, true), [ONE], "the pod has not got it yet");
    assert_eq!(lacking(&scene, false), [""; 0]);
    scene.allocate("a", ONE, device.as_str());
    scene.settle();
    assert_eq!(lacking(&scene, true), [""; 0]);
}

#[test]
fn a_held_slice_is_settled_without_a_reservation_too() {
    for left in [vec![], vec![wanted("s1", small(0), None)]] {
        let mut scene = Scene::new(&["H100-80GB"]);
        scene.want(vec![wanted("s1", small(0), Some(("a", ONE)))]);
        let device = slice(&scene.settle(), "s1").device.clone().unwrap();
        scene.allocate("a", ONE, device.as_str());
        scene.want(left);
        scene.settle();
        let existing = scene.node.facts.offering().existing();
        assert!(existing.iter().any(|slice| slice.device == device && slice.settled), "{existing:?}");
    }
}

#[test]
fn only_a_holder_without_a_reservation_is_a_mismatch() {
    let holds_anothers = |pod: &str| {
        let mut scene = Scene::new(&["H100-80GB"]);
        scene.want(vec![wanted("s1", small(0), Some(("a", ONE))), wanted("s2", small(3), Some(("b", ONE)))]);
        let device = slice(&scene.settle(), "s2").device.clone().unwrap();
        scene.allocate(pod, ONE, device.as_str());
        scene.settle();
        let mismatch = |event: &NodeEvent| match event {
            NodeEvent::Mismatch { pod, .. } => Some(pod.name.clone()),
            _ => None,
        };
        scene.reported.iter().filter_map(mismatch).collect::<Vec<_>>()
    };
    assert_eq!(holds_anothers("a"), Vec::<String>::new(), "it has reserved the equal slice beside it");
    assert_eq!(holds_anothers("c"), ["c"]);
}
