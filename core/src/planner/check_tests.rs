use super::super::{Allowed, ObservedPart, ObservedReplica, ObservedShare};
use super::*;
use crate::contract::NodePolicy;
use crate::ledger::Limits;
use crate::mig::{Geometry, Placement};
use crate::testing::{SimulatedNode, h100_shape, wanted};
use crate::units::{MemoryMib, SizeGb};
use proptest::prelude::*;

/// An H100 without slices.
fn h100() -> Observed {
    SimulatedNode::new(&["H100-80GB"], NodePolicy::default(), Limits::default()).observed()
}

/// A step that makes the desired slice.
fn create(slice: &WantedSlice) -> Step {
    let (gpu, id, instance) = (slice.gpu.clone(), slice.id.clone(), slice.shape.instance().unwrap());
    Step::Create { gpu, instance, part: slice.shape.part(), id }
}

/// Why the steps are rejected, or an empty text.
fn verdict(observed: &Observed, wanted: &[WantedSlice], steps: Vec<Step>) -> String {
    let checked = check(observed, wanted, &Plan { steps, refused: vec![] });
    checked.map_or_else(|violation| violation.to_string(), |()| String::new())
}

/// Whether the checker lets these slices be made on an empty H100.
fn fit(shapes: &[Shape]) -> bool {
    can_exist(&h100(), shapes, create)
}

/// Whether the checker lets each of these slices be made by its step.
fn can_exist(observed: &Observed, shapes: &[Shape], step: impl Fn(&WantedSlice) -> Step) -> bool {
    let wanted = wanted(shapes);
    let steps = wanted.iter().map(step).collect();
    match check(observed, &wanted, &Plan { steps, refused: vec![] }) {
        Ok(()) => true,
        Err(Violation::DoesNotFit(..)) => false,
        Err(other) => panic!("{other}"),
    }
}

proptest! {
    /// Checker and planner share no rule, but must allow the same.
    #[test]
    fn instances_fit_exactly_if_they_are_a_geometry(
        asked in prop::collection::vec((0_usize..7, 0_u8..9), 1..9),
    ) {
        let table = h100().gpus.remove(0).table.unwrap();
        let (mut geometry, mut shapes) = (Geometry::empty(&table), Vec::new());
        for (n, start) in asked {
            let entry = &table.entries()[n];
            let placement = Placement { start, size: entry.size };
            let next = geometry.clone().place(entry.profile, start);
            let new = Shape::mig(Instance { profile: entry.profile, placement });
            prop_assert_eq!(fit(&[shapes.as_slice(), &[new]].concat()), next.is_ok(), "{} beside {:?}", new, shapes);
            if let Ok(next) = next {
                shapes.push(new);
                geometry = next;
            }
        }
    }
}

#[test]
fn an_instance_must_be_of_the_gpus_table() {
    let Shape::Mig { profile, .. } = h100_shape("1g.10gb", 0) else { unreachable!() };
    let sized = |size| Shape::mig(Instance { profile, placement: Placement { start: 0, size } });
    assert!(fit(&[sized(1)]) && !fit(&[sized(2)]));
    let foreign = Instance { profile: "1g.5gb".parse().unwrap(), placement: Placement { start: 0, size: 1 } };
    assert!(!fit(&[Shape::mig(foreign)]));
    let mut without_mig = h100();
    without_mig.gpus[0].table = None;
    let one = wanted(&[sized(1)]);
    assert_eq!(verdict(&without_mig, &one, vec![create(&one[0])]), "1g.10gb at 0:1 on GPU-0 does not fit");
    let mut shares_only = h100();
    shares_only.gpus[0].allowed.kinds = vec![Kind::Mps];
    let text = "1g.10gb at 0:1 on GPU-0 is not allowed by the node's policy";
    assert_eq!(verdict(&shares_only, &one, vec![create(&one[0])]), text);
    let mut elsewhere = create(&one[0]);
    let Step::Create { gpu, .. } = &mut elsewhere else { unreachable!() };
    *gpu = GpuUuid::new("GPU-9");
    assert_eq!(verdict(&h100(), &one, vec![elsewhere]), "GPU-9 is not on this node");
}

