use super::*;
use crate::contract::MigPart;
use crate::mig::ComputeInstance;
use crate::names::PodUid;
use crate::testing::h100_shape;
use crate::testing::offer_life::{Life, Outcome, Step};
use crate::units::{ComputePercent, SizeGb};
use proptest::prelude::*;

const NEUTRAL: ResourceName = ResourceName::Neutral(SizeGb(10));

fn reservation(pod: &str, resource: ResourceName) -> Reservation {
    Reservation {
        uid: PodUid::new(pod),
        namespace: "ns".into(),
        pod: pod.into(),
        container: "main".into(),
        resource,
        alone: false,
        epoch: 1,
    }
}

/// The slice `s<n>` of this shape under the neutral name, reserved for `pod`.
fn of_shape(n: usize, shape: Shape, pod: &str) -> ExistingSlice {
    ExistingSlice {
        id: SliceId::new(format!("s{n}")),
        device: DeviceId::new(format!("d{n}")),
        shape,
        model: "H100-80GB".to_owned(),
        held_as: None,
        settled: false,
        served: true,
        reservation: Some(reservation(pod, NEUTRAL)),
    }
}

/// A GPU instance under the name of the smaller profile, as a GPU of this model serves it.
fn mig(n: usize, profile: &str, model: &str, pod: Option<&str>, held: bool) -> ExistingSlice {
    let name = ResourceName::Mig("1g.10gb".parse().unwrap());
    let shape = Shape::Mig { profile: profile.parse().unwrap(), start: 0, size: 1, part: MigPart::Whole };
    ExistingSlice {
        model: model.to_owned(),
        held_as: held.then_some(name),
        settled: held,
        reservation: pod.map(|pod| reservation(pod, name)),
        ..of_shape(n, shape, "")
    }
}

fn missing(shape: Shape, pod: &str, name: ResourceName) -> MissingSlice {
    MissingSlice { shape, model: "H100-80GB".to_owned(), reservation: reservation(pod, name) }
}

fn offered(slices: &[ExistingSlice]) -> Offer {
    offer(slices, &[], &Bindings::default())
}

fn possible(pods: &[&str]) -> Bindings {
    let pods: Vec<_> = pods.iter().map(|pod| PodUid::new(*pod)).collect();
    let mut bindings = Bindings::default();
    bindings.take_status(pods.iter().map(|uid| (uid, true)));
    bindings
}

fn devices(offer: &Offer) -> String {
    offer.healthy.values().flatten().map(DeviceId::as_str).collect::<Vec<_>>().join(" ")
}

fn waiting(offer: &Offer) -> String {
    offer.waiting.iter().map(SliceId::as_str).collect::<Vec<_>>().join(" ")
}

fn ungranted(offer: &Offer) -> String {
    offer.ungranted.values().flatten().map(DeviceId::as_str).collect::<Vec<_>>().join(" ")
}

fn share(size: u32) -> Shape {
    Shape::mps(SizeGb(size))
}

fn time_slice(size: u32) -> Shape {
    Shape::TimeSlicing { size_gb: SizeGb(size) }
}

#[test]
fn an_idle_slice_is_not_offered() {
    assert_eq!(offered(&[mig(1, "1g.10gb", "H100-80GB", None, false)]), Offer::default());
}

#[test]
fn a_held_slice_stays_offered_though_its_reservation_is_gone() {
    assert_eq!(devices(&offered(&[mig(1, "1g.10gb", "H100-80GB", None, true)])), "d1");
}

#[test]
fn equal_slices_are_offered_together_and_others_wait() {
    let slices = [
        mig(1, "1g.10gb", "H100-80GB", Some("a"), false),
        mig(2, "1g.18gb", "H200-141GB", Some("b"), false),
        mig(3, "1g.10gb", "H100-80GB", Some("c"), false),
    ];
    let offer = offered(&slices);
    assert_eq!((devices(&offer), waiting(&offer)), ("d1 d3".into(), "s2".into()));
}

#[test]
fn mps_shares_with_other_parts_of_the_compute_are_not_offered_together() {
    let share = |n, pod, compute| {
        let shape = Shape::Mps { size_gb: SizeGb(4), compute: ComputePercent::new(compute) };
        of_shape(n, shape, pod)
    };
    let slices = [share(1, "a", 30), share(2, "b", 40), share(3, "c", 30), share(4, "d", 0)];
    assert_eq!(devices(&offered(&slices)), "d1 d3");
}

#[test]
fn shares_of_two_kinds_are_not_offered_together() {
    let slices = [of_shape(1, share(10), "a"), of_shape(2, time_slice(10), "b"), of_shape(3, share(10), "c")];
    let offer = offered(&slices);
    assert_eq!((devices(&offer), waiting(&offer)), ("d1 d3".into(), "s2".into()));
}

