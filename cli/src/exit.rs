//! The exit codes of kerf: one code for one cause, in every command, so that scripts can decide by them.

use crate::bench::PlanError;
use crate::connection::Trouble;
use crate::failure::NotFound;
use crate::input::InputError;
use crate::{output, simulate};
use kerf_runtime::policy_file::PolicyFileError;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    BadInput,
    Unreachable,
    NotFound,
    ClosedPipe,
}

impl Exit {
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Failed, Self::BadInput, Self::Unreachable, Self::NotFound, Self::ClosedPipe];

    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            // The same as clap's code for a wrong flag, because both are wrong input.
            Self::BadInput => 2,
            Self::Unreachable => 3,
            Self::NotFound => 4,
            // This is 128 + 13, because a shell reports that for a program that SIGPIPE ended, and kubectl exits so.
            Self::ClosedPipe => 141,
        }
    }

    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "The command did what it was asked.",
            Self::Failed => {
                "The answer is no (`check` found a failure, a policy is bad, a test differs), or the command failed for another reason."
            }
            Self::BadInput => "A flag, an argument or an input file is wrong; nothing was done.",
            Self::Unreachable => "No API server can be reached, or it does not accept the user.",
            Self::NotFound => "An object that the command names does not exist.",
            Self::ClosedPipe => "Standard output was closed before the end, as `head` does.",
        }
    }

    #[must_use]
    pub fn table() -> String {
        Self::ALL.iter().fold("Exit codes:\n".to_owned(), |mut text, exit| {
            let _infallible = writeln!(text, "  {:<4} {}", exit.code(), exit.meaning());
            text
        })
    }

    #[must_use]
    pub fn from_error(error: &anyhow::Error) -> Self {
        // The whole chain is searched, because the cause may be below the context that a command has added.
        error.chain().find_map(from_cause).unwrap_or(Self::Failed)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

fn from_cause(cause: &(dyn Error + 'static)) -> Option<Exit> {
    let is_input = cause.is::<InputError>()
        || cause.is::<simulate::InputError>()
        || cause.is::<PolicyFileError>()
        || is_no_library(cause);
    if output::is_closed(cause) {
        Some(Exit::ClosedPipe)
    } else if is_input {
        Some(Exit::BadInput)
    } else if cause.is::<NotFound>() || matches!(cause.downcast_ref(), Some(PlanError::UnknownGpu(..))) {
        Some(Exit::NotFound)
    } else if cause.is::<Trouble>() || cause.downcast_ref().is_some_and(is_lost) {
        Some(Exit::Unreachable)
    } else {
        None
    }
}

/// Whether the file that was named as NVML is no such library. Systems other than Linux have no NVML, so there it never
/// is.
fn is_no_library(cause: &(dyn Error + 'static)) -> bool {
    #[cfg(target_os = "linux")]
    return matches!(cause.downcast_ref(), Some(kerf_nvml::GpuError::Library { .. }));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = cause;
        false
    }
}

fn is_lost(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 401,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::Auth(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context as _, anyhow};

    #[test]
    fn the_cause_is_found_beneath_its_contexts() {
        let missing: anyhow::Result<()> = Err(NotFound::new("no node n", "list them").into());
        assert_eq!(Exit::from_error(&missing.context("failed to look").unwrap_err()), Exit::NotFound);
        assert_eq!(Exit::from_error(&anyhow!("anything")), Exit::Failed);
        let lost = kube::Error::Service("connection reset".into());
        assert_eq!(Exit::from_error(&anyhow::Error::from(lost).context("failed to list")), Exit::Unreachable);
    }

    #[test]
    fn each_code_has_one_cause() {
        let codes: std::collections::BTreeSet<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes.len(), Exit::ALL.len());
        assert_eq!(Exit::table().lines().count(), Exit::ALL.len() + 1);
    }
}
