//! The model of `kerf_core::sharing` beside what was measured. No I/O.

use super::{Fit, Forecast, Point, Technology};
use kerf_core::mig::MigTable;
use kerf_core::sharing::{self, FitError, Latency, Run, SwitchingCost, Workload, predict_copies};
use kerf_core::units::ComputePercent;
use std::num::NonZeroU32;
use thiserror::Error;

/// The bar of the model, in percent.
const BAR: std::ops::RangeInclusive<f64> = -5.0..=20.0;

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum NoFit {
    /// The points are not there.
    #[error(
        "the model is fitted to one copy under MPS and to several; measure --technologies mps with --copies 1 and more"
    )]
    NoRuns,
    /// Their figures contradict each other.
    #[error(transparent)]
    Contradiction(#[from] FitError),
    /// The copies together were slowed down by their limit of threads, not by each other.
    #[error(
        "the {copies} copies under MPS had {percent} % of the threads each, which slowed them down by itself; let them use what the others leave by the node's policy (gpus[].mps.computeLimit: none)"
    )]
    Limited {
        /// How many there were.
        copies: u32,
        /// What each had.
        percent: u8,
    },
}

/// The model's numbers from the points with one copy and with the most copies.
pub fn fit(points: &[Point]) -> Result<Fit, NoFit> {
    let (alone, together) = ends(points, Technology::Mps).ok_or(NoFit::NoRuns)?;
    let latency = Latency::from_seconds(alone.figures.mean_seconds).ok_or(FitError::NoTime)?;
    let workload = Workload::fit(latency, Run::new(together.copies, together.figures.mean_seconds)?)?;
    if let Some(percent) = [alone, together].into_iter().find_map(|point| slowing(workload, point)) {
        return Err(NoFit::Limited { copies: together.copies, percent });
    }
    Ok(Fit { workload, copies: together.copies, switching: switching(points)? })
}

/// An earlier run's numbers for one that has none of its own, with what taking turns costs in this one.
pub fn with_earlier(points: &[Point], earlier: &Fit) -> Result<Fit, NoFit> {
    Ok(Fit { switching: switching(points)?.or(earlier.switching), ..earlier.clone() })
}

fn switching(points: &[Point]) -> Result<Option<SwitchingCost>, FitError> {
    let Some((alone, together)) = ends(points, Technology::TimeSlicing) else { return Ok(None) };
    let latency = Latency::from_seconds(alone.figures.mean_seconds).ok_or(FitError::NoTime)?;
    SwitchingCost::fit(latency, Run::new(together.copies, together.figures.mean_seconds)?).map(Some)
}

/// The points with one copy and with the most.
fn ends(points: &[Point], technology: Technology) -> Option<(&Point, &Point)> {
    let of = || points.iter().filter(|point| point.technology == technology);
    let alone = of().find(|point| point.copies == 1)?;
    Some((alone, of().filter(|point| point.copies > 1).max_by_key(|point| point.copies)?))
}

/// Who is slowed down by less is slowed down by nothing that a model would have to know of: what short runs differ by.
const NOISE: f64 = 0.05;

/// The point's limit of threads, where by the model the limit alone may make it as slow as it is.
fn slowing(workload: Workload, point: &Point) -> Option<u8> {
    if point.figures.mean_seconds < workload.alone().seconds() * (1.0 + NOISE) {
        return None;
    }
    let copies = NonZeroU32::new(point.copies)?;
    let limit = limit(point)?;
    let mean = |technology| predict_copies(workload, technology, copies).mean.seconds();
    let slower =
        mean(sharing::Technology::Mps { limit: Some(limit) }) > mean(sharing::Technology::MPS) * 1.001;
    slower.then_some(limit.get())
}

/// All of the threads is no limit.
fn limit(point: &Point) -> Option<ComputePercent> {
    ComputePercent::new(point.threads_percent.filter(|percent| *percent < 100)?)
}

/// What the model says of every point; of MIG only where the GPU's table is known. `own` says that the workload was fitted to
/// these points.
pub fn forecasts(points: &[Point], fit: &Fit, own: bool, table: &MigTable) -> Vec<Forecast> {
    let turns = ends(points, Technology::TimeSlicing).map(|(_, together)| together.copies);
    let fitted = |point: &Point| match point.technology {
        Technology::Mps => own && (point.copies == 1 || point.copies == fit.copies),
        Technology::TimeSlicing => turns == Some(point.copies),
        _ => false,
    };
    let forecast = |point| Some(Forecast { fitted: fitted(point), ..forecast(point, fit, table)? });
    points.iter().filter_map(forecast).collect()
}

fn forecast(point: &Point, fit: &Fit, table: &MigTable) -> Option<Forecast> {
    let technology = match point.technology {
        Technology::TimeSlicing => {
            sharing::Technology::TimeSlicing { switching: fit.switching.unwrap_or_default() }
        }
        Technology::Mps | Technology::MpsLimited => sharing::Technology::Mps { limit: limit(point) },
        Technology::Whole => sharing::Technology::Whole,
        Technology::Mig => sharing::Technology::mig(table, point.profile.as_ref()?.parse().ok()?)?,
    };
    let predicted = predict_copies(fit.workload, technology, NonZeroU32::new(point.copies)?).mean.seconds();
    let measured = point.figures.mean_seconds;
    let error = 100.0 * (predicted / measured - 1.0);
    Some(Forecast {
        technology: point.technology,
        copies: point.copies,
        measured_seconds: measured,
        predicted_seconds: predicted,
        error_percent: error,
        fitted: false,
        within: BAR.contains(&error),
    })
}

#[cfg(test)]
#[path = "forecast_tests.rs"]
pub(super) mod tests;
