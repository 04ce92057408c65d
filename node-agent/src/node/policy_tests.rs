//! The node's policy: which kinds a GPU may have, when its MIG mode is switched, and when it is not.

use super::tests::{ONE, Scene, failing, mig, slice, wanted, wanted_of};
use super::*;
use crate::gpu::GpuError;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::gpu::{ComputeMode, GpuBackend as _, MigMode, NvmlCode};
use kerf_core::contract::{Condition, GpuRule, GpuSelector, ModeChange, NodePolicy, Shape, SliceState};
use kerf_core::kind::Kind;
use kerf_core::planner::Step;
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;

const MPS: Shape = Shape::mps(SizeGb(4));
const MPS_NAME: &str = "nvidia.com/gpu-4gb";

fn rule(kinds: &[Kind], mode_change: ModeChange) -> NodePolicy {
    NodePolicy {
        gpus: vec![GpuRule { kinds: kinds.to_vec(), mode_change, ..GpuRule::default() }],
        ..NodePolicy::default()
    }
}

fn modes(scene: &Scene) -> Vec<MigMode> {
    scene.gpus.gpus().iter().map(|gpu| gpu.mig).collect()
}

const ON: MigMode = MigMode::Settled(true);
const OFF: MigMode = MigMode::Settled(false);

#[test]
fn an_empty_gpu_gets_the_mode_that_the_policys_kinds_need() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), Settings::default());
    scene.policy = rule(&[Kind::Mig], ModeChange::WithoutReset);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    let status = scene.settle();
    assert_eq!(modes(&scene), [ON]);
    assert_eq!(slice(&status, "s1").state, SliceState::Ready, "what was asked for meanwhile is made then");
    assert!(scene.reported.contains(&NodeEvent::ModeChanged { gpu: uuid(0), mig: true }));
    scene.policy = rule(&[Kind::Mps], ModeChange::WithoutReset);
    scene.want(vec![]);
    let status = scene.settle();
    assert_eq!((modes(&scene), status.gpus[0].kinds.clone()), (vec![OFF], vec![Kind::Mps]));
}

#[test]
fn a_mode_is_not_switched_without_the_policys_permission() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), Settings::default());
    scene.policy = rule(&[Kind::Mig], ModeChange::Never);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    let status = scene.settle();
    assert_eq!(modes(&scene), [OFF]);
    assert_eq!((slice(&status, "s1").state, status.gpus[0].kinds.len()), (SliceState::Failed, 0));
    let message = status.gpus[0].message.as_ref().unwrap();
    assert!(message.contains("MIG mode on") && message.contains("modeChange"), "{message}");
    assert!(failing(&status, Condition::GPUS_HEALTHY).unwrap().contains("GPU 0"));
    // With kinds for both modes, either mode is right.
    scene.policy = rule(&[Kind::Mig, Kind::Mps], ModeChange::WithoutReset);
    scene.want(vec![]);
    let status = scene.settle();
    assert_eq!((modes(&scene), status.gpus[0].message.clone()), (vec![OFF], None));
}

#[test]
fn the_mode_is_switched_only_after_the_last_holder_and_reservation() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let (idle, reserved) =
        (wanted("s1", mig("1g.10gb", 0, 1), None), wanted("s2", mig("1g.10gb", 1, 1), Some(("b", ONE))));
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE))), reserved.clone()]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.policy = rule(&[Kind::Mps], ModeChange::WithoutReset);
    scene.want(vec![idle.clone(), reserved.clone()]);
    let status = scene.settle();
    assert_eq!((modes(&scene), scene.places().len()), (vec![ON], 2), "one is held, the other reserved");
    assert_eq!(slice(&status, "s2").state, SliceState::Ready, "the reservation is served");
    scene.want(vec![idle.clone()]);
    scene.settle();
    assert_eq!(modes(&scene), [ON], "a holds its slice");
    scene.free("MIG-1");
    scene.want(vec![idle, reserved]);
    scene.settle();
    assert_eq!(modes(&scene), [ON], "and now one is reserved");
    scene.want(vec![]);
    scene.settle();
    assert_eq!((modes(&scene), scene.places().len()), (vec![OFF], 0));
}

