//! `kerf uninstall`: what must be done before and after kerf's objects are deleted. The chart's hooks run it; whoever installed
//! with kustomize runs `nodes`, deletes the objects, and runs `leftovers`. Each may be run again and does what is left to do.

#[cfg(test)]
pub(crate) mod api_stand_in;
pub(crate) mod job;
mod leftovers;
mod nodes;

pub(crate) use leftovers::admins_policy;

use clap::{Args as ClapArgs, Subcommand};
use jiff::SignedDuration;
use kerf_runtime::args::ClientArgs;
use std::time::Duration;

/// The two steps.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take away the webhook's configuration, so that no pod is refused; then the agents; and let each node put back what its
    /// agent has set there. Running pods go on. For before kerf's objects are deleted.
    Nodes(NodesArgs),
    /// Delete what kerf's programs made for themselves: Secrets, Leases, the demand, and the `GpuNodes` of which nobody holds
    /// anything. For after kerf's objects are deleted, since the programs would make it again.
    Leftovers(LeftoversArgs),
}

/// What leaving the nodes takes.
#[derive(Debug, ClapArgs)]
pub struct NodesArgs {
    /// The namespace that kerf is installed in.
    #[arg(short, long, default_value = "kerf-system")]
    namespace: String,
    /// How long kubelets are kept from writing kerf's names into their Nodes again: they do for five minutes, and leave them
    /// with 0.
    #[arg(long, default_value = "6m", value_parser = positive)]
    settle: Duration,
    /// How long all nodes together may take, beside that.
    #[arg(long, default_value = "2m", value_parser = positive)]
    timeout: Duration,
    #[command(flatten)]
    client: ClientArgs,
}

/// What the leftovers are called.
#[derive(Debug, ClapArgs)]
pub struct LeftoversArgs {
    /// The namespace that kerf was installed in.
    #[arg(short, long, default_value = "kerf-system")]
    namespace: String,
    /// The Lease of kerf's own scheduler.
    #[arg(long, default_value = "kerf-scheduler")]
    scheduler_lease: String,
    #[command(flatten)]
    client: ClientArgs,
}

/// Does one step.
pub fn run(command: &Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Nodes(args) => nodes::leave(args.client.client().await?, args).await,
            Command::Leftovers(args) => leftovers::delete(args.client.client().await?, args).await,
        }
    })
}

pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    let read = text.parse::<SignedDuration>().ok().and_then(|read| Duration::try_from(read).ok());
    read.filter(|read| !read.is_zero())
        .ok_or_else(|| format!("{text:?} is no duration; write it like 30s or 6m"))
}

/// Whether a deletion found something.
pub(crate) fn deleted<T>(result: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(positive("6m"), Ok(Duration::from_mins(6)));
        assert_eq!(positive("1s"), Ok(Duration::from_secs(1)));
        for text in ["6", "0s", "-1s", ""] {
            assert!(positive(text).unwrap_err().contains("write it like"), "{text}");
        }
    }
}
