//! `kerf bench report`: joins several runs of a workload on the same GPUs, because one node policy may not offer all
//! technologies at once.

use super::args::ReportArgs;
use super::{Results, measure, publish};
use crate::counted::counted;
use crate::input;
use anyhow::{Context as _, bail};
use kerf_core::mig::MigTable;

pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let (first, others) = args.files.paths().split_first().context("there are no results")?;
    let mut joined = publish::read(first)?;
    for path in others {
        join(&mut joined, publish::read(path)?)
            .with_context(|| format!("{} cannot be joined", input::place(path)))?;
    }
    finish(&mut joined);
    measure::prepare(&args.results.folder)?;
    publish::publish(&joined, &args.results)
}

/// Adds another run's points. A point that both runs measured is an error, because neither of its figures takes
/// precedence.
fn join(all: &mut Results, run: Results) -> anyhow::Result<()> {
    if (&all.workload, &all.command) != (&run.workload, &run.command) {
        bail!("it is of the workload {}, and the others of {}", run.workload, all.workload);
    }
    if let Some(gpu) = run.gpus.iter().find(|gpu| all.gpus.iter().all(|known| known.model != gpu.model)) {
        bail!("it is of a {}, and the others of another model", gpu.model);
    }
    for point in run.points {
        let same =
            |known: &super::Point| (known.technology, known.copies) == (point.technology, point.copies);
        if all.points.iter().any(same) {
            bail!("{} with {} was measured before", point.technology, counted(point.copies, "copy"));
        }
        all.points.push(point);
    }
    all.gpus.extend(run.gpus);
    all.failed.extend(run.failed);
    all.left_out.extend(run.left_out);
    Ok(())
}

/// Sorts, removes duplicates, and fits the model anew, because the points of all runs together may have a fit that none
/// of the runs has.
fn finish(all: &mut Results) {
    all.points.sort_by_key(|point| (point.technology, point.copies));
    all.gpus.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    all.gpus.dedup_by(|a, b| a.uuid == b.uuid);
    all.left_out.retain(|left| !all.points.iter().any(|point| point.technology == left.technology));
    (all.fit, all.fit_problem) = (None, None);
    publish::conclude(all, &MigTable::default(), None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{LeftOut, Technology};
    use serde_json::json;

    fn run(technology: &str, means: &[(u32, f64)]) -> Results {
        let point = |(copies, mean): &(u32, f64)| {
            json!({
                "technology": technology, "copies": copies, "gpu": "GPU-0", "slice": "a slice", "threadsPercent": 100,
                "meanSeconds": mean, "p50Seconds": mean, "p95Seconds": mean, "p99Seconds": mean, "perSecond": 1.0,
                "turns": 100, "windowSeconds": 20.0,
            })
        };
        let points: Vec<_> = means.iter().map(point).collect();
        let gpu = json!({"uuid": "GPU-0", "node": "n", "model": "H200-141GB", "memoryMib": 143_771});
        let results = json!({
            "version": 1, "at": "2026-01-01T00:00:00Z", "workload": "yolos", "warmUpSeconds": 10.0,
            "measureSeconds": 20.0, "gpus": [gpu], "points": points, "failed": [], "leftOut": [], "forecasts": [],
        });
        serde_json::from_value(results).unwrap()
    }

    #[test]
    fn runs_of_one_gpu_are_joined_and_fitted_anew() {
        let mut all = run("time-slicing", &[(1, 0.05), (7, 0.38)]);
        all.left_out =
            vec![LeftOut { technology: Technology::Mps, copies: None, reason: "not offered".to_owned() }];
        join(&mut all, run("mps", &[(1, 0.05), (7, 0.095)])).unwrap();
        finish(&mut all);
        let order: Vec<_> = all.points.iter().map(|point| (point.technology, point.copies)).collect();
        let [turns, mps] = [Technology::TimeSlicing, Technology::Mps];
        assert_eq!(order, [(turns, 1), (turns, 7), (mps, 1), (mps, 7)]);
        assert_eq!((all.gpus.len(), all.left_out.len()), (1, 0));
        assert!(all.fit.is_some() && all.forecasts.len() == 4, "{all:?}");
    }

    #[test]
    fn a_repeated_point_and_another_workload_are_refused() {
        let mut all = run("mps", &[(1, 0.05)]);
        assert!(join(&mut all, run("mps", &[(1, 0.06)])).is_err());
        let other = Results { workload: "llm".to_owned(), ..run("whole", &[(1, 0.05)]) };
        assert!(join(&mut all, other).unwrap_err().to_string().contains("llm"));
        let mut elsewhere = run("whole", &[(1, 0.05)]);
        elsewhere.gpus[0].model = "T4-16GB".to_owned();
        assert!(join(&mut all, elsewhere).unwrap_err().to_string().contains("T4-16GB"));
    }
}
