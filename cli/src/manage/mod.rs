//! `kerf manage NODE...`: hands nodes over from NVIDIA's device plugin to kerf. After an interruption another run does
//! what is left to do. `kerf release` undoes it.
//!
//! | part | what |
//! |---|---|
//! | `conflicting` | the `DaemonSets` that manage GPUs too, and how each is kept off a node |
//! | `selects` | whether a `DaemonSet`'s pods may be on a node |
//! | `holders` | the pods that hold GPUs which kerf has not given them |
//! | `plan` | what to do with a node, or why nothing can be done |
//! | `served` | whether kerf's agent serves a node |
//! | `refused` | why a node is not handed over, with the remedy |
//! | `steps` | the steps, through the API server |

mod conflicting;
mod holders;
mod plan;
mod refused;
mod selects;
mod served;
mod steps;

use crate::connection::{Connection, KerfNamespace, candidates};
use crate::release::node_name;
use clap::Args as ClapArgs;
use clap_complete::ArgValueCandidates;
use kerf_runtime::duration::positive;
use std::time::Duration;

/// Which nodes, and how long it may take.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The nodes: `NAME` or `node/NAME`.
    #[arg(value_name = "NODE", value_parser = node_name, required_unless_present = "selector",
        add = ArgValueCandidates::new(candidates::machines))]
    nodes: Vec<String>,
    /// The nodes with these labels: `pool=gpu`.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "nodes")]
    selector: Option<String>,
    #[command(flatten)]
    kerf: KerfNamespace,
    /// How long to wait for pods that hold GPUs of a node. Without it they are named, and nothing is done.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    wait: Option<Duration>,
    /// Cordon each node first, so that no new pod takes a GPU of it meanwhile, and uncordon it when kerf serves it.
    #[arg(long)]
    cordon: bool,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// How long a node may take until kerf's agent serves it, once its pods have ended.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = positive)]
    timeout: Duration,
    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  # What would be done
  kerf manage gpu-1 --dry-run

  # Hand over two nodes whose GPUs nobody uses
  kerf manage gpu-1 gpu-2

  # All nodes of a pool, each as soon as its pods have ended
  kerf manage -l pool=gpu --cordon --wait=2h";

pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { steps::manage(args.connection.client().await?, args).await })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn nodes_are_named_or_selected() {
        let read = |words: &[&str]| Cli::try_parse_from([&["kerf"], words].concat()).map(|cli| cli.args);
        assert_eq!(read(&["gpu-1", "node/gpu-2"]).unwrap().nodes, ["gpu-1", "gpu-2"]);
        assert_eq!(read(&["-l", "pool=gpu"]).unwrap().selector.as_deref(), Some("pool=gpu"));
        for words in [&[][..], &["gpu-1", "-l", "pool=gpu"], &["pod/web"], &["gpu-1", "--wait", "soon"]] {
            assert!(read(words).is_err(), "{words:?}");
        }
    }
}