#[test]
fn an_ampere_gpu_is_switched_only_if_the_policy_allows_a_reset_and_reports_that_it_is_pending() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["A100-40GB"]), Settings::default());
    scene.policy = rule(&[Kind::Mig], ModeChange::WithoutReset);
    scene.want(vec![]);
    for _ in 0..5 {
        scene.settle();
        scene.now += Duration::from_secs(5);
    }
    let status = scene.settle();
    assert_eq!(modes(&scene), [OFF]);
    let message = status.gpus[0].message.as_ref().unwrap();
    assert!(message.contains("cannot be switched"), "{message}");
    scene.want(vec![wanted("s1", mig("1g.5gb", 0, 1), Some(("a", "nvidia.com/mig-1g.5gb")))]);
    for _ in 0..5 {
        scene.settle();
        scene.now += Duration::from_secs(5);
    }
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Failed, "what waits for the mode waits no longer");
    assert!(failing(&status, Condition::SPEC_REACHED).unwrap().contains("cannot be switched"));
    scene.policy = rule(&[Kind::Mig], ModeChange::WithReset);
    scene.want(vec![]);
    let status = scene.settle();
    assert_eq!(modes(&scene), [MigMode::Pending(false)]);
    let message = status.gpus[0].message.as_ref().unwrap();
    assert!(message.contains("pending") && message.contains("--gpu-reset -i 0"), "{message}");
}

#[test]
fn a_switch_that_has_failed_for_good_is_retried_only_under_another_policy() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["A100-40GB"]), Settings::default());
    scene.policy = rule(&[Kind::Mig], ModeChange::WithoutReset);
    let mut tries = 0;
    for _ in 0..10 {
        scene.want(vec![]);
        if let Some(step) = scene.decide().step {
            scene.run(step);
            tries += 1;
        }
        scene.now += Duration::from_secs(1);
    }
    assert_eq!(tries, 3);
    scene.policy = rule(&[Kind::Mig], ModeChange::WithReset);
    scene.want(vec![]);
    assert!(scene.decide().step.is_some(), "another policy is another try");
}

#[test]
fn a_switch_with_a_lost_answer_is_no_error_once_the_mode_is_observed() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), Settings::default());
    scene.policy = rule(&[Kind::Mig], ModeChange::WithoutReset);
    scene.want(Vec::new());
    let lost = GpuError::Call { call: "nvmlDeviceSetMigMode", code: NvmlCode::Unknown };
    let now = scene.tick();
    scene.node.on_switched(&uuid(0), true, Err(lost), now);
    assert!(failing(&scene.decide().status, Condition::GPUS_HEALTHY).is_some());
    scene.gpus.set_mig_mode(&uuid(0), true, false).unwrap();
    scene.observe();
    assert_eq!(failing(&scene.settle(), Condition::GPUS_HEALTHY), None);
}

#[test]
fn a_mode_is_switched_after_the_mps_daemon_has_gone() {
    let settings = Settings { mps: Some("/mps".into()), ..Settings::default() };
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), settings);
    scene.want(vec![wanted("s1", MPS, None)]);
    scene.settle();
    let serving = Daemon::Serving { generation: 1, limit: MPS.size().share_memory(), threads: 100 };
    scene.node.on_daemons(Daemons::from([(uuid(0), serving)]));
    scene.gpus.clone().set_compute_mode(&uuid(0), ComputeMode::ExclusiveProcess).unwrap();
    scene.policy = rule(&[Kind::Mig], ModeChange::WithoutReset);
    scene.want(vec![]);
    for _ in 0..20 {
        let decision = scene.decide();
        assert_eq!(decision.step, None, "the daemon's server is on the GPU");
        scene.acknowledge();
        scene.list_holders();
        scene.now += Duration::from_secs(1);
    }
    assert!(scene.decide().slices.unwrap().daemons.is_empty());
    scene.node.on_daemons(Daemons::from([(uuid(0), Daemon::Changing)]));
    assert_eq!(scene.decide().step, None);
    scene.gpus.clone().set_compute_mode(&uuid(0), ComputeMode::Default).unwrap();
    scene.node.on_daemons(Daemons::new());
    assert_eq!(scene.decide().step, Some(Step::Switch { gpu: uuid(0), mig: true }));
    scene.settle();
    assert_eq!(modes(&scene), [ON]);
}

#[test]
fn a_mode_that_the_policy_has_switched_off_does_not_count_as_lost() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![]);
    scene.settle();
    scene.restart_agent();
    scene.policy = rule(&[Kind::Mps], ModeChange::WithoutReset);
    scene.want(vec![]);
    scene.settle();
    assert_eq!(modes(&scene), [OFF]);
    // Now the policy allows either mode, and leaves it as it is.
    scene.policy = rule(&[Kind::Mig, Kind::Mps], ModeChange::Never);
    scene.want(vec![]);
    scene.settle();
    assert_eq!(modes(&scene), [OFF]);
    scene.want(vec![wanted("s1", MPS, Some(("a", MPS_NAME)))]);
    let status = scene.settle();
    assert_eq!((modes(&scene), slice(&status, "s1").state), (vec![OFF], SliceState::Ready));
}

