//! Tests compute instances that share a GPU instance.

use super::tests::{ONE, Scene, devices, mig, slice, wanted};
use super::*;
use crate::gpu::Compute;
use crate::gpu::GpuError;
use crate::gpu::fake::uuid;
use crate::gpu::{GpuBackend as _, NvmlCode};
use kerf_core::contract::{Shape, SliceState, WantedSlice};
use kerf_core::mig::ComputeInstance;
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;

const ONE_C: &str = "nvidia.com/mig-1c.3g.40gb";
const TWO_C: &str = "nvidia.com/mig-2c.3g.40gb";
const THREE: &str = "nvidia.com/mig-3g.40gb";

/// Compute slices of the `3g.40gb` at 4.
fn part(compute: u8, start: u8) -> Shape {
    part_of(Some(ComputeInstance { start, compute }))
}

fn part_of(part: Option<ComputeInstance>) -> Shape {
    Shape::Mig { profile: "3g.40gb".parse().unwrap(), start: 4, size: 4, part: part.into() }
}

/// A node whose policy allows parts.
fn scene() -> Scene {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.policy.gpus = vec![kerf_core::contract::GpuRule { compute_instances: true, ..Default::default() }];
    scene.want(vec![]);
    scene.observe();
    scene
}

fn three() -> Vec<WantedSlice> {
    (0..3).map(|n| wanted(&format!("s{n}"), part(1, n), Some((&format!("p{n}"), ONE_C)))).collect()
}

#[test]
fn parts_share_a_gpu_instance_and_are_offered_under_their_own_names() {
    let mut scene = scene();
    scene.want(three());
    let status = scene.settle();
    assert_eq!(scene.places(), ["3g.40gb at 4:4"]);
    assert!(status.slices.iter().all(|s| s.state == SliceState::Ready), "{:?}", status.slices);
    let name: ResourceName = ONE_C.parse().unwrap();
    assert_eq!(scene.kubelet.keys().collect::<Vec<_>>(), [&name]);
    assert_eq!(devices(&scene.kubelet), ["MIG-1", "MIG-2", "MIG-3"]);
    assert!(status.slices.iter().all(|s| s.memory.0 > 40_000), "they share all of its memory");
}

#[test]
fn a_part_is_replaced_by_another_and_the_gpu_instance_stays_while_a_part_is_held() {
    let mut scene = scene();
    scene.want(three());
    scene.settle();
    scene.allocate("p0", ONE_C, "MIG-1");
    let held = three().remove(0);
    // Two give way to a larger one, which takes their place beside the held one, where the driver allows that.
    scene.want(vec![held.clone(), wanted("s9", part(2, 0), Some(("q", TWO_C)))]);
    let status = scene.settle();
    assert!(slice(&status, "s9").device.is_none(), "it may start at 0 alone, where one is held");
    assert_eq!(slice(&status, "s0").state, SliceState::Held);
    scene.want(vec![held, wanted("s8", part_of(None), Some(("q", THREE)))]);
    let status = scene.settle();
    assert!(slice(&status, "s8").device.is_none(), "the instance is held in part");
    scene.free("MIG-1");
    scene.want(vec![wanted("s9", part(2, 0), Some(("q", TWO_C)))]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s9").state, SliceState::Ready);
    let left: Vec<_> = scene.gpus.gpus()[0].instances[0].devices().map(|(.., d)| d.to_string()).collect();
    assert_eq!(left, ["MIG-4", "MIG-3"], "the one that blocked no slice stays");
    scene.want(vec![wanted("s8", part_of(None), Some(("q", THREE)))]);
    assert_eq!(slice(&scene.settle(), "s8").state, SliceState::Ready, "nothing of it is held any more");
}

#[test]
fn the_second_slice_at_a_parts_place_fails_and_takes_nothing_from_the_first() {
    let mut scene = scene();
    scene.want(three());
    scene.settle();
    scene.want(three().into_iter().chain([wanted("s9", part(1, 1), Some(("q", ONE_C)))]).collect());
    let status = scene.settle();
    assert_eq!(
        (slice(&status, "s1").state, slice(&status, "s9").state),
        (SliceState::Ready, SliceState::Failed)
    );
    assert_eq!(slice(&status, "s9").device, None);
}

/// No leader orders that. If one did, neither slice would be pending forever.
#[test]
fn an_existing_part_is_destroyed_for_the_whole_instance_that_was_wanted_first() {
    let mut scene = scene();
    scene.want(three());
    scene.settle();
    scene.want(vec![wanted("s8", part_of(None), None), wanted("s9", part(1, 1), Some(("q", ONE_C)))]);
    scene.settle();
    scene.now += Duration::from_secs(3);
    let status = scene.settle();
    assert_eq!(
        (slice(&status, "s8").state, slice(&status, "s9").state),
        (SliceState::Idle, SliceState::Failed)
    );
    assert!(slice(&status, "s9").message.as_ref().unwrap().contains("beside the other slices"));
}

#[test]
fn a_part_that_no_record_lists_is_not_destroyed() {
    let mut scene = scene();
    let foreign = part(1, 0);
    scene.gpus.create(&uuid(0), foreign.instance().unwrap(), foreign.part()).unwrap();
    scene.restart_agent();
    scene.want(vec![wanted("s1", part(2, 0), Some(("a", TWO_C)))]);
    scene.settle();
    scene.now += Duration::from_secs(2);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Failed);
    let parts = scene.gpus.gpus()[0].instances[0].devices().count();
    assert_eq!(parts, 1, "it is still there");
}

