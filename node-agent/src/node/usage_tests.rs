//! Memory in use outside of kerf, and by pods beyond what they were given.

use super::tests::{Scene, failing, slice, still_runs, wanted};
use super::*;
use crate::gpu::GpuError;
use crate::gpu::NvmlCode;
use crate::gpu::fake::uuid;
use crate::processes::{Busy, GpuUsage, Usage};
use kerf_core::contract::{Condition, GpuNodeStatus, GpuRule, OverUse, Shape, SliceState, TimeSlicingRule};
use kerf_core::names::PodKey;
use kerf_core::units::{MemoryMib, SizeGb};
use std::collections::BTreeMap;

const FOUR: &str = "nvidia.com/gpu-4gb.shared";
const EIGHT: &str = "nvidia.com/gpu-8gb.shared";

fn share(size: u32) -> Shape {
    Shape::TimeSlicing { size_gb: SizeGb(size) }
}

fn gib(size: u64) -> MemoryMib {
    MemoryMib(size * 1024)
}

/// A node on which `a` holds 4 GiB of a T4.
fn scene() -> Scene {
    let mut scene = Scene::new(&["T4-16GB"]);
    scene.want(vec![wanted("s1", share(4), Some(("a", FOUR)))]);
    scene.settle();
    scene.allocate("a", FOUR, "GPU-0::1");
    scene
}

fn usage(pods: &[(&str, u64)], others: &[(&str, u64)]) -> Usage {
    let pods = pods.iter().map(|(pod, mib)| (PodUid::new(format!("{pod}-uid")), MemoryMib(*mib)));
    let cgroups = pods.clone().map(|(uid, _)| (uid.clone(), format!("/sys/fs/cgroup/{uid}")));
    let others = others.iter().map(|(name, mib)| ((*name).to_owned(), 7, MemoryMib(*mib)));
    let usage = GpuUsage {
        pods: pods.clone().collect(),
        cgroups: cgroups.collect(),
        others: others.collect(),
        ..GpuUsage::default()
    };
    Usage::from([(uuid(0), usage)])
}

fn outside(scene: &mut Scene) -> u64 {
    scene.decide().status.gpus[0].outside.0
}

fn count(scene: &Scene, kind: impl Fn(&NodeEvent) -> bool) -> usize {
    scene.reported.iter().filter(|note| kind(note)).count()
}

#[test]
fn memory_in_use_outside_kerf_is_not_offered_and_is_reported_once() {
    let mut scene = scene();
    scene.node.on_usage(usage(&[("a", 4000)], &[("nvidia-cuda-mps-server", 30), ("/usr/bin/Xorg", 3000)]));
    assert_eq!(
        outside(&mut scene),
        3072,
        "in steps, so that a process that grows writes no status each time"
    );
    scene.node.on_usage(usage(&[("a", 4000)], &[("/usr/bin/Xorg", 3050)]));
    assert_eq!(outside(&mut scene), 3072);
    scene.want(vec![wanted("s1", share(4), Some(("a", FOUR))), wanted("s2", share(8), Some(("b", EIGHT)))]);
    scene.settle();
    scene.now += Duration::from_secs(2);
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Ready, "12 GiB and 3 GiB are all of it");
    // A pod without anything from kerf counts like any other process.
    scene.want(vec![wanted("s1", share(4), Some(("a", FOUR)))]);
    scene.settle();
    scene.node.on_usage(usage(&[("a", 4000), ("stranger", 100)], &[("/usr/bin/Xorg", 3050)]));
    scene.want(vec![wanted("s1", share(4), Some(("a", FOUR))), wanted("s3", share(8), Some(("b", EIGHT)))]);
    scene.settle();
    scene.now += Duration::from_secs(2);
    let status = scene.settle();
    assert_eq!((slice(&status, "s3").state, status.gpus[0].outside), (SliceState::Failed, MemoryMib(3328)));
    assert!(failing(&status, Condition::SPEC_REACHED).unwrap().contains("memory"));
    let is_outside = |note: &NodeEvent| matches!(note, NodeEvent::Outside { .. });
    assert_eq!(count(&scene, is_outside), 1);
    scene.node.on_usage(usage(&[("a", 4000)], &[]));
    assert_eq!(outside(&mut scene), 0);
    scene.node.on_usage(usage(&[("a", 4000)], &[("/usr/bin/Xorg", 3050)]));
    scene.decide();
    assert_eq!(count(&scene, is_outside), 2, "it was gone in between");
}

#[test]
fn the_last_measurement_stays_while_the_gpus_cannot_be_observed() {
    let mut scene = scene();
    scene.node.on_usage(usage(&[("a", 9000)], &[("/usr/bin/Xorg", 3000)]));
    scene.decide();
    for _ in 0..3 {
        // A failed observation has no processes.
        scene.node.on_gpus(Err(GpuError::Call { call: "nvmlX", code: NvmlCode::Unknown }));
        scene.node.on_usage(Usage::new());
        assert_eq!(outside(&mut scene), 3072);
        scene.observe();
        scene.node.on_usage(usage(&[("a", 9000)], &[("/usr/bin/Xorg", 3000)]));
        scene.decide();
    }
    assert_eq!(
        count(&scene, |note| matches!(note, NodeEvent::Outside { .. } | NodeEvent::OverUse { .. })),
        2
    );
}

