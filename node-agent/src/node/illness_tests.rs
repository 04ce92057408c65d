//! GPUs that report errors or fall off the bus: nothing new is offered on them, nothing held is lost, and they recover.

use super::tests::{ONE, Scene, devices, failing, mig, slice, wanted, wanted_of};
use super::*;
use crate::gpu::GpuError;
use crate::gpu::fake::uuid;
use crate::gpu::{GpuEvent, GpuTrouble, NvmlCode, RowRemapping};
use kerf_core::contract::{Condition, GpuNodeStatus, SliceState, WantedSlice};
use kerf_core::planner::Step;

const SEVEN: &str = "nvidia.com/mig-7g.80gb";

/// A held and a reserved slice on the first GPU, a reserved one on the second.
fn busy() -> Scene {
    let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
    scene.want(spec());
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene
}

fn spec() -> Vec<WantedSlice> {
    vec![
        wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE))),
        wanted("s2", mig("1g.10gb", 1, 1), Some(("b", ONE))),
        wanted_of(1, "s3", mig("1g.10gb", 0, 1), Some(("c", ONE))),
    ]
}

fn states(status: &GpuNodeStatus) -> [SliceState; 3] {
    ["s1", "s2", "s3"].map(|id| slice(status, id).state)
}

fn trouble(scene: &mut Scene, what: GpuTrouble, gi: Option<u32>) {
    let now = scene.tick();
    scene.node.on_trouble(GpuEvent { gpu: Some(uuid(0)), what, gi, ci: None }, now);
}

const WELL: [SliceState; 3] = [SliceState::Held, SliceState::Ready, SliceState::Ready];
const ILL: [SliceState; 3] = [SliceState::Held, SliceState::Failed, SliceState::Ready];

#[test]
fn an_unhealthy_gpu_offers_nothing_and_its_reservations_fail_at_once() {
    for what in [GpuTrouble::Xid(79), GpuTrouble::DoubleBitEcc] {
        let mut scene = busy();
        trouble(&mut scene, what, None);
        let status = scene.settle();
        assert_eq!(states(&status), ILL);
        assert_eq!(devices(&scene.kubelet), ["MIG-3"], "the holder's device is unhealthy too");
        assert_eq!((status.gpus[0].kinds.len(), status.gpus[1].kinds.len()), (0, 1));
        assert!(status.gpus[0].message.is_some() && status.gpus[1].message.is_none());
        assert!(failing(&status, Condition::GPUS_HEALTHY).unwrap().starts_with("GPU 0: "));
        assert!(scene.reported.iter().any(|note| matches!(note, NodeEvent::GpuUnhealthy { .. })));
        assert_eq!(scene.places().len(), 3, "nothing is destroyed for it");
    }
}

#[test]
fn a_gpu_recovers_after_quiet_time_if_it_answers_and_has_no_repair_pending() {
    let mut scene = busy();
    let quiet = scene.settings.recover_after;
    trouble(&mut scene, GpuTrouble::Xid(79), None);
    scene.settle();
    scene.now += quiet / 2;
    trouble(&mut scene, GpuTrouble::Xid(79), None);
    scene.now += quiet / 2;
    assert_eq!(states(&scene.settle()), ILL, "it was not quiet");
    scene.gpus.set_pending_repair(0, Some("a row of its memory is to be remapped"));
    scene.observe();
    scene.now += quiet;
    let status = scene.settle();
    assert_eq!(states(&status), ILL);
    assert!(status.gpus[0].message.as_ref().unwrap().contains("remapped"));
    scene.gpus.set_pending_repair(0, None);
    scene.gpus.set_lost(0, true);
    scene.observe();
    assert_eq!(states(&scene.settle()), ILL, "it does not answer");
    scene.gpus.set_lost(0, false);
    scene.observe();
    scene.now += Duration::from_secs(2);
    assert_eq!(states(&scene.settle()), WELL);
    assert_eq!(devices(&scene.kubelet), ["MIG-1", "MIG-2", "MIG-3"]);
    let reported = scene.reported.iter().filter(|note| matches!(note, NodeEvent::GpuRecovered { .. }));
    assert_eq!(reported.count(), 1);
}

#[test]
fn the_wait_for_a_gpu_to_be_quiet_ends_by_itself() {
    let mut scene = busy();
    trouble(&mut scene, GpuTrouble::Xid(79), None);
    let last = scene.now;
    scene.settle();
    let due = last + scene.settings.recover_after;
    // Two checks of an ill GPU are at least a second apart.
    let latest = due + Duration::from_secs(1);
    for _ in 0..1000 {
        let Some(due_at) = scene.decide().next.due_at.filter(|due_at| *due_at <= latest) else { break };
        scene.now = scene.now.max(due_at);
    }
    assert!(scene.now >= due, "a decision is due when the GPU may be taken back");
    assert_eq!(states(&scene.settle()), WELL);
}

#[test]
fn errors_of_applications_and_reports_do_not_make_a_gpu_unhealthy() {
    let mut scene = busy();
    for xid in [31, 63, 94] {
        trouble(&mut scene, GpuTrouble::Xid(xid), None);
    }
    assert_eq!(states(&scene.settle()), WELL);
    scene.settings.xids.enabled = "63".parse().unwrap();
    scene.settle();
    scene.restart_agent();
    scene.want(spec());
    scene.settle();
    trouble(&mut scene, GpuTrouble::Xid(63), None);
    assert_eq!(states(&scene.settle()), ILL, "the settings make it count");
}

