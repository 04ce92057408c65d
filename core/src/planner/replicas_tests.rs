use super::super::{Allowed, Observed, check, plan};
use super::*;
use crate::contract::{MigPart, WantedSlice};
use crate::kind::Kind;
use crate::mig::ComputeInstance;
use crate::names::{GpuUuid, SliceId};
use crate::planner::ObservedPart;
use crate::testing::{h100_shape, mig_table, wanted};
use crate::units::MemoryMib;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The most pods that take turns in these tests.
const MOST: u8 = 3;

/// A replica of the `1g.10gb` at memory slice 0.
fn replica(number: u8) -> Shape {
    let instance = h100_shape("1g.10gb", 0).instance().unwrap();
    Shape::from_instance(instance, MigPart::Replica { replica: number })
}

/// An H100 with that instance and these replicas; the one with number `n` is called `r<n>`.
fn served(replicas: &[(u8, bool)]) -> Observed {
    let replica = |(number, held): &(u8, bool)| ObservedReplica {
        number: *number,
        id: SliceId::new(format!("r{number}")),
        held: *held,
    };
    let mut observed = empty();
    observed.gpus[0].instances = vec![ObservedInstance {
        instance: h100_shape("1g.10gb", 0).instance().unwrap(),
        held: false,
        parts: vec![],
        replicas: replicas.iter().map(replica).collect(),
    }];
    observed
}

fn empty() -> Observed {
    let gpu = ObservedGpu {
        uuid: GpuUuid::new("GPU-0"),
        memory: MemoryMib(81_559),
        allowed: Allowed { mig_replicas: Some(MOST), ..Allowed::default() },
        table: Some(mig_table("H100-80GB")),
        instances: vec![],
        shares: vec![],
    };
    Observed { gpus: vec![gpu] }
}

/// The steps and the refusals, each as a text.
fn planned(observed: &Observed, wanted: &[WantedSlice]) -> (Vec<String>, Vec<String>) {
    let plan = plan(observed, wanted);
    assert_eq!(check(observed, wanted, &plan), Ok(()));
    let refused = plan.refused.iter().map(|(id, obstacle)| format!("{id}: {obstacle}"));
    (plan.steps.iter().map(ToString::to_string).collect(), refused.collect())
}

const TOO_MANY: &str = "as many pods take turns on the GPU instance as the node's policy allows";

#[test]
fn no_replica_starts_once_policy_disallows_mig() {
    let mut observed = served(&[]);
    observed.gpus[0].allowed.kinds = vec![Kind::Whole];
    let (steps, refused) = planned(&observed, &wanted(&[replica(0)]));
    assert_eq!(steps, Vec::<String>::new());
    assert_eq!(refused, [format!("s0: {}", Obstacle::NotAllowed(Kind::Mig))]);
}

#[test]
fn the_instance_is_made_once_and_each_replica_started() {
    let (steps, refused) = planned(&empty(), &wanted(&[replica(0), replica(1), replica(0), replica(5)]));
    assert_eq!(
        steps,
        [
            "create 1g.10gb at 0:1 on GPU-0 for s0",
            "start 1g.10gb at 0:1, replica 0 s0 on GPU-0",
            "start 1g.10gb at 0:1, replica 1 s1 on GPU-0",
            "start 1g.10gb at 0:1, replica 5 s3 on GPU-0",
        ]
    );
    assert_eq!(refused, ["s2: it cannot exist beside the other slices: memory slices 0:1 are taken"]);
}

#[test]
fn no_more_replicas_start_than_policy_allows() {
    // A held replica counts even if no slice asks for it.
    let observed = served(&[(0, true), (1, true), (2, false)]);
    let (steps, refused) = planned(&observed, &wanted(&[replica(1), replica(3), replica(4)]));
    assert_eq!(steps, ["end share r2 on GPU-0", "start 1g.10gb at 0:1, replica 3 s1 on GPU-0"]);
    assert_eq!(refused, [format!("s2: {TOO_MANY}")]);
    let idle = served(&[(0, false), (1, false)]);
    let (steps, refused) = planned(&idle, &wanted(&[replica(0), replica(1), replica(2), replica(3)]));
    assert_eq!(steps, ["start 1g.10gb at 0:1, replica 2 s2 on GPU-0"], "desired ones count too");
    assert_eq!(refused, [format!("s3: {TOO_MANY}")]);
    let mut without = empty();
    without.gpus[0].allowed.mig_replicas = None;
    let (steps, refused) = planned(&without, &wanted(&[replica(0)]));
    assert!(steps.is_empty() && refused[0].contains("no mig.timeSlicing"), "{steps:?} {refused:?}");
}

