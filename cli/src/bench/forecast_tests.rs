use super::*;
use crate::bench::Figures;
use kerf_core::testing::mig_table;

pub fn point(technology: Technology, copies: u32, mean: f64, threads: Option<u8>) -> Point {
    Point {
        technology,
        copies,
        gpu: "GPU-0".to_owned(),
        slice: String::new(),
        threads_percent: threads,
        profile: (technology == Technology::Mig).then(|| "1g.10gb".to_owned()),
        figures: Figures {
            mean_seconds: mean,
            p50_seconds: mean,
            p95_seconds: mean,
            p99_seconds: mean,
            per_second: f64::from(copies) / mean,
            turns: 100,
            window_seconds: 20.0,
            memory_mib: None,
            power_watts: None,
            energy_per_turn_joules: None,
        },
    }
}

/// The figures of the reference comparison, measured on an A100.
fn a100() -> Vec<Point> {
    use Technology::{Mig, Mps, TimeSlicing};
    let rows = [
        (TimeSlicing, 1, 0.0882),
        (TimeSlicing, 3, 0.2931),
        (TimeSlicing, 7, 0.6849),
        (Mps, 1, 0.0880),
        (Mps, 3, 0.1640),
        (Mps, 7, 0.3198),
        (Mig, 7, 0.3442),
    ];
    let threads = |technology| (technology == Mps).then_some(100);
    rows.map(|(technology, copies, mean)| point(technology, copies, mean, threads(technology))).into()
}

#[test]
fn the_fit_predicts_other_points_within_the_bar() {
    let fit = fit(&a100()).unwrap();
    assert_eq!(fit.copies, 7);
    let table = mig_table("A100-80GB");
    let texts: Vec<String> = forecasts(&a100(), &fit, true, &table)
        .iter()
        .map(|f| format!("{} {} {:+.0} {} {}", f.technology, f.copies, f.error_percent, f.fitted, f.within))
        .collect();
    assert_eq!(
        texts,
        [
            "time-slicing 1 -0 false true",
            "time-slicing 3 -0 false true",
            "time-slicing 7 -0 true true",
            "mps 1 +0 true true",
            "mps 3 -3 false true",
            "mps 7 +0 true true",
            "mig 7 +11 false true",
        ]
    );
}

#[test]
fn a_prediction_beyond_the_bar_is_marked() {
    let fit = fit(&a100()).unwrap();
    let table = MigTable::default();
    let within =
        |mean| forecasts(&[point(Technology::Mps, 3, mean, Some(100))], &fit, true, &table)[0].within;
    assert!(within(0.164) && !within(0.12) && !within(0.18));
    // A GPU without MIG profiles has no prediction for MIG.
    assert_eq!(forecasts(&[point(Technology::Mig, 1, 0.3, None)], &fit, true, &table), []);
}

/// Shares with thread limits need another node policy than shares without, so they need a run of their own.
#[test]
fn a_run_without_its_own_fit_uses_an_earlier_fit() {
    let earlier = fit(&a100()).unwrap();
    let limited =
        [point(Technology::MpsLimited, 7, 0.3198, Some(14)), point(Technology::Mps, 7, 0.3198, Some(100))];
    let fit = with_earlier(&limited, &earlier).unwrap();
    assert_eq!(fit, earlier);
    let forecasts = forecasts(&limited, &fit, false, &MigTable::default());
    assert!(forecasts.len() == 2 && forecasts.iter().all(|forecast| !forecast.fitted));
    // The cost of time slicing comes from this run.
    let slower =
        [point(Technology::TimeSlicing, 1, 0.1, None), point(Technology::TimeSlicing, 3, 0.45, None)];
    let switching = with_earlier(&slower, &earlier).unwrap().switching.unwrap();
    assert!((switching.get() - 1.5).abs() < 1e-9);
}

#[test]
fn without_both_runs_there_is_no_fit() {
    let alone = [point(Technology::Mps, 1, 0.1, Some(100))];
    assert_eq!(fit(&alone), Err(NoFit::NoRuns));
    let faster = [point(Technology::Mps, 1, 0.1, Some(100)), point(Technology::Mps, 3, 0.05, Some(100))];
    assert!(matches!(fit(&faster), Err(NoFit::Contradiction(FitError::FasterTogether { copies: 3 }))));
}

/// The detector on an H200: seven copies took 0.0947 s without thread limits, and 0.1192 s with 14 % of the threads
/// each.
#[test]
fn the_fit_skips_copies_that_their_thread_limit_slowed_down() {
    let runs = |seven, threads| {
        fit(&[point(Technology::Mps, 1, 0.0501, Some(100)), point(Technology::Mps, 7, seven, Some(threads))])
    };
    assert_eq!(runs(0.1192, 14), Err(NoFit::Limited { copies: 7, percent: 14 }));
    // 57 % is more than a copy needs, and a copy that is not slower was not limited.
    assert!(runs(0.0947, 57).is_ok());
    assert!(runs(0.0502, 14).is_ok());
}