#[test]
fn compute_instances_are_within_their_gpu_instance_and_apart() {
    let of = h100_shape("3g.40gb", 4).instance().unwrap();
    let parts_fit = |parts: &[(u8, u8)]| {
        let part = |(start, compute): &(u8, u8)| {
            MigPart::Compute(ComputeInstance { start: *start, compute: *compute })
        };
        fit(&parts.iter().map(|p| Shape::of_instance(of, part(p))).collect::<Vec<_>>())
    };
    for parts in [&[(0, 1), (1, 1), (2, 1)][..], &[(0, 2), (2, 1)], &[(0, 3)]] {
        assert!(parts_fit(parts), "{parts:?}");
    }
    for parts in
        [&[(3, 1)][..], &[(2, 2)], &[(0, 4)], &[(0, 1), (0, 1)], &[(0, 2), (1, 1)], &[(0, 0)], &[(9, 255)]]
    {
        assert!(!parts_fit(parts), "{parts:?}");
    }
}

#[test]
fn what_is_held_desired_or_absent_is_not_ended() {
    let share = |id: &str, held| {
        let shape = Shape::TimeSlicing { size_gb: SizeGb(1) };
        ObservedShare { id: SliceId::new(id), shape, held }
    };
    let mut observed = h100();
    observed.gpus[0].table = None;
    observed.gpus[0].shares = vec![share("held", true), share("s0", false), share("idle", false)];
    let end = |id: &str| vec![Step::End { gpu: GpuUuid::new("GPU-0"), id: SliceId::new(id) }];
    let desired = wanted(&[Shape::TimeSlicing { size_gb: SizeGb(1) }]);
    assert_eq!(verdict(&observed, &desired, end("held")), "held on GPU-0 is held");
    assert_eq!(verdict(&observed, &desired, end("s0")), "s0 on GPU-0 is desired");
    assert_eq!(verdict(&observed, &desired, end("idle")), "");
    assert_eq!(verdict(&observed, &desired, end("none")), "none on GPU-0 does not exist");
    assert_eq!(
        verdict(&observed, &desired, [end("idle"), end("idle")].concat()),
        "idle on GPU-0 does not exist"
    );
}

/// A `3g.40gb` with these compute instances and replicas.
fn divided(parts: &[(ComputeInstance, bool)], replicas: &[(&str, u8, bool)]) -> Observed {
    let mut observed = h100();
    let part = |(part, held): &_| ObservedPart { part: *part, held: *held };
    let replica = |(id, number, held): &(&str, u8, bool)| ObservedReplica {
        id: SliceId::new(*id),
        number: *number,
        held: *held,
    };
    observed.gpus[0].instances = vec![ObservedInstance {
        instance: h100_shape("3g.40gb", 4).instance().unwrap(),
        held: false,
        parts: parts.iter().map(part).collect(),
        replicas: replicas.iter().map(replica).collect(),
    }];
    observed
}

#[test]
fn a_part_is_destroyed_only_if_it_is_idle_undesired_and_in_the_way() {
    let instance = h100_shape("3g.40gb", 4).instance().unwrap();
    let part = |start, compute| ComputeInstance { start, compute };
    let desired = |start, compute| Shape::of_instance(instance, MigPart::Compute(part(start, compute)));
    let destroy = |part| vec![Step::Destroy { gpu: GpuUuid::new("GPU-0"), instance, part }];
    let observed = divided(&[(part(0, 1), true), (part(1, 1), false)], &[]);
    let bigger = wanted(&[desired(1, 2)]);
    let text = |what: &str| format!("1c.3g.40gb at 4:4, compute {what}");
    assert_eq!(verdict(&observed, &bigger, destroy(Some(part(0, 1)))), text("0 on GPU-0 is held"));
    assert_eq!(verdict(&observed, &bigger, destroy(Some(part(1, 1)))), "");
    assert_eq!(verdict(&observed, &bigger, destroy(Some(part(2, 1)))), text("2 on GPU-0 does not exist"));
    assert_eq!(verdict(&observed, &bigger, destroy(None)), "3g.40gb at 4:4 on GPU-0 is held");
    let there = wanted(&[desired(1, 1)]);
    assert_eq!(verdict(&observed, &there, destroy(Some(part(1, 1)))), text("1 on GPU-0 is desired"));
    assert_eq!(
        verdict(&observed, &[], destroy(Some(part(1, 1)))),
        text("1 on GPU-0 is destroyed for nothing")
    );
    let beside_the_desired = divided(&[(part(0, 1), false), (part(1, 1), false)], &[]);
    assert_eq!(
        verdict(&beside_the_desired, &wanted(&[desired(0, 1)]), destroy(Some(part(1, 1)))),
        text("1 on GPU-0 is destroyed for nothing")
    );
    let idle = divided(&[(part(1, 1), false)], &[]);
    assert_eq!(verdict(&idle, &there, destroy(None)), "3g.40gb at 4:4 on GPU-0 is desired");
    assert_eq!(verdict(&idle, &wanted(&[h100_shape("3g.40gb", 4)]), destroy(None)), "");
}

