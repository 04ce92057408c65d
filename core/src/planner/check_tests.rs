use super::super::{Allowed, ObservedPart, ObservedReplica, ObservedShare};
use super::*;
use crate::contract::{MpsMemory, NodePolicy, Reservation};
use crate::ledger::Limits;
use crate::mig::{Geometry, Placement};
use crate::names::PodUid;
use crate::testing::{SimulatedNode, h100_shape, wanted};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
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
fn an_instance_is_made_as_desired() {
    let desired = wanted(&[h100_shape("1g.10gb", 0), h100_shape("2g.20gb", 4)]);
    let part = MigPart::Compute(ComputeInstance { start: 0, compute: 1 });
    let of_part = Shape::from_instance(desired[1].shape.instance().unwrap(), part);
    for (shape, id) in [
        (h100_shape("1g.10gb", 1), "s0"),
        (h100_shape("1g.10gb", 0), "s1"),
        (h100_shape("1g.10gb", 0), "s9"),
        (of_part, "s1"),
    ] {
        let other = WantedSlice { id: SliceId::new(id), shape, ..desired[0].clone() };
        let text = verdict(&h100(), &desired, vec![create(&other)]);
        assert!(text.ends_with("is not desired"), "{shape} for {id}: {text}");
    }
}

#[test]
fn at_most_one_instance_has_media_engines() {
    let pro = SimulatedNode::new(&["RTX-PRO-6000-96GB"], NodePolicy::default(), Limits::default()).observed();
    let quarter = |extras: &str, start| Shape::Mig {
        profile: format!("1g.24gb{extras}").parse().unwrap(),
        start,
        size: 3,
        part: MigPart::Whole,
    };
    for (first, second, expected) in [
        ("+me", "", true),
        ("+me", "-me", true),
        ("+me.all", "+gfx", true),
        ("+me", "+me", false),
        ("+me", "+me.all", false),
        ("+me.all", "+me", false),
    ] {
        let found = can_exist(&pro, &[quarter(first, 0), quarter(second, 3)], create);
        assert_eq!(found, expected, "{first} and {second}");
    }
}

