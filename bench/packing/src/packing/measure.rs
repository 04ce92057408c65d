//! Plays every job list of a scenario under every policy, on two threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::policy::Policy;
use crate::jobs::{MIXES, Mix, Scenario};
use crate::oracle;
use crate::profile::Profile;
use crate::replay::Verdict;
use crate::report::{Progress, as_f64, greatest, mean};

pub const JOBS: usize = 30_000;

/// How many threads play lists.
const THREADS: usize = 2;

/// The result of one policy on one list.
#[derive(Debug, Clone)]
pub struct Outcome {
    mix: usize,
    policy: Policy,
    verdict: Verdict,
    below: f64,
}

/// The results of every policy in one scenario.
#[derive(Debug)]
pub struct Measured {
    pub scenario: Scenario,
    outcomes: Vec<Outcome>,
}

impl Measured {
    fn outcomes(&self, policy: Policy) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(move |outcome| outcome.policy == policy)
    }

    /// Points below the oracle on each mix, as the mean of all seeds.
    pub fn below(&self, policy: Policy) -> [f64; MIXES.len()] {
        std::array::from_fn(|mix| mean(self.outcomes(policy).filter(|o| o.mix == mix).map(|o| o.below)))
    }

    /// Points below the oracle, as the mean of the mixes.
    pub fn below_mean(&self, policy: Policy) -> f64 {
        mean(self.below(policy))
    }

    /// The standard error of [`below_mean`](Self::below_mean), from how far the seeds differ; NaN for one seed.
    pub fn below_error(&self, policy: Policy) -> f64 {
        let seeds = |mix: usize| self.outcomes(policy).filter(move |o| o.mix == mix).map(|o| o.below);
        let squares = (0..MIXES.len()).map(|mix| variance_of_mean(&seeds(mix).collect::<Vec<_>>()));
        squares.sum::<f64>().sqrt() / as_f64(MIXES.len())
    }

    /// Points below the oracle on the worst mix.
    pub fn below_worst(&self, policy: Policy) -> f64 {
        greatest(self.below(policy))
    }

    /// The part of the `7g` jobs that was placed: on one mix, or the mean of the mixes that have any.
    pub fn whole_gpus(&self, policy: Policy, mix: Option<&str>) -> f64 {
        let asked = |o: &&Outcome| o.verdict.arrived[Profile::Seven.index()] > 0;
        let chosen = |o: &&Outcome| mix.is_none_or(|name| MIXES[o.mix].name == name);
        mean(
            self.outcomes(policy).filter(asked).filter(chosen).map(|o| o.verdict.accepted_of(Profile::Seven)),
        )
    }

    /// The part of the placements that needed no create, as the mean of all lists.
    pub fn no_create(&self, policy: Policy) -> f64 {
        mean(self.outcomes(policy).map(|o| o.verdict.no_create()))
    }

    /// Moves for each job, as the mean of all lists.
    pub fn moves(&self, policy: Policy) -> f64 {
        mean(self.outcomes(policy).map(|o| o.verdict.moves_per_request()))
    }

    /// Moves for each job on the list with the most.
    pub fn most_moves(&self, policy: Policy) -> f64 {
        greatest(self.outcomes(policy).map(|o| o.verdict.moves_per_request()))
    }

    /// Descriptions of all illegal decisions.
    pub fn illegal(&self) -> impl Iterator<Item = &String> {
        self.outcomes.iter().flat_map(|o| &o.verdict.illegal)
    }

    /// The number of kerf's illegal decisions.
    pub fn illegal_of_kerf(&self) -> usize {
        let policies = [Policy::Kerf, Policy::KerfMoves];
        policies.into_iter().flat_map(|policy| self.outcomes(policy)).map(|o| o.verdict.illegal.len()).sum()
    }
}

fn variance_of_mean(values: &[f64]) -> f64 {
    let (middle, count) = (mean(values.iter().copied()), as_f64(values.len()));
    values.iter().map(|value| (value - middle).powi(2)).sum::<f64>() / (count - 1.0) / count
}

/// Plays the lists of all mixes, for the seeds from 1 to `seeds`.
pub fn measure(scenario: Scenario, seeds: u64) -> Measured {
    let lists: Vec<(usize, u64)> =
        (0..MIXES.len()).flat_map(|mix| (1..=seeds).map(move |seed| (mix, seed))).collect();
    let progress = Progress::new(&format!("packing, {}: lists of jobs", scenario.name), lists.len());
    let outcomes = on_threads(&lists, |(mix, seed)| {
        let outcomes = play(&scenario, &MIXES[*mix], *mix, *seed);
        progress.step();
        outcomes
    });
    Measured { scenario, outcomes: outcomes.into_iter().flatten().collect() }
}

fn play(scenario: &Scenario, mix: &Mix, at: usize, seed: u64) -> Vec<Outcome> {
    // Policies are compared on equal arrivals, so a seed gives the same ones in every scenario with as many GPUs. Each
    // mix has its own.
    let jobs = scenario.jobs(mix, JOBS, seed * 100 + u64::try_from(at).unwrap_or(0));
    let oracle = oracle::accepted(&jobs, scenario.gpus);
    let outcome = |policy: Policy| {
        let verdict = policy.judged(&jobs, scenario.gpus);
        Outcome { mix: at, policy, below: verdict.below(&oracle), verdict }
    };
    Policy::ALL.map(outcome).to_vec()
}

/// Does the work for each item on a few threads. Results are in no order.
pub fn on_threads<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(item);
                    // A poisoned lock is the other thread's panic, which the scope passes on.
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::variance_of_mean;

    #[test]
    fn a_mean_is_the_surer_the_more_values_it_has() {
        assert!((variance_of_mean(&[1.0, 3.0]) - 1.0).abs() < 1e-9);
        assert!((variance_of_mean(&[1.0, 3.0, 1.0, 3.0]) - 1.0 / 3.0).abs() < 1e-9);
    }
}
