//! Specs that cannot be carried out, and contested nodes: the condition says why, and everything else continues.

use super::tests::{ONE, Scene, devices, failing, mig, slice, wanted, wanted_of};
use super::*;
use crate::gpu::fake::FakeGpus;
use kerf_core::contract::{Condition, Holder, Shape, SliceState, WantedSlice};
use kerf_core::names::DeviceId;
use kerf_core::names::GpuUuid;
use kerf_core::units::SizeGb;

/// Desires these slices and a sound one on another GPU. Returns the message of the last one and the condition's.
fn beside(bad: Vec<WantedSlice>) -> (String, String) {
    let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
    let sound = wanted_of(1, "sound", mig("1g.10gb", 0, 1), Some(("a", ONE)));
    let id = bad.last().unwrap().id.clone();
    scene.want(bad.into_iter().chain([sound]).collect());
    scene.settle();
    scene.now += Duration::from_secs(2);
    let status = scene.settle();
    assert_eq!(slice(&status, "sound").state, SliceState::Ready, "other GPUs go on");
    assert_eq!(slice(&status, id.as_str()).state, SliceState::Failed);
    assert!(status.is_ready(), "the node serves");
    let message = slice(&status, id.as_str()).message.clone().unwrap();
    (message, failing(&status, Condition::SPEC_REACHED).unwrap())
}

#[test]
fn a_slice_that_no_legal_plan_reaches_is_named_with_the_reason() {
    let mut unknown_gpu = wanted("bad", mig("1g.10gb", 0, 1), Some(("b", ONE)));
    unknown_gpu.gpu = GpuUuid::new("GPU-elsewhere");
    let one = |id, start| wanted(id, mig("1g.10gb", start, 1), Some((id, ONE)));
    let bad = |shape| wanted("bad", shape, Some(("b", ONE)));
    for (bad, text) in [
        (vec![unknown_gpu], "the node has no GPU GPU-elsewhere"),
        (vec![bad(mig("1g.18gb", 0, 1))], "1g.18gb"),
        (vec![bad(mig("3g.40gb", 2, 4))], "2"),
        (vec![one("first", 0), one("bad", 0)], "memory slices 0:1 are taken"),
        (vec![one("first", 0), bad(mig("7g.80gb", 0, 8))], "taken"),
        (vec![bad(Shape::mps(SizeGb(4)))], "MIG mode"),
    ] {
        let (message, condition) = beside(bad);
        assert!(message.contains(text), "{message}");
        assert!(condition.contains(&message) && condition.starts_with("bad: "), "{condition}");
    }
}

#[test]
fn the_second_slice_at_a_place_takes_nothing_from_the_first() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let at = |id, pod| wanted(id, mig("1g.10gb", 0, 1), Some((pod, ONE)));
    scene.want(vec![at("s1", "a"), at("s2", "b")]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").ready_for.as_ref().unwrap().as_str(), "a-uid");
    assert_eq!((slice(&status, "s2").device.clone(), slice(&status, "s2").ready_for.clone()), (None, None));
}

#[test]
fn an_unreadable_policy_keeps_the_last_one_and_cuts_nothing() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.node.on_policy(Err("gpus[0]: unknown field `vgpu`".into()));
    let status = scene.settle();
    let text = failing(&status, Condition::READY).unwrap();
    assert!(text.contains("unknown field `vgpu`"), "{text}");
    assert_eq!(devices(&scene.kubelet), ["MIG-1"], "what is reserved stays offered");
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    assert!(scene.settle().is_ready());
}

#[test]
fn a_slice_reserved_under_an_unserved_name_fails_at_once() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", "nvidia.com/mig-7g.141gb")))]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Failed);
    let text = failing(&status, Condition::SPEC_REACHED).unwrap();
    assert!(text.contains("nvidia.com/mig-7g.141gb is no name that this node serves"), "{text}");
}

#[test]
fn a_pod_gets_a_slice_reserved_under_another_models_name() {
    const FIVE: &str = "nvidia.com/mig-1g.5gb";
    let mut scene = Scene::new(&["H100-80GB"]);
    let spec = vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", FIVE)))];
    scene.want(spec.clone());
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready);
    scene.allocate("a", FIVE, "MIG-1");
    // The reservation ends before the pod does.
    scene.restart_agent();
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Held);
    assert_eq!(devices(&scene.kubelet), ["MIG-1"]);
}

/// A node with detection of other managers.
fn watched() -> Scene {
    Scene::with_settings(
        FakeGpus::new(&["H100-80GB"]),
        Settings { detect_conflicts: true, ..Settings::default() },
    )
}

