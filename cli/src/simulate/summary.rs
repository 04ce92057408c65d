//! What a simulation came to, for people: acceptance, fragmentation, and how full the fleet was over time.

use super::jobs::Job;
use super::replay::Decision;
use kerf_core::mig::{MigTable, Profile};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The plot's columns and rows.
const COLUMNS: usize = 64;
const ROWS: usize = 8;

/// Says what the decisions on a job list came to. `fragmentation` has one number for each decision, right after it: the
/// part of the free memory slices that the GPU's plain profiles could not use, on the mean.
#[must_use]
pub fn summary(
    jobs: &[Job],
    decisions: &[Decision],
    fragmentation: &[f64],
    table: &MigTable,
    gpus: usize,
) -> String {
    let size = |profile: Profile| table.entry(profile).map_or(0.0, |e| f64::from(e.size));
    let mut by_profile: BTreeMap<(u8, Profile), (f64, f64)> = BTreeMap::new();
    for (job, decision) in jobs.iter().zip(decisions) {
        let slices = table.entry(job.profile).map_or(0, |e| e.size);
        let (asked, placed) = by_profile.entry((slices, job.profile)).or_default();
        *asked += 1.0;
        *placed += f64::from(u8::from(decision.place.is_some()));
    }
    let mut text = format!("{:<14}{:>9}{:>9}{:>10}\n", "profile", "asked", "placed", "accepted");
    let (mut asked_slices, mut placed_slices) = (0.0, 0.0);
    for ((_, profile), (asked, placed)) in &by_profile {
        let _ = writeln!(
            text,
            "{:<14}{asked:>9}{placed:>9}{:>9.2}%",
            profile.to_string(),
            100.0 * placed / asked
        );
        asked_slices += asked * size(*profile);
        placed_slices += placed * size(*profile);
    }
    let moves = decisions.iter().filter(|d| d.moved.is_some()).count();
    let accepted = if asked_slices > 0.0 { 100.0 * placed_slices / asked_slices } else { 100.0 };
    let _ = writeln!(text, "accepted, by memory slices: {accepted:.2} %; {moves} moves");
    let mean = fragmentation.iter().sum::<f64>() / length(fragmentation.len());
    let _ =
        writeln!(text, "free memory slices that a profile cannot use, on the mean: {:.1} %", 100.0 * mean);
    let all = length(gpus) * f64::from(table.axis());
    let _ = writeln!(text, "\nmemory slices in use, of {all}, over time");
    text.push_str(&plot(&in_use(jobs, decisions, size), all));
    text
}

#[expect(clippy::cast_precision_loss, reason = "counts of jobs and GPUs are far below 2^52")]
fn length(count: usize) -> f64 {
    count.max(1) as f64
}

/// The mean of the memory slices in use in each of the plot's columns.
fn in_use(jobs: &[Job], decisions: &[Decision], size: impl Fn(Profile) -> f64) -> Vec<f64> {
    let end = jobs.last().map_or(0.0, |job| job.arrival).max(f64::MIN_POSITIVE);
    let width = end / length(COLUMNS);
    let mut columns = vec![0.0; COLUMNS];
    for (job, _) in jobs.iter().zip(decisions).filter(|(_, d)| d.place.is_some()) {
        let until = (job.arrival + job.duration).min(end);
        for (column, from) in columns.iter_mut().zip((0..COLUMNS).map(|n| length(n + 1) * width - width)) {
            let overlap = until.min(from + width) - job.arrival.max(from);
            *column += size(job.profile) * overlap.max(0.0) / width;
        }
    }
    columns
}

/// A bar for each column, in eighths of a row.
fn plot(columns: &[f64], all: f64) -> String {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let rows = (0..ROWS).rev().map(|row| {
        let bar = |value: &f64| {
            let eighths = (value / all.max(1.0) * length(ROWS) - length(row + 1) + 1.0) * 8.0;
            let level = (0_u8..8).filter(|n| eighths >= f64::from(*n) + 0.5).count();
            EIGHTHS[level]
        };
        let label = if row == ROWS - 1 { "100 %" } else { "" };
        format!("{label:>6} |{}\n", columns.iter().map(bar).collect::<String>())
    });
    let mut text: String = rows.collect();
    let _ = writeln!(text, "{:>6} +{}", "0 %", "-".repeat(columns.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_fleet_in_use_fills_half_the_rows() {
        let text = plot(&[0.0, 4.0, 8.0], 8.0);
        let lines: Vec<_> =
            text.lines().map(|line| line.split('|').nth(1).unwrap_or(line).to_owned()).collect();
        assert_eq!(lines[0], "  █");
        assert_eq!(lines[4], " ██");
        assert_eq!(lines[7], " ██");
        assert_eq!(lines[8], "   0 % +---");
    }
}
