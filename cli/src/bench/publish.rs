//! Prints and writes results: forecasts, tables and the picture.

use super::args::ResultArgs;
use super::{Fit, Results, forecast, measure, picture, table};
use crate::input::{self, InputError};
use crate::output::{self, Format, Report};
use kerf_core::mig::MigTable;
use std::path::Path;

pub const RESULTS: &str = "results.json";

pub fn read(path: &Path) -> Result<Results, InputError> {
    serde_json::from_str(&input::read(path)?).map_err(|error| {
        InputError::Bad(format!("{} is no {RESULTS} of this version: {error}", input::place(path)))
    })
}

/// Fits the model and predicts every point. `table` has the MIG profiles of the measured GPU, if it was cut by MIG.
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
            // The table is left out for several models, because profiles of one model do not apply to another's
            // instances.
            let table = if one_model { table } else { &MigTable::default() };
            results.forecasts = forecast::forecasts(&results.points, &fit, is_own, table);
            results.fit = Some(fit);
        }
        Err(problem) => results.fit_problem = Some(problem.to_string()),
    }
}

pub fn publish(results: &Results, to: &ResultArgs) -> anyhow::Result<()> {
    let out = &to.folder;
    measure::write(out, RESULTS, &(serde_json::to_string_pretty(results)? + "\n"))?;
    measure::write(out, "results.md", &table::document(results))?;
    let models: Vec<&str> =
        results.gpus.iter().map(|gpu| gpu.product.as_deref().unwrap_or(&gpu.model)).collect();
    let title = format!("{} on {}", results.workload, models.join(" and "));
    measure::write(out, "sharing.svg", &picture::picture(&title, &results.points))?;
    eprintln!("written to {}", out.display());
    output::print(results, to.output)
}

impl Report for Results {
    fn text(&self, _format: Format) -> String {
        let mut text = table::points(self).text();
        if !self.forecasts.is_empty() {
            text = text + "\n" + &table::forecasts(&self.forecasts).text();
        }
        let missing = output::lines(table::missing(self));
        if missing.is_empty() { text } else { text + "\n" + &missing }
    }
}
