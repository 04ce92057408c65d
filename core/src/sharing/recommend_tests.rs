use super::*;
use crate::kind::{IsolationClass, Kind};
use crate::mig::MigTable;
use crate::packing::fraction::Sharing;
use crate::testing::mig_table;
use crate::units::{ComputePercent, MemoryMib};
use proptest::prelude::*;

const GIB: u64 = 1024;

fn latency(seconds: f64) -> Latency {
    Latency::from_seconds(seconds).unwrap()
}

fn duty(part: f64) -> Duty {
    Duty::new(part).unwrap()
}

/// YOLOS-small on an A100, from measurements.
fn yolos() -> Workload {
    Workload::fit(latency(0.0880), Run::new(7, 0.3198).unwrap()).unwrap()
}

fn wish(workload: Workload, isolation: IsolationClass, target: Target) -> Wish {
    Wish { workload, memory: MemoryMib(9 * GIB), isolation, target, share: Share::WhatIsLeft }
}

fn supply<'a>(table: &'a MigTable, kinds: &'a [Kind]) -> Supply<'a> {
    Supply { memory: MemoryMib(80 * GIB), table, kinds, switching: SwitchingCost::A100 }
}

fn advice(wish: Wish) -> Advice {
    recommend(&wish, &supply(&mig_table("A100-80GB"), &Kind::ALL)).unwrap()
}

/// The kind, the number of tenants, its bound, and the reason.
fn reported(advice: &Advice) -> (Kind, u32, Bound, Why) {
    (advice.technology.kind(), advice.tenants.get(), advice.bound, advice.why)
}

#[test]
fn the_recommendation_depends_on_the_tenants() {
    use IsolationClass::{Hardware, Memory, None};
    let always = yolos();
    let seldom = yolos().with_duty(duty(0.065));
    let often = yolos().with_duty(duty(0.3));
    let third = Target::Mean(latency(0.3));
    for (workload, isolation, target, expected) in [
        // Tenants that trust each other run side by side, as many as memory or the target allows.
        (always, None, Target::None, (Kind::Mps, 8, Bound::Memory, Why::Preferred)),
        (always, Memory, third, (Kind::Mps, 6, Bound::Target, Why::Preferred)),
        // Tenants that do not trust each other are isolated.
        (always, Hardware, Target::None, (Kind::Mig, 7, Bound::Instances, Why::Preferred)),
        (always, None, Target::Hard(latency(0.42)), (Kind::Mig, 7, Bound::Instances, Why::Preferred)),
        (always, Hardware, Target::Mean(latency(0.2)), (Kind::Mig, 2, Bound::Instances, Why::Preferred)),
        (always, Hardware, Target::Mean(latency(0.09)), (Kind::Whole, 1, Bound::Alone, Why::OnlyOne)),
        // Tenants that are idle most of the time take turns, unless memory must be isolated.
        (seldom, None, Target::None, (Kind::TimeSlicing, 8, Bound::Memory, Why::Preferred)),
        (seldom, Memory, Target::None, (Kind::Mps, 8, Bound::Memory, Why::Preferred)),
        // Tenants that are busy more often are limited by load.
        (often, Memory, Target::None, (Kind::Mps, 4, Bound::Load, Why::Preferred)),
    ] {
        let advice = advice(wish(workload, isolation, target));
        assert_eq!(reported(&advice), expected, "{isolation} {target:?} {:?}", workload.duty());
    }
}

#[test]
fn kinds_that_were_passed_over_have_a_reason() {
    let hardware = advice(wish(yolos(), IsolationClass::Hardware, Target::None));
    let expected = [
        (Kind::Whole, PassedOver::LessDone),
        (Kind::Mps, PassedOver::NotIsolated),
        (Kind::TimeSlicing, PassedOver::NotIsolated),
    ];
    assert_eq!(hardware.passed_over, expected.into());
    let fast = advice(wish(yolos(), IsolationClass::None, Target::Mean(latency(0.12))));
    assert_eq!(fast.passed_over[&Kind::TimeSlicing], PassedOver::LessDone);
    // Two halves of the GPU have more throughput than a single tenant that leaves no room for a second one.
    assert_eq!(reported(&fast), (Kind::Mig, 2, Bound::Instances, Why::MostDone));
    assert_eq!(fast.passed_over[&Kind::Mps], PassedOver::LessDone);
}

#[test]
fn a_wish_that_no_kind_serves_is_refused_with_reasons() {
    let refused = |wish: Wish, kinds: &[Kind]| {
        recommend(&wish, &supply(&mig_table("A100-80GB"), kinds)).unwrap_err().passed_over
    };
    let slow = refused(wish(yolos(), IsolationClass::None, Target::Mean(latency(0.05))), &Kind::ALL);
    assert!(slow.values().all(|reason| *reason == PassedOver::Target), "{slow:?}");
    let big = Wish { memory: MemoryMib(90 * GIB), ..wish(yolos(), IsolationClass::None, Target::None) };
    assert!(refused(big, &Kind::ALL).values().all(|reason| *reason == PassedOver::Memory));
    let untrusted = refused(wish(yolos(), IsolationClass::Hardware, Target::None), &[Kind::Mps]);
    assert_eq!(untrusted[&Kind::Mps], PassedOver::NotIsolated);
    assert_eq!(untrusted[&Kind::Mig], PassedOver::NotOffered);
}

