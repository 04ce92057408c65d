//! Orphaned processes of a pod that is gone: no pod gets what they use until an observation shows none. After a normal
//! end it is free at once.

use super::tests::{ONE, Scene, admitted, devices, mig, slice, still_runs, wanted};
use super::*;
use crate::processes::GpuUsage;
use crate::processes::Usage;
use kerf_core::contract::{GpuNodeStatus, GpuRule, Shape, SliceState};
use kerf_core::mig::ComputeInstance;
use kerf_core::names::DeviceId;
use kerf_core::names::PodKey;
use kerf_core::units::{MemoryMib, SizeGb};

const ONE_C: &str = "nvidia.com/mig-1c.3g.40gb";
const TWO_C: &str = "nvidia.com/mig-2c.3g.40gb";
const GPU: &str = "nvidia.com/gpu";
const MPS: &str = "nvidia.com/gpu-4gb";

fn one(pod: &str) -> Vec<kerf_core::contract::WantedSlice> {
    vec![wanted("s1", mig("1g.10gb", 0, 1), Some((pod, ONE)))]
}

/// A node on which `a` holds a MIG device, and its status.
fn held() -> (Scene, GpuNodeStatus) {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(one("a"));
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.node.on_pods(admitted("a"));
    let status = scene.settle();
    scene.gpus.set_processes(&DeviceId::new("MIG-1"), true);
    (scene, status)
}

/// No pod gets the slice, and observations follow, until no process is left.
fn lingers(scene: &mut Scene) {
    for _ in 0..2 {
        still_runs(scene);
        scene.observe();
    }
    scene.gpus.set_processes(&DeviceId::new("MIG-1"), false);
    scene.observe();
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready);
}

#[test]
fn processes_of_a_pod_that_vanished_unobserved_count_as_running() {
    for seen in [true, false] {
        let (mut scene, _) = held();
        if seen {
            scene.observe();
        }
        scene.want(one("b"));
        scene.node.on_pods(NodePods::new());
        scene.vanish("MIG-1");
        lingers(&mut scene);
    }
}

#[test]
fn processes_of_a_pod_that_is_gone_at_the_agents_start_count_as_running() {
    let (mut scene, _) = held();
    scene.held.clear();
    scene.start_agent();
    scene.node.on_registration(Ok(scene.node.resource_names()));
    scene.list_holders();
    scene.want(one("b"));
    scene.node.on_pods(NodePods::new());
    scene.list_holders();
    lingers(&mut scene);
}

/// Compute slices of a `3g.40gb`.
fn part(compute: u8, start: u8) -> Shape {
    let part = Some(ComputeInstance { start, compute });
    Shape::Mig { profile: "3g.40gb".parse().unwrap(), start: 4, size: 4, part: part.into() }
}

/// A node on which `a`, `b` and `c` hold the parts of one GPU instance, and compute.
fn parts() -> Scene {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.policy.gpus = vec![GpuRule { compute_instances: true, ..GpuRule::default() }];
    scene.want(vec![]);
    scene.observe();
    let of = |pod, start| wanted(&format!("s{start}"), part(1, start), Some((pod, ONE_C)));
    scene.want(vec![of("a", 0), of("b", 1), of("c", 2)]);
    scene.settle();
    for (pod, device) in [("a", "MIG-1"), ("b", "MIG-2"), ("c", "MIG-3")] {
        scene.allocate(pod, ONE_C, device);
        scene.gpus.set_processes(&DeviceId::new(device), true);
    }
    scene.observe();
    scene
}

#[test]
fn orphaned_processes_block_only_their_own_compute_instance() {
    for cut_off in [true, false] {
        let mut scene = parts();
        if cut_off {
            scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
        }
        let of = |pod, start| wanted(&format!("s{start}"), part(1, start), Some((pod, ONE_C)));
        scene.want(vec![of("q", 0), of("b", 1), of("c", 2)]);
        scene.free("MIG-1");
        let offered = |scene: &mut Scene| devices(&scene.decide().healthy).contains(&"MIG-1");
        assert_eq!(offered(&mut scene), !cut_off);
        scene.observe();
        assert!(!offered(&mut scene), "a look shows its processes");
        scene.gpus.set_processes(&DeviceId::new("MIG-1"), false);
        scene.observe();
        assert!(offered(&mut scene), "its neighbours' run on");
    }
}

