//! After a restart nothing changes. After a reboot the recorded slices exist again, at the same places, before any name
//! is registered. Also slices that no record lists.

use super::tests::{ONE, Scene, devices, failing, mig, slice, wanted, wanted_of};
use super::*;
use crate::gpu::GpuError;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::gpu::{GpuBackend as _, MigMode, NvmlCode};
use kerf_core::contract::{
    Condition, GpuNodeStatus, GpuRule, Holder, MigPart, ModeChange, Shape, SliceState, WantedSlice,
};
use kerf_core::kind::Kind;
use kerf_core::ledger::Found;
use kerf_core::names::DeviceId;
use kerf_core::planner::Step;
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;

fn spec() -> Vec<WantedSlice> {
    vec![
        wanted("s1", mig("3g.40gb", 4, 4), Some(("a", "nvidia.com/mig-3g.40gb"))),
        wanted("s2", mig("1g.10gb", 2, 1), None),
        wanted_of(1, "s3", mig("1g.5gb", 6, 1), Some(("c", "nvidia.com/mig-1g.5gb"))),
    ]
}

const PLACES: [&str; 3] = ["3g.40gb at 4:4", "1g.10gb at 2:1", "1g.5gb at 6:1"];

/// A Hopper and an Ampere GPU with slices; `a` holds the first slice.
fn busy() -> (Scene, GpuNodeStatus) {
    let mut scene = Scene::new(&["H100-80GB", "A100-40GB"]);
    scene.want(spec());
    let status = scene.settle();
    let device = slice(&status, "s1").device.clone().unwrap();
    scene.allocate("a", "nvidia.com/mig-3g.40gb", device.as_str());
    let status = scene.settle();
    (scene, status)
}

/// Reboots the node, and starts the agent. The kubelet's checkpoint still has what pods held.
fn boot(scene: &mut Scene) {
    scene.gpus.reboot();
    scene.record = scene.record.clone().after_reload();
    scene.start_agent();
    assert_eq!(scene.decide().step, None, "the kubelet has not listed the holders");
    scene.list_holders();
}

/// Runs steps until none is left, and returns them.
fn run_all(scene: &mut Scene) -> Vec<String> {
    let mut steps = Vec::new();
    for _ in 0..20 {
        let decision = scene.decide();
        let Some(step) = decision.step else { break };
        assert!(decision.lists.is_empty(), "no name is registered before {step}");
        steps.push(step.to_string());
        scene.run(step);
    }
    steps
}

/// The kubelet, the API server and the leader report.
fn hear_all(scene: &mut Scene, wanted: Vec<WantedSlice>) {
    scene.node.on_registration(Ok(scene.node.resource_names()));
    scene.node.on_pods(NodePods::new());
    scene.acknowledge();
    scene.list_holders();
    scene.want(wanted);
}

#[test]
fn no_label_is_removed_before_the_gpus_are_observed() {
    let mut scene = Scene::with_settings(FakeGpus::new(&["T4-16GB"]), Settings::default());
    let before = scene.node.report().labels;
    scene.settle();
    assert!(before.values().any(Option::is_some));
    scene.node = Node::new(Settings::default());
    scene.node.restore(&scene.record, scene.now);
    assert!(scene.node.report().labels.is_empty());
    scene.observe();
    assert_eq!(scene.node.report().labels, before);
}

#[test]
fn a_restart_changes_nothing() {
    let (mut scene, status) = busy();
    scene.restart_agent();
    scene.want(spec());
    for _ in 0..5 {
        assert_eq!(scene.decide().step, None);
        scene.acknowledge();
        scene.list_holders();
    }
    let again = scene.settle();
    assert_eq!((again.slices, again.gpus), (status.slices, status.gpus));
}

#[test]
fn recorded_slices_are_made_again_after_a_reboot_before_a_name_is_registered() {
    let (mut scene, _) = busy();
    boot(&mut scene);
    let steps = run_all(&mut scene);
    assert_eq!(
        steps,
        [
            "switch MIG mode on on GPU-0",
            "create 3g.40gb at 4:4 on GPU-0 for s1",
            "create 1g.10gb at 2:1 on GPU-0 for s2",
            "create 1g.5gb at 6:1 on GPU-1 for s3",
        ],
        "the Ampere GPU has kept its mode"
    );
    assert!(!scene.decide().lists.is_empty(), "and now the names");
    let status = scene.decide().status;
    assert!(!status.is_ready() && status.slices.iter().all(|s| s.ready_for.is_none()));
    hear_all(&mut scene, spec());
    scene.settle();
    assert_eq!(scene.places(), PLACES);
    // The pod that held one has failed by now, because its devices are gone. The next pod gets what exists.
    scene.held.clear();
    scene.list_holders();
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Ready);
    assert!(devices(&scene.kubelet).iter().all(|d| !["MIG-1", "MIG-2", "MIG-3"].contains(d)));
}

