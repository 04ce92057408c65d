use super::*;
use crate::access::{AccessGrant, Target};
use crate::gpu::fake::{FakeGpus, uuid};
use crate::gpu::{GpuBackend as _, Process};
use crate::node::device_ids::{mig_device, replica_device};
use crate::node::tests::{ONE, Scene, devices, failing, grants, slice, wanted};
use crate::node::{Decision, Restored, Settings};
use kerf_core::contract::{Condition, GpuRule, MigReplicas, MigRule, SliceState};
use kerf_core::gfd_labels::GfdLabels;
use kerf_core::units::MemoryMib;
use std::time::Duration;

const SHARED: &str = "nvidia.com/mig-1g.10gb.shared";

/// A replica of the `1g.10gb` at memory slice 0.
fn turn(replica: u8) -> Shape {
    let placement = kerf_core::mig::Placement { start: 0, size: 1 };
    let instance = Instance { profile: "1g.10gb".parse().unwrap(), placement };
    Shape::from_instance(instance, MigPart::Replica { replica })
}

fn whole() -> Shape {
    Shape::mig(turn(0).instance().unwrap())
}

/// A node on whose GPU instances three pods may take turns.
fn scene() -> Scene {
    scene_with(Settings::default())
}

fn scene_with(settings: Settings) -> Scene {
    let mut scene = Scene::with_settings(FakeGpus::new(&["H100-80GB"]), settings);
    let mig = MigRule { time_slicing: MigReplicas::try_from(3).ok() };
    scene.policy.gpus = vec![GpuRule { mig, ..GpuRule::default() }];
    scene.want(vec![]);
    scene.observe();
    scene
}

/// This many replicas, from number 0, each reserved for a pod.
fn turns(count: u8) -> Vec<WantedSlice> {
    (0..count).map(|n| wanted(&format!("s{n}"), turn(n), Some((&format!("p{n}"), SHARED)))).collect()
}

fn taken(scene: &mut Scene, count: u8) {
    scene.want(turns(count));
    scene.settle();
    for number in 0..count {
        scene.allocate(&format!("p{number}"), SHARED, &format!("MIG-1::{number}"));
    }
    scene.settle();
}

#[test]
fn a_device_id_is_that_of_nvidias_plugin_and_leads_back_to_its_mig_device() {
    let of = DeviceId::new("MIG-6c1e6a62-6a1f-4f0a-9d3e-0123456789ab");
    let device = replica_device(&of, 2);
    assert_eq!(device.as_str(), "MIG-6c1e6a62-6a1f-4f0a-9d3e-0123456789ab::2");
    assert!(device.as_str().len() <= crate::kubelet_api::DEVICE_ID_MAX_BYTES);
    assert_eq!(replica_of(&device), Some((of.clone(), 2)));
    for (device, of) in [(&device, &of), (&of, &of)] {
        assert_eq!(mig_device(device), *of);
    }
    for other in ["GPU-1::2", "MIG-1", "MIG-1::", "MIG-1::+2", "MIG-1::02", "MIG-1::256", "MIG-1::2::3"] {
        assert_eq!(replica_of(&DeviceId::new(other)), None, "{other}");
    }
}

#[test]
fn pods_take_turns_on_one_instance_and_a_fourth_is_too_many() {
    let mut scene = scene();
    scene.want(turns(4));
    let status = scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 0:1"]);
    let name: ResourceName = SHARED.parse().unwrap();
    assert_eq!(scene.kubelet.keys().collect::<Vec<_>>(), [&name]);
    assert_eq!(devices(&scene.kubelet), ["MIG-1::0", "MIG-1::1", "MIG-1::2"]);
    for id in ["s0", "s1", "s2"] {
        assert_eq!(slice(&status, id).state, SliceState::Ready);
    }
    assert_eq!(slice(&status, "s3").device, None);
    let reported = failing(&status, Condition::SPEC_REACHED).unwrap();
    assert!(reported.contains("s3: as many pods take turns"), "{reported}");
    let memory = |id| slice(&status, id).memory;
    assert_eq!((memory("s0"), memory("s2")), (MemoryMib(9_984), MemoryMib(9_984)), "each may use all of it");
    assert_eq!(status.summary.free, "69Gi", "it is counted once");
}

#[test]
fn replicas_outside_the_policy_are_not_served() {
    let mut scene = scene();
    scene.policy.gpus.clear();
    scene.want(turns(1));
    let status = scene.settle();
    assert_eq!((scene.places().len(), slice(&status, "s0").state), (0, SliceState::Failed));
    assert!(slice(&status, "s0").message.as_ref().unwrap().contains("no mig.timeSlicing"));
}

