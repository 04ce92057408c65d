//! Tables: aligned columns for the terminal, and Markdown for documents. No I/O.

use super::{Figures, Forecast, Neighbour, Point, Results, reference};
use crate::columns::or_dash;
use crate::counted::counted;
use std::fmt::Write;

#[derive(Debug, Clone, PartialEq)]
pub struct Table<const N: usize> {
    head: [&'static str; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub fn text(&self) -> String {
        let mut columns = crate::columns::Columns::new(self.head);
        for row in &self.rows {
            columns.row(row.clone());
        }
        columns.write("nothing was measured")
    }

    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let head = line(&self.head.map(str::to_owned));
        let rule = format!("|{}\n", "---|".repeat(N));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        head + &rule + &rows
    }
}

const FIGURES: [&str; 8] = ["MEAN s", "p50 s", "p95 s", "p99 s", "PER s", "MiB", "W", "J A TURN"];

fn figures(figures: &Figures) -> [String; 8] {
    [
        seconds(figures.mean_seconds),
        seconds(figures.p50_seconds),
        seconds(figures.p95_seconds),
        seconds(figures.p99_seconds),
        format!("{:.2}", figures.per_second),
        or_dash(figures.memory_mib.map(|mib| format!("{mib:.0}"))),
        or_dash(figures.power_watts.map(|watts| format!("{watts:.0}"))),
        or_dash(figures.energy_per_turn_joules.map(|joules| format!("{joules:.3}"))),
    ]
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.4}")
}

pub fn points(results: &Results) -> Table<14> {
    let alone = results.points.iter().filter(|point| point.copies == 1);
    let alone = alone.map(|point| point.figures.mean_seconds).reduce(f64::min);
    let row = |point: &Point| {
        let Point { technology, copies, threads_percent, .. } = point;
        let [mean, p50, p95, p99, rate, memory, power, energy] = figures(&point.figures);
        let times = alone.map(|alone| format!("{:.2}", point.figures.mean_seconds / alone));
        let known = reference::mean(*technology, *copies).filter(|_| results.workload == reference::WORKLOAD);
        [
            technology.to_string(),
            copies.to_string(),
            or_dash(threads_percent.map(|percent| format!("{percent} %"))),
            mean,
            p50,
            p95,
            p99,
            rate,
            memory,
            power,
            energy,
            or_dash(times),
            or_dash(known.map(seconds)),
            or_dash(known.map(|mean| format!("{:.2}", mean / reference::ALONE))),
        ]
    };
    let [mean, p50, p95, p99, rate, memory, power, energy] = FIGURES;
    Table {
        head: [
            "TECHNOLOGY",
            "COPIES",
            "THREADS",
            mean,
            p50,
            p95,
            p99,
            rate,
            memory,
            power,
            energy,
            "x ALONE",
            "A100 MEAN s",
            "A100 x ALONE",
        ],
        rows: results.points.iter().map(row).collect(),
    }
}

pub fn forecasts(forecasts: &[Forecast]) -> Table<6> {
    let row = |forecast: &Forecast| {
        let verdict = match forecast {
            Forecast { fitted: true, .. } => "fitted",
            Forecast { within: true, .. } => "within -5/+20 %",
            _ => "outside -5/+20 %",
        };
        [
            forecast.technology.to_string(),
            forecast.copies.to_string(),
            seconds(forecast.measured_seconds),
            seconds(forecast.predicted_seconds),
            format!("{:+.1} %", forecast.error_percent),
            verdict.to_owned(),
        ]
    };
    let head = ["TECHNOLOGY", "COPIES", "MEASURED s", "PREDICTED s", "ERROR", "BAR"];
    Table { head, rows: forecasts.iter().map(row).collect() }
}

pub fn neighbours(rows: &[Neighbour]) -> Table<11> {
    let two = |row: &Neighbour| {
        let slower = 100.0 * (row.beside.mean_seconds / row.alone.mean_seconds - 1.0);
        let line = |beside: &str, numbers: &Figures, slower: String| {
            let [mean, p50, p95, p99, rate, memory, power, energy] = figures(numbers);
            [row.profile.clone(), beside.to_owned(), mean, p50, p95, p99, rate, memory, power, energy, slower]
        };
        [
            line("none", &row.alone, "-".to_owned()),
            line(&row.neighbour, &row.beside, format!("{slower:+.1} %")),
        ]
    };
    let [mean, p50, p95, p99, rate, memory, power, energy] = FIGURES;
    Table {
        head: ["PROFILE", "BESIDE", mean, p50, p95, p99, rate, memory, power, energy, "SLOWER BY"],
        rows: rows.iter().flat_map(two).collect(),
    }
}

pub fn predictions(rows: Vec<[String; 5]>, technologies: [&'static str; 5]) -> Table<5> {
    Table { head: technologies, rows }
}

pub fn document(results: &Results) -> String {
    let mut text = format!(
        "`{}`, {} s after {} s of warm-up, {}.\n\n",
        results.workload, results.measure_seconds, results.warm_up_seconds, results.at
    );
    for gpu in &results.gpus {
        let name = gpu.product.as_ref().unwrap_or(&gpu.model);
        let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "not told".to_owned());
        let (driver, torch) = (or(&gpu.driver), or(&gpu.torch));
        let _infallible = writeln!(text, "{name}, {} MiB, driver {driver}, PyTorch {torch}.", gpu.memory_mib);
    }
    text = text + "\n" + &points(results).markdown();
    if !results.forecasts.is_empty() {
        text = text + "\n" + &forecasts(&results.forecasts).markdown();
    }
    let missing = missing(results);
    if !missing.is_empty() {
        text += "\n";
        text.extend(missing.iter().map(|line| format!("- {line}\n")));
    }
    text
}

pub fn missing(results: &Results) -> Vec<String> {
    let left_out = results.left_out.iter().map(|left| match left.copies {
        Some(copies) => {
            format!("left out: {}, {}: {}", left.technology, counted(copies, "copy"), left.reason)
        }
        None => format!("left out: {}: {}", left.technology, left.reason),
    });
    let failed = results.failed.iter().map(|failed| {
        format!("failed: {}, {}: {}", failed.technology, counted(failed.copies, "copy"), failed.reason)
    });
    let unfitted = results.fit_problem.iter().map(|problem| format!("no prediction: {problem}"));
    left_out.chain(failed).chain(unfitted).collect()
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
