//! `kerf check`: whether a cluster can have kerf, and whether kerf works there; what does not, with the remedy.
//!
//! | module | what it does |
//! |---|---|
//! | `connect` | the way to the API server, and what is wrong with it |
//! | `read` | asks the API server for all that is looked at |
//! | `observed` | what was read, as plain data |
//! | `judge` | what was read → findings; pure, a file a group |
//! | `need`, `others`, `difference` | rights, other programs, documents: what is looked for; pure |
//! | `report` | findings → text or JSON; pure |

pub(crate) mod connect;
mod difference;
mod finding;
mod judge;
mod need;
pub(crate) mod observed;
pub(crate) mod others;
mod read;
mod report;

use clap::{Args as ClapArgs, ValueEnum};
use finding::Report;
use jiff::SignedDuration;
use kerf_runtime::args::ContextArgs;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often is looked again under `--wait`.
const LOOK: Duration = Duration::from_secs(2);

/// What is checked, and how it is told.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Check whether kerf can be installed. Without it: whether it works.
    #[arg(long)]
    pre: bool,
    /// Warnings fail too.
    #[arg(long)]
    strict: bool,
    /// Look again until all is well, this long at most: `2m`.
    #[arg(long, value_name = "DURATION")]
    wait: Option<SignedDuration>,
    /// `text` shows everything; `short` only what is not good, in ASCII; `json` everything, for programs.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// The namespace that kerf is installed in.
    #[arg(short, long, default_value = "kerf-system")]
    namespace: String,
    #[command(flatten)]
    client: ContextArgs,
}

/// How findings are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Every line, grouped.
    Text,
    /// What is not good.
    Short,
    /// JSON.
    Json,
}

/// Checks, prints, and says by its exit code whether all is well: 1 if not, 2 where no API server was reached.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (report, reached) = runtime.block_on(settled(args));
    let text = report::render(&report, args.output, args.strict);
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(match (reached, report::is_good(&report, args.strict)) {
        (false, _) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::FAILURE,
    })
}

/// What is found, after waiting for all to be well where that is asked for; and whether the API server was reached.
async fn settled(args: &Args) -> (Report, bool) {
    let patience = args.wait.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
    let until = Instant::now() + patience;
    loop {
        let (report, reached) = Box::pin(look(args)).await;
        if report::is_good(&report, args.strict) || Instant::now() + LOOK > until {
            return (report, reached);
        }
        sleep(LOOK).await;
    }
}

async fn look(args: &Args) -> (Report, bool) {
    match connect::connect(&args.client).await {
        Err(trouble) => (vec![(finding::Group::KubernetesApi, vec![trouble.finding()])], false),
        Ok(connected) => {
            let seen = Box::pin(read::read(connected, &args.namespace, args.pre)).await;
            (if args.pre { judge::before(&seen) } else { judge::after(&seen) }, true)
        }
    }
}