#[test]
fn a_compute_instance_with_orphaned_processes_is_not_destroyed() {
    let mut scene = parts();
    scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
    let (c, two) = (wanted("s2", part(1, 2), Some(("c", ONE_C))), part(2, 0));
    scene.want(vec![c, wanted("s9", two, Some(("q", TWO_C)))]);
    scene.free("MIG-1");
    scene.free("MIG-2");
    for _ in 0..5 {
        assert!(scene.decide().step.is_none(), "NVML would refuse it");
        scene.acknowledge();
        scene.list_holders();
    }
    scene.gpus.set_processes(&DeviceId::new("MIG-1"), false);
    scene.gpus.set_processes(&DeviceId::new("MIG-2"), false);
    scene.observe();
    assert_eq!(slice(&scene.settle(), "s9").state, SliceState::Ready);
}

#[test]
fn whole_gpus_and_mps_shares_of_a_pod_that_was_cut_off_wait_for_its_processes() {
    for (shape, name) in [(Shape::Whole { size_gb: SizeGb(15) }, GPU), (Shape::mps(SizeGb(4)), MPS)] {
        let mut scene = Scene::new(&["T4-16GB"]);
        scene.want(vec![wanted("s1", shape, Some(("a", name)))]);
        scene.settle();
        scene.allocate("a", name, "GPU-0::1");
        scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
        scene.want(vec![wanted("s1", shape, Some(("b", name)))]);
        scene.free("GPU-0::1");
        let used = |pods: &[&str]| {
            let pods = pods.iter().map(|pod| (PodUid::new(*pod), MemoryMib(300)));
            let usage = GpuUsage { pods: pods.collect(), ..GpuUsage::default() };
            Usage::from([(crate::gpu::fake::uuid(0), usage)])
        };
        for _ in 0..2 {
            let status = scene.settle();
            assert_eq!(slice(&status, "s1").ready_for, None, "{name}");
            assert_eq!(status.gpus[0].outside, MemoryMib(0), "{name}");
            scene.observe();
            scene.node.on_usage(used(&["a-uid"]));
        }
        scene.node.on_usage(used(&[]));
        assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready, "{name}");
    }
}

#[test]
fn a_share_whose_holder_vanished_unobserved_is_offered_only_after_an_observation() {
    let (shape, mut scene) = (Shape::mps(SizeGb(4)), Scene::new(&["T4-16GB"]));
    scene.want(vec![wanted("s1", shape, Some(("a", MPS)))]);
    scene.settle();
    scene.allocate("a", MPS, "GPU-0::1");
    scene.want(vec![wanted("s1", shape, Some(("b", MPS)))]);
    scene.vanish("GPU-0::1");
    assert_eq!(slice(&scene.settle(), "s1").ready_for, None);
    scene.observe();
    scene.node.on_usage(Usage::from([(crate::gpu::fake::uuid(0), GpuUsage::default())]));
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready);
}

#[test]
fn a_slice_of_a_cut_off_pod_on_an_unresponsive_gpu_stays_held_after_its_release() {
    let (mut scene, _) = held();
    scene.gpus.set_lost(0, true);
    scene.observe();
    let (key, uid) = (PodKey::new("ns", "a"), PodUid::new("a-uid"));
    scene.node.on_pod_cut_off(key.clone(), uid.clone());
    let now = scene.tick();
    scene.node.on_pod_left(key, uid, now);
    scene.node.on_pods(NodePods::new());
    scene.held.clear();
    scene.list_holders();
    let found = slice(&scene.decide().status, "s1").clone();
    assert_eq!((found.state, found.ready_for), (SliceState::Held, None), "a leader drops what has failed");
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    assert_eq!(slice(&scene.decide().status, "s1").state, SliceState::Held);
}
