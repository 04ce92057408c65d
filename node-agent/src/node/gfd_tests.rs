//! Tests the node's values of NVIDIA's labels: by what exists, and by what the policy allows.

use super::tests::{ONE, Scene, mig, wanted};
use super::*;
use crate::gpu::fake::FakeGpus;
use kerf_core::contract::{GpuRule, NodePolicy, Shape, TimeSlicingRule};
use kerf_core::kind::Kind;
use kerf_core::units::SizeGb;

fn reported(scene: &Scene, names: &[&str]) -> Vec<String> {
    let labels = scene.node.report().gfd_labels;
    names.iter().map(|name| labels.get(&format!("nvidia.com/{name}")).cloned().unwrap_or_default()).collect()
}

#[test]
fn mig_devices_are_counted_by_profile_while_they_exist() {
    let mut scene = Scene::with_settings(FakeGpus::new(&["H100-80GB"]), Settings::default());
    scene.settle();
    let names = ["gpu.product", "gpu.count", "gpu.replicas", "mig.strategy", "mig-1g.10gb.count"];
    assert_eq!(reported(&scene, &names), ["NVIDIA-H100-80GB", "1", "0", "mixed", ""]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    assert_eq!(reported(&scene, &names)[4], "1");
    assert_eq!(reported(&scene, &["mig-1g.10gb.product"]), ["NVIDIA-H100-80GB-MIG-1g.10gb"]);
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), None)]);
    scene.settle();
    assert_eq!(reported(&scene, &["mig-1g.10gb.count", "mig-7g.80gb.count"]), ["", "1"]);
}

#[test]
fn labels_of_shares_follow_the_policy_and_the_existing_shares() {
    let names = ["gpu.product", "gpu.replicas", "gpu.sharing-strategy"];
    let mut scene = Scene::with_settings(FakeGpus::new(&["T4-16GB"]), Settings::default());
    scene.settle();
    assert_eq!(reported(&scene, &names), ["NVIDIA-T4", "1", "none"]);
    let four = Shape::TimeSlicing { size_gb: SizeGb(4) };
    let share = wanted("s1", four, Some(("a", "nvidia.com/gpu-4gb.shared")));
    scene.want(vec![share]);
    scene.settle();
    assert_eq!(reported(&scene, &names), ["NVIDIA-T4", "1", "time-slicing"], "a whole GPU can be had again");
    let time_slicing = TimeSlicingRule { replicas: Some(4), ..TimeSlicingRule::default() };
    let rule = GpuRule { kinds: vec![Kind::TimeSlicing], time_slicing, ..GpuRule::default() };
    scene.policy = NodePolicy { gpus: vec![rule], ..NodePolicy::default() };
    scene.want(vec![]);
    scene.settle();
    assert_eq!(reported(&scene, &names), ["NVIDIA-T4-SHARED", "4", "time-slicing"]);
}

#[test]
fn no_labels_are_set_while_another_manager_serves_the_gpus() {
    let mut scene = Scene::with_settings(
        FakeGpus::new(&["T4-16GB"]),
        Settings { detect_conflicts: true, ..Settings::default() },
    );
    scene.settle();
    assert!(scene.node.report().gfd_labels.is_empty(), "conflicts are not checked yet");
    scene.node.on_conflicts(vec!["NVIDIA's device plugin".to_owned()], scene.now);
    assert!(scene.node.report().gfd_labels.is_empty());
    scene.node.on_conflicts(vec![], scene.now);
    scene.list_holders();
    assert!(!scene.node.report().gfd_labels.is_empty());
}