const PLUGIN: &str = "NVIDIA's device plugin manages GPUs of this node: its sockets answer.";

#[test]
fn a_contested_node_registers_no_name_and_cuts_nothing() {
    let mut scene = watched();
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    for others in [None, Some(vec![PLUGIN.to_owned()])] {
        if let Some(others) = others {
            scene.node.on_conflicts(others, scene.now);
        }
        scene.list_holders();
        let decision = scene.decide();
        assert!(decision.lists.is_empty() && decision.step.is_none() && decision.healthy.is_empty());
        assert!(!decision.status.is_ready());
    }
    let status = scene.decide().status;
    assert_eq!(failing(&status, Condition::UNCONTESTED).as_deref(), Some(PLUGIN));
    assert!(status.gpus.iter().all(|gpu| gpu.kinds.is_empty()), "nothing is to be placed on it");
    assert_eq!(scene.reported, [NodeEvent::Contested { text: PLUGIN.to_owned() }], "reported once");
    scene.node.on_conflicts(vec![], scene.now);
    scene.list_holders();
    let status = scene.settle();
    assert_eq!((slice(&status, "s1").state, status.is_ready()), (SliceState::Ready, true));
}

/// A list of holders from before the plugin's end may lack the last pod to which it gave a GPU.
#[test]
fn holders_are_listed_again_after_a_conflict_before_anything_is_offered() {
    const GPU: &str = "nvidia.com/gpu";
    let mut scene = Scene::with_settings(
        FakeGpus::new(&["T4-16GB"]),
        Settings { detect_conflicts: true, ..Settings::default() },
    );
    scene.node.on_conflicts(vec![PLUGIN.to_owned()], scene.now);
    scene.list_holders();
    scene.decide();
    let holder = Holder { namespace: "ns".into(), pod: "p".into(), container: "main".into() };
    scene.held.insert(DeviceId::new("GPU-0"), Held { name: GPU.parse().unwrap(), holder });
    scene.tick();
    scene.node.on_conflicts(vec![], scene.now);
    scene.want(vec![wanted("s1", Shape::Whole { size_gb: SizeGb(15) }, Some(("q", GPU)))]);
    let decision = scene.decide();
    assert!(decision.next.wants_holders && decision.lists.is_empty(), "{:?}", decision.lists);
    let gpu = &decision.status.gpus[0];
    assert!(
        gpu.kinds.is_empty() && scene.node.facts.slices.shares().is_empty(),
        "nothing of it can be reserved: {gpu:?}"
    );
    let status = scene.settle();
    assert!(slice(&status, "s1").device.is_none(), "it is p's: {:?}", scene.node.facts.slices.shares());
    assert!(!scene.decide().next.wants_holders && status.is_ready());
}

#[test]
fn a_node_that_becomes_contested_keeps_what_is_held_and_offers_nothing_new() {
    let mut scene = watched();
    scene.node.on_conflicts(vec![], scene.now);
    let (held, reserved) = (
        wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE))),
        wanted("s2", mig("1g.10gb", 1, 1), Some(("b", ONE))),
    );
    scene.want(vec![held.clone()]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.node.on_conflicts(vec![PLUGIN.to_owned()], scene.now);
    scene.want(vec![held, reserved]);
    let status = scene.settle();
    assert_eq!((scene.places().len(), devices(&scene.kubelet)), (1, vec!["MIG-1"]));
    assert_eq!(slice(&status, "s1").state, SliceState::Held);
    assert_eq!(slice(&status, "s2").state, SliceState::Preparing);
}

#[test]
fn a_contested_node_reports_the_conflict_after_a_restart_and_frees_slices_of_ended_pods() {
    let mut scene = watched();
    scene.node.on_conflicts(vec![], scene.now);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.settle();
    scene.restart_agent();
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    let status = scene.decide().status;
    assert_eq!((slice(&status, "s1").state, status.gpus[0].kinds.len()), (SliceState::Held, 0));
    assert!(scene.node.report().state.is_none(), "no state is reported before conflicts are checked");
    scene.node.on_conflicts(vec![PLUGIN.to_owned()], scene.now);
    let status = scene.decide().status;
    assert_eq!(failing(&status, Condition::UNCONTESTED).as_deref(), Some(PLUGIN));
    assert_eq!(status.gpus[0].kinds, []);
    scene.free("MIG-1");
    assert_ne!(slice(&scene.decide().status, "s1").state, SliceState::Held);
}