#[test]
fn an_agent_that_restarts_during_recovery_continues_with_the_recorded_slices() {
    let (mut scene, _) = busy();
    boot(&mut scene);
    for _ in 0..2 {
        let step = scene.decide().step.unwrap();
        scene.run(step);
    }
    assert!(scene.record.booted, "until all is there");
    scene.start_agent();
    scene.list_holders();
    assert_eq!(run_all(&mut scene).len(), 2);
    assert!(!scene.record.booted);
}

/// Nothing had to be recorded since the boot, so the checkpoint is still from before it.
#[test]
fn a_lost_mode_is_not_restored_under_a_share_that_was_allocated_meanwhile() {
    let (mut scene, _) = busy();
    let (before, name) = (scene.record.clone(), "nvidia.com/gpu-4gb");
    scene.held.clear();
    scene.gpus.reboot();
    scene.restart_agent();
    let share = Shape::mps(SizeGb(4));
    scene.policy.gpus = vec![GpuRule { kinds: vec![Kind::Mps], ..GpuRule::default() }];
    scene.want(vec![wanted("s9", share, Some(("z", name)))]);
    scene.settle();
    scene.allocate("z", name, "GPU-0::9");
    scene.record = before;
    scene.record.booted = true;
    scene.start_agent();
    assert_eq!(scene.decide().step, None);
    scene.list_holders();
    assert!(run_all(&mut scene).iter().all(|step| !step.contains("switch")));
    assert_eq!(scene.gpus.gpus()[0].mig, MigMode::Settled(false));
}

#[test]
fn a_device_held_by_a_dead_pod_before_the_reboot_blocks_no_slice() {
    let (mut scene, _) = busy();
    boot(&mut scene);
    run_all(&mut scene);
    // The kubelet still lists the old device, and the leader has reassigned the place.
    hear_all(&mut scene, vec![wanted("s9", mig("7g.80gb", 0, 8), Some(("z", "nvidia.com/mig-7g.80gb")))]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s9").state, SliceState::Ready);
    let name: ResourceName = "nvidia.com/mig-3g.40gb".parse().unwrap();
    assert_eq!(scene.decide().lists[&name], [], "a device that is gone is listed nowhere");
}

#[test]
fn a_recorded_slice_that_cannot_be_made_again_fails_and_does_not_block_the_names() {
    let (mut scene, _) = busy();
    boot(&mut scene);
    let refused = GpuError::Call { call: "nvmlX", code: NvmlCode::InsufficientResources };
    let mut tries = 0;
    for _ in 0..60 {
        let decision = scene.decide();
        if let Some(step) = decision.step {
            if matches!(&step, Step::Create { id, .. } if id.as_str() == "s1") {
                scene.gpus.fail_next(refused.clone());
                tries += 1;
            }
            assert!(decision.lists.is_empty());
            scene.run(step);
        }
        scene.now += Duration::from_secs(1);
    }
    assert_eq!((tries, scene.places().len()), (3, 2));
    assert!(!scene.decide().lists.is_empty());
    hear_all(&mut scene, spec());
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Failed);
    assert!(slice(&status, "s1").message.as_ref().unwrap().contains("INSUFFICIENT_RESOURCES"));
}

#[test]
fn a_mode_lost_in_a_reboot_is_restored_unless_the_policy_has_no_use_for_it() {
    for (kinds, mode) in [(vec![Kind::Mig, Kind::Mps], true), (vec![Kind::Mps], false)] {
        let (mut scene, _) = busy();
        scene.policy.gpus = vec![GpuRule { kinds, mode_change: ModeChange::Never, ..GpuRule::default() }];
        scene.want(spec());
        scene.settle();
        boot(&mut scene);
        run_all(&mut scene);
        assert_eq!(scene.gpus.gpus()[0].mig, MigMode::Settled(mode));
    }
}

#[test]
fn a_mode_that_somebody_switches_off_while_no_agent_runs_stays_off() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.policy.gpus = vec![GpuRule { kinds: vec![Kind::Mig], ..GpuRule::default() }];
    scene.want(vec![]);
    scene.settle();
    scene.gpus.set_mig_mode(&uuid(0), false, false).unwrap();
    scene.restart_agent();
    scene.want(vec![]);
    scene.settle();
    assert_eq!(scene.gpus.gpus()[0].mig, MigMode::Settled(false));
}

