//! `offers`: plays random lives of a node whose pods take slices of several kinds under one name, and counts pods that
//! hold other slices than they have reserved. It distinguishes slices by the numbers of their wares, and does not use
//! the offer's definition of their worth.

use std::time::Instant;

use anyhow::bail;
use clap::Args as ClapArgs;
use kerf_core::testing::offer_life::{Life, Outcome};

use crate::random::Random;
use crate::report::{Bar, Progress, as_f64, print, print_bars};

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Random lives of a node. A single one is printed if it has a fault.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    lives: u32,
    /// Steps of each life.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// The seed of the first life.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Measures and prints. It fails if a pod holds other slices than reserved, or if the offer breaks one of its rules.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let progress = Progress::new("lives", usize::try_from(args.lives)?);
    let mut total = Outcome::default();
    let mut broken = Vec::new();
    for life in 0..u64::from(args.lives) {
        let seed = args.seed.wrapping_add(life);
        let (life, fault) = live(seed, args.steps);
        total += life.outcome;
        if fault.is_some() && args.lives == 1 {
            print(&format!("{life:#?}"));
        }
        broken.extend(fault.map(|fault| format!("seed {seed}: {fault}")));
        progress.step();
    }
    broken.iter().take(5).for_each(|fault| print(fault));
    print(&format!(
        "{} lives of {} steps in {:.0} s: {} pods admitted, {} refused a device of a pod that had just ended, {} rejected otherwise",
        args.lives,
        args.steps,
        start.elapsed().as_secs_f64(),
        total.admitted,
        total.refused,
        total.rejected,
    ));
    print_bars(&[
        Bar::at_most("pods that hold otherwise than reserved", as_f64(total.otherwise), 0.0, 0.0),
        Bar::at_most("lives in which the offer breaks a rule", as_f64(broken.len()), 0.0, 0.0),
    ]);
    if total.otherwise > 0 || !broken.is_empty() {
        bail!("the offer does not keep what was reserved");
    }
    Ok(())
}

/// Plays a life, up to the first fault.
fn live(seed: u64, steps: u32) -> (Life, Option<String>) {
    let mut random = Random::new(seed);
    let mut life = Life::default();
    for step in 0..steps {
        let [kind, ..] = random.next().to_le_bytes();
        if let Err(fault) = life.step((kind, random.next())) {
            return (life, Some(format!("step {step}: {fault}")));
        }
    }
    let fault = life.finish().err().map(|fault| format!("at the end: {fault}"));
    (life, fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_admitted_and_none_holds_otherwise_than_reserved() {
        let mut total = Outcome::default();
        for seed in 0..100 {
            let (life, fault) = live(seed, 200);
            assert_eq!(fault, None, "seed {seed}");
            total += life.outcome;
        }
        assert!(total.admitted > 300 && total.otherwise == 0, "{total:?}");
    }
}
