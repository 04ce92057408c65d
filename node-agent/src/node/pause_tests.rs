//! DCGM is paused while it holds what a step changes, and at no other time.

use super::tests::{ONE, Scene, mig, slice, wanted};
use super::*;
use crate::gpu::GpuError;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::gpu::{Holders as Processes, MigMode};
use kerf_core::contract::{GpuRule, ModeChange, SliceState};
use kerf_core::kind::Kind;
use kerf_core::planner::Step;

const DCGM: &str = "nvidia.com/gpu.deploy.dcgm";

fn labels(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|label| (*label).to_owned()).collect()
}

/// A node with DCGM of GPU Operator, and an idle slice in the way of a desired one. Returns the step that destroys it.
fn in_the_way(settings: Settings) -> (Scene, Step) {
    let mut scene = Scene::with_settings(FakeGpus::new(&["H100-80GB"]), settings);
    scene.node.on_deployed(labels(&[DCGM]));
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    scene.settle();
    scene.want(vec![wanted("s2", mig("3g.40gb", 0, 4), Some(("b", "nvidia.com/mig-3g.40gb")))]);
    scene.acknowledge();
    scene.list_holders();
    scene.decide();
    let step = scene.decide().step.unwrap();
    assert!(matches!(step, Step::Destroy { .. }), "{step}");
    (scene, step)
}

/// NVML refuses the step: a process that it does not list holds the instance.
fn refuse(scene: &mut Scene, step: &Step) {
    scene.gpus.fail_next(GpuError::Busy(Processes::default()));
    scene.run(step.clone());
}

/// The programs have ended, or their timeout has passed.
fn clear(scene: &mut Scene, pause: &Pause) {
    scene.node.on_paused(pause.labels.clone(), pause.number);
}

#[test]
fn a_refused_step_is_retried_after_dcgm_has_ended_and_then_dcgm_is_restored() {
    let (mut scene, step) = in_the_way(Settings::default());
    assert_eq!(scene.decide().gpus.pause, Pause::default(), "nothing is refused");
    refuse(&mut scene, &step);
    let decision = scene.decide();
    assert_eq!(decision.gpus.pause, Pause { number: 1, labels: labels(&[DCGM]) });
    assert_eq!(decision.record.paused, labels(&[DCGM]), "it is recorded before it is written");
    // The Node shows it paused.
    scene.node.on_deployed(BTreeSet::new());
    scene.now += Duration::from_secs(30);
    assert_eq!(scene.decide().step, None, "DCGM is still there");
    clear(&mut scene, &decision.gpus.pause);
    assert_eq!(scene.decide().step, Some(step));
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Ready);
    assert_eq!(scene.decide().gpus.pause, decision.gpus.pause, "the next step may follow at once");
    scene.now = scene.decide().next.due_at.unwrap().max(scene.now + Duration::from_secs(10));
    let decision = scene.decide();
    assert_eq!(decision.gpus.pause, Pause { number: 1, labels: BTreeSet::new() });
    assert_eq!(decision.record.paused, labels(&[DCGM]), "it is not put back yet");
    scene.node.on_paused(BTreeSet::new(), 1);
    assert_eq!(scene.decide().record.paused, BTreeSet::new());
}

#[test]
fn slices_that_dcgm_does_not_hold_are_cut_meanwhile() {
    let (mut scene, step) = in_the_way(Settings::default());
    refuse(&mut scene, &step);
    let big = wanted("s2", mig("3g.40gb", 0, 4), Some(("b", "nvidia.com/mig-3g.40gb")));
    scene.want(vec![big, wanted("s3", mig("1g.10gb", 4, 1), Some(("c", ONE)))]);
    let decision = scene.decide();
    assert_eq!(decision.gpus.pause.number, 1);
    assert!(matches!(decision.step, Some(Step::Create { id, .. }) if id.as_str() == "s3"));
}

#[test]
fn nothing_is_paused_if_gpu_operator_deploys_nothing_or_pausing_is_disabled() {
    for (deployed, pause_clients) in [(&[][..], true), (&[DCGM], false)] {
        let (mut scene, step) = in_the_way(Settings { pause_clients, ..Settings::default() });
        scene.node.on_deployed(labels(deployed));
        refuse(&mut scene, &step);
        scene.now += Duration::from_secs(1);
        let decision = scene.decide();
        assert_eq!((decision.gpus.pause, decision.record.paused), (Pause::default(), BTreeSet::new()));
        assert_eq!(decision.step, Some(step), "it is tried again as it is");
    }
}

