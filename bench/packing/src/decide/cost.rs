//! Times one decision in fleets of different sizes.
//!
//! The fleet is first brought to a steady state: as many jobs as run at a load of 0.95 arrive at once, then jobs come
//! and go for three mean lives. The timed events continue from there, so each decision finds a fleet that has changed
//! since the one before.

use std::time::Instant;

use anyhow::ensure;
use kerf_core::mig::Profile as KerfProfile;

use super::churn::{Churn, Event};
use crate::jobs::MIXES;
use crate::oracle::gpus_needed;
use crate::packing::table;
use crate::profile::Profile;
use crate::report::{as_f64, mean};

/// The load, as a part of what the GPUs could serve if jobs were a fluid.
const LOAD: f64 = 0.95;

/// Mean lives for which the fleet changes before anything is timed.
const LIVES: f64 = 3.0;

/// Rounds of timing. The mean of the middle round counts, so that a pause of the machine does not distort it.
const ROUNDS: usize = 9;

/// Nanoseconds of one step.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The mean of the middle round.
    pub mean: f64,
    pub p99: f64,
}

/// The timings of one fleet.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// The number of GPUs in the fleet.
    pub gpus: usize,
    /// Finding the place where one more request costs least.
    pub best: Timing,
    pub take: Timing,
    pub release: Timing,
    /// Releasing a place, then finding and taking another.
    pub cycle: Timing,
}

/// Brings a fleet to its steady state and times `decisions` of each step.
pub fn measure(gpus: usize, decisions: usize) -> anyhow::Result<Cost> {
    let profiles = Profile::ALL.map(|profile| profile.name().parse::<KerfProfile>());
    let profiles = profiles.into_iter().collect::<Result<Vec<_>, _>>()?;
    let rate = LOAD * as_f64(gpus) / gpus_needed(&MIXES[0].shares());
    let mut churn = Churn::new(&table()?, gpus, &profiles, rate, LIVES);
    ensure!(churn.running() > 0, "no job runs on {gpus} GPUs");
    let clock = clock();
    let (best, take, release) = steps(&mut churn, decisions, clock);
    let cycle = cycles(&mut churn, decisions, clock);
    Ok(Cost { gpus, best, take, release, cycle })
}

/// Times each step of arrivals and departures by itself.
fn steps(churn: &mut Churn, decisions: usize, clock: f64) -> (Timing, Timing, Timing) {
    let (mut best, mut take, mut release) = (Samples::default(), Samples::default(), Samples::default());
    while best.0.len() < decisions {
        match churn.next() {
            Event::Departure(job) => {
                let (gpu, place) = churn.end(job);
                release.time(|| churn.fleet.release(gpu, place));
            }
            Event::Arrival(class) => {
                let Some((gpu, choice)) = best.time(|| churn.fleet.best(class)) else { continue };
                take.time(|| churn.fleet.take(gpu, choice));
                churn.begin(gpu, choice.place);
            }
        }
    }
    (best.timing(clock), take.timing(clock), release.timing(clock))
}

/// Times the release of a place, then finding and taking another, at a constant number of running jobs.
fn cycles(churn: &mut Churn, decisions: usize, clock: f64) -> Timing {
    let running = churn.running();
    let mut cycles = Samples::default();
    while cycles.0.len() < decisions {
        let (job, class) = (churn.any(), churn.class());
        let (left, place) = churn.end(job);
        let begun = cycles.time(|| {
            churn.fleet.release(left, place);
            let found = churn.fleet.best(class);
            if let Some((gpu, choice)) = found {
                churn.fleet.take(gpu, choice);
            }
            found
        });
        if let Some((gpu, choice)) = begun {
            churn.begin(gpu, choice.place);
        }
        // If too many jobs found no place, new ones arrive untimed until the load is back.
        while churn.running() < running / 2 || (churn.running() < running && begun.is_none()) {
            let class = churn.class();
            churn.run(Event::Arrival(class));
        }
    }
    cycles.timing(clock)
}

/// Nanoseconds that reading the clock adds to a sample.
fn clock() -> f64 {
    let mut samples = Samples::default();
    for _ in 0..100_000 {
        samples.time(|| ());
    }
    samples.timing(0.0).mean
}

/// Nanoseconds of each run of a step.
#[derive(Debug, Default)]
struct Samples(Vec<u32>);

impl Samples {
    fn time<R>(&mut self, step: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = step();
        self.0.push(u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX));
        result
    }

    fn timing(mut self, clock: f64) -> Timing {
        let rounds = self.0.chunks(self.0.len().div_ceil(ROUNDS).max(1));
        let mut means: Vec<f64> = rounds.map(|round| mean(round.iter().copied().map(f64::from))).collect();
        means.sort_by(f64::total_cmp);
        self.0.sort_unstable();
        let rank = (self.0.len() * 99).div_ceil(100).max(1) - 1;
        let p99 = self.0.get(rank).copied().map_or(f64::NAN, f64::from);
        let middle = means.get(means.len() / 2).copied().unwrap_or(f64::NAN);
        Timing { mean: middle - clock, p99: p99 - clock }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_machine_moves_neither_the_mean_nor_the_99th() {
        let mut samples = Samples(vec![100; 1000]);
        samples.0[500] = 1_000_000;
        let timing = samples.timing(20.0);
        assert!((timing.mean - 80.0).abs() < 1e-9 && (timing.p99 - 80.0).abs() < 1e-9);
    }
}
