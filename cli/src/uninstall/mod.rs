//! `kerf uninstall`: the steps before and after kerf's objects are deleted. The chart's hooks run them. Users of
//! kustomize run `nodes`, delete the objects, and run `leftovers`. Each may be run again, and does what is left to do.

#[cfg(test)]
pub(crate) mod api_stand_in;
pub(crate) mod job;
mod leftovers;
mod nodes;

pub(crate) use leftovers::admins_policy;

use crate::connection::{Connection, KerfNamespace};
use clap::{Args as ClapArgs, Subcommand};
use kerf_runtime::duration::positive;
use std::time::Duration;

const NODES: &str = "\
Examples:
  # Before kerf's objects are deleted
  kerf uninstall nodes

  # kerf is in another namespace, and its nodes are slow
  kerf uninstall nodes --kerf-namespace gpu --timeout 10m";

const LEFTOVERS: &str = "\
Examples:
  # After kerf's objects are deleted
  kerf uninstall leftovers";

/// The two steps.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take away the webhook's configuration, so that no pod is refused; then the agents; and let each node put back
    /// what its agent has set there. Running pods go on. For before kerf's objects are deleted.
    Nodes(NodesArgs),
    /// Delete what kerf's programs made for themselves: Secrets, Leases, the demand, and the `GpuNodes` without
    /// holders. For after kerf's objects are deleted, since the programs would make it again.
    Leftovers(LeftoversArgs),
}

/// What leaving the nodes takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = NODES)]
pub struct NodesArgs {
    #[command(flatten)]
    kerf: KerfNamespace,
    /// How long kubelets are kept from writing kerf's names into their Nodes again: they do for five minutes, and leave
    /// them with 0.
    #[arg(long, value_name = "DURATION", default_value = "6m", value_parser = positive)]
    settle: Duration,
    /// How long all nodes together may take, beside that.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = positive)]
    timeout: Duration,
    #[command(flatten)]
    connection: Connection,
}

/// What the leftovers are called.
#[derive(Debug, ClapArgs)]
#[command(after_help = LEFTOVERS)]
pub struct LeftoversArgs {
    #[command(flatten)]
    kerf: KerfNamespace,
    /// The Lease of kerf's own scheduler.
    #[arg(long, value_name = "NAME", default_value = "kerf-scheduler")]
    scheduler_lease: String,
    #[command(flatten)]
    connection: Connection,
}

pub fn run(command: &Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Nodes(args) => nodes::leave(args.connection.client().await?, args).await,
            Command::Leftovers(args) => leftovers::delete(args.connection.client().await?, args).await,
        }
    })
}

pub(crate) fn deleted<T>(result: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
