//! Compares the predictions of `kerf_core::sharing` with what was measured. No I/O.

use super::{Fit, Forecast, Point, Technology};
use kerf_core::mig::MigTable;
use kerf_core::sharing::{self, FitError, Latency, Run, SwitchingCost, Workload, predict_copies};
use kerf_core::units::ComputePercent;
use std::num::NonZeroU32;
use thiserror::Error;

const BAR: std::ops::RangeInclusive<f64> = -5.0..=20.0;

#[derive(Debug, Clone, PartialEq, Error)]
pub enum NoFit {
    #[error(
        "the model is fitted to one copy under MPS and to several; measure --technologies mps with --copies 1 and more"
    )]
    NoRuns,
    #[error(transparent)]
    Contradiction(#[from] FitError),
    /// The copies together were slowed down by their thread limit, and not by each other. A fit to them would say
    /// nothing about sharing.
    #[error(
        "the {copies} copies under MPS had {percent} % of the threads each, which slowed them down by itself; let them use what the others leave by the node's policy (gpus[].mps.computeLimit: none)"
    )]
    Limited { copies: u32, percent: u8 },
}

pub fn fit(points: &[Point]) -> Result<Fit, NoFit> {
    let (alone, together) = ends(points, Technology::Mps).ok_or(NoFit::NoRuns)?;
    let latency = Latency::from_seconds(alone.figures.mean_seconds).ok_or(FitError::NoTime)?;
    let workload = Workload::fit(latency, Run::new(together.copies, together.figures.mean_seconds)?)?;
    if let Some(percent) = [alone, together].into_iter().find_map(|point| slowing(workload, point)) {
        return Err(NoFit::Limited { copies: together.copies, percent });
    }
    Ok(Fit { workload, copies: together.copies, switching: switching(points)? })
}

/// Takes the workload from an earlier run, for a run that has no fit. The cost of time slicing is this run's, if it
/// measured one, because it depends on the GPU and not on the workload.
pub fn with_earlier(points: &[Point], earlier: &Fit) -> Result<Fit, NoFit> {
    Ok(Fit { switching: switching(points)?.or(earlier.switching), ..earlier.clone() })
}

fn switching(points: &[Point]) -> Result<Option<SwitchingCost>, FitError> {
    let Some((alone, together)) = ends(points, Technology::TimeSlicing) else { return Ok(None) };
    let latency = Latency::from_seconds(alone.figures.mean_seconds).ok_or(FitError::NoTime)?;
    SwitchingCost::fit(latency, Run::new(together.copies, together.figures.mean_seconds)?).map(Some)
}

fn ends(points: &[Point], technology: Technology) -> Option<(&Point, &Point)> {
    let of = || points.iter().filter(|point| point.technology == technology);
    let alone = of().find(|point| point.copies == 1)?;
    Some((alone, of().filter(|point| point.copies > 1).max_by_key(|point| point.copies)?))
}

/// A slowdown of less than this part is noise, because short runs differ by as much without any cause.
const NOISE: f64 = 0.05;

/// The point's thread limit in percent, if by the model the limit alone explains the slowdown.
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

/// A limit of 100 % of the threads counts as no limit.
fn limit(point: &Point) -> Option<ComputePercent> {
    ComputePercent::new(point.threads_percent.filter(|percent| *percent < 100)?)
}

/// Predicts every point. MIG points are predicted only if the table has their profile, because the profile has the part
/// of the GPU. `own` says that the workload was fitted to these points and not to an earlier run's.
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