#[test]
fn compute_instances_are_within_their_gpu_instance_and_apart() {
    let of = h100_shape("3g.40gb", 4).instance().unwrap();
    let parts_fit = |parts: &[(u8, u8)]| {
        let part = |(start, compute): &(u8, u8)| {
            MigPart::Compute(ComputeInstance { start: *start, compute: *compute })
        };
        fit(&parts.iter().map(|p| Shape::from_instance(of, part(p))).collect::<Vec<_>>())
    };
    for parts in [&[(0, 1), (1, 1), (2, 1)][..], &[(0, 2), (2, 1)], &[(0, 3)]] {
        assert!(parts_fit(parts), "{parts:?}");
    }
    for parts in
        [&[(3, 1)][..], &[(2, 2)], &[(0, 4)], &[(0, 1), (0, 1)], &[(0, 2), (1, 1)], &[(0, 0)], &[(9, 255)]]
    {
        assert!(!parts_fit(parts), "{parts:?}");
    }
    let twice = Shape::from_instance(of, MigPart::Compute(ComputeInstance { start: 0, compute: 1 }));
    assert!(!fit(&[h100_shape("1g.10gb", 0), twice, twice]), "whatever is beside it");
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
    let desired = |start, compute| Shape::from_instance(instance, MigPart::Compute(part(start, compute)));
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
fn an_idle_instance_beside_the_desired_one_goes_only_if_another_is_missing() {
    let mut observed = divided(&[], &[]);
    let instance = h100_shape("1g.10gb", 0).instance().unwrap();
    observed.gpus[0].instances.push(ObservedInstance {
        instance,
        held: false,
        parts: vec![],
        replicas: vec![],
    });
    let destroy = || vec![Step::Destroy { gpu: GpuUuid::new("GPU-0"), instance, part: None }];
    let (there, missing) = (h100_shape("3g.40gb", 4), h100_shape("2g.20gb", 0));
    let text = "1g.10gb at 0:1 on GPU-0 is destroyed for nothing";
    assert_eq!(verdict(&observed, &wanted(&[there]), destroy()), text);
    assert_eq!(verdict(&observed, &wanted(&[there, missing]), destroy()), "");
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
    // Processes outside kerf's slices may use all memory of a GPU that was reserved before.
    let all = SizeGb(4).share_memory().0;
    assert!(serves(all, Allowed::default(), &[whole]));
    assert!(!serves(all, Allowed::default(), &[whole, whole]));
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

#[test]
fn compute_limits_and_an_overcommitted_memory_bound_mps_shares() {
    let mps = |gb, percent| Shape::Mps { size_gb: SizeGb(gb), compute: ComputePercent::new(percent) };
    assert!(serves(0, Allowed::default(), &[mps(1, 50), mps(1, 50)]));
    assert!(!serves(0, Allowed::default(), &[mps(1, 50), mps(1, 51)]));
    let plain = Shape::Mps { size_gb: SizeGb(1), compute: None };
    assert!(
        serves(0, Allowed::default(), &[mps(1, 75), plain]),
        "a quarter of the memory has one of compute"
    );
    assert!(!serves(0, Allowed::default(), &[mps(1, 76), plain]));
    let doubled = || Allowed { mps_memory: MpsMemory::try_from(200).unwrap(), ..Allowed::default() };
    assert!(serves(0, doubled(), &[plain; 8]) && !serves(0, doubled(), &[plain; 9]));
    assert!(serves(0, doubled(), &[mps(1, 100), mps(1, 100)]));
    assert!(!serves(0, doubled(), &[mps(5, 1)]), "one share is within the GPU");
    let turn = |gb| Shape::TimeSlicing { size_gb: SizeGb(gb) };
    assert!(!serves(0, doubled(), &[turn(1); 5]), "the rule is for MPS");
    let equal = || Allowed { one_size: true, ..Allowed::default() };
    assert!(serves(0, equal(), &[turn(1), turn(2)]), "and so is this");
}

#[test]
fn a_share_is_made_as_desired_and_only_without_mig() {
    let mps = |gb| Shape::Mps { size_gb: SizeGb(gb), compute: None };
    let desired = wanted(&[mps(1)]);
    let mut larger = start(&desired[0]);
    let Step::Start { shape, .. } = &mut larger else { unreachable!() };
    *shape = mps(2);
    let observed = of_four(0, Allowed::default());
    assert_eq!(verdict(&observed, &desired, vec![larger]), "s0 on GPU-0 is not desired");
    assert_eq!(verdict(&h100(), &desired, vec![start(&desired[0])]), "s0 on GPU-0 does not fit");
}

/// A step that switches the MIG mode of the GPU.
fn switch(mig: bool) -> Vec<Step> {
    vec![Step::Switch { gpu: GpuUuid::new("GPU-0"), mig }]
}

#[test]
fn the_mig_mode_is_switched_as_the_policy_asks_on_an_empty_gpu() {
    let with = |switch_to, mut observed: Observed| {
        observed.gpus[0].allowed.switch_to = switch_to;
        observed
    };
    let text = |why: &str| format!("the MIG mode of GPU-0 may not be switched: {why}");
    assert_eq!(verdict(&with(Some(false), h100()), &[], switch(false)), "");
    for asked in [None, Some(true)] {
        let unasked = verdict(&with(asked, h100()), &[], switch(false));
        assert_eq!(unasked, text("policy does not ask for it"), "{asked:?}");
    }
    let left = text("slices are left on it");
    assert_eq!(verdict(&with(Some(false), divided(&[], &[])), &[], switch(false)), left);
    let mut shared = of_four(0, Allowed::default());
    let shape = Shape::TimeSlicing { size_gb: SizeGb(1) };
    shared.gpus[0].shares = vec![ObservedShare { id: SliceId::new("s0"), shape, held: false }];
    assert_eq!(verdict(&with(Some(true), shared.clone()), &[], switch(true)), left);
    let end = Step::End { gpu: GpuUuid::new("GPU-0"), id: SliceId::new("s0") };
    let mut desired = wanted(&[shape]);
    let clear = [vec![end], switch(true)].concat();
    let shared = with(Some(true), shared);
    assert_eq!(verdict(&shared, &desired, clear.clone()), "", "an idle share goes, though it is desired");
    desired[0].reservation = Some(reservation());
    assert_eq!(verdict(&shared, &desired, clear), "s0 on GPU-0 is desired");
    let empty = with(Some(true), of_four(0, Allowed::default()));
    let reserved = text("a pod has reserved a slice of it");
    assert_eq!(verdict(&empty, &desired, switch(true)), reserved);
    desired[0].reservation = None;
    let after = [switch(true), vec![start(&desired[0])]].concat();
    assert_eq!(verdict(&empty, &desired, after), "s0 on GPU-0 does not fit", "it has no shares any more");
    let instances = wanted(&[h100_shape("1g.10gb", 0)]);
    let after = [switch(false), vec![create(&instances[0])]].concat();
    let text = "1g.10gb at 0:1 on GPU-0 does not fit";
    assert_eq!(verdict(&with(Some(false), h100()), &instances, after), text, "nor has this one instances");
}

fn reservation() -> Reservation {
    Reservation {
        uid: PodUid::new("uid-a"),
        namespace: "default".to_owned(),
        pod: "a".to_owned(),
        container: "main".to_owned(),
        resource: "nvidia.com/gpu-1gb.shared".parse().unwrap(),
        alone: false,
        epoch: 1,
    }
}

#[test]
fn an_idle_instance_goes_for_another_mode_though_it_is_desired() {
    let instance = h100_shape("3g.40gb", 4);
    let desired = wanted(&[instance]);
    let gpu = GpuUuid::new("GPU-0");
    let destroy = vec![Step::Destroy { gpu, instance: instance.instance().unwrap(), part: None }];
    let mut observed = divided(&[], &[]);
    assert_eq!(verdict(&observed, &desired, destroy.clone()), "3g.40gb at 4:4 on GPU-0 is desired");
    observed.gpus[0].allowed.switch_to = Some(false);
    let mut beside = [desired.clone(), wanted(&[h100_shape("1g.10gb", 0)])].concat();
    beside[1].reservation = Some(reservation());
    let still = verdict(&observed, &beside, destroy.clone());
    assert_eq!(still, "3g.40gb at 4:4 on GPU-0 is desired", "no mode is switched while a slice is reserved");
    assert_eq!(verdict(&observed, &desired, [destroy, switch(false)].concat()), "");
}

#[test]
fn replicas_are_of_an_undivided_instance_that_is_desired_for_them() {
    let instance = h100_shape("3g.40gb", 4).instance().unwrap();
    let turns = |numbers: &[u8]| -> Vec<WantedSlice> {
        let shape = |number: &u8| Shape::from_instance(instance, MigPart::Replica { replica: *number });
        wanted(&numbers.iter().map(shape).collect::<Vec<_>>())
    };
    let allowing = |most, mut observed: Observed| {
        observed.gpus[0].allowed.mig_replicas = most;
        observed
    };
    let starts = |observed: &Observed, desired: &[WantedSlice]| {
        verdict(observed, desired, desired.iter().map(start).collect())
    };
    let idle = divided(&[], &[]);
    assert_eq!(starts(&allowing(Some(2), idle.clone()), &turns(&[0, 1])), "");
    let does_not_fit = |id: &str| format!("{id} on GPU-0 does not fit");
    assert_eq!(starts(&allowing(Some(2), idle.clone()), &turns(&[0, 1, 2])), does_not_fit("s2"));
    assert_eq!(starts(&allowing(Some(9), idle.clone()), &turns(&[0, 0])), does_not_fit("s1"));
    assert_eq!(starts(&allowing(Some(9), h100()), &turns(&[0])), does_not_fit("s0"));
    let part = ComputeInstance { start: 0, compute: 1 };
    assert_eq!(starts(&allowing(Some(9), divided(&[(part, false)], &[])), &turns(&[0])), does_not_fit("s0"));
    let whole_first = [wanted(&[h100_shape("3g.40gb", 4)]), turns(&[0])].concat();
    let second = vec![start(&whole_first[1])];
    assert_eq!(verdict(&allowing(Some(9), idle.clone()), &whole_first, second), does_not_fit("s0"));
    let not_allowed = "s0 on GPU-0 is not allowed by the node's policy";
    assert_eq!(starts(&allowing(None, idle.clone()), &turns(&[0])), not_allowed);
    let mut held = allowing(Some(9), idle);
    held.gpus[0].instances[0].held = true;
    assert_eq!(starts(&held, &turns(&[0])), "s0 on GPU-0 is held");
}