#[test]
fn each_gpu_has_its_own_rule_and_keeps_what_is_held_under_the_old_one() {
    let mut scene = Scene::new(&["T4-16GB", "T4-16GB"]);
    scene.want(vec![wanted("s1", MPS, Some(("a", MPS_NAME)))]);
    scene.settle();
    scene.allocate("a", MPS_NAME, "GPU-0::1");
    let select = GpuSelector { indexes: vec![0], ..GpuSelector::default() };
    scene.policy = NodePolicy {
        gpus: vec![GpuRule { select, kinds: vec![Kind::TimeSlicing], ..GpuRule::default() }],
        ..NodePolicy::default()
    };
    let shares = |gpu| {
        let own = wanted_of(gpu, &format!("s{gpu}2"), MPS, Some((&format!("b{gpu}"), MPS_NAME)));
        let other = wanted_of(gpu, &format!("s{gpu}3"), Shape::TimeSlicing { size_gb: SizeGb(4) }, None);
        [own, other]
    };
    scene.want([0, 1].into_iter().flat_map(shares).collect());
    let status = scene.settle();
    let message = |id| slice(&status, id).message.clone().unwrap_or_default();
    assert_eq!(slice(&status, "s1").state, SliceState::Held, "what is held stays");
    assert!(message("s02").contains("policy does not allow mps"), "{}", message("s02"));
    assert!(message("s03").contains("another kind"), "{}", message("s03"));
    assert_eq!(slice(&status, "s12").state, SliceState::Ready);
    assert!(message("s13").contains("another kind"), "{}", message("s13"));
    assert_eq!(status.gpus[0].kinds, [Kind::TimeSlicing]);
    assert_eq!(status.gpus[1].kinds, [Kind::Whole, Kind::Mps, Kind::TimeSlicing]);
}

#[test]
fn a_layout_that_does_not_fit_a_gpu_is_reported_and_nothing_is_cut_there() {
    let mut scene = Scene::new(&["H100-80GB", "A100-40GB"]);
    let layout = r#"[{"resource": "nvidia.com/mig-3g.40gb", "count": 2}]"#;
    let layout = serde_json::from_str(layout).unwrap();
    scene.policy.gpus = vec![GpuRule { layout, ..GpuRule::default() }];
    scene.want(vec![]);
    let status = scene.settle();
    let kinds: Vec<_> = status.gpus.iter().map(|gpu| gpu.kinds.as_slice()).collect();
    assert_eq!(kinds, [&[Kind::Mig][..], &[]]);
    let reported = failing(&status, Condition::GPUS_HEALTHY).unwrap();
    let expected = "GPU 1: the layout in the node's policy (2 x nvidia.com/mig-3g.40gb) cannot be placed on this model, A100-40GB; correct it";
    assert_eq!(reported, expected);
    scene.policy.gpus = vec![];
    scene.want(vec![]);
    assert_eq!(failing(&scene.settle(), Condition::GPUS_HEALTHY), None);
}

#[test]
fn a_layout_of_instances_needs_mig_mode_even_if_the_policy_allows_other_kinds() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), Settings::default());
    let layout = r#"[{"resource": "nvidia.com/mig-3g.40gb", "count": 2}]"#;
    let layout = serde_json::from_str(layout).unwrap();
    let mode_change = ModeChange::WithoutReset;
    scene.policy.gpus = vec![GpuRule { layout, mode_change, ..GpuRule::default() }];
    scene.want(vec![]);
    assert_eq!((scene.settle().gpus[0].message.clone(), modes(&scene)), (None, vec![ON]));
}

#[test]
fn a_name_that_the_policy_adds_is_served_at_once() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let name: ResourceName = "nvidia.com/mig-1c.3g.40gb".parse().unwrap();
    scene.want(vec![]);
    assert!(!scene.decide().lists.contains_key(&name));
    scene.policy.gpus = vec![GpuRule { compute_instances: true, ..GpuRule::default() }];
    scene.want(vec![]);
    assert!(scene.decide().lists.contains_key(&name));
}

#[test]
fn names_are_added_with_the_mode_and_never_removed() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), Settings::default());
    let before: Vec<_> = scene.decide().lists.into_keys().collect();
    assert!(before.contains(&ResourceName::Whole) && !before.contains(&ONE.parse().unwrap()));
    scene.policy = rule(&[Kind::Mig], ModeChange::WithoutReset);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    let after = scene.decide().lists;
    assert_eq!(after[&ONE.parse::<ResourceName>().unwrap()].len(), 1);
    assert!(before.iter().all(|name| after.get(name).is_some_and(Vec::is_empty)));
}