/// NVIDIA's XID 48 and the ECC event report the same error; XID 95 reports one that was not contained.
#[test]
fn an_error_that_the_gpu_has_contained_does_not_close_it() {
    let contained = [GpuTrouble::DoubleBitEcc, GpuTrouble::Xid(48)];
    for remapping in [RowRemapping::Settled, RowRemapping::Pending] {
        let mut scene = busy();
        scene.gpus.set_remapping(0, remapping);
        scene.observe();
        for what in contained {
            trouble(&mut scene, what, None);
        }
        let status = scene.settle();
        assert_eq!((states(&status), &status.gpus[0].message), (WELL, &None), "{remapping:?}");

        trouble(&mut scene, GpuTrouble::Xid(95), None);
        scene.settle();
        scene.now += scene.settings.recover_after;
        let until_reset = if remapping == RowRemapping::Pending { ILL } else { WELL };
        assert_eq!(states(&scene.settle()), until_reset);
    }
}

#[test]
fn an_error_without_a_gpu_closes_no_gpu() {
    let mut scene = busy();
    let now = scene.tick();
    scene.node.on_trouble(GpuEvent { gpu: None, what: GpuTrouble::Xid(62), gi: None, ci: None }, now);
    assert_eq!(states(&scene.settle()), WELL);
}

#[test]
fn an_error_of_one_instance_does_not_affect_its_neighbours() {
    let mut scene = busy();
    let gi = scene.gpus.gpus()[0].instances.iter().find(|i| i.instance.placement.start == 1).unwrap().gi;
    trouble(&mut scene, GpuTrouble::Xid(62), Some(gi));
    let status = scene.settle();
    assert_eq!(states(&status), ILL);
    assert_eq!(devices(&scene.kubelet), ["MIG-1", "MIG-3"]);
    assert_eq!(status.gpus[0].message, None);
}

#[test]
fn a_lost_gpu_keeps_its_held_slices_and_other_gpus_continue() {
    let mut scene = busy();
    scene.gpus.set_lost(0, true);
    scene.observe();
    let more = wanted_of(1, "s4", mig("1g.10gb", 1, 1), None);
    scene.want(spec().into_iter().chain([more]).collect());
    let status = scene.settle();
    assert_eq!(states(&status), ILL);
    assert_eq!(slice(&status, "s1").holder.as_ref().unwrap().pod, "a");
    assert_eq!(slice(&status, "s4").state, SliceState::Idle);
    assert!(status.gpus[0].message.as_ref().unwrap().contains("GPU_IS_LOST"));
    scene.gpus.set_lost(0, false);
    scene.observe();
    assert_eq!(states(&scene.settle()), WELL);
}

#[test]
fn a_gpu_that_is_lost_during_a_cut_is_cut_when_it_returns() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    scene.settle();
    // Another slice needs its place, and the GPU is lost before the old slice is destroyed.
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), Some(("b", SEVEN)))]);
    scene.gpus.set_lost(0, true);
    for _ in 0..10 {
        let decision = scene.decide();
        if let Some(step) = decision.step {
            scene.run(step);
        }
        scene.observe();
        scene.now += Duration::from_secs(10);
    }
    scene.gpus.set_lost(0, false);
    scene.observe();
    scene.now += Duration::from_secs(10);
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
    assert_eq!(scene.places(), ["7g.80gb at 0:8"]);
}

#[test]
fn a_slice_whose_place_cannot_be_cleared_fails_and_the_next_one_is_tried() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    scene.settle();
    let refused = GpuError::Call { call: "nvmlGpuInstanceDestroy", code: NvmlCode::Unknown };
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), Some(("b", SEVEN)))]);
    let mut refusals = 0;
    for _ in 0..10 {
        let decision = scene.decide();
        if let Some(step) = decision.step {
            assert!(matches!(step, Step::Destroy { .. }));
            scene.gpus.fail_next(refused.clone());
            scene.run(step);
            refusals += 1;
        }
        scene.now += Duration::from_secs(10);
    }
    assert!((3..7).contains(&refusals), "{refusals}: three tries, and one with each probe");
    let status = scene.decide().status;
    assert_eq!(slice(&status, "s2").state, SliceState::Failed, "its pod is placed elsewhere");
    assert!(
        slice(&status, "s2").message.as_ref().unwrap().contains("nvmlGpuInstanceDestroy answered UNKNOWN")
    );
    assert!(failing(&status, Condition::SPEC_REACHED).unwrap().contains("nvmlGpuInstanceDestroy"));
    scene.want(vec![]);
    scene.settle();
    scene.want(vec![wanted("s3", mig("7g.80gb", 0, 8), Some(("c", SEVEN)))]);
    assert_eq!(slice(&scene.settle(), "s3").state, SliceState::Ready);
}

#[test]
fn an_unhealthy_gpu_stays_so_after_a_restart_until_its_quiet_time_has_passed() {
    let mut scene = busy();
    trouble(&mut scene, GpuTrouble::Xid(79), None);
    scene.settle();
    scene.restart_agent();
    scene.want(spec());
    let status = scene.settle();
    assert_eq!(states(&status), ILL);
    assert!(failing(&status, Condition::GPUS_HEALTHY).unwrap().contains("XID 79"));
    scene.now += scene.settings.recover_after;
    assert_eq!(states(&scene.settle()), WELL);
}

/// The driver may reuse an instance's id for the next one.
#[test]
fn an_illness_ends_with_its_instance() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 2, 1), None)]);
    scene.settle();
    let gi = scene.gpus.gpus()[0].instances[0].gi;
    trouble(&mut scene, GpuTrouble::Xid(62), Some(gi));
    scene.settle();
    assert_eq!(scene.record.ills.len(), 1);
    scene.want(vec![wanted("s2", mig("2g.20gb", 2, 2), None)]);
    scene.settle();
    assert_eq!(scene.places(), ["2g.20gb at 2:2"]);
    assert_eq!(scene.record.ills, Vec::new());
}
