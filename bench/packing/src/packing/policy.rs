//! The policies that are compared: kerf, and the rules of others.

use std::fmt::Write as _;

use anyhow::Context as _;
use kerf_cli::simulate::jobs::Job as KerfJob;
use kerf_cli::simulate::replay::Replay;
use kerf_core::mig::{MigTable, Profile as KerfProfile, catalog};
use kerf_core::packing::Terms;

use crate::jobs::Job;
use crate::replay::{Verdict, judge};
use crate::rivals::{self, BestFit, Das, FirstFit, Hami, Nos, Rule};

/// The limit of running jobs that kerf may move, for each job, if moves are on.
pub const MOVES: f64 = 0.04;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The rule of `InstaSlice`.
    Das,
    Nos,
    Hami,
    FirstFit,
    BestFit,
    /// kerf with its defaults, which moves nothing.
    Kerf,
    /// kerf if pods may be moved.
    KerfMoves,
}

impl Policy {
    /// All policies, in the order of the tables.
    pub const ALL: [Self; 7] =
        [Self::Das, Self::Nos, Self::Hami, Self::FirstFit, Self::BestFit, Self::Kerf, Self::KerfMoves];

    /// The policy's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Das => "InstaSlice's rule",
            Self::Nos => "nos's rule",
            Self::Hami => "HAMi's rule",
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::Kerf => "kerf",
            Self::KerfMoves => "kerf, 0.04 moves",
        }
    }

    /// Plays a job list and judges the decisions.
    pub fn judged(self, jobs: &[Job], gpus: usize) -> Verdict {
        let by_rule =
            |rule: &dyn Rule| judge(&rivals::as_cut(rule, jobs), gpus, &rivals::play(rule, jobs, gpus));
        match self {
            Self::Das => by_rule(&Das::default()),
            Self::Nos => by_rule(&Nos),
            Self::Hami => by_rule(&Hami::default()),
            Self::FirstFit => by_rule(&FirstFit::default()),
            Self::BestFit => by_rule(&BestFit::default()),
            Self::Kerf => judge(jobs, gpus, &kerf(jobs, gpus, 0.0)),
            Self::KerfMoves => judge(jobs, gpus, &kerf(jobs, gpus, MOVES)),
        }
    }
}

/// kerf's decisions as `kerf simulate` prints them, with at most this many moves for each job. The text is empty if
/// core does not have the GPU or a profile, and then the replay reports missing decisions.
pub fn kerf(jobs: &[Job], gpus: usize, moves: f64) -> String {
    decide(jobs, gpus, moves).unwrap_or_default()
}

fn decide(jobs: &[Job], gpus: usize, moves: f64) -> anyhow::Result<String> {
    let terms = Terms { moves: moves > 0.0, ..Terms::default() };
    let mut replay = Replay::new(&table()?, gpus, terms, moves);
    let mut text = String::new();
    for job in jobs {
        let profile: KerfProfile = job.profile.name().parse()?;
        let decision = replay.arrive(&KerfJob { arrival: job.arrival, duration: job.life, profile });
        writeln!(text, "{decision}")?;
    }
    Ok(text)
}

/// The MIG table of the GPU model that the lists are about.
pub fn table() -> anyhow::Result<MigTable> {
    let model = catalog::by_name("H100-80GB").context("the catalog has no H100-80GB")?;
    model.mig_table().context("the catalog has no MIG table of H100-80GB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{MIXES, Scenario};

    #[test]
    fn kerfs_decisions_are_legal_with_and_without_moves() {
        let jobs = Scenario::plain("", 16, 1.05).jobs(&MIXES[0], 1500, 1);
        for policy in [Policy::Kerf, Policy::KerfMoves] {
            let verdict = policy.judged(&jobs, 16);
            assert_eq!(verdict.illegal, Vec::<String>::new());
            assert_eq!(verdict.moved > 0, policy == Policy::KerfMoves);
            assert!(verdict.moves_per_request() <= MOVES);
        }
    }
}
