//! What one decision costs in a fleet of so many GPUs.
//!
//! The fleet is brought to its steady state first: as many jobs as run at the load of 0.95 come at once, then jobs come
//! and go for three mean lives. What is timed goes on from there, so each decision meets a fleet that has changed since
//! the one before.

use std::time::Instant;

use anyhow::ensure;
use kerf_core::mig::Profile as KerfProfile;

use super::churn::{Churn, Event};
use crate::jobs::MIXES;
use crate::oracle::gpus_needed;
use crate::packing::table;
use crate::profile::Profile;
use crate::report::{as_f64, mean};

/// The load: of what the GPUs could serve were jobs a fluid.
const LOAD: f64 = 0.95;

/// Mean lives for which the fleet changes before anything is timed.
const LIVES: f64 = 3.0;

/// Rounds of timing; the mean of the middle round is taken, so that a pause of the machine is nobody's cost.
const ROUNDS: usize = 9;

/// Nanoseconds of one step.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The mean of the middle round.
    pub mean: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
}

/// What was measured in one fleet.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Its size.
    pub gpus: usize,
    /// Where one more request costs least.
    pub best: Timing,
    /// Taking the place.
    pub take: Timing,
    /// Giving a place back.
    pub release: Timing,
    /// A place given back, and another found and taken.
    pub cycle: Timing,
}

/// Brings a fleet to its steady state and times `decisions` of each kind.
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

/// Times each step of what happens by itself.
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

/// Times a place given back and another one found and taken, with as many jobs running all the time.
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
        while churn.running() < running / 2 || (churn.running() < running && begun.is_none()) {
            let class = churn.class();
            churn.run(Event::Arrival(class));
        }
    }
    cycles.timing(clock)
}

/// Nanoseconds that reading the clock takes of a sample.
fn clock() -> f64 {
    let mut samples = Samples::default();
    for _ in 0..100_000 {
        samples.time(|| ());
    }
    samples.timing(0.0).mean
}

/// Nanoseconds of each time that a step ran.
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
