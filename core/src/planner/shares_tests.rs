//! The limits of all MPS shares together: memory by the policy, and compute up to what the GPU has.

use super::super::{Allowed, Observed, ObservedGpu, ObservedShare, Plan, Step, check, plan};
use crate::contract::{MpsMemory, Shape, WantedSlice};
use crate::names::{GpuUuid, SliceId};
use crate::testing::wanted;
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use proptest::prelude::*;

fn mps(gb: u32, compute: u8) -> Shape {
    Shape::Mps { size_gb: SizeGb(gb), compute: ComputePercent::new(compute) }
}

/// A GPU of 15 GiB on which a 4 GB share with half of the compute is held.
fn observed(percent: u16) -> Observed {
    let held = ObservedShare { id: SliceId::new("held"), shape: mps(4, 50), held: true };
    let mps_memory: MpsMemory = percent.try_into().unwrap();
    Observed {
        gpus: vec![ObservedGpu {
            uuid: GpuUuid::new("GPU-0"),
            memory: MemoryMib(15_360),
            allowed: Allowed { mps_memory, ..Allowed::default() },
            table: None,
            instances: vec![],
            shares: vec![held],
        }],
    }
}

fn refused(percent: u16, shapes: &[Shape]) -> Vec<String> {
    let (observed, wanted) = (observed(percent), wanted(shapes));
    let plan = plan(&observed, &wanted);
    assert_eq!(check(&observed, &wanted, &plan), Ok(()));
    plan.refused.iter().map(|(id, obstacle)| format!("{id}: {obstacle}")).collect()
}

/// Whether the checker accepts a start of all these.
fn accepted(percent: u16, shapes: &[Shape]) -> bool {
    let (observed, wanted) = (observed(percent), wanted(shapes));
    let start = |slice: &WantedSlice| Step::Start {
        gpu: slice.gpu.clone(),
        id: slice.id.clone(),
        shape: slice.shape,
    };
    let steps = wanted.iter().map(start).collect();
    check(&observed, &wanted, &Plan { steps, refused: vec![] }).is_ok()
}

#[test]
fn shares_may_use_all_of_the_compute_and_no_more() {
    assert_eq!(
        refused(100, &[mps(1, 50), mps(1, 1)]),
        ["s1: the GPU's compute does not suffice beside the other MPS shares"]
    );
    assert!(accepted(100, &[mps(1, 50)]) && !accepted(100, &[mps(1, 51)]));
    // Half of the compute is left, and half of the memory counts as that much compute.
    assert_eq!(refused(100, &[mps(7, 0)]), Vec::<String>::new());
    assert_eq!(refused(100, &[mps(8, 0)]).len(), 1);
    assert!(accepted(100, &[mps(7, 0)]) && !accepted(100, &[mps(8, 0)]));
    assert!(accepted(150, &[mps(1, 100)]) && !accepted(150, &[mps(1, 100), mps(1, 1)]));
}

#[test]
fn shares_may_use_the_policys_part_of_the_memory() {
    let (no_memory, eleven) = ("s1: the GPU's memory does not suffice beside the other shares", mps(11, 1));
    assert_eq!(refused(100, &[eleven, mps(1, 1)]), [no_memory]);
    assert_eq!(refused(200, &[eleven, mps(15, 1)]), Vec::<String>::new());
    assert_eq!(refused(200, &[eleven, mps(16, 1)]), [no_memory], "none has more than there is");
    let slices = [Shape::TimeSlicing { size_gb: SizeGb(8) }; 2];
    let (mut observed, wanted) = (observed(400), wanted(&slices));
    observed.gpus[0].shares.clear();
    let plan = plan(&observed, &wanted);
    assert_eq!(check(&observed, &wanted, &plan), Ok(()));
    assert_eq!(plan.refused.len(), 1, "it is said of MPS shares only");
}

proptest! {
    /// The checker would reject exactly the shares that the planner refuses.
    #[test]
    fn planner_and_checker_agree_on_every_share(
        shapes in prop::collection::vec((1_u32..17, 0_u8..=100), 1..8), percent in 100_u16..=400,
    ) {
        let shapes: Vec<Shape> = shapes.into_iter().map(|(gb, compute)| mps(gb, compute)).collect();
        let (observed, wanted) = (observed(percent), wanted(&shapes));
        let plan = plan(&observed, &wanted);
        prop_assert_eq!(check(&observed, &wanted, &plan), Ok(()));
        for (id, _) in &plan.refused {
            let slice = wanted.iter().find(|slice| slice.id == *id).unwrap();
            let start = Step::Start { gpu: slice.gpu.clone(), id: id.clone(), shape: slice.shape };
            let before = plan.steps.iter().filter(|step| {
                let Step::Start { id: other, .. } = step else { return false };
                wanted.iter().position(|w| w.id == *other) < wanted.iter().position(|w| w.id == *id)
            });
            let steps = before.cloned().chain([start]).collect();
            let forced = Plan { steps, refused: vec![] };
            prop_assert!(check(&observed, &wanted, &forced).is_err());
        }
    }
}