#[test]
fn parts_of_an_instance_are_worth_the_same_wherever_they_lie() {
    let instance = h100_shape("2g.20gb", 0).instance().unwrap();
    let shape = |part| Shape::from_instance(instance, part);
    let part = |start, compute| shape(MigPart::Compute(ComputeInstance { start, compute }));
    let replica = |replica| shape(MigPart::Replica { replica });
    let shapes = [part(0, 1), part(1, 1), part(0, 2), replica(0), replica(1), shape(MigPart::Whole)];
    let pods = ["a", "b", "c", "d", "e", "f"];
    let with_first = |first: usize| {
        let order = (first..6).chain(0..first);
        let slices: Vec<_> = order.map(|n| of_shape(n, shapes[n], pods[n])).collect();
        devices(&offered(&slices))
    };
    assert_eq!([0, 2, 3, 5].map(with_first), ["d0 d1", "d2", "d3 d4", "d5"]);
}

#[test]
fn a_pod_whose_slices_are_still_cut_blocks_no_other_pod() {
    let first = of_shape(1, h100_shape("1g.10gb", 0), "a");
    let ready = of_shape(3, share(10), "b");
    // The first pod's other slice is missing, under this name or another, or its MPS daemon is starting.
    for name in [NEUTRAL, ResourceName::Neutral(SizeGb(20))] {
        let missing = missing(share(10), "a", name);
        let offer = offer(&[first.clone(), ready.clone()], &[missing], &Bindings::default());
        assert_eq!((devices(&offer), waiting(&offer)), ("d3".into(), String::new()), "{name}");
    }
    let starting = ExistingSlice { served: false, ..of_shape(2, share(10), "a") };
    assert_eq!(devices(&offered(&[first, starting, ready])), "d3");
}

#[test]
fn the_claims_of_a_pod_that_may_be_bound_stay_open() {
    let first = of_shape(1, share(10), "a");
    let bound = of_shape(2, h100_shape("1g.10gb", 0), "b");
    let offer_beside = |slices: &[ExistingSlice], missing: &[MissingSlice]| {
        let offer = offer(slices, missing, &possible(&["b"]));
        (devices(&offer), waiting(&offer))
    };
    // The bound pod comes before the first reservation, even if its slice is not served any longer or is gone.
    assert_eq!(offer_beside(&[first.clone(), bound.clone()], &[]), ("d2".into(), "s1".into()));
    let unserved = ExistingSlice { served: false, ..bound };
    assert_eq!(offer_beside(&[first.clone(), unserved], &[]), (String::new(), "s1".into()));
    let lost = missing(h100_shape("1g.10gb", 0), "b", NEUTRAL);
    assert_eq!(offer_beside(std::slice::from_ref(&first), &[lost]), (String::new(), "s1".into()));
    // It may get a slice that is worth the same instead.
    assert_eq!(offer_beside(&[first], &[missing(share(10), "b", NEUTRAL)]), ("d1".into(), String::new()));
}

#[test]
fn a_pod_is_offered_all_its_names_or_none() {
    let other = ResourceName::Neutral(SizeGb(20));
    let under = |n, name, shape, pod| {
        let reservation = Some(reservation(pod, name));
        ExistingSlice { reservation, ..of_shape(n, shape, pod) }
    };
    let slices = [
        under(1, NEUTRAL, share(10), "a"),
        under(2, NEUTRAL, time_slice(10), "b"),
        under(3, other, share(20), "b"),
        under(4, other, time_slice(20), "c"),
    ];
    let offer = offered(&slices);
    assert_eq!((devices(&offer), waiting(&offer)), ("d1 d4".into(), "s2".into()));
}

#[test]
fn an_allocated_device_counts_until_its_pod_is_admitted() {
    let held = |settled| ExistingSlice {
        held_as: Some(NEUTRAL),
        settled,
        ..of_shape(1, h100_shape("1g.10gb", 0), "a")
    };
    let slices = |settled| [held(settled), of_shape(2, share(10), "b")];
    let offer_of = |slices: &[ExistingSlice]| offer(slices, &[], &possible(&["a"]));
    // The kubelet may still reject the pod, and give its device to the next one.
    let given = offer_of(&slices(false));
    assert_eq!((devices(&given), waiting(&given)), ("d1".into(), "s2".into()));
    assert_eq!(ungranted(&given), "d2", "an init container may hand on the other");
    // The same holds if the pod is unknown.
    let unknown = offered(&slices(false));
    assert_eq!((devices(&unknown), waiting(&unknown)), ("d1".into(), "s2".into()));
    let unreserved = ExistingSlice { reservation: None, ..held(false) };
    let unreserved = offer_of(&[unreserved, of_shape(2, share(10), "b")]);
    assert_eq!((devices(&unreserved), waiting(&unreserved)), ("d1".into(), "s2".into()));
    // The kubelet may have freed the device that the agent counts as held.
    let admitted = offer_of(&slices(true));
    assert_eq!((devices(&admitted), waiting(&admitted)), ("d1 d2".into(), String::new()));
    assert_eq!(ungranted(&admitted), "d1");
    let equal = offer_of(&[held(true), of_shape(2, h100_shape("1g.10gb", 3), "b")]);
    assert_eq!((devices(&equal), ungranted(&equal)), ("d1 d2".into(), String::new()));
    // The agent has seen the pod end, and the kubelet may not have taken the list without its device yet.
    let idle = ExistingSlice { held_as: None, reservation: None, ..held(false) };
    let withdrawn = offer_of(&[idle, of_shape(2, share(10), "b")]);
    assert_eq!((devices(&withdrawn), ungranted(&withdrawn)), ("d2".into(), "d1".into()));
}

