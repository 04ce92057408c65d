//! Creates and deletes random pods on the demo's nodes, and checks every invariant after each round.

use std::time::Instant;

use anyhow::ensure;
use clap::Args as ClapArgs;
use kerf_tests::churn::{Churn, Settled};
use kerf_tests::cluster::{Cluster, ClusterOptions};

use crate::report::{Figure, print, print_figures};

/// How long and how random.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Rounds; each creates or deletes a few pods.
    #[arg(long, default_value_t = 1000)]
    rounds: u32,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let nodes = ClusterOptions::demo_nodes();
    let cluster = Cluster::start(ClusterOptions::new(nodes), |step| print(&format!("# {step}"))).await?;
    let mut churn = Churn::new(args.seed);
    let begun = Instant::now();
    let (mut broken, mut unexplained) = (0_u32, 0_u32);
    for round in 1..=args.rounds {
        match churn.round(&cluster).await? {
            Settled::Sound => {}
            Settled::Unexplained(pods) => {
                unexplained += 1;
                print(&format!("round {round}: {}", pods.join("; ")));
            }
            Settled::Broken(violations) => {
                broken += 1;
                print(&format!("round {round}: {}", violations.join("; ")));
            }
        }
        if round % 50 == 0 {
            let per_round = begun.elapsed().as_secs_f64() / f64::from(round);
            print(&format!("# round {round} of {}: {per_round:.2} s each; {}", args.rounds, churn.tally()));
        }
    }
    let tally = churn.tally();
    cluster.stop().await?;
    print(&format!("churn: {} rounds in {:.0} s; {tally}", args.rounds, begun.elapsed().as_secs_f64()));
    print_figures(&[
        Figure::at_most("rounds with a slice held twice, gone or refused", f64::from(broken), 0.0),
        Figure::at_most("rounds with a pod pending without a reason", f64::from(unexplained), 0.0),
    ]);
    ensure!(
        broken + unexplained == 0,
        "seed {}: {broken} rounds broke an invariant, {unexplained} left pods waiting for no reason",
        args.seed
    );
    Ok(())
}
