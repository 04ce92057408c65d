//! Sets the length of a GPU's time slices by `nvidia-smi compute-policy`, because NVML has no public call for it.

use kerf_core::contract::SliceLength;
use kerf_core::names::GpuUuid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;
use thiserror::Error;
use tokio::process::Command;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long the program may take. It loads NVML and queries every GPU of the node, which takes a few seconds without
/// the driver's persistence mode.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The wait after a length could not be set.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// How many bytes of the program's output an error shows.
const LONGEST_ANSWER: usize = 300;

/// Why a length was not set, or cannot be read.
#[derive(Debug, Error)]
pub enum TimeSliceError {
    #[error("failed to run {}; is --nvidia-smi right?", program.display())]
    Start { program: PathBuf, source: std::io::Error },
    #[error("{} did not end within {} s and was stopped; check for a hung GPU", program.display(), timeout.as_secs())]
    Hangs {
        program: PathBuf,
        /// The timeout after which it was stopped.
        timeout: Duration,
    },
    #[error("nvidia-smi {command} failed with exit code {code:?}: {answer}")]
    Failed {
        command: String,
        /// Its exit code; `None` if a signal killed it.
        code: Option<i32>,
        /// Its output, shortened.
        answer: String,
    },
    #[error("nvidia-smi {command} said what this agent cannot read: {answer}")]
    Unreadable {
        command: String,
        /// Its output, shortened.
        answer: String,
    },
    /// The program succeeded, and the length still differs.
    #[error("the time slices of {gpu} are {found:?} after they were set to {wanted:?}")]
    NotTaken {
        gpu: GpuUuid,
        wanted: SliceLength,
        /// The length that the program lists afterwards.
        found: SliceLength,
    },
}

#[derive(Debug, Clone)]
pub struct TimeSlicer {
    program: PathBuf,
    timeout: Duration,
}

impl TimeSlicer {
    /// Runs `program`, a path or a name in `PATH`, usually `nvidia-smi`.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, timeout: TIMEOUT }
    }

    pub async fn length(&self, gpu: &GpuUuid) -> Result<SliceLength, TimeSliceError> {
        let arguments = ["compute-policy", "-i", gpu.as_str(), "--list"];
        let answer = self.run(&arguments).await?;
        listed(&answer).ok_or_else(|| TimeSliceError::Unreadable {
            command: arguments.join(" "),
            answer: shortened(&answer),
        })
    }

    /// Sets the length of a GPU's time slices, unless it has it already, and reads it back.
    pub async fn set(&self, gpu: &GpuUuid, wanted: SliceLength) -> Result<(), TimeSliceError> {
        let before = self.length(gpu).await?;
        if before == wanted {
            return Ok(());
        }
        self.run(&["compute-policy", "-i", gpu.as_str(), "--set-timeslice", number(wanted)]).await?;
        let found = self.length(gpu).await?;
        if found != wanted {
            return Err(TimeSliceError::NotTaken { gpu: gpu.clone(), wanted, found });
        }
        tracing::info!(%gpu, ?before, now = ?wanted, "set the length of time slices");
        Ok(())
    }

    /// Runs the program and returns its output. A program that takes too long is killed.
    async fn run(&self, arguments: &[&str]) -> Result<String, TimeSliceError> {
        let program = || self.program.clone();
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = match tokio::time::timeout(self.timeout, command.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(source)) => return Err(TimeSliceError::Start { program: program(), source }),
            Err(_) => return Err(TimeSliceError::Hangs { program: program(), timeout: self.timeout }),
        };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let (command, code, answer) = (arguments.join(" "), output.status.code(), said(&output));
        Err(TimeSliceError::Failed { command, code, answer })
    }
}

/// Keeps the lengths at the desired values until `stop`. A GPU that never had another length than the driver's default
/// is not even read: most nodes have only such GPUs, and each read runs a program. An earlier process `changed` these.
pub async fn keep(
    slicer: TimeSlicer,
    mut changed: BTreeSet<GpuUuid>,
    mut wanted: watch::Receiver<BTreeMap<GpuUuid, SliceLength>>,
    stop: CancellationToken,
) {
    let mut set: BTreeMap<GpuUuid, SliceLength> = BTreeMap::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        let mut settled = true;
        for (gpu, length) in now {
            if set.get(&gpu).copied().unwrap_or_default() == length && !changed.contains(&gpu) {
                continue;
            }
            match slicer.set(&gpu, length).await {
                Ok(()) => {
                    changed.remove(&gpu);
                    set.insert(gpu, length);
                }
                Err(error) => {
                    tracing::warn!(%gpu, %error, "the length of time slices cannot be set; trying again");
                    settled = false;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            news = wanted.changed() => if news.is_err() { return stop.cancelled().await },
            () = tokio::time::sleep(RETRY_INTERVAL), if !settled => {}
        }
    }
}

/// Finds the length in `nvidia-smi`'s table, which has one row for the queried GPU
/// (`|   0   Timeslice       Default       |`, driver 580).
fn listed(table: &str) -> Option<SliceLength> {
    let words =
        |row: &str| row.trim_matches(['|', ' ']).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut rows = table.lines().map(words).filter_map(|words| match words.as_slice() {
        [_, name, value] if name.eq_ignore_ascii_case("timeslice") => Some(value.to_ascii_lowercase()),
        _ => None,
    });
    let (Some(value), None) = (rows.next(), rows.next()) else { return None };
    match value.as_str() {
        "default" => Some(SliceLength::Default),
        "short" => Some(SliceLength::Short),
        "medium" => Some(SliceLength::Medium),
        "long" => Some(SliceLength::Long),
        _ => None,
    }
}

/// The numbers that `--set-timeslice` takes.
fn number(length: SliceLength) -> &'static str {
    match length {
        SliceLength::Default => "0",
        SliceLength::Short => "1",
        SliceLength::Medium => "2",
        SliceLength::Long => "3",
    }
}

/// The program's output for an error; most of it goes to stdout.
fn said(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).trim().to_owned());
    shortened(&parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; "))
}

fn shortened(text: &str) -> String {
    text.trim().chars().take(LONGEST_ANSWER).collect()
}

#[cfg(test)]
#[path = "time_slice_tests.rs"]
mod tests;