#[test]
fn the_mode_of_a_gpu_that_is_missing_at_boot_is_restored_when_it_returns() {
    let (mut scene, _) = busy();
    boot(&mut scene);
    let all = scene.gpus.gpus();
    scene.node.on_gpus(Ok(all[1..].to_vec()));
    run_all(&mut scene);
    hear_all(&mut scene, vec![]);
    scene.settle();
    // The agent restarts, and then the GPU returns.
    scene.restart_agent();
    scene.node.on_gpus(Ok(all[1..].to_vec()));
    scene.want(vec![]);
    scene.settle();
    scene.observe();
    scene.want(vec![spec().remove(0)]);
    let status = scene.settle();
    assert_eq!(scene.gpus.gpus()[0].mig, MigMode::Settled(true));
    assert!(slice(&status, "s1").device.is_some());
}

#[test]
fn slices_are_recorded_before_they_are_made() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), Settings::default());
    scene.policy.gpus =
        vec![GpuRule { kinds: vec![Kind::Mig], mode_change: ModeChange::WithoutReset, ..GpuRule::default() }];
    scene.want(spec()[..2].to_vec());
    let mut steps = 0;
    while let decision = scene.decide()
        && let Some(step) = decision.step
    {
        let recorded = decision.record.ledger.desired.slices;
        assert!(matches!(step, Step::Switch { .. }) || recorded == spec()[..2], "{step} is recorded");
        scene.run(step);
        steps += 1;
    }
    assert_eq!(steps, 3);
    assert_eq!(scene.record.mig_on, BTreeSet::from([uuid(0)]));
}

#[test]
fn nothing_is_cut_that_cannot_be_recorded_and_the_condition_says_why() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    for pod in scene.decide().pods.look_up.into_keys() {
        let asked = scene.tick();
        scene.node.on_looked_up(&pod, asked, Found::Unbound);
    }
    for _ in 0..3 {
        assert!(scene.decide().step.is_some());
        let now = scene.tick();
        scene.node.on_unrecorded(None, "the disk is full; free some space in /var/lib/kerf", now);
        let decision = scene.decide();
        assert!(decision.step.is_none() && decision.next.due_at.is_some(), "it is tried again");
        let text = failing(&decision.status, Condition::SPEC_REACHED).unwrap();
        assert!(text.contains("the disk is full"), "{text}");
        assert_ne!(slice(&decision.status, "s1").state, SliceState::Ready);
        scene.now = decision.next.due_at.unwrap();
    }
    let status = scene.settle();
    assert_eq!(
        (slice(&status, "s1").state, failing(&status, Condition::SPEC_REACHED)),
        (SliceState::Ready, None)
    );
}

#[test]
fn an_unreadable_record_changes_no_existing_slice() {
    let (mut scene, _) = busy();
    scene.record = Restored::lost();
    scene.start_agent();
    scene.list_holders();
    assert_eq!(run_all(&mut scene), Vec::<String>::new());
    hear_all(&mut scene, Vec::new());
    assert!(scene.node.closed().is_some(), "unlisted pods may be bound");
    scene.settle();
    assert_eq!(scene.places(), PLACES);
}

#[test]
fn a_contested_node_is_not_cut_after_a_reboot() {
    let (mut scene, _) = busy();
    scene.settings.detect_conflicts = true;
    boot(&mut scene);
    assert_eq!(run_all(&mut scene), Vec::<String>::new(), "who else is here is not known yet");
    scene.node.on_conflicts(vec!["NVIDIA's MIG manager manages GPUs of this node".into()], scene.now);
    assert_eq!(run_all(&mut scene), Vec::<String>::new());
    scene.now += Duration::from_mins(10);
    assert!(scene.decide().lists.is_empty());
    scene.node.on_conflicts(vec![], scene.now);
    scene.list_holders();
    assert_eq!(run_all(&mut scene).len(), 4);
}

#[test]
fn slices_without_a_record_are_occupied_and_reported_once() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let foreign = mig("1g.10gb", 4, 1).instance().unwrap();
    scene.gpus.create(&uuid(0), foreign, None).unwrap();
    scene.restart_agent();
    scene.want(vec![wanted("s1", mig("3g.40gb", 4, 4), Some(("a", "nvidia.com/mig-3g.40gb")))]);
    for _ in 0..3 {
        scene.settle();
        scene.observe();
        scene.now += Duration::from_secs(2);
    }
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Failed);
    assert_eq!(slice(&status, "s1").message.as_deref(), Some("slices in use are in its way"));
    let found = status.slices.iter().find(|s| s.id.is_none()).unwrap();
    assert_eq!((found.state, found.device.as_ref().unwrap().as_str()), (SliceState::Held, "MIG-1"));
    assert_eq!(scene.reported, [NodeEvent::Adopted { device: DeviceId::new("MIG-1") }]);
    scene.restart_agent();
    scene.want(vec![]);
    let status = scene.settle();
    assert!(status.slices.iter().any(|s| s.id.is_none()), "it stays somebody's");
}

