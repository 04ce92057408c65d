use super::super::{Allowed, ObservedInstance, ObservedPart, ObservedShare, check};
use super::*;
use crate::contract::{MigPart, Reservation, Shape};
use crate::kind::Kind;
use crate::mig::{ComputeInstance, Geometry, Instance};
use crate::names::GpuUuid;
use crate::names::{PodUid, SliceId};
use crate::testing::{h100_shape, mig_table, wanted};
use crate::units::MemoryMib;
use crate::units::SizeGb;
use proptest::prelude::*;

fn gpu(instances: &[(Shape, bool)]) -> Observed {
    let instance = |(shape, held): &(Shape, bool)| {
        Some(ObservedInstance { instance: shape.instance()?, held: *held, parts: vec![], replicas: vec![] })
    };
    Observed {
        gpus: vec![ObservedGpu {
            uuid: GpuUuid::new("GPU-0"),
            memory: MemoryMib(81_559),
            allowed: Allowed::default(),
            table: Some(mig_table("H100-80GB")),
            instances: instances.iter().filter_map(instance).collect(),
            shares: vec![],
        }],
    }
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
fn an_existing_slice_needs_no_step() {
    let shape = h100_shape("1g.10gb", 6);
    assert_eq!(steps(&gpu(&[(shape, false)]), &wanted(&[shape])), (vec![], vec![]));
}

#[test]
fn an_idle_instance_with_the_media_engines_is_destroyed_for_another() {
    let idle = [(h100_shape("1g.10gb+me", 0), false), (h100_shape("2g.20gb", 4), false)];
    let (steps, _) = steps(&gpu(&idle), &wanted(&[h100_shape("1g.10gb+me", 6)]));
    assert_eq!(steps, ["destroy 1g.10gb+me at 0:1 on GPU-0", "create 1g.10gb+me at 6:1 on GPU-0 for s0"]);
}

#[test]
fn an_idle_instance_is_destroyed_only_if_its_place_is_wanted() {
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
fn the_checker_rejects_forbidden_steps() {
    let shape = h100_shape("1g.10gb", 6);
    let uuid = GpuUuid::new("GPU-0");
    let destroy = Step::Destroy { gpu: uuid.clone(), instance: shape.instance().unwrap(), part: None };
    let plan = |steps: Vec<Step>| Plan { steps, refused: vec![] };
    let bigger = wanted(&[h100_shape("3g.40gb", 4)]);
    let create = Step::Create {
        gpu: uuid,
        instance: bigger[0].shape.instance().unwrap(),
        part: None,
        id: bigger[0].id.clone(),
    };
    let verdict = |observed: &Observed, wanted: &[WantedSlice], steps: Vec<Step>| {
        check(observed, wanted, &plan(steps)).unwrap_err().to_string()
    };
    assert_eq!(
        verdict(&gpu(&[(shape, true)]), &bigger, vec![destroy.clone()]),
        "1g.10gb at 6:1 on GPU-0 is held"
    );
    assert_eq!(
        verdict(&gpu(&[(shape, false)]), &wanted(&[shape]), vec![destroy.clone()]),
        "1g.10gb at 6:1 on GPU-0 is desired"
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
    assert_eq!(verdict(&gpu(&[]), &[], vec![create]), "3g.40gb at 4:4 on GPU-0 is not desired");
}

#[test]
fn shares_are_served_and_ended_without_touching_held_ones() {
    let share =
        |id: &str, gb, held| ObservedShare { id: SliceId::new(id), shape: Shape::mps(SizeGb(gb)), held };
    let mut observed = gpu(&[]);
    observed.gpus[0].table = None;
    observed.gpus[0].memory = MemoryMib(15_360);
    observed.gpus[0].shares = vec![share("old", 4, false), share("busy", 8, true)];
    let (steps, refused) = steps(
        &observed,
        &wanted(&[Shape::mps(SizeGb(7)), Shape::mps(SizeGb(7)), Shape::TimeSlicing { size_gb: SizeGb(1) }]),
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

/// A GPU of 15 GiB without MIG, with these shares.
fn t4(shares: &[(&str, Shape, bool)]) -> Observed {
    let mut observed = gpu(&[]);
    observed.gpus[0].table = None;
    observed.gpus[0].memory = MemoryMib(15_360);
    let share = |(id, shape, held): &(&str, Shape, bool)| ObservedShare {
        id: SliceId::new(*id),
        shape: *shape,
        held: *held,
    };
    observed.gpus[0].shares = shares.iter().map(share).collect();
    observed
}

const WHOLE: Shape = Shape::Whole { size_gb: SizeGb(15) };
const MPS_4: Shape = Shape::mps(SizeGb(4));

#[test]
fn a_whole_gpu_starts_only_after_the_last_share_has_ended() {
    let (steps_, refused) = steps(&t4(&[("busy", MPS_4, true)]), &wanted(&[WHOLE]));
    assert_eq!(
        (steps_.len(), refused),
        (0, vec!["s0: shares of another kind are in use on the GPU".to_owned()])
    );
    let (steps_, refused) = steps(&t4(&[("old", MPS_4, false)]), &wanted(&[WHOLE, MPS_4]));
    assert_eq!(steps_, ["end share old on GPU-0", "start whole GPU of 15 GB s0 on GPU-0"]);
    assert_eq!(refused, ["s1: shares of another kind are in use on the GPU"]);
}

#[test]
fn policy_limits_new_slices_and_existing_ones_stay() {
    let mut observed = t4(&[("busy", MPS_4, true)]);
    observed.gpus[0].allowed.kinds = vec![Kind::TimeSlicing];
    let (steps_, refused) = steps(&observed, &wanted(&[MPS_4]));
    assert_eq!(
        (steps_.len(), refused),
        (0, vec!["s0: the node's policy does not allow mps on this GPU".to_owned()])
    );
    let mut observed = gpu(&[]);
    observed.gpus[0].allowed.kinds = vec![Kind::Mps];
    let (_, refused) = steps(&observed, &wanted(&[h100_shape("1g.10gb", 0)]));
    assert_eq!(refused, ["s0: the node's policy does not allow mig on this GPU"]);
}

#[test]
fn strict_mps_keeps_one_size_on_a_gpu() {
    let mut observed = t4(&[("busy", MPS_4, true)]);
    observed.gpus[0].allowed.one_size = true;
    let (steps_, refused) = steps(&observed, &wanted(&[MPS_4, Shape::mps(SizeGb(2))]));
    assert_eq!(steps_, ["start 4gb MPS share s0 on GPU-0"]);
    assert_eq!(
        refused,
        ["s1: MPS shares of another size are in use on the GPU, and the node's policy requires one size"]
    );
}

#[test]
fn a_gpu_has_no_more_mps_shares_than_its_server_takes_clients() {
    let mut observed = t4(&[("busy", MPS_4, true)]);
    observed.gpus[0].allowed.mps_shares = Some(2);
    let one = Shape::mps(SizeGb(1));
    let (steps_, refused) = steps(&observed, &wanted(&[one, one]));
    assert_eq!(steps_, ["start 1gb MPS share s0 on GPU-0"]);
    assert_eq!(refused, ["s1: the GPU has as many MPS shares as its server takes clients"]);
}

fn reserved(mut slice: WantedSlice) -> WantedSlice {
    slice.reservation = Some(Reservation {
        uid: PodUid::new("u"),
        namespace: "ns".into(),
        pod: "p".into(),
        container: "main".into(),
        resource: "nvidia.com/mig-1g.10gb".parse().unwrap(),
        alone: false,
        epoch: 1,
    });
    slice
}

/// Planner and checker read shapes, because a neutral name does not say what the slice is.
#[test]
fn a_slice_of_any_shape_may_be_reserved_under_a_neutral_name() {
    let neutral = |shape| {
        let mut slice = reserved(wanted(&[shape]).remove(0));
        slice.reservation.as_mut().unwrap().resource = "kerf.dev/gpu-10gb".parse().unwrap();
        let text = serde_json::to_string(&slice).unwrap();
        assert_eq!(serde_json::from_str::<WantedSlice>(&text).unwrap(), slice);
        slice
    };
    let on_h100 = steps(&gpu(&[]), &[neutral(h100_shape("1g.10gb", 6))]);
    assert_eq!(on_h100, (vec!["create 1g.10gb at 6:1 on GPU-0 for s0".into()], vec![]));
    let whole = Shape::Whole { size_gb: SizeGb(15) };
    for shape in [Shape::mps(SizeGb(10)), Shape::TimeSlicing { size_gb: SizeGb(10) }, whole] {
        let (made, refused) = steps(&t4(&[]), &[neutral(shape)]);
        assert_eq!((made, refused), (vec![format!("start {shape} s0 on GPU-0")], vec![]));
    }
}

#[test]
fn the_mode_is_switched_once_nothing_is_held_or_reserved() {
    let shape = h100_shape("1g.10gb", 6);
    let switching = |held| {
        let mut observed = gpu(&[(shape, held)]);
        observed.gpus[0].allowed.switch_to = Some(false);
        observed
    };
    assert_eq!(steps(&switching(true), &[]).0, Vec::<String>::new());
    let mut half_idle = gpu(&[(shape, true), (h100_shape("1g.10gb", 0), false)]);
    half_idle.gpus[0].allowed.switch_to = Some(false);
    assert_eq!(steps(&half_idle, &[]).0, Vec::<String>::new(), "one of two is held");
    let slices = vec![reserved(wanted(&[shape]).remove(0))];
    assert_eq!(steps(&switching(false), &slices).0, Vec::<String>::new());
    let beside_idle = [slices, wanted(&[h100_shape("1g.10gb", 0)])].concat();
    let created = ["create 1g.10gb at 0:1 on GPU-0 for s0"];
    assert_eq!(steps(&switching(false), &beside_idle).0, created, "one of two is reserved");
    let both = ["destroy 1g.10gb at 6:1 on GPU-0", "switch MIG mode off on GPU-0"];
    assert_eq!(steps(&switching(false), &wanted(&[shape])).0, both, "no pod loses an idle slice");
    let switch =
        Plan { steps: vec![Step::Switch { gpu: GpuUuid::new("GPU-0"), mig: false }], refused: vec![] };
    for (observed, wanted, text) in [
        (switching(true), vec![], "the MIG mode of GPU-0 may not be switched: slices are left on it"),
        (gpu(&[]), vec![], "the MIG mode of GPU-0 may not be switched: policy does not ask for it"),
    ] {
        assert_eq!(check(&observed, &wanted, &switch).unwrap_err().to_string(), text);
    }
}

/// A compute instance of the `3g.40gb` at memory slice 4.
fn part(compute: u8, start: u8) -> Shape {
    let Shape::Mig { profile, start: at, size, .. } = h100_shape("3g.40gb", 4) else { unreachable!() };
    Shape::Mig { profile, start: at, size, part: MigPart::Compute(ComputeInstance { start, compute }) }
}

fn shared(parts: &[(u8, u8, bool)]) -> Observed {
    let mut observed = gpu(&[(h100_shape("3g.40gb", 4), false)]);
    let part = |(compute, start, held): &(u8, u8, bool)| ObservedPart {
        part: ComputeInstance { start: *start, compute: *compute },
        held: *held,
    };
    observed.gpus[0].instances[0].parts = parts.iter().map(part).collect();
    observed
}

#[test]
fn compute_instances_share_a_gpu_instance_that_is_made_with_the_first() {
    let (steps_, refused) = steps(&gpu(&[]), &wanted(&[part(1, 0), part(2, 0), part(1, 2)]));
    assert_eq!(
        steps_,
        [
            "create 1c.3g.40gb at 4:4, compute 0 on GPU-0 for s0",
            "create 1c.3g.40gb at 4:4, compute 2 on GPU-0 for s2"
        ]
    );
    assert_eq!(refused, ["s1: it cannot exist in its GPU instance: compute slices 0 to 1 are taken"]);
}

#[test]
fn an_idle_part_is_destroyed_for_a_wanted_one_and_a_held_part_stays() {
    let (steps_, _) = steps(&shared(&[(1, 0, false), (1, 2, true)]), &wanted(&[part(2, 0)]));
    assert_eq!(
        steps_,
        [
            "destroy 1c.3g.40gb at 4:4, compute 0 on GPU-0",
            "create 2c.3g.40gb at 4:4, compute 0 on GPU-0 for s0"
        ]
    );
    let both = wanted(&[part(1, 0), part(2, 0)]);
    let (steps_, refused) = steps(&shared(&[(1, 0, false)]), &both);
    assert_eq!(steps_, Vec::<String>::new(), "a desired part that exists stays");
    assert_eq!(refused, ["s1: it cannot exist in its GPU instance: compute slices 0 to 1 are taken"]);
    let (steps_, refused) = steps(&shared(&[(1, 0, true)]), &wanted(&[part(2, 0)]));
    assert_eq!(steps_, Vec::<String>::new());
    assert_eq!(refused, ["s0: it cannot exist in its GPU instance: compute slices 0 to 1 are taken"]);
}

#[test]
fn an_instance_is_made_anew_when_it_is_wanted_whole_and_all_its_parts_are_idle() {
    let whole = wanted(&[h100_shape("3g.40gb", 4)]);
    let (steps_, _) = steps(&shared(&[(1, 0, false)]), &whole);
    assert_eq!(steps_, ["destroy 3g.40gb at 4:4 on GPU-0", "create 3g.40gb at 4:4 on GPU-0 for s0"]);
    let (steps_, refused) = steps(&shared(&[(1, 0, true)]), &whole);
    assert_eq!((steps_.len(), refused), (0, vec!["s0: slices in use are in its way".to_owned()]));
    let both = wanted(&[h100_shape("3g.40gb", 4), part(1, 0)]);
    assert_eq!(
        steps(&gpu(&[]), &both).1,
        ["s1: it cannot exist beside the other slices: memory slices 4:4 are taken"]
    );
}

proptest! {
    /// From any state to any desired set: the checker accepts the plan, no held slice is lost, and everything that is
    /// not refused exists.
    #[test]
    fn every_plan_is_accepted_and_reaches_what_it_does_not_refuse(
        there in prop::collection::vec((0_usize..7, 0_u8..8, any::<bool>()), 0..10),
        asked in prop::collection::vec((0_usize..7, 0_u8..8), 0..10),
    ) {
        let table = mig_table("H100-80GB");
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
                Step::Switch { .. } | Step::End { .. } | Step::Start { .. } => {}
            }
        }
        prop_assert!(Geometry::from_instances(&table, after.iter().copied()).is_ok());
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
            Geometry::from_instances(&table, stays.iter().copied().chain(rest)).is_ok()
        };
        let fewest = (0..1_u32 << spare.len()).filter(|gone| suffices(*gone)).map(u32::count_ones).min();
        prop_assert_eq!(Some(destroys), fewest.and_then(|n| usize::try_from(n).ok()), "the fewest that do");
        // A refusal is only right if something held is in the way.
        if observed.gpus[0].instances.iter().all(|o| !o.held) {
            prop_assert!(plan.refused.is_empty());
        }
    }

    /// The same for parts: the checker accepts, no held part goes, and everything that is not refused exists.
    #[test]
    fn every_plan_of_parts_is_accepted_and_reaches_what_it_does_not_refuse(
        there in prop::collection::vec((1_u8..4, 0_u8..3, any::<bool>()), 0..4),
        asked in prop::collection::vec((1_u8..4, 0_u8..3), 0..4),
    ) {
        let profile = "3g.40gb".parse().unwrap();
        let mut geometry = crate::mig::ComputeGeometry::empty(profile);
        let mut parts = Vec::new();
        for (compute, start, held) in there {
            if let Ok(next) = geometry.clone().place(compute, start) {
                geometry = next;
                parts.push((compute, start, held));
            }
        }
        let observed = if parts.is_empty() { gpu(&[]) } else { shared(&parts) };
        let wanted = wanted(&asked.iter().map(|(compute, start)| part(*compute, *start)).collect::<Vec<_>>());
        let plan = plan(&observed, &wanted);
        prop_assert_eq!(check(&observed, &wanted, &plan), Ok(()));
        let mut after: Vec<(u8, u8)> = parts.iter().map(|(compute, start, _)| (*compute, *start)).collect();
        for step in &plan.steps {
            match step {
                Step::Destroy { part: Some(part), .. } => after.retain(|p| *p != (part.compute, part.start)),
                Step::Create { part: Some(part), .. } => after.push((part.compute, part.start)),
                other => prop_assert!(false, "{}", other),
            }
        }
        prop_assert!(parts.iter().all(|(compute, start, held)| !held || after.contains(&(*compute, *start))));
        for (n, place) in asked.iter().enumerate() {
            let refused = plan.refused.iter().any(|(id, _)| *id == wanted[n].id);
            // The same place may be asked for twice, and then the first one gets it.
            prop_assert!(refused != after.contains(place) || asked[..n].contains(place));
        }
    }
}