#[test]
fn a_pod_over_its_share_gets_one_event_and_is_evicted_if_the_policy_says_so() {
    let mut scene = scene();
    scene.node.on_usage(usage(&[("a", 4800)], &[]));
    scene.decide();
    let is_over = |note: &NodeEvent| matches!(note, NodeEvent::OverUse { .. });
    assert_eq!(count(&scene, is_over), 0, "a process has a context beside what it asks for");
    assert_eq!(scene.node.gpu_use().over_used().count(), 0);
    for used in [4900, 5000, 5100] {
        scene.node.on_usage(usage(&[("a", used)], &[]));
        assert_eq!(scene.decide().pods.evict, []);
    }
    let reported = NodeEvent::OverUse {
        gpu: uuid(0),
        pod: PodKey::new("ns", "a"),
        used: MemoryMib(4900),
        given: gib(4),
    };
    assert_eq!(scene.reported, [reported]);
    let over = (uuid(0), PodKey::new("ns", "a"), MemoryMib(5100 - 4096));
    assert_eq!(scene.node.gpu_use().over_used().collect::<Vec<_>>(), [over]);
    scene.policy.over_use = OverUse::Evict;
    scene.want(vec![wanted("s1", share(4), Some(("a", FOUR)))]);
    assert_eq!(scene.decide().pods.evict, [(PodKey::new("ns", "a"), PodUid::new("a-uid"))]);
    scene.node.on_usage(usage(&[("a", 4000)], &[]));
    assert_eq!(scene.decide().pods.evict, []);
    scene.node.on_usage(usage(&[("a", 9000)], &[]));
    scene.decide();
    assert_eq!(count(&scene, is_over), 2, "it kept to its share in between");
}

/// A pod that starts more processes gets memory for their contexts, up to a quarter of its share.
#[test]
fn each_process_of_a_pod_may_have_a_context_within_bounds() {
    for (processes, used, is_over) in [
        (1, 8500, false),
        (1, 9000, true),
        (2, 9000, false),
        (2, 9800, true),
        (4, 10_240, false),
        (500, 10_241, true),
    ] {
        let mut scene = Scene::new(&["T4-16GB"]);
        scene.want(vec![wanted("s1", share(8), Some(("a", EIGHT)))]);
        scene.settle();
        scene.allocate("a", EIGHT, "GPU-0::1");
        scene.policy.over_use = OverUse::Evict;
        scene.want(vec![wanted("s1", share(8), Some(("a", EIGHT)))]);
        let mut usage = usage(&[("a", used)], &[]);
        for usage in usage.values_mut() {
            usage.processes = [(PodUid::new("a-uid"), processes)].into();
        }
        scene.node.on_usage(usage);
        assert_eq!(!scene.decide().pods.evict.is_empty(), is_over, "{processes} processes with {used} MiB");
    }
}

#[test]
fn two_shares_of_a_pod_are_one_allowance() {
    let mut scene = Scene::new(&["T4-16GB"]);
    scene.want(["s1", "s2"].map(|id| wanted(id, share(4), Some(("a", FOUR)))).into());
    scene.settle();
    scene.node.on_usage(usage(&[("a", 8000)], &[]));
    assert_eq!((outside(&mut scene), scene.reported.len()), (0, 0));
}

#[test]
fn the_driver_limits_pods_to_their_shares_if_the_policy_enables_that() {
    let mut scene = scene();
    scene.node.on_usage(usage(&[("a", 100), ("stranger", 100)], &[]));
    assert!(scene.decide().slices.unwrap().limits.is_empty());
    let time_slicing = TimeSlicingRule { memory_limits: true, ..TimeSlicingRule::default() };
    scene.policy.gpus = vec![GpuRule { time_slicing, ..GpuRule::default() }];
    scene.want(vec![wanted("s1", share(4), Some(("a", FOUR)))]);
    let limits = scene.decide().slices.unwrap().limits;
    let limits: Vec<_> = limits.iter().map(|((_, cgroup), limit)| (cgroup.as_str(), *limit)).collect();
    assert_eq!(limits, [("/sys/fs/cgroup/a-uid", gib(4))]);
    scene.node.on_usage(usage(&[], &[]));
    assert!(
        scene.decide().slices.unwrap().limits.is_empty(),
        "its processes are gone, and its cgroup with them"
    );
}

#[test]
fn memory_of_a_pod_that_has_left_does_not_count_as_outside_before_the_next_observation() {
    let mut scene = scene();
    scene.node.on_usage(usage(&[("a", 4000)], &[]));
    scene.decide();
    scene.free("GPU-0::1");
    scene.want(vec![wanted("s2", share(12), Some(("b", "nvidia.com/gpu-12gb.shared")))]);
    assert_eq!((slice(&scene.settle(), "s2").state, outside(&mut scene)), (SliceState::Ready, 0));
    // The next observation shows that it is still there.
    scene.node.on_usage(usage(&[("a", 4000)], &[]));
    assert_eq!(outside(&mut scene), 4096);
}

