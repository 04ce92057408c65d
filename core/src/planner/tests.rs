use super::super::{ObservedInstance, ObservedShare, check};
use super::*;
use crate::mig::{MigTable, catalog};
use crate::names::GpuUuid;
use crate::testing::h100_shape;
use crate::units::SizeGb;
use proptest::prelude::*;

fn h100() -> MigTable {
    catalog::by_name("H100-80GB").unwrap().mig_table().unwrap()
}

fn gpu(instances: &[(Shape, bool)]) -> Observed {
    let instance =
        |(shape, held): &(Shape, bool)| Some(ObservedInstance { instance: shape.instance()?, held: *held });
    Observed {
        gpus: vec![ObservedGpu {
            uuid: GpuUuid::new("GPU-0"),
            memory: MemoryMib(81_559),
            table: Some(h100()),
            instances: instances.iter().filter_map(instance).collect(),
            shares: vec![],
        }],
    }
}

fn wanted(shapes: &[Shape]) -> Vec<WantedSlice> {
    let slice = |(n, shape): (usize, &Shape)| WantedSlice {
        id: SliceId::new(format!("s{n}")),
        gpu: GpuUuid::new("GPU-0"),
        shape: *shape,
        reservation: None,
    };
    shapes.iter().enumerate().map(slice).collect()
}

fn steps(observed: &Observed, wanted: &[WantedSlice]) -> (Vec<String>, Vec<String>) {
    let plan = plan(observed, wanted);
    assert_eq!(check(observed, wanted, &plan), Ok(()));
    (
        plan.steps.iter().map(ToString::to_string).collect(),
        plan.refused.iter().map(|(id, obstacle)| format!("{id}: {obstacle}")).collect(),
    )
}

#[test]
fn what_is_there_needs_no_step() {
    let shape = h100_shape("1g.10gb", 6);
    assert_eq!(steps(&gpu(&[(shape, false)]), &wanted(&[shape])), (vec![], vec![]));
}

#[test]
fn the_one_idle_instance_with_the_media_engines_goes_for_another() {
    let idle = [(h100_shape("1g.10gb+me", 0), false), (h100_shape("2g.20gb", 4), false)];
    let (steps, _) = steps(&gpu(&idle), &wanted(&[h100_shape("1g.10gb+me", 6)]));
    assert_eq!(steps, ["destroy 1g.10gb+me at 0:1 on GPU-0", "create 1g.10gb+me at 6:1 on GPU-0 for s0"]);
}

#[test]
fn an_idle_instance_goes_only_when_its_place_is_wanted() {
    let idle = [(h100_shape("1g.10gb", 6), false), (h100_shape("1g.10gb", 0), false)];
    let (steps, refused) = steps(&gpu(&idle), &wanted(&[h100_shape("3g.40gb", 4)]));
    assert_eq!(steps, ["destroy 1g.10gb at 6:1 on GPU-0", "create 3g.40gb at 4:4 on GPU-0 for s0"]);
    assert_eq!(refused, Vec::<String>::new());
}

#[test]
fn a_held_instance_is_never_touched() {
    let held = [(h100_shape("1g.10gb", 6), true)];
    let (steps, refused) = steps(&gpu(&held), &wanted(&[h100_shape("3g.40gb", 4)]));
    assert_eq!(steps, Vec::<String>::new());
    assert_eq!(refused, ["s0: slices in use are in its way"]);
}

#[test]
fn the_checker_refuses_what_must_never_happen() {
    let shape = h100_shape("1g.10gb", 6);
    let uuid = GpuUuid::new("GPU-0");
    let destroy = Step::Destroy { gpu: uuid.clone(), instance: shape.instance().unwrap() };
    let plan = |steps: Vec<Step>| Plan { steps, refused: vec![] };
    let bigger = wanted(&[h100_shape("3g.40gb", 4)]);
    let create =
        Step::Create { gpu: uuid, instance: bigger[0].shape.instance().unwrap(), id: bigger[0].id.clone() };
    let verdict = |observed: &Observed, wanted: &[WantedSlice], steps: Vec<Step>| {
        check(observed, wanted, &plan(steps)).unwrap_err().to_string()
    };
    assert_eq!(
        verdict(&gpu(&[(shape, true)]), &bigger, vec![destroy.clone()]),
        "1g.10gb at 6:1 on GPU-0 is held"
    );
    assert_eq!(
        verdict(&gpu(&[(shape, false)]), &wanted(&[shape]), vec![destroy.clone()]),
        "1g.10gb at 6:1 on GPU-0 is wanted"
    );
    assert_eq!(
        verdict(&gpu(&[(shape, false)]), &[], vec![destroy.clone()]),
        "1g.10gb at 6:1 on GPU-0 is destroyed for nothing"
    );
    assert_eq!(verdict(&gpu(&[]), &bigger, vec![destroy]), "1g.10gb at 6:1 on GPU-0 does not exist");
    assert_eq!(
        verdict(&gpu(&[(shape, false)]), &bigger, vec![create.clone()]),
        "3g.40gb at 4:4 on GPU-0 does not fit"
    );
    assert_eq!(verdict(&gpu(&[]), &[], vec![create]), "3g.40gb at 4:4 on GPU-0 is not wanted");
}

