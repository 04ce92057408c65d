//! The extender's leader is killed, frozen, cut off and asked to end under a steady load of pods, which must soon go
//! on. Then it is struck again and again under a churn of pods; that can be stopped and resumed.

mod load;
mod standby;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args as ClapArgs;
use kerf_tests::cluster::root;
use kerf_tests::leaders::{Blow, Rounds};
use serde::{Deserialize, Serialize};

use crate::report::{Figure, count, print, print_figures};

/// How long a leader stays frozen or isolated: much longer than its Lease lasts.
const ABSENCE_DELAY: Duration = Duration::from_secs(15);

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Rounds in all, of which each fourth kills, freezes, cuts off or ends the leader.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// How often the API server does not answer for three seconds under the steady load, once a minute.
    #[arg(long, default_value_t = 10)]
    stalls: u32,
    /// Goes on with the rounds where the last run stopped.
    #[arg(long)]
    resume: bool,
    /// Stops after so many minutes, to be resumed.
    #[arg(long)]
    minutes: Option<u64>,
}

/// The findings so far, which a resumed run continues.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct State {
    rounds: u32,
    double: usize,
    overcommitted: usize,
    left_behind: usize,
}

impl State {
    fn path() -> PathBuf {
        root().join("target/leaders-bench.json")
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(path)
            .with_context(|| format!("failed to read {}: there is nothing to resume", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is no state of this bench", path.display()))
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, serde_json::to_vec(self)?)
            .with_context(|| format!("failed to write {}", path.display()))
    }
}

/// Strikes and prints. The steady load's figures are printed when they are known, for the rounds take hours.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let mut figures = if args.resume { Vec::new() } else { standby::run(args.stalls).await? };
    print_figures(&figures);
    let path = State::path();
    let mut state = if args.resume { State::read(&path)? } else { State::default() };
    let began = Instant::now();
    let is_late = || args.minutes.is_some_and(|minutes| began.elapsed() >= Duration::from_secs(60 * minutes));
    if state.rounds < args.rounds {
        let mut rounds = Rounds::start(u64::from(state.rounds) + 1).await?;
        while state.rounds < args.rounds && !is_late() {
            let blow = Blow::ALL[state.rounds as usize % Blow::ALL.len()];
            let found = rounds.round(blow, ABSENCE_DELAY).await.with_context(|| rounds.log_tails())?;
            state.rounds += 1;
            state.double += found.double.len();
            state.overcommitted += found.overcommitted.len();
            state.left_behind += found.left_behind.len();
            // It is written after each round, so that an interrupted run can be resumed.
            state.write(&path)?;
            for text in found.all() {
                print(&format!("round {}, {blow:?}: {text}", state.rounds));
            }
            let seconds = began.elapsed().as_secs();
            print(&format!("# round {} of {}: {blow:?}; {seconds} s; {state:?}", state.rounds, args.rounds));
        }
        rounds.stop().await?;
    }
    print(&format!("leaders: {} rounds of {}", state.rounds, args.rounds));
    figures.extend([
        Figure::at_most("double holdings", count(state.double), 0.0),
        Figure::at_most("overcommitted nodes", count(state.overcommitted), 0.0),
        Figure::at_most("reservations left behind after their lifetime", count(state.left_behind), 0.0),
    ]);
    print_figures(&figures);
    let missed = figures.iter().filter(|figure| !figure.is_met()).count();
    ensure!(missed == 0, "{missed} bars are missed");
    ensure!(
        state.rounds == args.rounds,
        "{} rounds are left: run it again with --resume",
        args.rounds - state.rounds
    );
    Ok(())
}