#[test]
fn a_gpu_in_use_outside_kerf_is_not_offered_as_a_whole() {
    let mut scene = Scene::new(&["T4-16GB"]);
    scene.node.on_usage(usage(&[], &[("/usr/bin/Xorg", 300)]));
    scene.want(vec![wanted("s1", Shape::Whole { size_gb: SizeGb(15) }, Some(("a", "nvidia.com/gpu")))]);
    let why = "processes that hold no slice use the GPU's memory";
    let reported = |status: &GpuNodeStatus| (slice(status, "s1").state, slice(status, "s1").message.clone());
    assert_eq!(reported(&scene.settle()), (SliceState::Preparing, Some(why.to_owned())), "they may end");
    scene.now += Duration::from_secs(2);
    assert_eq!(reported(&scene.settle()), (SliceState::Failed, Some(why.to_owned())));
}

#[test]
fn a_cut_off_pods_share_is_offered_only_after_an_observation_shows_no_process_of_the_pod() {
    for reservation in [Some(("b", FOUR)), None] {
        let mut scene = scene();
        scene.node.on_usage(usage(&[("a", 4000)], &[]));
        scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
        scene.want(vec![wanted("s1", share(4), reservation)]);
        scene.free("GPU-0::1");
        for _ in 0..2 {
            still_runs(&mut scene);
            scene.node.on_usage(usage(&[("a", 4000)], &[]));
            assert_eq!(outside(&mut scene), 0, "the share's memory is not given to others");
        }
        scene.node.on_usage(usage(&[], &[]));
        let state = slice(&scene.settle(), "s1").state;
        assert_eq!(state, if reservation.is_some() { SliceState::Ready } else { SliceState::Idle });
    }
}

#[test]
fn a_whole_gpu_waits_for_processes_of_a_pod_that_was_cut_off() {
    let mut scene = scene();
    scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
    let whole = Shape::Whole { size_gb: SizeGb(15) };
    scene.want(vec![wanted("s2", whole, Some(("b", "nvidia.com/gpu")))]);
    scene.free("GPU-0::1");
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").device, None);
    assert_eq!(slice(&status, "s1").state, SliceState::Held);
    scene.node.on_usage(usage(&[], &[]));
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
}

#[test]
fn a_held_share_is_as_busy_as_its_pods_processes() {
    let mut scene = scene();
    let status = scene.decide().status;
    let busy = |scene: &Scene, id| scene.node.gpu_use().busy(slice(&status, id));
    assert_eq!(busy(&scene, "s1"), None, "nothing was measured");
    let mut measured = usage(&[("a", 4000)], &[]);
    let percent = |pods| Busy { gpu: Some(50), pods, instances: BTreeMap::new() };
    measured.get_mut(&uuid(0)).unwrap().busy = percent(Some([(PodUid::new("a-uid"), 35)].into()));
    scene.node.on_usage(measured.clone());
    assert_eq!((busy(&scene, "s1"), scene.node.gpu_use().busy_gpu(&uuid(0))), (Some(35), Some(50)));
    measured.get_mut(&uuid(0)).unwrap().busy = percent(Some(BTreeMap::new()));
    scene.node.on_usage(measured.clone());
    assert_eq!(busy(&scene, "s1"), Some(0), "its processes do nothing");
    measured.get_mut(&uuid(0)).unwrap().busy = percent(None);
    scene.node.on_usage(measured);
    assert_eq!(busy(&scene, "s1"), None, "the driver does not list processes");
}

#[test]
fn a_held_instance_is_as_busy_as_the_driver_reports() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let shape = kerf_core::testing::h100_shape("1g.10gb", 0);
    let small = "nvidia.com/mig-1g.10gb";
    scene.want(vec![wanted("s1", shape, Some(("a", small)))]);
    let device = slice(&scene.settle(), "s1").device.clone().unwrap();
    let measured = |gi| {
        let busy = Busy { instances: [(gi, 55)].into(), ..Busy::default() };
        Usage::from([(uuid(0), GpuUsage { busy, ..GpuUsage::default() })])
    };
    let gi = scene.node.facts.inventory.gpu(&uuid(0)).unwrap().instances[0].gi;
    scene.node.on_usage(measured(gi));
    let ready = slice(&scene.settle(), "s1").clone();
    assert_eq!(scene.node.gpu_use().busy(&ready), None, "no pod holds it yet");
    scene.allocate("a", small, device.as_str());
    let held = slice(&scene.settle(), "s1").clone();
    assert_eq!((held.state, scene.node.gpu_use().busy(&held)), (SliceState::Held, Some(55)));
    scene.node.on_usage(measured(gi + 1));
    assert_eq!(scene.node.gpu_use().busy(&held), None);
}
