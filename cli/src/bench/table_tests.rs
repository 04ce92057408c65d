use super::super::forecast::tests::point;
use super::super::{Failed, Gpu, LeftOut, Technology, VERSION};
use super::*;

fn results(workload: &str) -> Results {
    let mut seven = point(Technology::Mps, 7, 0.0947, Some(57));
    seven.figures.memory_mib = Some(9000.4);
    seven.figures.power_watts = Some(512.3);
    seven.figures.energy_per_turn_joules = Some(6.9254);
    Results {
        version: VERSION,
        at: "2026-01-01T00:00:00Z".to_owned(),
        workload: workload.to_owned(),
        command: Vec::new(),
        warm_up_seconds: 10.0,
        measure_seconds: 20.0,
        gpus: vec![Gpu {
            uuid: "GPU-0".to_owned(),
            node: "n".to_owned(),
            model: "H200-141GB".to_owned(),
            memory_mib: 143_771,
            product: Some("NVIDIA H200".to_owned()),
            driver: None,
            torch: Some("2.11".to_owned()),
        }],
        points: vec![
            point(Technology::Mps, 1, 0.0501, Some(100)),
            seven,
            point(Technology::Whole, 1, 0.05, None),
        ],
        failed: vec![Failed { technology: Technology::Mps, copies: 3, reason: "no image".to_owned() }],
        left_out: vec![LeftOut {
            technology: Technology::Mig,
            copies: None,
            reason: "none has it".to_owned(),
        }],
        fit: None,
        fit_problem: Some("no runs".to_owned()),
        forecasts: vec![Forecast {
            technology: Technology::Mps,
            copies: 7,
            measured_seconds: 0.0947,
            predicted_seconds: 0.12,
            error_percent: 26.7,
            fitted: false,
            within: false,
        }],
    }
}

#[test]
fn the_table_is_beside_the_reference_and_says_what_is_missing() {
    let results = results("yolos");
    let text = format!(
        "{}\n{}\n{}",
        points(&results).text(),
        forecasts(&results.forecasts).text(),
        document(&results)
    );
    insta::assert_snapshot!(text);
}

/// The seconds of another workload do not compare with the reference's.
#[test]
fn the_reference_stands_beside_its_own_workload_only() {
    assert!(points(&results("yolos")).text().contains("0.3198"));
    assert!(!points(&results("llm")).text().contains("0.3198"));
}

#[test]
fn results_are_read_as_they_are_written() {
    let results = results("yolos");
    let text = serde_json::to_string_pretty(&results).unwrap();
    assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results);
    assert!(text.contains("\"meanSeconds\": 0.0947") && text.contains("\"technology\": \"mps\""), "{text}");
}
