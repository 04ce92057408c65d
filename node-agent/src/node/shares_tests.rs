//! Shares and whole GPUs: which one must wait for another, what an MPS daemon must let a client have, and what must be
//! on the node.

use super::tests::{Scene, devices, failing, slice, wanted, wanted_of};
use super::*;
use crate::gpu::MigMode;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::processes::GpuUsage;
use crate::processes::Usage;
use kerf_core::contract::{
    ComputeLimit, Condition, GpuRule, GpuSelector, Holder, MpsRule, NodePolicy, Shape, SliceLength,
    SliceState, TimeSlicingRule, WantedSlice,
};
use kerf_core::kind::Kind;
use kerf_core::names::DeviceId;
use kerf_core::units::{ComputePercent, MemoryMib, SizeGb};
use std::collections::BTreeMap;

const WHOLE: Shape = Shape::Whole { size_gb: SizeGb(15) };
const WHOLE_NAME: &str = "nvidia.com/gpu";
const FOUR: &str = "nvidia.com/gpu-4gb";
const FOUR_SHARED: &str = "nvidia.com/gpu-4gb.shared";
const NEUTRAL: &str = "kerf.dev/gpu-4gb";

fn mps(size: u32) -> Shape {
    Shape::mps(SizeGb(size))
}

fn time_slice(size: u32) -> Shape {
    Shape::TimeSlicing { size_gb: SizeGb(size) }
}

fn gib(size: u64) -> MemoryMib {
    MemoryMib(size * 1024)
}

/// Nodes on which MPS daemons run for MPS shares.
fn scene(models: &[&str]) -> Scene {
    Scene::with_settings(FakeGpus::new(models), Settings { mps: Some("/mps".into()), ..Settings::default() })
}

fn serving(generation: u64, limit: MemoryMib) -> Daemons {
    Daemons::from([(uuid(0), Daemon::Serving { generation, limit, threads: 100 })])
}

/// The one daemon that should run.
fn daemon(scene: &mut Scene) -> Option<WantedDaemon> {
    scene.decide().slices.unwrap().daemons.remove(&uuid(0))
}

fn serve(scene: &mut Scene) {
    let daemons = daemon(scene).map(|wanted| serving(1, wanted.limit)).unwrap_or_default();
    scene.node.on_daemons(daemons);
}

#[test]
fn a_share_is_offered_when_the_daemon_serves_within_its_limit() {
    let mut scene = scene(&["T4-16GB"]);
    scene.want(vec![wanted("s1", mps(4), Some(("a", FOUR)))]);
    let status = scene.settle();
    assert_eq!(devices(&scene.kubelet), Vec::<&str>::new());
    assert_eq!(slice(&status, "s1").state, SliceState::Preparing);
    assert!(slice(&status, "s1").message.as_ref().unwrap().contains("being started"));
    let wanted_daemon = daemon(&mut scene).unwrap();
    assert_eq!(wanted_daemon, WantedDaemon { limit: gib(4), threads: 26, exclusive: true, in_use: false });
    scene.node.on_daemons(serving(1, gib(3)));
    scene.settle();
    assert_eq!(devices(&scene.kubelet), Vec::<&str>::new(), "its limit is too low");
    scene.node.on_daemons(serving(1, gib(4)));
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready);
    assert_eq!(devices(&scene.kubelet), ["GPU-0::1"]);
    // A larger one beside it: the first stays offered while the limit rises.
    let both = vec![
        wanted("s1", mps(4), Some(("a", FOUR))),
        wanted("s2", mps(8), Some(("b", "nvidia.com/gpu-8gb"))),
    ];
    scene.want(both);
    let status = scene.settle();
    assert_eq!(devices(&scene.kubelet), ["GPU-0::1"]);
    assert!(slice(&status, "s2").message.as_ref().unwrap().contains("being raised"));
    assert_eq!(daemon(&mut scene).unwrap().limit, gib(8));
}

