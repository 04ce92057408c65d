//! Sums up a simulation for people: acceptance, fragmentation, and the fleet's use over time.

use super::jobs::Job;
use super::replay::Decision;
use crate::counted::counted;
use kerf_core::mig::{MigTable, Profile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

const COLUMNS: usize = 64;
const ROWS: usize = 8;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    profiles: Vec<ProfileSummary>,
    accepted_percent: f64,
    moves: usize,
    /// The mean percentage of the free memory slices that a profile cannot use.
    unusable_percent: f64,
    memory_slices: f64,
    /// The mean use in each of 64 equal parts of the time.
    memory_slices_in_use: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct ProfileSummary {
    profile: Profile,
    asked: u32,
    placed: u32,
}

/// Sums up the decisions on a job list. `fragmentation` has one number for each decision, taken right after it: the
/// mean part of the free memory slices that the GPU's plain profiles cannot use.
#[must_use]
pub fn summary(
    jobs: &[Job],
    decisions: &[Decision],
    fragmentation: &[f64],
    table: &MigTable,
    gpus: usize,
) -> Summary {
    let size = |profile: Profile| table.entry(profile).map_or(0.0, |e| f64::from(e.size));
    let mut by_profile: BTreeMap<(u8, Profile), (u32, u32)> = BTreeMap::new();
    for (job, decision) in jobs.iter().zip(decisions) {
        let slices = table.entry(job.profile).map_or(0, |e| e.size);
        let (asked, placed) = by_profile.entry((slices, job.profile)).or_default();
        *asked += 1;
        *placed += u32::from(decision.place.is_some());
    }
    let profiles: Vec<ProfileSummary> = by_profile
        .into_iter()
        .map(|((_, profile), (asked, placed))| ProfileSummary { profile, asked, placed })
        .collect();
    let slices = |count: fn(&ProfileSummary) -> u32| -> f64 {
        profiles.iter().map(|it| f64::from(count(it)) * size(it.profile)).sum()
    };
    let (asked, placed) = (slices(|it| it.asked), slices(|it| it.placed));
    Summary {
        accepted_percent: if asked > 0.0 { 100.0 * placed / asked } else { 100.0 },
        moves: decisions.iter().filter(|d| d.moved.is_some()).count(),
        unusable_percent: 100.0 * fragmentation.iter().sum::<f64>() / length(fragmentation.len()),
        memory_slices: length(gpus) * f64::from(table.axis()),
        memory_slices_in_use: in_use(jobs, decisions, size),
        profiles,
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14}{:>9}{:>9}{:>10}", "profile", "asked", "placed", "accepted")?;
        for ProfileSummary { profile, asked, placed } in &self.profiles {
            let accepted = 100.0 * f64::from(*placed) / f64::from(*asked);
            writeln!(f, "{:<14}{asked:>9}{placed:>9}{accepted:>9.2}%", profile.to_string())?;
        }
        let Self { accepted_percent: accepted, unusable_percent: unusable, memory_slices: all, .. } = self;
        writeln!(f, "accepted, by memory slices: {accepted:.2} %; {}", counted(self.moves, "move"))?;
        writeln!(f, "free memory slices that a profile cannot use, on the mean: {unusable:.1} %")?;
        writeln!(f, "\nmemory slices in use, of {all}, over time")?;
        f.write_str(&plot(&self.memory_slices_in_use, *all))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of jobs and GPUs are far below 2^52")]
fn length(count: usize) -> f64 {
    count.max(1) as f64
}

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