#[test]
fn an_instance_serves_one_pod_or_replicas() {
    let whole = h100_shape("1g.10gb", 0);
    // Idle replicas end, and the instance serves a pod as a whole.
    assert_eq!(planned(&served(&[(0, false)]), &wanted(&[whole])).0, ["end share r0 on GPU-0"]);
    let held = planned(&served(&[(0, true)]), &wanted(&[whole]));
    assert_eq!(held, (vec![], vec!["s0: slices in use are in its way".to_owned()]));
    let mut observed = served(&[]);
    observed.gpus[0].instances[0].held = true;
    let held = planned(&observed, &wanted(&[replica(0)]));
    assert_eq!(held, (vec![], vec!["s0: slices in use are in its way".to_owned()]));
    // An idle instance that exists is shared as it is.
    let started = "start 1g.10gb at 0:1, replica 0 s0 on GPU-0";
    assert_eq!(planned(&served(&[]), &wanted(&[replica(0)])).0, [started]);
    let both = planned(&empty(), &wanted(&[whole, replica(0)]));
    assert_eq!(both.0, ["create 1g.10gb at 0:1 on GPU-0 for s0"]);
    assert_eq!(both.1, ["s1: it cannot exist beside the other slices: memory slices 0:1 are taken"]);
}

/// If two slices use an instance in different ways, the first one gets it. What exists of the second one blocks the
/// instance.
#[test]
fn the_first_of_two_conflicting_slices_gets_the_instance() {
    let mut there = served(&[(0, false)]);
    there.gpus[0].instances[0].replicas[0].id = SliceId::new("s1");
    let (whole, other) = (h100_shape("1g.10gb", 0), h100_shape("3g.40gb", 4));
    let (steps, refused) = planned(&there, &wanted(&[whole, replica(0), other]));
    assert_eq!(steps, ["end share s1 on GPU-0", "create 3g.40gb at 4:4 on GPU-0 for s2"]);
    assert_eq!(refused, ["s1: it cannot exist beside the other slices: memory slices 0:1 are taken"]);

    let of_big = |compute| {
        let part = ComputeInstance { start: 0, compute };
        Shape::from_instance(other.instance().unwrap(), MigPart::Compute(part))
    };
    let mut there = otherwise(true);
    there.gpus[0].instances[0].parts[0].held = false;
    for first in [other, Shape::from_instance(other.instance().unwrap(), MigPart::Replica { replica: 0 })] {
        let (steps, _) = planned(&there, &wanted(&[first, of_big(1), whole]));
        let (gone, made) = ("destroy 3g.40gb at 4:4 on GPU-0", "create 1g.10gb at 0:1 on GPU-0 for s2");
        assert_eq!((steps[0].as_str(), steps.contains(&made.to_owned())), (gone, true), "{steps:?}");
    }
    let mut there = otherwise(false);
    there.gpus[0].instances[0].held = false;
    let (steps, _) = planned(&there, &wanted(&[of_big(1), other, whole]));
    assert_eq!((steps[0].as_str(), steps.len()), ("destroy 3g.40gb at 4:4 on GPU-0", 3), "{steps:?}");
}

#[test]
fn an_instance_is_destroyed_after_its_replicas_and_never_while_one_is_held() {
    let big = wanted(&[h100_shape("7g.80gb", 0)]);
    assert_eq!(
        planned(&served(&[(0, false), (1, false)]), &big).0,
        [
            "end share r0 on GPU-0",
            "end share r1 on GPU-0",
            "destroy 1g.10gb at 0:1 on GPU-0",
            "create 7g.80gb at 0:8 on GPU-0 for s0",
        ]
    );
    let (steps, refused) = planned(&served(&[(0, false), (1, true)]), &big);
    assert_eq!(steps, ["end share r0 on GPU-0"]);
    assert_eq!(refused, ["s0: slices in use are in its way"]);
}

/// A node with one instance that is used in another way than in turns.
fn otherwise(parts: bool) -> Observed {
    let mut observed = served(&[]);
    let instance = &mut observed.gpus[0].instances[0];
    instance.instance = h100_shape("3g.40gb", 4).instance().unwrap();
    instance.held = !parts;
    if parts {
        let part = ComputeInstance { start: 0, compute: 1 };
        instance.parts = vec![ObservedPart { part, held: true }];
    }
    observed
}