#[test]
fn an_idle_share_does_not_widen_the_limit_of_others_until_it_is_reserved() {
    let mut scene = scene(&["T4-16GB"]);
    let small = || wanted("s1", mps(4), Some(("a", FOUR)));
    scene.want(vec![small(), wanted("s2", mps(8), None)]);
    scene.settle();
    assert_eq!(daemon(&mut scene).unwrap().limit, gib(4));
    scene.node.on_daemons(serving(1, gib(4)));
    let status = scene.settle();
    assert_eq!(
        (slice(&status, "s1").state, slice(&status, "s2").state),
        (SliceState::Ready, SliceState::Idle)
    );
    scene.want(vec![small(), wanted("s2", mps(8), Some(("b", "nvidia.com/gpu-8gb")))]);
    let status = scene.settle();
    assert!(slice(&status, "s2").message.as_ref().unwrap().contains("being raised"));
    assert_eq!(daemon(&mut scene).unwrap().limit, gib(8));
    serve(&mut scene);
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
    // No process can use it.
    scene.want(vec![wanted("s1", mps(4), None), wanted("s2", mps(8), None)]);
    scene.settle();
    assert_eq!(daemon(&mut scene).unwrap().limit, gib(8));
}

#[test]
fn a_share_without_a_compute_limit_may_use_all_compute_and_only_its_memory() {
    let mut scene = scene(&["T4-16GB"]);
    let rule = MpsRule { compute_limit: ComputeLimit::None, ..MpsRule::default() };
    scene.policy.gpus = vec![GpuRule { mps: rule, ..GpuRule::default() }];
    scene.want(vec![wanted("s1", mps(4), Some(("a", FOUR)))]);
    scene.settle();
    let wanted_daemon = daemon(&mut scene).unwrap();
    assert_eq!((wanted_daemon.limit, wanted_daemon.threads), (gib(4), 100));
    let serving = Daemon::Serving { generation: 1, limit: gib(4), threads: 26 };
    scene.node.on_daemons(Daemons::from([(uuid(0), serving)]));
    scene.settle();
    assert_eq!(devices(&scene.kubelet), Vec::<&str>::new(), "it lets them have their part and no more");
    serve(&mut scene);
    scene.settle();
    let lists = scene.decide().lists;
    let share =
        lists[&FOUR.parse().unwrap()][0].grant.as_ref().and_then(|grant| grant.share.clone()).unwrap();
    assert_eq!((share.memory, share.compute), (gib(4), ComputePercent::new(100)));
}

#[test]
fn a_share_with_requested_compute_is_offered_once_the_daemon_allows_it() {
    let mut scene = scene(&["T4-16GB"]);
    let half = Shape::Mps { size_gb: SizeGb(4), compute: ComputePercent::new(50) };
    scene.want(vec![wanted("s1", half, Some(("a", FOUR)))]);
    scene.settle();
    let wanted_daemon = daemon(&mut scene).unwrap();
    assert_eq!((wanted_daemon.limit, wanted_daemon.threads), (gib(4), 50));
    let serving =
        |threads| Daemons::from([(uuid(0), Daemon::Serving { generation: 1, limit: gib(4), threads })]);
    scene.node.on_daemons(serving(49));
    scene.settle();
    assert_eq!(devices(&scene.kubelet), Vec::<&str>::new(), "it lets them have less");
    scene.node.on_daemons(serving(50));
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready);
    let lists = scene.decide().lists;
    let granted = lists[&FOUR.parse().unwrap()][0].grant.as_ref().and_then(|grant| grant.share.clone());
    assert_eq!(granted.unwrap().compute, ComputePercent::new(50));
}

#[test]
fn shares_with_different_compute_wait_for_each_other() {
    let mut scene = scene(&["T4-16GB"]);
    let part = |percent| Shape::Mps { size_gb: SizeGb(4), compute: ComputePercent::new(percent) };
    scene.want(vec![
        wanted("s1", part(50), Some(("a", FOUR))),
        wanted("s2", part(30), Some(("b", FOUR))),
        wanted("s3", part(30), Some(("c", FOUR))),
    ]);
    scene.settle();
    serve(&mut scene);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Ready);
    assert_eq!(slice(&status, "s2").state, SliceState::Waiting);
    let (message, state) = (slice(&status, "s3").message.clone(), slice(&status, "s3").state);
    assert_eq!(state, SliceState::Preparing);
    assert!(message.unwrap().contains("compute does not suffice"), "50, 30 and 30 are more than all");
}