#[test]
fn an_instance_with_replicas_goes_after_them() {
    let instance = h100_shape("3g.40gb", 4).instance().unwrap();
    let gpu = || GpuUuid::new("GPU-0");
    let (destroy, end) = (
        Step::Destroy { gpu: gpu(), instance, part: None },
        Step::End { gpu: gpu(), id: SliceId::new("turn") },
    );
    let other = wanted(&[h100_shape("7g.80gb", 0)]);
    let idle = divided(&[], &[("turn", 0, false)]);
    assert_eq!(verdict(&idle, &other, vec![destroy.clone()]), "3g.40gb at 4:4 on GPU-0 still has replicas");
    assert_eq!(verdict(&idle, &other, vec![end.clone(), destroy.clone()]), "");
    let held = divided(&[], &[("turn", 0, true)]);
    assert_eq!(verdict(&held, &other, vec![end]), "turn on GPU-0 is held");
    assert_eq!(verdict(&held, &other, vec![destroy]), "3g.40gb at 4:4 on GPU-0 is held");
}

/// A GPU for four shares of 1 GB, less so many MiB.
fn of_four(missing: u64, allowed: Allowed) -> Observed {
    let mut observed = h100();
    let gpu = &mut observed.gpus[0];
    (gpu.table, gpu.allowed) = (None, allowed);
    gpu.memory = MemoryMib(SizeGb(4).share_memory().0 - missing);
    observed
}

/// A step that serves the desired share.
fn start(share: &WantedSlice) -> Step {
    Step::Start { gpu: share.gpu.clone(), id: share.id.clone(), shape: share.shape }
}

/// Whether the checker lets these shares be served by a GPU for four shares of 1 GB, less so many MiB.
fn serves(missing: u64, allowed: Allowed, shapes: &[Shape]) -> bool {
    can_exist(&of_four(missing, allowed), shapes, start)
}

#[test]
fn shares_are_within_the_gpu_and_of_one_kind() {
    let (turn, mps) =
        (Shape::TimeSlicing { size_gb: SizeGb(1) }, Shape::Mps { size_gb: SizeGb(1), compute: None });
    let whole = Shape::Whole { size_gb: SizeGb(4) };
    for one in [turn, mps] {
        assert!(serves(0, Allowed::default(), &[one; 4]));
        assert!(!serves(1, Allowed::default(), &[one; 4]), "one MiB is missing");
        assert!(!serves(0, Allowed::default(), &[one, whole]));
    }
    assert!(serves(0, Allowed::default(), &[whole]));
    assert!(!serves(0, Allowed::default(), &[whole, whole]));
    assert!(!serves(0, Allowed::default(), &[turn, mps]));
}

#[test]
fn the_policy_limits_shares() {
    let mps = |gb| Shape::Mps { size_gb: SizeGb(gb), compute: None };
    let few = || Allowed { mps_shares: Some(2), ..Allowed::default() };
    assert!(serves(0, few(), &[mps(1); 2]) && !serves(0, few(), &[mps(1); 3]));
    let equal = || Allowed { one_size: true, ..Allowed::default() };
    assert!(serves(0, equal(), &[mps(1); 3]) && !serves(0, equal(), &[mps(1), mps(2)]));
    let no_mps = || Allowed { kinds: vec![Kind::TimeSlicing], ..Allowed::default() };
    assert!(serves(0, no_mps(), &[Shape::TimeSlicing { size_gb: SizeGb(1) }]));
    let one = wanted(&[mps(1)]);
    let text = "s0 on GPU-0 is not allowed by the node's policy";
    assert_eq!(verdict(&of_four(0, no_mps()), &one, vec![start(&one[0])]), text);
}
