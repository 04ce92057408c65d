//! GPUs and slices with a call under way: what it changes is not offered meanwhile.

use super::tests::{ONE, Scene, devices, mig, slice, wanted};
use super::*;
use crate::gpu::GpuError;
use crate::gpu::fake::FakeGpus;
use crate::gpu::{GpuBackend as _, MigMode};
use kerf_core::contract::{GpuRule, ModeChange, Shape, SliceState};
use kerf_core::kind::Kind;
use kerf_core::planner::Step;
use kerf_core::units::SizeGb;

/// A node that is about to destroy an idle slice whose place `b` has reserved, when `a` reserves it after all.
fn destroying() -> (Scene, Step) {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("z", ONE)))]);
    scene.settle();
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), Some(("b", "nvidia.com/mig-7g.80gb")))]);
    let step = std::iter::repeat_with(|| {
        scene.acknowledge();
        scene.list_holders();
        scene.decide().step
    });
    let step = step.take(9).flatten().next().unwrap();
    assert!(matches!(step, Step::Destroy { .. }));
    scene.want(vec![wanted("s3", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    (scene, step)
}

fn offers_nothing(scene: &mut Scene) {
    for _ in 0..5 {
        scene.acknowledge();
        scene.list_holders();
        assert_eq!(devices(&scene.kubelet), Vec::<&str>::new());
        assert_eq!(slice(&scene.decide().status, "s3").state, SliceState::Preparing);
    }
}

#[test]
fn a_slice_that_is_being_destroyed_is_not_offered_even_if_wanted_again() {
    let (mut scene, step) = destroying();
    offers_nothing(&mut scene);
    scene.run(step);
    assert_eq!(slice(&scene.settle(), "s3").state, SliceState::Ready);
    assert_eq!(devices(&scene.kubelet), ["MIG-2"], "it was made anew");
}

#[test]
fn a_slice_is_not_offered_after_a_failed_destroy_before_an_observation() {
    let (mut scene, step) = destroying();
    scene.gpus.fail_next(GpuError::Stopped);
    scene.run(step);
    offers_nothing(&mut scene);
    scene.observe();
    assert_eq!(slice(&scene.settle(), "s3").state, SliceState::Ready);
    assert_eq!(devices(&scene.kubelet), ["MIG-1"]);
}

#[test]
fn an_instance_made_by_a_hung_create_belongs_to_kerf_even_if_not_wanted() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    let Some(Step::Create { gpu, instance, part, id }) = scene.decide().step else { panic!("it is cut") };
    let now = scene.tick();
    scene.node.on_created(&gpu, &id, Err(GpuError::Hangs(10)), now);
    scene.want(vec![]);
    scene.gpus.set_lost(0, true);
    scene.observe();
    scene.decide();
    scene.gpus.set_lost(0, false);
    scene.gpus.create(&gpu, instance, part).unwrap();
    scene.observe();
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Idle);
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), Some(("b", "nvidia.com/mig-7g.80gb")))]);
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready, "its place is given to others");
}

#[test]
fn a_step_that_did_not_run_blocks_nothing() {
    // The GPUs were observed instead, or another call had not ended.
    let (mut scene, _) = destroying();
    scene.observe();
    assert_eq!(slice(&scene.settle(), "s3").state, SliceState::Ready);
    let (mut scene, _) = destroying();
    let (id, now) = (SliceId::new("s9"), scene.tick());
    scene.node.on_created(&crate::gpu::fake::uuid(0), &id, Err(GpuError::Stopped), now);
    assert_eq!(slice(&scene.settle(), "s3").state, SliceState::Ready);
}

#[test]
fn no_share_is_served_on_a_gpu_whose_mode_is_being_switched() {
    let mut scene = Scene::with_settings(FakeGpus::uncut(&["H100-80GB"]), Settings::default());
    let rule = |kinds: &[Kind]| GpuRule {
        kinds: kinds.to_vec(),
        mode_change: ModeChange::WithoutReset,
        ..GpuRule::default()
    };
    scene.policy.gpus = vec![rule(&[Kind::Mig])];
    scene.want(vec![]);
    let step = scene.decide().step.unwrap();
    assert!(matches!(step, Step::Switch { .. }));
    scene.policy.gpus = vec![rule(&[Kind::Mps])];
    let share = Shape::mps(SizeGb(4));
    scene.want(vec![wanted("s1", share, Some(("a", "nvidia.com/gpu-4gb")))]);
    assert_eq!(slice(&scene.decide().status, "s1").device, None);
    scene.run(step);
    assert_eq!(scene.gpus.gpus()[0].mig, MigMode::Settled(true));
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Ready, "once it is switched back");
    assert_eq!(scene.gpus.gpus()[0].mig, MigMode::Settled(false));
}