#[test]
fn shares_exceed_the_memory_together_if_the_policy_allows_it_and_each_keeps_its_limit() {
    let mut scene = scene(&["T4-16GB"]);
    let three = || ["s1", "s2", "s3"].map(|id| wanted(id, mps(7), Some((id, "nvidia.com/gpu-7gb")))).to_vec();
    let mut ready = |percent: u16| {
        let mps = MpsRule { memory_percent: percent.try_into().unwrap(), ..MpsRule::default() };
        scene.policy.gpus = vec![GpuRule { mps, ..GpuRule::default() }];
        scene.want(three());
        scene.settle();
        serve(&mut scene);
        assert_eq!(daemon(&mut scene).unwrap().limit, gib(7), "of one share");
        let status = scene.settle();
        ["s1", "s2", "s3"].map(|id| slice(&status, id).state == SliceState::Ready)
    };
    assert_eq!(ready(100), [true, true, false]);
    assert_eq!(ready(140), [true, true, true]);
}

#[test]
fn a_reserved_share_without_a_daemon_fails_after_its_timeout_and_a_held_one_does_not() {
    let mut scene = scene(&["T4-16GB"]);
    let held = wanted("s1", mps(4), Some(("a", FOUR)));
    scene.want(vec![held.clone()]);
    scene.settle();
    serve(&mut scene);
    scene.settle();
    scene.allocate("a", FOUR, "GPU-0::1");
    scene.node.on_daemons(Daemons::from([(uuid(0), Daemon::Ill("it does not answer".into()))]));
    scene.want(vec![held, wanted("s2", mps(4), Some(("b", FOUR)))]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Preparing, "it is being started anew");
    assert_eq!(status.gpus[0].kinds, [Kind::Whole, Kind::TimeSlicing], "and nothing else is placed on it");
    scene.now += Duration::from_secs(30);
    let status = scene.settle();
    let (first, second) = (slice(&status, "s1"), slice(&status, "s2"));
    assert_eq!((first.state, second.state), (SliceState::Held, SliceState::Failed));
    assert!(second.message.as_ref().unwrap().contains("it does not answer"));
    assert!(failing(&status, Condition::GPUS_HEALTHY).unwrap().contains("it does not answer"));
    assert_eq!(devices(&scene.kubelet), ["GPU-0::1"], "its holder may restart its container");
}

#[test]
fn pods_get_one_event_for_each_lost_daemon() {
    let mut scene = scene(&["T4-16GB"]);
    scene.want(vec![wanted("s1", mps(4), Some(("a", FOUR)))]);
    scene.settle();
    serve(&mut scene);
    scene.settle();
    scene.allocate("a", FOUR, "GPU-0::1");
    let reported = |scene: &mut Scene, generation| {
        scene.node.on_daemons(serving(generation, gib(4)));
        scene.decide();
        scene.reported.iter().filter(|note| matches!(note, NodeEvent::MpsRestarted { .. })).count()
    };
    assert_eq!([1, 2, 2, 3].map(|generation| reported(&mut scene, generation)), [0, 1, 1, 2]);
    // A fault of the server that ends with the daemon is one loss. A fault that ends by itself is another.
    for (generation, count) in [(4, 3), (4, 4), (5, 5)] {
        if count < 5 {
            scene.node.on_server_lost(&uuid(0), "a fault");
        }
        assert_eq!(reported(&mut scene, generation), count);
    }
    scene.node.on_daemons([(uuid(0), Daemon::Ill("it does not answer".to_owned()))].into());
    reported(&mut scene, 6);
    let last = scene.reported.last().unwrap();
    assert!(
        matches!(last, NodeEvent::MpsRestarted { how: Some(how), .. } if how == "it does not answer"),
        "{last:?}"
    );
}

