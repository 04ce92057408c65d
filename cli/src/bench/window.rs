//! Computes the figures of a point from the turns in which all copies were warm and none had ended. This rule and the
//! definition of a percentile are those of `by_hand.py`, so that its figures compare.

use super::Figures;
use super::lines::{Line, Sensors, Start, Turns};
use std::time::Duration;
use thiserror::Error;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Copy {
    pub start: Option<Start>,
    pub turns: Vec<Turns>,
    ended: Option<f64>,
}

impl Copy {
    pub fn add(&mut self, line: Line) {
        match line {
            Line::Start(start) => self.start = Some(start),
            Line::Turns(turns) => self.turns.push(turns),
            Line::End { at } => self.ended = Some(at),
        }
    }

    fn warm(&self) -> Option<f64> {
        Some(self.turns.iter().find(|turns| turns.warm)?.begin)
    }

    fn last(&self) -> Option<f64> {
        self.ended.or_else(|| Some(self.turns.last()?.end))
    }
}

/// The time in which all copies were warm and none had ended, in seconds since 1970 by the copies' clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    from: f64,
    to: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "no turn began and ended while all copies were warm; measure for longer (--measure), and see that copies do not end by \
     themselves"
)]
pub struct NoTurns;

impl Window {
    pub fn from_copies<'c>(copies: impl Iterator<Item = &'c Copy> + Clone) -> Option<Self> {
        // One copy that is not warm makes the whole collection `None`, so there is no window yet.
        let warm: Option<Vec<f64>> = copies.clone().map(Copy::warm).collect();
        let last: Option<Vec<f64>> = copies.map(Copy::last).collect();
        let from = warm?.into_iter().reduce(f64::max)?;
        Some(Self { from, to: last?.into_iter().reduce(f64::min)? })
    }

    /// Whether the window is at least as long as `measure` and has turns of each copy. A copy prints at most once a
    /// second, so a short window may lie between two of its lines.
    pub fn is_enough<'c>(self, measure: Duration, mut copies: impl Iterator<Item = &'c Copy>) -> bool {
        let has_turns = |copy: &Copy| copy.turns.iter().any(|turns| self.holds(turns));
        self.to - self.from >= measure.as_secs_f64() && copies.all(has_turns)
    }

    pub fn holds(self, turns: &Turns) -> bool {
        turns.begin >= self.from && turns.end <= self.to
    }

    /// The figures of these copies, which may be only some of those that define the window.
    pub fn figures(self, copies: &[&Copy]) -> Result<Figures, NoTurns> {
        let within = |copy: &Copy| copy.turns.iter().filter(|turns| self.holds(turns)).cloned().collect();
        let lines: Vec<Vec<Turns>> = copies.iter().map(|copy| within(copy)).collect();
        let mut seconds: Vec<f64> = lines.iter().flatten().flat_map(|turns| turns.seconds.clone()).collect();
        seconds.sort_by(f64::total_cmp);
        let mean = mean(seconds.iter().copied()).ok_or(NoTurns)?;
        let per_second: f64 = lines.iter().map(|lines| rate(lines)).sum();
        let readings = |read: fn(&Sensors) -> Option<f64>| {
            lines.iter().flatten().filter_map(move |turns| read(&turns.sensors))
        };
        // One copy's reading is enough, because the energy counter is the GPU's and each copy reads the same one.
        let watts = lines.iter().find_map(|lines| power_by_energy(lines));
        Ok(Figures {
            mean_seconds: mean,
            p50_seconds: percentile(&seconds, 0.5),
            p95_seconds: percentile(&seconds, 0.95),
            p99_seconds: percentile(&seconds, 0.99),
            per_second,
            turns: seconds.len() as u64,
            window_seconds: self.to - self.from,
            memory_mib: readings(|sensors| sensors.memory_mib).reduce(f64::max),
            power_watts: self::mean(readings(|sensors| sensors.power_w)),
            energy_per_turn_joules: watts.map(|watts| watts / per_second),
        })
    }
}

/// The value that the given part of the ascending values does not exceed, counted as `by_hand.py` does.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "turns of a run are fewer than 2^52"
)]
fn percentile(ascending: &[f64], part: f64) -> f64 {
    let index = (ascending.len() as f64 * part) as usize;
    ascending.get(index.min(ascending.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    (count > 0.0).then(|| sum / count)
}

#[expect(clippy::cast_precision_loss, reason = "turns of a run are fewer than 2^52")]
fn rate(lines: &[Turns]) -> f64 {
    let turns: usize = lines.iter().map(|turns| turns.seconds.len()).sum();
    let span: f64 = lines.iter().map(|turns| turns.end - turns.begin).sum();
    if span > 0.0 { turns as f64 / span } else { 0.0 }
}

fn power_by_energy(lines: &[Turns]) -> Option<f64> {
    let (first, last) = (lines.first()?, lines.last()?);
    let span = last.end - first.end;
    (span > 0.0).then_some((last.sensors.energy_j? - first.sensors.energy_j?) / span)
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
