use super::*;
use crate::mig::Profile;
use crate::packing::fraction::{Busy, Sharing};
use crate::units::{ComputePercent, SizeGb};
use proptest::prelude::*;
use std::num::NonZeroU32;

const TURNS: Technology = Technology::TimeSlicing { switching: SwitchingCost::A100 };

fn latency(seconds: f64) -> Latency {
    Latency::from_seconds(seconds).unwrap()
}

fn duty(part: f64) -> Duty {
    Duty::new(part).unwrap()
}

fn workload(need: f64, pressure: f64) -> Workload {
    Workload::new(latency(0.1), Need::new(need).unwrap(), Need::new(pressure).unwrap())
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

fn slowdown(workload: Workload, technology: Technology, copies: u32) -> f64 {
    let copies = NonZeroU32::new(copies).unwrap();
    predict_copies(workload, technology, copies).mean.seconds() / workload.alone().seconds()
}

#[test]
fn runs_without_a_result_are_refused_with_a_remedy() {
    let fit = |copies, mean| Run::new(copies, mean).and_then(|run| Workload::fit(latency(0.1), run));
    for mean in [0.0, -0.1, f64::NAN, f64::INFINITY] {
        assert_eq!(fit(7, mean), Err(FitError::NoTime), "{mean}");
    }
    assert_eq!(fit(0, 0.1), Err(FitError::TooFewCopies { copies: 0 }));
    assert_eq!(fit(1, 0.1), Err(FitError::TooFewCopies { copies: 1 }));
    assert_eq!(fit(7, 0.09), Err(FitError::FasterTogether { copies: 7 }));
    assert_eq!(fit(7, 1.5), Err(FitError::SlowerThanInTurns { copies: 7 }));
    let text = fit(1, 0.1).unwrap_err().to_string();
    assert_eq!(text, "too few copies ran together: 1; run 2 or more, best as many as are to share a GPU");
}

#[test]
fn a_run_faster_by_noise_counts_as_without_interference() {
    let fitted = Workload::fit(latency(0.1), Run::new(5, 0.098).unwrap()).unwrap();
    assert_eq!((fitted.need().get(), fitted.pressure().get()), (0.2, 0.0));
}

#[test]
fn a_profile_is_read_as_it_is_written() {
    let profile = workload(0.5, 0.25).with_duty(duty(0.065));
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(text, r#"{"aloneSeconds":0.1,"need":0.5,"pressure":0.25,"duty":0.065}"#);
    assert_eq!(serde_json::from_str::<Workload>(&text).unwrap(), profile);
    let bad = text.replace("0.065", "6.5");
    let refusal = serde_json::from_str::<Workload>(&bad).unwrap_err().to_string();
    assert!(refusal.contains("a duty is a part of the time from 0 to 1"), "{refusal}");
}

#[test]
fn a_technology_is_read_as_it_is_written() {
    let limited = Technology::Mps { limit: ComputePercent::new(14) };
    for (technology, text) in [
        (Technology::Whole, r#"{"kind":"whole"}"#),
        (Technology::MPS, r#"{"kind":"mps"}"#),
        (limited, r#"{"kind":"mps","limit":14}"#),
        (TURNS, r#"{"kind":"time-slicing","switching":1.11}"#),
    ] {
        assert_eq!(serde_json::to_string(&technology).unwrap(), text);
        assert_eq!(serde_json::from_str::<Technology>(text).unwrap(), technology);
    }
}

/// The mean of a shared processor, 1 / (1 - load of the others), which is 1 + load if the load is small.
#[test]
fn open_loops_below_saturation_behave_like_a_shared_processor() {
    let tenth = workload(1.0, 1.0).with_duty(duty(0.1));
    assert!(near(slowdown(tenth, Technology::MPS, 7), 1.0 / (1.0 - 6.0 * 0.1)));
    let seldom = workload(0.5, 0.5).with_duty(duty(0.01));
    let first_order = 1.0 + 4.0 * 0.01 * 1.11;
    assert!((slowdown(seldom, TURNS, 5) / first_order - 1.0).abs() < 0.01);
}

#[test]
fn open_loops_beyond_saturation_behave_like_closed_loops() {
    let busy = workload(0.9, 0.8);
    for technology in [Technology::MPS, TURNS] {
        let open = slowdown(busy.with_duty(duty(0.5)), technology, 8);
        assert!(near(open, slowdown(busy, technology, 8)), "{technology:?}");
    }
}

/// More copies than were measured have at most the throughput that was measured with 7 copies.
#[test]
fn more_copies_than_measured_have_the_measured_throughput() {
    let fitted = Workload::fit(latency(0.1), Run::new(7, 0.25).unwrap()).unwrap();
    assert!(near(slowdown(fitted, Technology::MPS, 7), 2.5));
    assert!(near(slowdown(fitted, Technology::MPS, 14), 5.0));
}

#[test]
fn a_limit_of_threads_slows_its_own_tenant_only() {
    let limit = |percent| Technology::Mps { limit: ComputePercent::new(percent) };
    let tenant = |technology| Tenant { workload: workload(0.4, 0.3), technology };
    let means = |tenants: &[Tenant]| predict(tenants).iter().map(|p| p.mean.seconds()).collect::<Vec<_>>();
    let free = means(&[tenant(Technology::MPS); 2]);
    let one = means(&[tenant(limit(20)), tenant(Technology::MPS)]);
    assert!(near(one[0], 0.1 * 1.2 * 0.4 / 0.2) && near(one[1], free[1]));
    assert_eq!(means(&[tenant(limit(100)); 2]), free);
}

#[test]
fn tenants_are_admitted_up_to_the_busy_limit() {
    let tenth = workload(0.5, 0.4).with_duty(duty(0.1));
    assert_eq!((tenth.busy(Sharing::Mps), tenth.busy(Sharing::TimeSlicing)), (Busy(50), Busy(100)));
    assert_eq!(admits(Sharing::Mps, &[tenth; 14]), Ok(()));
    let overload = Overload { busy: Busy(750), limit: Busy(700) };
    assert_eq!(admits(Sharing::Mps, &[tenth; 15]), Err(overload));
    assert_eq!(admits(Sharing::TimeSlicing, &[tenth; 6]), Ok(()));
    assert!(admits(Sharing::TimeSlicing, &[tenth; 7]).is_err());
    assert_eq!(admits(Sharing::TimeSlicing, &[workload(1.0, 1.0)]), Ok(()));
}

fn any_workload() -> impl Strategy<Value = Workload> {
    (0.001..1.0, 0.01..1.2, 0.0..1.0, 0_u16..=1000).prop_map(|(alone, need, part, duty)| {
        let need = Need::new(need).unwrap();
        let pressure = Need::new(need.get() * part).unwrap();
        Workload::new(latency(alone), need, pressure).with_duty(Duty::new(f64::from(duty) / 1000.0).unwrap())
    })
}

fn any_technology() -> impl Strategy<Value = Technology> {
    let limit = (1_u8..=100).prop_map(|percent| Technology::Mps { limit: ComputePercent::new(percent) });
    prop_oneof![Just(Technology::MPS), limit, Just(TURNS)]
}

/// Tenants that share one GPU in one way.
fn any_tenants() -> impl Strategy<Value = Vec<Tenant>> {
    let share = prop::collection::vec((any_workload(), any_technology()), 1..10);
    (share, any::<bool>()).prop_map(|(tenants, turns)| {
        let chosen = |technology| if turns { TURNS } else { technology };
        let mps = |technology| if technology == TURNS { Technology::MPS } else { technology };
        tenants.into_iter().map(|(workload, t)| Tenant { workload, technology: chosen(mps(t)) }).collect()
    })
}

/// Whether no tenant of `before` is faster in `after`, which begins with the same tenants.
fn nobody_is_faster(before: &[Tenant], after: &[Tenant]) -> bool {
    let slower = |(a, b): (&Prediction, &Prediction)| b.mean.seconds() >= a.mean.seconds() * (1.0 - 1e-6);
    predict(before).iter().zip(&predict(after)).all(slower)
}

proptest! {
    #[test]
    fn a_fit_lies_on_both_of_its_runs(alone in 0.001..1.0, part in 0.0..1.0, copies in 2_u32..20) {
        let mean = alone * (1.0 + part * f64::from(copies - 1));
        let fitted = Workload::fit(latency(alone), Run::new(copies, mean).unwrap()).unwrap();
        prop_assert!(near(slowdown(fitted, Technology::MPS, 1), 1.0));
        prop_assert!(near(slowdown(fitted, Technology::MPS, copies) * alone, mean));
    }

    #[test]
    fn one_more_neighbour_makes_no_tenant_faster(tenants in any_tenants(), next in any_workload()) {
        let mut more = tenants.clone();
        more.push(Tenant { workload: next, technology: tenants[0].technology });
        prop_assert!(nobody_is_faster(&tenants, &more));
    }

    #[test]
    fn a_busier_neighbour_makes_no_tenant_faster(tenants in any_tenants(), busier in 0.0..1.0) {
        let mut after = tenants.clone();
        let now = after[0].workload.duty().get();
        after[0].workload = after[0].workload.with_duty(duty(now.max(busier)));
        prop_assert!(nobody_is_faster(&tenants, &after));
    }

    #[test]
    fn neighbours_that_are_never_busy_cost_nothing(tenants in any_tenants(), idle in any_workload(), many in 0_usize..5) {
        let technology = tenants[0].technology;
        let mut more = tenants.clone();
        more.extend(vec![Tenant { workload: idle.with_duty(duty(0.0)), technology }; many]);
        for (before, after) in predict(&tenants).iter().zip(predict(&more)) {
            prop_assert!(near(before.mean.seconds(), after.mean.seconds()));
        }
    }

    #[test]
    fn an_isolated_tenant_is_not_slowed_down(tenants in any_tenants(), fenced in any_workload()) {
        let fenced = Tenant { workload: fenced, technology: Technology::Whole };
        let mut more = vec![fenced];
        more.extend(tenants);
        prop_assert_eq!(predict(&more)[0], predict(&[fenced])[0]);
    }

    #[test]
    fn a_tighter_limit_is_never_faster(workload in any_workload(), copies in 1_u32..9, percent in 1_u8..100) {
        let limited = |percent| slowdown(workload, Technology::Mps { limit: ComputePercent::new(percent) }, copies);
        prop_assert!(limited(percent) >= limited(percent + 1) * (1.0 - 1e-6));
        prop_assert!(limited(100) >= slowdown(workload, Technology::MPS, copies) * (1.0 - 1e-6));
    }

    #[test]
    fn a_smaller_slice_is_never_faster(workload in any_workload(), percent in 1_u8..100) {
        let sliced = |percent: u8| {
            let part = GpuPart::new(f64::from(percent) / 100.0).unwrap();
            slowdown(workload, Technology::Mig { profile: Profile::plain(1, SizeGb(10)), part }, 1)
        };
        prop_assert!(sliced(percent) >= sliced(percent + 1));
    }

    #[test]
    fn no_tenant_does_more_than_its_arrivals(tenants in any_tenants()) {
        for (tenant, prediction) in tenants.iter().zip(predict(&tenants)) {
            let comes = tenant.workload.duty().get() / tenant.workload.alone().seconds();
            prop_assert!(prediction.throughput.per_second() <= comes * (1.0 + 1e-9));
        }
    }
}