#[test]
fn a_container_with_two_shares_needs_twice_the_limit_unless_sharing_is_strict() {
    for (strict, limit) in [(false, gib(8)), (true, gib(4))] {
        let mut scene = scene(&["T4-16GB"]);
        let mps_rule = MpsRule { strict, exclusive: true, ..MpsRule::default() };
        scene.policy.gpus = vec![GpuRule { mps: mps_rule, ..GpuRule::default() }];
        let two = || ["s1", "s2"].map(|id| wanted(id, mps(4), Some(("a", FOUR))));
        let other = wanted("s3", mps(4), Some(("b", FOUR)));
        scene.want(two().into_iter().chain([other]).collect());
        scene.settle();
        let wanted_daemon = daemon(&mut scene).unwrap();
        assert_eq!((wanted_daemon.limit, wanted_daemon.exclusive), (limit, true), "strict: {strict}");
        scene.node.on_daemons(serving(1, gib(4)));
        let status = scene.settle();
        let ready = ["s1", "s2", "s3"].map(|id| slice(&status, id).state == SliceState::Ready);
        assert_eq!(ready, [strict, strict, true], "one share of b's fits into 4 GiB");
        serve(&mut scene);
        scene.settle();
        scene.allocate("a", FOUR, "GPU-0::1");
        scene.allocate("a", FOUR, "GPU-0::2");
        // The reservation ends while the pod still runs, so what it holds counts.
        scene.want(vec![]);
        scene.settle();
        assert_eq!(daemon(&mut scene).unwrap().limit, limit);
    }
}

#[test]
fn strict_sharing_keeps_one_size_on_a_gpu() {
    let mut scene = scene(&["T4-16GB"]);
    scene.policy.gpus =
        vec![GpuRule { mps: MpsRule { strict: true, ..MpsRule::default() }, ..GpuRule::default() }];
    scene.want(vec![wanted("s1", mps(4), None), wanted("s2", mps(2), Some(("b", "nvidia.com/gpu-2gb")))]);
    scene.settle();
    scene.now += Duration::from_secs(2);
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Failed);
    assert!(slice(&status, "s2").message.as_ref().unwrap().contains("one size"));
}

#[test]
fn a_whole_gpu_waits_for_the_last_shares_holder_and_for_the_mps_daemon() {
    let mut scene = scene(&["T4-16GB"]);
    scene.want(vec![wanted("s1", mps(4), Some(("a", FOUR)))]);
    scene.settle();
    serve(&mut scene);
    scene.settle();
    scene.allocate("a", FOUR, "GPU-0::1");
    scene.want(vec![wanted("s2", WHOLE, Some(("b", WHOLE_NAME)))]);
    let status = scene.settle();
    assert!(slice(&status, "s2").device.is_none());
    assert!(slice(&status, "s2").message.as_ref().unwrap().contains("another kind"));
    assert!(daemon(&mut scene).is_some(), "a's processes need it");
    scene.free("GPU-0::1");
    let status = scene.settle();
    assert_eq!(daemon(&mut scene), None);
    assert!(slice(&status, "s2").device.is_none(), "the daemon is still there");
    scene.node.on_daemons(Daemons::from([(uuid(0), Daemon::Changing)]));
    assert!(slice(&scene.settle(), "s2").device.is_none(), "and still");
    scene.node.on_daemons(Daemons::new());
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Ready);
    assert_eq!((slice(&status, "s2").memory, devices(&scene.kubelet)), (MemoryMib(15_360), vec!["GPU-0::2"]));
}

#[test]
fn a_whole_gpu_belongs_to_one_pod() {
    let mut scene = scene(&["T4-16GB", "T4-16GB"]);
    scene.want(vec![wanted("s1", WHOLE, Some(("a", WHOLE_NAME)))]);
    scene.settle();
    scene.allocate("a", WHOLE_NAME, "GPU-0::1");
    let other = |gpu, id| wanted_of(gpu, id, time_slice(4), Some((id, FOUR_SHARED)));
    scene.want(vec![other(0, "s2"), other(1, "s3")]);
    let status = scene.settle();
    assert!(slice(&status, "s2").device.is_none());
    assert_eq!(slice(&status, "s3").state, SliceState::Ready, "the other GPU goes on");
    scene.free("GPU-0::1");
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
}

/// A recreated GpuNode numbers its slices from the start, while pods still hold slices with the old numbers.
#[test]
fn a_reused_number_takes_nothing_from_the_holder_of_the_old_share() {
    for restarts in [false, true] {
        let mut scene = scene(&["T4-16GB", "T4-16GB"]);
        scene.want(vec![wanted("s1", WHOLE, Some(("a", WHOLE_NAME)))]);
        scene.settle();
        scene.allocate("a", WHOLE_NAME, "GPU-0::1");
        if restarts {
            scene.restart_agent();
        }
        let new = wanted_of(1, "s1", time_slice(4), Some(("b", FOUR_SHARED)));
        scene.want(vec![new, wanted("s2", time_slice(4), None)]);
        let status = scene.settle();
        assert_eq!(slice(&status, "s1").device, Some(DeviceId::new("GPU-1::1")));
        assert_eq!(slice(&status, "s1").state, SliceState::Ready);
        assert!(slice(&status, "s2").device.is_none(), "a has all of that GPU");
        let held = status.slices.iter().find(|s| s.device == Some(DeviceId::new("GPU-0::1"))).unwrap();
        assert_eq!((held.state, held.shape), (SliceState::Held, WHOLE));
    }
}