#[test]
fn shares_are_served_and_ended_without_touching_held_ones() {
    let share = |id: &str, gb, held| ObservedShare {
        id: SliceId::new(id),
        shape: Shape::Mps { size_gb: SizeGb(gb) },
        held,
    };
    let mut observed = gpu(&[]);
    observed.gpus[0].table = None;
    observed.gpus[0].memory = MemoryMib(15_360);
    observed.gpus[0].shares = vec![share("old", 4, false), share("busy", 8, true)];
    let (steps, refused) = steps(
        &observed,
        &wanted(&[
            Shape::Mps { size_gb: SizeGb(7) },
            Shape::Mps { size_gb: SizeGb(7) },
            Shape::TimeSlicing { size_gb: SizeGb(1) },
        ]),
    );
    assert_eq!(steps, ["end share old on GPU-0", "start 7gb MPS share s0 on GPU-0"]);
    assert_eq!(
        refused,
        [
            "s1: the GPU's memory does not suffice beside the other shares",
            "s2: shares of another kind are in use on the GPU"
        ]
    );
}

proptest! {
    /// From any state to any wanted set: the checker accepts the plan, nothing held is lost, and what is not refused is there.
    #[test]
    fn every_plan_is_accepted_and_reaches_what_it_does_not_refuse(
        there in prop::collection::vec((0_usize..7, 0_u8..8, any::<bool>()), 0..10),
        asked in prop::collection::vec((0_usize..7, 0_u8..8), 0..10),
    ) {
        let table = h100();
        let profile = |n: usize| table.entries()[n].profile;
        let mut geometry = Geometry::empty(&table);
        let mut observed = Vec::new();
        for (n, start, held) in there {
            if let Ok(next) = geometry.clone().place(profile(n), start) {
                let new = next.instances().iter().find(|i| !geometry.instances().contains(i)).copied().unwrap();
                observed.push((Shape::mig(new), held));
                geometry = next;
            }
        }
        let mut shapes = Geometry::empty(&table);
        for (n, start) in asked {
            shapes = shapes.clone().place(profile(n), start).unwrap_or(shapes);
        }
        let wanted = wanted(&shapes.instances().iter().copied().map(Shape::mig).collect::<Vec<_>>());
        let observed = gpu(&observed);
        let plan = plan(&observed, &wanted);
        prop_assert_eq!(check(&observed, &wanted, &plan), Ok(()));
        let mut after: Vec<Instance> = observed.gpus[0].instances.iter().map(|o| o.instance).collect();
        for step in &plan.steps {
            match step {
                Step::Destroy { instance, .. } => after.retain(|i| i != instance),
                Step::Create { instance, .. } => after.push(*instance),
                Step::End { .. } | Step::Start { .. } => {}
            }
        }
        prop_assert!(Geometry::of(&table, after.iter().copied()).is_ok());
        for slice in &wanted {
            let there = after.contains(&slice.shape.instance().unwrap());
            prop_assert!(there != plan.refused.iter().any(|(id, _)| *id == slice.id));
        }
        let destroys = plan.steps.iter().filter(|s| matches!(s, Step::Destroy { .. })).count();
        let spare: Vec<_> = observed.gpus[0].instances.iter().filter(|o| !o.held)
            .map(|o| o.instance).filter(|i| !wanted.iter().any(|w| w.shape.instance() == Some(*i))).collect();
        let stays: Vec<_> = after.iter().filter(|i| !spare.contains(i)).copied().collect();
        let suffices = |gone: u32| {
            let rest = spare.iter().enumerate().filter(|(n, _)| gone >> n & 1 == 0).map(|(_, i)| *i);
            Geometry::of(&table, stays.iter().copied().chain(rest)).is_ok()
        };
        let fewest = (0..1_u32 << spare.len()).filter(|gone| suffices(*gone)).map(u32::count_ones).min();
        prop_assert_eq!(Some(destroys), fewest.and_then(|n| usize::try_from(n).ok()), "the fewest that do");
        // Nothing is refused unless something held stands in the way.
        if observed.gpus[0].instances.iter().all(|o| !o.held) {
            prop_assert!(plan.refused.is_empty());
        }
    }
}
