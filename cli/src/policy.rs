//! `kerf policy`: looks at policy files as the webhook would.

use anyhow::{Context, bail};
use clap::Subcommand;
use kerf_core::kind::IsolationClass;
use kerf_runtime::policy_file;
use std::io::Write;
use std::path::PathBuf;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say whether policy files are good; exit with 1 if one is not.
    Check {
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<()> {
    let Command::Check { files } = command;
    let mut bad = 0;
    let mut out = std::io::stdout().lock();
    for file in files {
        match policy_file::read(file) {
            Ok(policy) => {
                let classes: Vec<String> = IsolationClass::ALL
                    .into_iter()
                    .filter_map(|class| {
                        let kinds: Vec<String> =
                            policy.kinds(class)?.iter().map(ToString::to_string).collect();
                        Some(format!("{class}: {}", kinds.join(", then ")))
                    })
                    .collect();
                writeln!(out, "{}: good; {}", file.display(), classes.join("; "))?;
            }
            Err(error) => {
                bad += 1;
                writeln!(out, "{}", format!("{:#}", anyhow::Error::new(error)).trim_end())
                    .context("failed to write")?;
            }
        }
    }
    if bad > 0 {
        bail!("{bad} of {} policy files are bad", files.len());
    }
    Ok(())
}