#[test]
fn a_share_whose_device_id_is_in_use_fails_until_that_share_has_ended() {
    for (restarts, first) in [false, true].into_iter().flat_map(|r| [(r, mps(4)), (r, time_slice(4))]) {
        let name = if first == mps(4) { FOUR } else { FOUR_SHARED };
        let mut scene = Scene::new(&["T4-16GB"]);
        scene.want(vec![wanted("s1", first, Some(("a", name)))]);
        scene.settle();
        scene.allocate("a", name, "GPU-0::1");
        if restarts {
            scene.restart_agent();
        }
        // A recreated GpuNode reuses the name.
        let new = vec![wanted("s1", mps(8), Some(("b", "nvidia.com/gpu-8gb")))];
        scene.want(new.clone());
        let status = scene.settle();
        assert_eq!(slice(&status, "s1").state, SliceState::Failed, "its pod is placed anew");
        let old = slice(&status, "GPU-0::1");
        assert_eq!((old.state, old.shape), (SliceState::Held, first));
        assert_eq!(devices(&scene.kubelet), ["GPU-0::1"]);
        scene.free("GPU-0::1");
        scene.settle();
        scene.now += std::time::Duration::from_secs(5);
        let status = scene.settle();
        let ready = slice(&status, "s1");
        assert_eq!((ready.state, ready.shape, status.slices.len()), (SliceState::Ready, mps(8), 1));
        assert_eq!(scene.node.facts.slices.shares()[&DeviceId::new("GPU-0::1")].shape, mps(8));
    }
}

#[test]
fn a_held_share_gets_the_shape_of_its_spec_once_that_is_read() {
    let mut scene = scene(&["T4-16GB"]);
    let half = Shape::Mps { size_gb: SizeGb(4), compute: ComputePercent::new(50) };
    let spec = vec![wanted("s1", half, Some(("a", FOUR)))];
    scene.want(spec.clone());
    scene.settle();
    serve(&mut scene);
    scene.settle();
    scene.allocate("a", FOUR, "GPU-0::1");
    scene.settle();
    // The checkpoint is lost, and the kubelet reports before the API server.
    scene.record = Restored::default();
    scene.restart_agent();
    scene.decide();
    scene.want(spec);
    let status = scene.settle();
    let held = slice(&status, "s1");
    assert_eq!((held.state, held.shape, status.slices.len()), (SliceState::Held, half, 1));
}

#[test]
fn a_share_under_a_neutral_name_gets_its_shape_from_the_record_or_the_reservation() {
    for shape in [mps(4), time_slice(4), WHOLE] {
        let spec = vec![wanted("s1", shape, Some(("a", NEUTRAL)))];
        for (record, spec) in [(true, vec![]), (false, spec.clone())] {
            let mut scene = held_under_a_neutral_name(shape);
            if !record {
                scene.record = Restored::default();
            }
            scene.restart_agent();
            scene.decide();
            scene.want(spec);
            let status = scene.settle();
            let held = slice(&status, "s1");
            assert_eq!((held.state, held.shape, status.slices.len()), (SliceState::Held, shape, 1));
        }
    }
}

/// A share that pod `a` holds as `s1`.
fn held_under_a_neutral_name(shape: Shape) -> Scene {
    let mut scene = scene(&["T4-16GB"]);
    scene.want(vec![wanted("s1", shape, Some(("a", NEUTRAL)))]);
    scene.settle();
    serve(&mut scene);
    scene.settle();
    scene.allocate("a", NEUTRAL, "GPU-0::1");
    scene.settle();
    scene
}