#[test]
fn an_instance_goes_after_the_last_pod_that_had_a_turn() {
    let mut scene = scene();
    taken(&mut scene, 2);
    let big =
        || wanted("s9", crate::node::tests::mig("7g.80gb", 0, 8), Some(("q", "nvidia.com/mig-7g.80gb")));
    for (device, places) in [("MIG-1::0", "1g.10gb at 0:1"), ("MIG-1::1", "7g.80gb at 0:8")] {
        scene.free(device);
        scene.want(vec![big()]);
        scene.settle();
        scene.now += Duration::from_secs(3);
        scene.settle();
        assert_eq!(scene.places(), [places]);
    }
    assert_eq!(slice(&scene.settle(), "s9").state, SliceState::Ready);
}

#[test]
fn a_restart_of_the_agent_takes_no_turn_from_anybody() {
    let mut scene = scene();
    taken(&mut scene, 3);
    let status = scene.settle();
    let reported = |status: &kerf_core::contract::GpuNodeStatus| {
        ["s0", "s1", "s2"].map(|id| {
            let slice = slice(status, id);
            (slice.state, slice.device.clone(), slice.holder.clone().map(|holder| holder.pod))
        })
    };
    let before = reported(&status);
    assert!(before.iter().all(|(state, ..)| *state == SliceState::Held));
    // By its checkpoint, and then without it and with nothing desired.
    scene.restart_agent();
    scene.want(turns(3));
    assert_eq!(reported(&scene.settle()), before);
    scene.record = crate::node::Restored::default();
    scene.restart_agent();
    scene.want(vec![wanted("s9", crate::node::tests::mig("7g.80gb", 0, 8), None)]);
    let status = scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 0:1"]);
    let held = status.slices.iter().filter(|s| s.state == SliceState::Held).map(|s| s.shape);
    assert_eq!(held.collect::<Vec<_>>(), [turn(0), turn(1), turn(2)]);
    assert_eq!(devices(&scene.kubelet), ["MIG-1::0", "MIG-1::1", "MIG-1::2"], "their containers may restart");
}

#[test]
fn a_device_that_the_kubelet_may_allocate_as_a_whole_is_not_shared() {
    let mut scene = scene();
    scene.want(vec![wanted("s1", whole(), Some(("a", ONE)))]);
    scene.settle();
    assert_eq!(devices(&scene.kubelet), ["MIG-1"]);
    // Its pod has gone, and one write reserves the instance by turns.
    scene.want(turns(1));
    let decision = scene.decide();
    assert_eq!(slice(&decision.status, "s0").device, None);
    assert!(grants(&decision, "MIG-1"), "the kubelet may have picked it before");
    let status = scene.settle();
    assert_eq!(slice(&status, "s0").state, SliceState::Ready);
    assert_eq!(devices(&scene.kubelet), ["MIG-1::0"]);
    assert!(!grants(&scene.decide(), "MIG-1"));
    // And back to the whole instance.
    scene.want(vec![wanted("s2", whole(), Some(("b", ONE)))]);
    let decision = scene.decide();
    assert_eq!((slice(&decision.status, "s2").device.clone(), grants(&decision, "MIG-1::0")), (None, true));
    scene.settle();
    scene.now += Duration::from_secs(3);
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").device, Some(DeviceId::new("MIG-1")));
    assert_eq!(devices(&scene.kubelet), ["MIG-1"]);
}