#[test]
fn a_process_that_nvml_lists_is_no_reason_to_pause_dcgm() {
    let (mut scene, step) = in_the_way(Settings::default());
    let theirs = crate::gpu::Holder { pid: 7, name: Some("python".to_owned()) };
    scene.gpus.fail_next(GpuError::Busy(Processes(vec![theirs])));
    scene.run(step);
    assert_eq!(scene.decide().gpus.pause, Pause::default());
}

/// Another program holds the instance: DCGM is not stopped again for each further try.
#[test]
fn a_pause_that_does_not_help_ends_and_is_the_only_one() {
    let (mut scene, step) = in_the_way(Settings::default());
    for second in 0..600 {
        let decision = scene.decide();
        if !decision.gpus.pause.labels.is_empty() {
            clear(&mut scene, &decision.gpus.pause);
        }
        assert!(second < 60 || decision.gpus.pause.labels.is_empty(), "after {second} s");
        assert!(decision.gpus.pause.number <= 1);
        if decision.step.as_ref() == Some(&step) {
            refuse(&mut scene, &step);
        }
        scene.list_holders();
        scene.now += Duration::from_secs(1);
    }
    assert_eq!(scene.decide().gpus.pause.number, 1, "it was tried");
}

#[test]
fn a_switch_of_the_mig_mode_waits_for_the_pause_if_the_mode_changes_at_once() {
    for (model, mode_change, waits) in [
        ("H100-80GB", ModeChange::WithoutReset, true),
        ("A100-40GB", ModeChange::WithReset, true),
        ("A100-40GB", ModeChange::WithoutReset, false),
    ] {
        let mut scene = Scene::with_settings(FakeGpus::uncut(&[model]), Settings::default());
        scene.node.on_deployed(labels(&[DCGM]));
        scene.policy.gpus = vec![GpuRule { kinds: vec![Kind::Mig], mode_change, ..GpuRule::default() }];
        scene.want(Vec::new());
        let decision = scene.decide();
        let switch = Step::Switch { gpu: uuid(0), mig: true };
        assert_eq!(decision.step, (!waits).then(|| switch.clone()), "{model}");
        assert_eq!(decision.gpus.pause.labels.is_empty(), !waits, "{model}");
        if waits {
            clear(&mut scene, &decision.gpus.pause);
            assert_eq!(scene.decide().step, Some(switch));
            scene.settle();
            assert_ne!(scene.gpus.gpus()[0].mig, MigMode::Settled(false), "{model}");
        }
    }
}

#[test]
fn an_upgrade_of_the_driver_ends_the_pause() {
    let (mut scene, step) = in_the_way(Settings::default());
    refuse(&mut scene, &step);
    assert!(!scene.decide().gpus.pause.labels.is_empty());
    scene.node.on_upgrade(Some("a label".to_owned()));
    let decision = scene.decide();
    assert_eq!((decision.gpus.pause.labels, decision.record.paused), (BTreeSet::new(), labels(&[DCGM])));
}

/// A late report of an earlier pause does not count for the next.
#[test]
fn a_late_report_of_an_earlier_pause_does_not_count_for_the_next() {
    let (mut scene, step) = in_the_way(Settings::default());
    refuse(&mut scene, &step);
    let first = scene.decide().gpus.pause;
    clear(&mut scene, &first);
    scene.want(Vec::new());
    scene.now += Duration::from_secs(20);
    assert!(scene.decide().gpus.pause.labels.is_empty());
    scene.want(vec![wanted("s2", mig("3g.40gb", 0, 4), Some(("b", "nvidia.com/mig-3g.40gb")))]);
    scene.list_holders();
    let again = scene.decide().step;
    refuse(&mut scene, &again.unwrap());
    let second = scene.decide();
    assert_eq!(second.gpus.pause, Pause { number: 2, labels: labels(&[DCGM]) });
    scene.node.on_paused(BTreeSet::new(), first.number);
    scene.now += Duration::from_secs(1);
    let decision = scene.decide();
    assert_eq!((decision.step, decision.record.paused), (None, labels(&[DCGM])));
}

#[test]
fn labels_that_an_earlier_process_paused_stay_recorded_until_restored() {
    let (mut scene, step) = in_the_way(Settings::default());
    refuse(&mut scene, &step);
    scene.decide();
    scene.decide();
    scene.restart_agent();
    let decision = scene.decide();
    assert_eq!((decision.gpus.pause, decision.record.paused), (Pause::default(), labels(&[DCGM])));
    scene.node.on_paused(BTreeSet::new(), 0);
    assert_eq!(scene.decide().record.paused, BTreeSet::new());
}