#[test]
fn nothing_is_offered_beside_a_share_that_only_a_neutral_name_describes() {
    for shape in [mps(4), time_slice(4), WHOLE] {
        let mut scene = held_under_a_neutral_name(shape);
        scene.record = Restored::default();
        scene.restart_agent();
        // A recreated GpuNode starts with the first number, for another pod and another kind.
        let other = if shape == mps(4) { time_slice(4) } else { mps(4) };
        scene.want(vec![wanted("s1", other, Some(("b", NEUTRAL))), wanted("s2", mps(4), Some(("c", FOUR)))]);
        scene.observe();
        let status = scene.settle();
        let held = status.slices.iter().find(|s| s.state == SliceState::Held).unwrap();
        assert_eq!((held.shape, held.holder.as_ref().unwrap().pod.as_str()), (WHOLE, "a"));
        assert!(status.slices.iter().all(|s| s.ready_for.is_none()), "{:?}", status.slices);
        assert_eq!(devices(&scene.kubelet), ["GPU-0::1"], "its holder may restart its container");
        // It may be a client of a daemon that an earlier process has started.
        assert_eq!(scene.decide().slices.unwrap().spared.gpus, [uuid(0)].into());
        scene.free("GPU-0::1");
        scene.settle();
        serve(&mut scene);
        scene.now += Duration::from_secs(5);
        let status = scene.settle();
        let ready = status.slices.iter().filter(|s| s.state == SliceState::Ready).count();
        assert!(ready == 1 || shape != mps(4) && ready == 2, "{:?}", status.slices);
        assert!(scene.decide().slices.unwrap().spared.gpus.is_empty());
    }
}

#[test]
fn a_grant_depends_on_the_device_and_not_on_its_name() {
    for (model, shape, name, device) in [
        ("T4-16GB", mps(4), FOUR, "GPU-0::1"),
        ("T4-16GB", time_slice(4), FOUR_SHARED, "GPU-0::1"),
        ("T4-16GB", WHOLE, WHOLE_NAME, "GPU-0::1"),
        ("H100-80GB", super::tests::mig("1g.10gb", 0, 1), super::tests::ONE, "MIG-1"),
    ] {
        let [by_kind, neutral] = [name, NEUTRAL].map(|name| {
            let mut scene = scene(&[model]);
            scene.want(vec![wanted("s1", shape, Some(("a", name)))]);
            scene.settle();
            serve(&mut scene);
            scene.settle();
            scene.allocate("a", name, device);
            let Decision { lists, slices, mut status, .. } = scene.decide();
            let device = lists[&name.parse().unwrap()][0].clone();
            status.slices.iter_mut().for_each(|slice| (slice.resource, slice.reservation) = (None, None));
            (device, slices, status.slices, scene.node.computed_gfd_labels())
        });
        assert_eq!(neutral, by_kind, "{shape}");
    }
}

#[test]
fn a_kind_is_replaced_by_another_after_its_last_holder_has_left() {
    let mut scene = scene(&["T4-16GB"]);
    scene.want(["s1", "s2"].map(|id| wanted(id, time_slice(4), Some((id, FOUR_SHARED)))).into());
    scene.settle();
    scene.allocate("s1", FOUR_SHARED, "GPU-0::1");
    scene.allocate("s2", FOUR_SHARED, "GPU-0::2");
    scene.want(vec![wanted("s3", mps(4), None)]);
    for device in ["GPU-0::1", "GPU-0::2"] {
        let status = scene.settle();
        assert!(slice(&status, "s3").device.is_none(), "{device} is held");
        assert_eq!(daemon(&mut scene), None);
        scene.free(device);
    }
    assert!(slice(&scene.settle(), "s3").device.is_some());
    assert!(daemon(&mut scene).is_some());
}

