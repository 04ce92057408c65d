//! Results as they are shown and kept: the model beside them, tables, the picture.

use super::{Fit, Results, forecast, measure, picture, table};
use anyhow::Context as _;
use kerf_core::mig::MigTable;
use std::io::Write as _;
use std::path::Path;

/// The name of the results in their folder.
pub const RESULTS: &str = "results.json";

/// Results that were written before.
pub fn read(path: &Path) -> anyhow::Result<Results> {
    let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{} is no {RESULTS} of this version", path.display()))
}

/// Fits the model, and lets it predict. `table` has the profiles of the MIG instances, if there were any.
pub fn conclude(results: &mut Results, table: &MigTable, earlier: Option<&Fit>) {
    let own = forecast::fit(&results.points);
    let is_own = own.is_ok();
    let fit = own.or_else(|problem| match earlier {
        Some(earlier) => forecast::with_earlier(&results.points, earlier),
        None => Err(problem),
    });
    match fit {
        Ok(fit) => {
            let one_model = results.gpus.windows(2).all(|pair| pair[0].model == pair[1].model);
            // The numbers of one model say nothing of another's instances.
            let table = if one_model { table } else { &MigTable::default() };
            results.forecasts = forecast::forecasts(&results.points, &fit, is_own, table);
            results.fit = Some(fit);
        }
        Err(problem) => results.fit_problem = Some(problem.to_string()),
    }
}

/// Writes everything but the sensors, and prints the tables.
pub fn publish(results: &Results, out: &Path) -> anyhow::Result<()> {
    measure::write(out, RESULTS, &(serde_json::to_string_pretty(results)? + "\n"))?;
    measure::write(out, "results.md", &table::document(results))?;
    let models: Vec<&str> =
        results.gpus.iter().map(|gpu| gpu.product.as_deref().unwrap_or(&gpu.model)).collect();
    let title = format!("{} on {}", results.workload, models.join(" and "));
    measure::write(out, "sharing.svg", &picture::picture(&title, &results.points))?;
    let mut text = table::points(results).text();
    if !results.forecasts.is_empty() {
        text = text + "\n" + &table::forecasts(&results.forecasts).text();
    }
    for line in table::missing(results) {
        text = text + "\n" + &line;
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}\n\nwritten to {}", text.trim_end(), out.display())?;
    Ok(())
}
