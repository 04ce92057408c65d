//! `kerf check`: can a cluster run kerf, and does kerf work there? Each problem comes with its remedy.
//!
//! | module | what it does |
//! |---|---|
//! | `read` | reads everything from the API server |
//! | `observed` | what was read, as plain data |
//! | `judge` | turns what was read into findings; pure, one file for each group |
//! | `need`, `gpu_managers`, `difference` | rights, other GPU managers, comparison of documents; pure |
//! | `report` | prints the findings; pure |

mod difference;
mod finding;
pub(crate) mod gpu_managers;
mod judge;
mod need;
pub(crate) mod observed;
mod read;
mod report;

pub(crate) use judge::versions;
pub(crate) use observed::{Observed, Seen};
pub(crate) use read::list;

use crate::connection::{Connection, KerfNamespace};
use crate::exit::Exit;
use crate::output::{self, Format};
use crate::progress::Wait;
use clap::Args as ClapArgs;
use finding::{Finding, Group};
use kerf_runtime::duration::positive;
use report::Report;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  # Can this cluster have kerf?
  kerf check --pre

  # Does kerf work here? Wait up to two minutes until it does
  kerf check --wait 2m

  # In a pipeline: only what is not well, and warnings fail too
  kerf check --strict -o short

  # What does not work, as programs read it
  kerf check -o json | jq '.groups[].findings[] | select(.verdict == \"failure\")'";

const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// What to check, and how to report it.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Check whether kerf can be installed. Without it: whether it works.
    #[arg(long)]
    pre: bool,
    /// Warnings fail too.
    #[arg(long)]
    strict: bool,
    /// Look again until all is well, this long at most: `2m`.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    wait: Option<Duration>,
    /// The form: `short` is only what is not good, in ASCII.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[Format::Short]))]
    output: Format,
    #[command(flatten)]
    kerf: KerfNamespace,
    #[command(flatten)]
    connection: Connection,
}

/// Checks and prints; the exit code says whether all is well.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (report, reached) = runtime.block_on(settled(args));
    output::print(&report, args.output)?;
    Ok(match (reached, report.good) {
        (false, _) => Exit::Unreachable,
        (true, true) => Exit::Done,
        (true, false) => Exit::Failed,
    })
}

async fn settled(args: &Args) -> (Report, bool) {
    let mut wait = Wait::new("all to be well", args.wait.unwrap_or_default()).every(POLL_INTERVAL);
    loop {
        let (report, reached) = Box::pin(check_once(args)).await;
        if report.good || wait.next_check(|| ()).await.is_err() {
            return (report, reached);
        }
    }
}

async fn check_once(args: &Args) -> (Report, bool) {
    let (groups, reached) = match args.connection.connect().await {
        Err(trouble) => {
            let (what, remedy) = trouble.words();
            (vec![(Group::KubernetesApi, vec![Finding::failure(what, remedy)])], false)
        }
        Ok(connected) => {
            let seen = Box::pin(read::read(connected, &args.kerf.name, args.pre)).await;
            (if args.pre { judge::before(&seen) } else { judge::after(&seen) }, true)
        }
    };
    (Report::new(groups, args.strict), reached)
}