#[test]
fn a_share_is_offered_once_its_device_files_exist() {
    let mut scene =
        Scene::with_settings(FakeGpus::new(&["T4-16GB"]), Settings { access: true, ..Settings::default() });
    scene.want(vec![wanted("s1", time_slice(4), Some(("a", FOUR_SHARED)))]);
    let status = scene.settle();
    assert_eq!(devices(&scene.kubelet), Vec::<&str>::new());
    assert!(slice(&status, "s1").message.as_ref().unwrap().contains("being made"));
    let device = DeviceId::new("GPU-0::1");
    assert!(scene.decide().slices.unwrap().reach.contains_key(&device));
    scene.node.on_reachable(BTreeMap::from([(device.clone(), Err("/var/run/cdi is full".to_owned()))]));
    let status = scene.settle();
    assert_eq!(status.gpus[0].kinds, [], "nothing more is placed on a GPU that cannot be opened");
    assert!(failing(&status, Condition::SPEC_REACHED).unwrap().contains("/var/run/cdi is full"));
    scene.now += Duration::from_secs(30);
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Failed);
    let grant = crate::access::AccessGrant { cdi: Some("kerf.dev/gpu=x".into()), ..Default::default() };
    scene.node.on_reachable(BTreeMap::from([(device.clone(), Ok(grant.clone()))]));
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready);
    let listed = scene.decide().lists.into_values().flatten().find(|d| d.id == device).unwrap();
    assert_eq!(listed.grant.unwrap().access, grant);
    // A holder keeps its slice, whatever happens to the files.
    scene.allocate("a", FOUR_SHARED, "GPU-0::1");
    scene.node.on_reachable(BTreeMap::new());
    scene.settle();
    assert_eq!(devices(&scene.kubelet), ["GPU-0::1"]);
}

#[test]
fn the_daemon_of_a_gpu_that_is_unresponsive_after_a_restart_is_spared() {
    let mut scene = scene(&["T4-16GB", "T4-16GB"]);
    scene.want(vec![wanted("s1", mps(4), None), wanted_of(1, "s2", mps(4), None)]);
    scene.settle();
    assert_eq!(scene.decide().slices.unwrap().daemons.len(), 2);
    scene.restart_agent();
    scene.node.on_unresponsive([(1, crate::gpu::GpuError::Stopped)].into());
    scene.want(Vec::new());
    for _ in 0..2 {
        scene.node.on_gpus(Ok(scene.gpus.gpus()[..1].to_vec()));
        scene.decide();
        scene.now += Duration::from_secs(20);
    }
    let kept = scene.decide().slices.unwrap();
    assert!(!kept.daemons.contains_key(&uuid(1)));
    assert_eq!(kept.spared.gpus, [uuid(1)].into());
    assert_eq!(kept.spared.devices, [DeviceId::new("GPU-1::2")].into());
}

#[test]
fn replicas_have_their_own_name() {
    let mut scene = scene(&["T4-16GB"]);
    let time_slicing = TimeSlicingRule { replicas: Some(4), ..TimeSlicingRule::default() };
    scene.policy =
        NodePolicy { gpus: vec![GpuRule { time_slicing, ..GpuRule::default() }], ..NodePolicy::default() };
    let slices: Vec<WantedSlice> = ["s1", "s2", "s3", "s4"]
        .map(|id| wanted(id, time_slice(3), Some((id, "nvidia.com/gpu.shared"))))
        .into();
    scene.want(slices);
    scene.observe();
    let status = scene.settle();
    assert!(status.slices.iter().all(|s| s.state == SliceState::Ready), "{:?}", status.slices);
    assert_eq!(devices(&scene.kubelet).len(), 4);
    scene.allocate("s1", "nvidia.com/gpu.shared", "GPU-0::1");
    scene.restart_agent();
    scene.want(vec![]);
    let status = scene.settle();
    assert_eq!((status.slices.len(), status.slices[0].shape), (1, time_slice(3)), "adopted by its name");
}

#[test]
fn equal_mps_shares_have_the_servers_limit() {
    const NAME: &str = "nvidia.com/gpu.mps";
    let half = Shape::Mps { size_gb: SizeGb(7), compute: ComputePercent::new(50) };
    let mut scene = scene(&["T4-16GB"]);
    let mps = MpsRule { replicas: Some(2.try_into().unwrap()), ..MpsRule::default() };
    scene.policy = NodePolicy { gpus: vec![GpuRule { mps, ..GpuRule::default() }], ..NodePolicy::default() };
    scene.want(["s1", "s2"].map(|id| wanted(id, half, Some((id, NAME)))).into());
    scene.observe();
    scene.settle();
    let pods = BTreeMap::from([(PodUid::new("a-uid"), MemoryMib(300))]);
    let usage = GpuUsage { pods, ..GpuUsage::default() };
    scene.node.on_usage(Usage::from([(uuid(0), usage)]));
    assert!(daemon(&mut scene).unwrap().in_use, "its processes would lose their work");
    scene.node.on_usage(Usage::from([(uuid(0), GpuUsage::default())]));
    assert_eq!(
        daemon(&mut scene).unwrap(),
        WantedDaemon { limit: gib(7), threads: 50, exclusive: true, in_use: false }
    );
    serve(&mut scene);
    let status = scene.settle();
    assert!(status.slices.iter().all(|s| s.state == SliceState::Ready), "{:?}", status.slices);
    assert_eq!(devices(&scene.kubelet), ["GPU-0::1", "GPU-0::2"], "each has an id of its own");
    let reported = scene.node.computed_gfd_labels();
    let reported =
        ["gpu.replicas", "gpu.sharing-strategy"].map(|name| reported[&format!("nvidia.com/{name}")].clone());
    assert_eq!(reported, ["2", "mps"]);
    scene.allocate("s1", NAME, "GPU-0::1");
    scene.restart_agent();
    scene.want(vec![]);
    let status = scene.settle();
    assert_eq!((status.slices.len(), status.slices[0].shape), (1, half), "adopted by its name");
    assert_eq!(status.slices[0].state, SliceState::Held, "it is not ended while a pod has it");
}