#[test]
fn a_device_that_is_held_as_a_whole_is_not_shared() {
    let mut scene = scene();
    scene.want(vec![wanted("s1", whole(), Some(("a", ONE)))]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.want(turns(1));
    let status = scene.settle();
    assert_eq!(devices(&scene.kubelet), ["MIG-1"]);
    let message = slice(&status, "s0").message.clone().unwrap();
    assert!(message.contains("slices in use are in its way"), "{message}");
}

/// Sets the processes of the MIG device at the next observation.
fn running(scene: &mut Scene, count: u32) {
    let mut gpus = scene.gpus.gpus();
    let gi = gpus[0].instances[0].gi;
    gpus[0].instances[0].has_processes = count > 0;
    gpus[0].processes = (0..count).map(|pid| Process { pid, gi: Some(gi), ci: None, memory: None }).collect();
    scene.node.on_gpus(Ok(gpus));
}

#[test]
fn processes_of_the_last_holder_block_a_replica_and_those_of_other_replicas_do_not() {
    let mut scene = scene();
    taken(&mut scene, 2);
    running(&mut scene, 2);
    // One ends and the other continues: the place of the first is free.
    scene.free("MIG-1::0");
    let next = || wanted("s7", turn(0), Some(("q", SHARED)));
    scene.want(vec![next(), turns(2).remove(1)]);
    assert_eq!(slice(&scene.settle(), "s7").state, SliceState::Ready);
    // The last is deleted by force, and its processes run on.
    scene
        .node
        .on_pod_cut_off(kerf_core::names::PodKey::new("ns", "p1"), kerf_core::names::PodUid::new("p1-uid"));
    scene.vanish("MIG-1::1");
    let status = scene.decide().status;
    let found = slice(&status, "s7");
    assert!(found.message.as_ref().unwrap().contains("still run"), "{found:?}");
    scene.acknowledge();
    running(&mut scene, 0);
    scene.node.on_usage([(uuid(0), crate::processes::GpuUsage::default())].into());
    assert_eq!(slice(&scene.settle(), "s7").state, SliceState::Ready);
}

/// The grant of the one device of a name.
fn granted(decision: &Decision) -> AccessGrant {
    let [device] = &decision.lists[&SHARED.parse().unwrap()][..] else { panic!("one device") };
    let grant = device.grant.clone().unwrap();
    assert_eq!(grant.share, None, "MPS and memory are not its");
    grant.access
}

#[test]
fn a_container_gets_the_mig_device() {
    let mut scene = scene_with(Settings { access: true, ..Settings::default() });
    scene.want(turns(1));
    for _ in 0..3 {
        let decision = scene.decide();
        if let Some(step) = decision.step {
            scene.run(step);
        }
    }
    let reach = scene.decide().slices.unwrap().reach;
    let [of, replica] = ["MIG-1", "MIG-1::0"].map(|id| reach[&DeviceId::new(id)].clone());
    assert_eq!(of, replica);
    assert_eq!(of.visible, "MIG-1");
    assert!(matches!(of.target, Target::Mig { .. }) && of.mps.is_none());
    let grants = reach.iter().map(|(device, access)| {
        let visible = Some(access.visible.clone());
        (device.clone(), Ok(AccessGrant { visible, ..AccessGrant::default() }))
    });
    scene.node.on_reachable(grants.collect());
    scene.settle();
    assert_eq!(granted(&scene.decide()).visible.as_deref(), Some("MIG-1"));
}

#[test]
fn nvidias_labels_count_the_replicas() {
    let label = |labels: &GfdLabels, name: &str| labels[&format!("nvidia.com/mig-1g.10gb.{name}")].clone();
    let mut scene = scene();
    scene.want(turns(1));
    scene.settle();
    let labels = scene.node.report().gfd_labels;
    let reported = ["count", "replicas", "sharing-strategy"].map(|name| label(&labels, name));
    assert_eq!(reported, ["1", "3", "time-slicing"]);
    assert!(label(&labels, "product").ends_with("-MIG-1g.10gb"), "one can be had whole too");
    assert_eq!(labels["nvidia.com/gpu.replicas"], "0");
}

#[test]
fn an_instance_that_is_gone_takes_its_replicas_along() {
    let mut scene = scene();
    scene.want(turns(1));
    scene.settle();
    let found = scene.gpus.gpus()[0].instances[0].clone();
    scene.gpus.destroy(&uuid(0), &found, None).unwrap();
    scene.observe();
    let status = scene.settle();
    assert_eq!(slice(&status, "s0").device, Some(DeviceId::new("MIG-2::0")), "it was made anew");
}

#[test]
fn a_replica_under_a_neutral_name_is_served_and_adopted_as_one() {
    const NEUTRAL: &str = "kerf.dev/gpu-10gb";
    let mut scene = scene();
    scene.want(vec![wanted("s0", turn(1), Some(("p0", NEUTRAL)))]);
    scene.settle();
    scene.allocate("p0", NEUTRAL, "MIG-1::1");
    // The checkpoint and the spec are lost.
    scene.record = Restored::default();
    scene.restart_agent();
    scene.want(vec![]);
    scene.observe();
    let status = scene.settle();
    let held = slice(&status, "MIG-1::1");
    assert_eq!((held.state, held.shape, status.slices.len()), (SliceState::Held, turn(1), 1));
}