#[test]
fn a_gpu_instance_without_compute_instances_is_destroyed_when_its_place_is_wanted() {
    let mut scene = scene();
    scene.want(three());
    scene.settle();
    // The parts give way to a larger one, which NVML refuses. Then nothing of the instance is desired any more.
    scene.want(vec![wanted("s9", part(3, 0), Some(("q", THREE)))]);
    let refused = GpuError::Call { call: "nvmlX", code: NvmlCode::InsufficientResources };
    for _ in 0..40 {
        let decision = scene.decide();
        match decision.step {
            Some(step @ kerf_core::planner::Step::Create { .. }) => {
                scene.gpus.fail_next(refused.clone());
                scene.run(step);
            }
            Some(step) => scene.run(step),
            None => {}
        }
        scene.acknowledge();
        scene.list_holders();
        scene.now += Duration::from_millis(500);
    }
    assert_eq!(slice(&scene.decide().status, "s9").state, SliceState::Failed);
    scene.want(vec![]);
    let status = scene.settle();
    assert_eq!(scene.places(), ["3g.40gb at 4:4"]);
    assert!(status.slices.iter().all(|s| s.id.is_some()), "without a name it would count as somebody's");
    scene.want(vec![wanted("s10", super::tests::mig("1g.10gb", 4, 1), Some(("r", ONE)))]);
    assert_eq!(slice(&scene.settle(), "s10").state, SliceState::Ready);
    assert_eq!(scene.places(), ["1g.10gb at 4:1"]);
}

#[test]
fn a_held_part_survives_a_restart_with_a_lost_spec() {
    let mut scene = scene();
    scene.want(three());
    scene.settle();
    scene.allocate("p1", ONE_C, "MIG-2");
    scene.restart_agent();
    scene.want(vec![wanted("s9", super::tests::mig("7g.80gb", 0, 8), None)]);
    let status = scene.settle();
    assert_eq!(scene.places(), ["3g.40gb at 4:4"]);
    let held = status.slices.iter().find(|s| s.device == Some(DeviceId::new("MIG-2"))).unwrap();
    assert_eq!((held.state, held.shape), (SliceState::Held, part(1, 1)));
    assert_eq!(devices(&scene.kubelet), ["MIG-2"]);
}

#[test]
fn foreign_compute_instances_at_its_place_fail_a_slice_and_an_unfinished_instance_does_not() {
    for (compute, is_others) in [(Compute::Foreign, true), (Compute::Missing, false)] {
        let mut scene = Scene::new(&["H100-80GB"]);
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
        scene.settle();
        let mut gpus = scene.gpus.gpus();
        gpus[0].instances[0].compute = compute;
        scene.node.on_gpus(Ok(gpus));
        let status = scene.decide().status;
        let found = slice(&status, "s1");
        let state = if is_others { SliceState::Failed } else { SliceState::Preparing };
        assert_eq!(found.state, state);
        assert_eq!(found.message.as_ref().is_some_and(|m| m.contains("that kerf did not make")), is_others);
    }
}