/// What a pod holds through NVIDIA's device plugin, which served the node before kerf.
fn held_of_the_plugin(model: &str, name: &str, device: &str) -> Scene {
    let mut scene = scene(&[model]);
    let holder = Holder { namespace: "ns".into(), pod: "old".into(), container: "main".into() };
    scene.held.insert(DeviceId::new(device), Held { name: name.parse().unwrap(), holder });
    scene.restart_agent();
    scene.list_holders();
    scene
}

#[test]
fn devices_held_through_nvidias_device_plugin_are_occupied() {
    for (name, device) in
        [(WHOLE_NAME, "GPU-0"), (WHOLE_NAME, "GPU-0::2"), ("nvidia.com/gpu.shared", "GPU-0::0")]
    {
        let mut scene = held_of_the_plugin("T4-16GB", name, device);
        scene.want(vec![wanted("s1", mps(4), Some(("a", FOUR)))]);
        let status = scene.settle();
        let old =
            status.slices.iter().find(|s| s.device.as_ref().is_some_and(|d| d.as_str() == device)).unwrap();
        assert_eq!(old.state, SliceState::Held, "{device} as {name}");
        assert_eq!(old.shape.size(), SizeGb(15), "the whole GPU: {:?}", old.shape);
        assert_eq!(old.holder.as_ref().unwrap().pod, "old");
        assert_eq!(slice(&status, "s1").state, SliceState::Preparing, "nothing is cut beside it");
        scene.free(device);
        scene.node.on_daemons(serving(1, gib(4)));
        scene.settle();
        serve(&mut scene);
        let status = scene.settle();
        assert_eq!(slice(&status, "s1").state, SliceState::Ready, "{device} as {name}: {:?}", status.slices);
    }
}

#[test]
fn a_length_of_time_slices_is_recorded_until_the_next_boot() {
    let mut scene = scene(&["T4-16GB", "T4-16GB"]);
    let rule = |length| {
        let time_slicing = TimeSlicingRule { length, ..TimeSlicingRule::default() };
        let select = GpuSelector { indexes: vec![1], ..GpuSelector::default() };
        vec![GpuRule { select, time_slicing, ..GpuRule::default() }]
    };
    for length in [SliceLength::Default, SliceLength::Short, SliceLength::Default] {
        scene.policy.gpus = rule(length);
        scene.want(Vec::new());
        assert_eq!(scene.decide().gpus.lengths[&uuid(1)], length);
    }
    scene.restart_agent();
    assert_eq!(scene.decide().record.lengths, [uuid(1)].into(), "it is still to be looked at");
    assert!(scene.record.clone().after_reload().lengths.is_empty());
}

#[test]
fn a_share_is_not_offered_if_a_reboot_put_its_gpu_into_mig_mode() {
    let mut scene = scene(&["T4-16GB"]);
    scene.want(vec![wanted("s1", time_slice(4), Some(("a", NEUTRAL)))]);
    scene.settle();
    assert_eq!(devices(&scene.kubelet).len(), 1);
    let mut gpus = scene.gpus.gpus();
    gpus[0].mig = MigMode::Settled(true);
    scene.node.on_gpus(Ok(gpus));
    assert_eq!(scene.decide().healthy.values().flatten().count(), 0);
}