#[test]
fn a_recorded_slice_does_not_count_as_foreign() {
    let (mut scene, _) = busy();
    scene.free(scene.held.keys().next().unwrap().clone().as_str());
    // The status is lost, and the leader orders other slices. The checkpoint lists what the agent made.
    scene.restart_agent();
    scene.want(vec![wanted("s9", mig("7g.80gb", 0, 8), None)]);
    scene.settle();
    assert_eq!(scene.places(), ["7g.80gb at 0:8", "1g.5gb at 6:1"]);
    assert_eq!(scene.reported.iter().filter(|note| matches!(note, NodeEvent::Adopted { .. })).count(), 0);
}

#[test]
fn shares_are_served_again_under_their_ids_after_a_reboot() {
    let name = "nvidia.com/gpu-4gb";
    let share = Shape::mps(SizeGb(4));
    let mut scene = Scene::new(&["T4-16GB"]);
    scene.want(vec![wanted("s1", share, Some(("a", name)))]);
    scene.settle();
    scene.allocate("a", name, "GPU-0::1");
    scene.settle();
    boot(&mut scene);
    assert_eq!(run_all(&mut scene), Vec::<String>::new());
    // The leader's spec has lost it. The kubelet's checkpoint still has it, so the pod's containers may start again.
    hear_all(&mut scene, vec![]);
    let status = scene.settle();
    let holder = Holder { namespace: "ns".into(), pod: "a".into(), container: "main".into() };
    assert_eq!((status.slices[0].shape, status.slices[0].holder.clone()), (share, Some(holder)));
    assert_eq!(devices(&scene.kubelet), ["GPU-0::1"]);
}

/// The checkpoint is written after the start of a share, and may be from before it. Then it lists the share that has
/// ended for this one.
#[test]
fn an_ended_share_is_not_restored_from_an_old_record() {
    let mut scene = Scene::with_settings(
        FakeGpus::new(&["T4-16GB"]),
        Settings { mps: Some("/mps".into()), ..Settings::default() },
    );
    let share = Shape::mps(SizeGb(4));
    scene.want(vec![wanted("s1", share, Some(("a", "nvidia.com/gpu-4gb")))]);
    scene.settle();
    let old = scene.record.clone();
    assert!(old.shares.as_ref().unwrap().contains_key(&DeviceId::new("GPU-0::1")));
    let whole = Shape::Whole { size_gb: SizeGb(15) };
    let next = || vec![wanted("s2", whole, Some(("b", "nvidia.com/gpu")))];
    scene.want(next());
    scene.settle();
    scene.now += Duration::from_secs(3);
    scene.settle();
    assert_eq!(devices(&scene.kubelet), ["GPU-0::2"]);
    scene.allocate("b", "nvidia.com/gpu", "GPU-0::2");
    scene.settle();
    scene.record = old;
    scene.start_agent();
    scene.node.on_registration(Ok(scene.node.resource_names()));
    scene.node.on_pods(NodePods::new());
    scene.list_holders();
    scene.want(next());
    // The kubelet has not listed its allocatable devices yet, so no share could be ended.
    let kept = scene.decide().slices.unwrap();
    assert!(kept.daemons.is_empty(), "an MPS daemon beside the whole GPU: {:?}", kept.daemons);
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Held);
    assert_eq!(status.slices.len(), 1, "{:?}", status.slices);
}

#[test]
fn a_recorded_replica_is_not_restored_on_a_device_that_is_held_as_a_whole() {
    let (mut scene, status) = busy();
    let mut old = scene.record.clone();
    let device = slice(&status, "s1").device.clone().unwrap();
    let replica = super::device_ids::replica_device(&device, 0);
    let shape = Shape::from_instance(spec()[0].shape.instance().unwrap(), MigPart::Replica { replica: 0 });
    old.shares = Some([(replica, shape)].into());
    scene.record = old;
    scene.gpus.set_processes(&device, true);
    scene.restart_agent();
    scene.want(spec());
    let again = scene.settle();
    assert_eq!(again.slices, status.slices);
}

#[test]
fn a_lost_checkpoint_does_not_show_whether_nvidias_plugin_was_present() {
    for plugin in [true, false] {
        assert_eq!(Restored { plugin, ..Restored::default() }.plugin_was_here(), Some(plugin));
    }
    assert_eq!(Restored::lost().plugin_was_here(), None);
}