#[test]
fn an_equal_share_is_a_limit_of_threads() {
    let wish =
        Wish { share: Share::Equal, ..wish(yolos(), IsolationClass::Memory, Target::Mean(latency(0.42))) };
    let only_mps = [Kind::Mps];
    let advice = recommend(&wish, &supply(&mig_table("A100-80GB"), &only_mps)).unwrap();
    let expected = Technology::Mps { limit: ComputePercent::new(14) };
    assert_eq!((advice.technology, advice.tenants.get(), advice.bound), (expected, 7, Bound::Target));
}

/// The smallest slice is too slow for the arrival rate, although its memory suffices.
#[test]
fn an_open_loop_gets_a_slice_that_keeps_up() {
    let advice = advice(wish(yolos().with_duty(duty(0.4)), IsolationClass::Hardware, Target::None));
    assert!(advice.each.busy < Duty::ALWAYS);
    let Technology::Mig { profile, .. } = advice.technology else { panic!("{advice:?}") };
    assert_eq!(profile.to_string(), "2g.20gb");
}

#[test]
fn advice_is_read_as_it_is_written() {
    let advice = advice(wish(yolos(), IsolationClass::Hardware, Target::None));
    let text = serde_json::to_string(&advice).unwrap();
    assert!(text.contains(r#""passedOver":{"whole":"less-done""#), "{text}");
    let read: Advice = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (read.technology, read.tenants, read.passed_over),
        (advice.technology, advice.tenants, advice.passed_over)
    );
}

fn any_wish() -> impl Strategy<Value = Wish> {
    let workload = (0.01..0.2, 0.05..1.0, 0.0..1.0, prop_oneof![Just(1.0), 0.01..1.0_f64]);
    let workload = workload.prop_map(|(alone, need, part, busy)| {
        let need = Need::new(need).unwrap();
        let pressure = Need::new(need.get() * part).unwrap();
        Workload::new(latency(alone), need, pressure).with_duty(duty(busy))
    });
    let isolation = prop::sample::select(IsolationClass::ALL.to_vec());
    let target = (0_u8..3, 0.02..1.0).prop_map(|(kind, seconds)| match kind {
        0 => Target::None,
        1 => Target::Mean(latency(seconds)),
        _ => Target::Hard(latency(seconds)),
    });
    let share = prop::sample::select(vec![Share::WhatIsLeft, Share::Equal]);
    (workload, 1_u64..90, isolation, target, share).prop_map(|(workload, gib, isolation, target, share)| {
        Wish { workload, memory: MemoryMib(gib * GIB), isolation, target, share }
    })
}

proptest! {
    #[test]
    fn advice_keeps_the_wish(wish in any_wish()) {
        let table = mig_table("A100-80GB");
        let Ok(advice) = recommend(&wish, &supply(&table, &Kind::ALL)) else { return Ok(()) };
        let kind = advice.technology.kind();
        let tenants = usize::try_from(advice.tenants.get()).unwrap();
        prop_assert!(wish.isolation.is_served_by(kind));
        prop_assert_eq!(advice.each, predict_copies(wish.workload, advice.technology, advice.tenants));
        match wish.target {
            Target::None => {}
            Target::Mean(most) => prop_assert!(advice.each.mean <= most),
            Target::Hard(most) => {
                prop_assert!(advice.each.mean <= most);
                prop_assert!(matches!(kind, Kind::Mig | Kind::Whole));
            }
        }
        let sharing = match kind {
            Kind::Mps => Some(Sharing::Mps),
            Kind::TimeSlicing => Some(Sharing::TimeSlicing),
            Kind::Mig | Kind::Whole => None,
        };
        if let Some(sharing) = sharing {
            prop_assert!(wish.memory.0 * u64::from(advice.tenants.get()) <= 80 * GIB);
            let all = vec![wish.workload; tenants];
            prop_assert!(wish.workload.duty() == Duty::ALWAYS || admits(sharing, &all).is_ok());
        }
        prop_assert!(!advice.passed_over.contains_key(&kind));
        prop_assert_eq!(advice.passed_over.len(), 3);
    }

    /// If only one other way is offered, its throughput is at most a tenth above that of the recommendation.
    #[test]
    fn no_other_kind_has_much_more_throughput(wish in any_wish()) {
        let table = mig_table("A100-80GB");
        let Ok(advice) = recommend(&wish, &supply(&table, &Kind::ALL)) else { return Ok(()) };
        for kind in Kind::ALL {
            let Ok(other) = recommend(&wish, &supply(&table, &[kind])) else { continue };
            prop_assert!(advice.throughput.per_second() >= 0.9 * other.throughput.per_second());
        }
    }
}