#[test]
fn the_checker_rejects_forbidden_steps() {
    let uuid = || GpuUuid::new("GPU-0");
    let start = |id: &str, shape| Step::Start { gpu: uuid(), id: SliceId::new(id), shape };
    let instance = replica(0).instance().unwrap();
    let verdict = |observed: &Observed, wanted: &[WantedSlice], step: Step| {
        check(observed, wanted, &Plan { steps: vec![step], refused: vec![] }).unwrap_err().to_string()
    };
    let one = wanted(&[replica(0)]);
    let fits_not = "s0 on GPU-0 does not fit";
    assert_eq!(verdict(&empty(), &one, start("s0", replica(0))), fits_not, "the instance is not there");
    assert_eq!(verdict(&served(&[(0, true)]), &one, start("s0", replica(0))), fits_not, "it is served");
    let full = served(&[(1, true), (2, true), (3, false)]);
    assert_eq!(verdict(&full, &one, start("s0", replica(0))), fits_not, "beyond policy's number");
    let after_whole = wanted(&[h100_shape("1g.10gb", 0), replica(0)]);
    assert_eq!(
        verdict(&served(&[]), &after_whole, start("s1", replica(0))),
        "s1 on GPU-0 does not fit",
        "the first slice has the whole instance"
    );
    let of_big = h100_shape("3g.40gb", 4).instance().unwrap();
    let of_big = wanted(&[Shape::from_instance(of_big, MigPart::Replica { replica: 0 })]);
    for (parts, text) in [(false, "s0 on GPU-0 is held"), (true, fits_not)] {
        assert_eq!(verdict(&otherwise(parts), &of_big, start("s0", of_big[0].shape)), text);
    }
    assert_eq!(verdict(&served(&[]), &[], start("s0", replica(0))), "s0 on GPU-0 is not desired");
    for allowed in [
        Allowed { mig_replicas: None, ..Allowed::default() },
        Allowed { kinds: vec![Kind::Whole], mig_replicas: Some(MOST), ..Allowed::default() },
    ] {
        let mut observed = served(&[]);
        observed.gpus[0].allowed = allowed;
        let refused = verdict(&observed, &one, start("s0", replica(0)));
        assert_eq!(refused, "s0 on GPU-0 is not allowed by the node's policy");
    }
    let end = |id: &str| Step::End { gpu: uuid(), id: SliceId::new(id) };
    assert_eq!(verdict(&served(&[(0, true)]), &[], end("r0")), "r0 on GPU-0 is held");
    let destroy = Step::Destroy { gpu: uuid(), instance, part: None };
    let big = wanted(&[h100_shape("7g.80gb", 0)]);
    assert_eq!(
        verdict(&served(&[(0, false)]), &big, destroy.clone()),
        "1g.10gb at 0:1 on GPU-0 still has replicas"
    );
    assert_eq!(verdict(&served(&[(0, true)]), &big, destroy), "1g.10gb at 0:1 on GPU-0 is held");
}

proptest! {
    /// From any replicas to any others: the checker accepts the plan, no held replica ends, there are never more than
    /// the policy allows beside those that were too many before, and everything that is not refused exists.
    #[test]
    fn every_plan_of_replicas_is_accepted_and_reaches_what_it_does_not_refuse(
        there in prop::collection::btree_map(0_u8..6, any::<bool>(), 0..5),
        asked in prop::collection::vec(0_u8..6, 0..6),
        is_there in any::<bool>(),
    ) {
        let there: Vec<(u8, bool)> = there.into_iter().collect();
        let observed = if is_there { served(&there) } else { empty() };
        let before: BTreeSet<u8> = there.iter().filter(|_| is_there).map(|(number, _)| *number).collect();
        let wanted = wanted(&asked.iter().map(|number| replica(*number)).collect::<Vec<_>>());
        let plan = plan(&observed, &wanted);
        prop_assert_eq!(check(&observed, &wanted, &plan), Ok(()));
        let mut after = before.clone();
        for step in &plan.steps {
            match step {
                Step::End { id, .. } => after.retain(|number| *id != SliceId::new(format!("r{number}"))),
                Step::Start { shape, .. } => drop(after.insert(shape.replica().unwrap())),
                Step::Create { .. } => prop_assert!(!is_there),
                other => prop_assert!(false, "{}", other),
            }
        }
        let held = there.iter().filter(|(_, held)| *held && is_there).map(|(number, _)| *number);
        prop_assert!(held.into_iter().all(|number| after.contains(&number)));
        prop_assert!(after.len() <= before.len().max(usize::from(MOST)));
        for (place, slice) in wanted.iter().enumerate() {
            let refused = plan.refused.iter().any(|(id, _)| *id == slice.id);
            prop_assert!(refused != after.contains(&asked[place]) || asked[..place].contains(&asked[place]));
        }
        prop_assert_eq!(plan.steps.iter().filter(|step| matches!(step, Step::Create { .. })).count() > 0, !is_there && !asked.is_empty());
    }
}