#[test]
fn the_slices_of_one_pod_are_offered_together_and_alone_if_they_differ() {
    let slices = [
        mig(1, "1g.10gb", "H100-80GB", Some("a"), false),
        mig(2, "1g.18gb", "H200-141GB", Some("a"), false),
        mig(3, "1g.10gb", "H100-80GB", Some("c"), false),
    ];
    assert_eq!(devices(&offered(&slices)), "d1 d2");
}

#[test]
fn a_pod_that_must_be_alone_is_not_offered_beside_others() {
    let alone = |n, pod, held| {
        let mut slice = mig(n, "1g.10gb", "H100-80GB", Some(pod), held);
        slice.reservation.as_mut().unwrap().alone = true;
        slice
    };
    let other = |n, held| mig(n, "1g.10gb", "H100-80GB", Some("b"), held);
    let offered = |slices: &[ExistingSlice]| devices(&offered(slices));
    assert_eq!(offered(&[alone(1, "a", false), alone(2, "a", false), other(3, false)]), "d1 d2");
    assert_eq!(offered(&[alone(1, "a", true), alone(2, "a", false), other(3, false)]), "d1 d2");
    assert_eq!(offered(&[alone(1, "a", true), alone(2, "a", true), other(3, false)]), "d1 d2 d3");
    assert_eq!(offered(&[other(1, false), alone(2, "a", false), other(3, false)]), "d1 d3");
    assert_eq!(offered(&[other(1, true), alone(2, "a", false), other(3, true)]), "d1 d2 d3");
}

#[test]
fn a_pod_may_be_bound_once_all_its_slices_were_ready_and_until_it_has_ended() {
    let (a, b) = (PodUid::new("a"), PodUid::new("b"));
    let mut bindings = Bindings::default();
    let mut after = |bound: &str, ready: &[(&PodUid, bool)]| {
        bindings.take_pods([&a, &b], |uid| uid.as_str() == bound);
        bindings.take_status(ready.iter().copied());
        [&a, &b].map(|uid| (bindings.may_be(uid), bindings.is_over(uid)))
    };
    let (unknown, may_be, over) = ((false, false), (true, false), (false, true));
    assert_eq!(after("", &[(&a, true), (&a, false), (&b, false)]), [unknown, unknown]);
    assert_eq!(after("", &[(&a, true), (&a, true), (&b, false)]), [may_be, unknown]);
    assert_eq!(after("b", &[(&a, false), (&b, false)]), [may_be, may_be]);
    assert_eq!(after("", &[(&b, true)]), [may_be, over]);
    bindings.take_pods([], |_| true);
    assert_eq!(bindings, Bindings::default(), "nothing is reserved any more");
}

#[test]
fn the_reservation_of_a_pod_that_has_ended_is_not_offered() {
    let ended = PodUid::new("a");
    let mut bindings = Bindings::default();
    bindings.take_pods([&ended], |_| true);
    bindings.take_pods([&ended], |_| false);
    let slices = [of_shape(1, share(10), "a"), of_shape(2, time_slice(10), "b")];
    let offer = offer(&slices, &[], &bindings);
    assert_eq!((devices(&offer), waiting(&offer)), ("d2".into(), String::new()));
}

#[test]
fn two_bound_pods_that_exclude_each_other_are_granted_nothing() {
    let slices = [of_shape(1, share(10), "a"), of_shape(2, time_slice(10), "b"), of_shape(3, share(10), "c")];
    let offer = offer(&slices, &[], &possible(&["a", "b"]));
    assert_eq!((devices(&offer), waiting(&offer)), ("d1".into(), "s2 s3".into()));
    assert_eq!(ungranted(&offer), "d1 d2 d3");
}

/// Runs one history; the error names the step with a fault.
fn live(steps: impl IntoIterator<Item = Step>) -> Result<Outcome, String> {
    let mut life = Life::default();
    for (n, step) in steps.into_iter().enumerate() {
        life.step(step).map_err(|fault| format!("step {n}: {fault}"))?;
    }
    life.finish()?;
    Ok(life.outcome)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn each_pod_holds_what_it_has_reserved_whatever_the_kubelet_picks(
        steps in prop::collection::vec(any::<Step>(), 0..200),
    ) {
        let outcome = live(steps);
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
    }
}

/// The same histories at every run. Pods must be admitted in them, because otherwise they would prove nothing.
#[test]
fn most_pods_of_each_history_are_admitted() {
    let mut total = Outcome::default();
    for seed in 1..=200_u64 {
        let mixed = |n: u64| {
            let mixed = (seed << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let step = |n: u64| (mixed(n).to_be_bytes()[0], mixed(n) >> 5 ^ mixed(!n));
        let outcome = live((0..150).map(step));
        total += outcome.unwrap_or_else(|fault| panic!("seed {seed}, {fault}"));
    }
    assert!(total.admitted > 1000 && total.admitted > 20 * total.refused, "{total:?}");
}
