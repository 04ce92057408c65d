//! `kerf release NODE`: gives one node back to NVIDIA's device plugin, while kerf stays on the cluster. After an
//! interruption another run does what is left to do.
//!
//! | part | what |
//! |---|---|
//! | `node_state` | the state of a node, and what the admin must do by hand |
//! | `holders` | the pods that hold slices there |
//! | `refused` | why a node is not given back, with the remedy |
//! | `steps`, `put_back` | the steps, through the API server |

mod holders;
mod node_state;
mod put_back;
mod refused;
mod steps;

use crate::connection::{Connection, KerfNamespace, candidates};
use clap::Args as ClapArgs;
use clap_complete::ArgValueCandidates;
use kerf_runtime::duration::positive;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  # Give a node back whose pods have ended
  kerf release gpu-1

  # Wait up to an hour for pods that hold slices of it
  kubectl cordon gpu-1
  kerf release node/gpu-1 --wait 1h";

/// Which node, and how long it may take.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The node: `NAME` or `node/NAME`.
    #[arg(value_parser = node_name, add = ArgValueCandidates::new(candidates::nodes))]
    node: String,
    #[command(flatten)]
    kerf: KerfNamespace,
    /// How long to wait for pods that hold slices of the node; without it they are named, and nothing is done. New ones
    /// come meanwhile, unless the node is cordoned.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    wait: Option<Duration>,
    /// How long the kubelet is kept from writing kerf's names into its Node again: it does for five minutes, and leaves
    /// them with 0.
    #[arg(long, value_name = "DURATION", default_value = "6m", value_parser = positive)]
    settle: Duration,
    /// How long the agent's end and what it puts back may take, beside that.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = positive)]
    timeout: Duration,
    #[command(flatten)]
    connection: Connection,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { steps::release(args.connection.client().await?, args).await })
}

/// Parses a node's name in the forms that kubectl accepts.
pub(crate) fn node_name(text: &str) -> Result<String, String> {
    let (kind, name) = text.split_once('/').unwrap_or(("node", text));
    match kind {
        "node" | "nodes" | "no" if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(format!("{text:?} is no node; write its name, or node/NAME")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_as_for_kubectl() {
        for text in ["gpu-1", "node/gpu-1", "nodes/gpu-1", "no/gpu-1"] {
            assert_eq!(node_name(text), Ok("gpu-1".to_owned()), "{text}");
        }
        for text in ["", "node/", "pod/web", "gpunode/gpu-1"] {
            assert!(node_name(text).unwrap_err().contains("write its name"), "{text}");
        }
    }
}
