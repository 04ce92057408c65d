//! Runs the tests with one active mutant.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::plant::VARIABLE;

/// What the tests say of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// This test fails.
    Caught(String),
    /// The tests do not end in time, because the mutant loops.
    Hangs,
    Survives,
}

/// Runs the programs of tests with this mutant, or without one, until a test fails.
pub fn run(programs: &[PathBuf], mutant: Option<usize>, timeout: Duration) -> anyhow::Result<Verdict> {
    for program in programs {
        let verdict = run_one(program, mutant, timeout)?;
        if verdict != Verdict::Survives {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Survives)
}

fn run_one(program: &Path, mutant: Option<usize>, timeout: Duration) -> anyhow::Result<Verdict> {
    // Away from the sources, property tests keep no failed input that would help to catch the next mutant.
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(program);
    command.current_dir(folder.path()).env("PROPTEST_MAX_SHRINK_ITERS", "0").env("INSTA_UPDATE", "no");
    if let Some(mutant) = mutant {
        command.env(VARIABLE, mutant.to_string());
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let verdict = watch(&mut child, timeout)?;
    // A failed test decides, so the others need not end.
    let _ = child.kill();
    child.wait()?;
    Ok(verdict)
}

fn watch(child: &mut Child, timeout: Duration) -> anyhow::Result<Verdict> {
    let output = BufReader::new(child.stdout.take().context("the output is a pipe")?);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let end = Instant::now() + timeout;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(test) =
                    line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
                {
                    return Ok(Verdict::Caught(test.to_owned()));
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(Verdict::Hangs),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    // An abort (a stack overflow) prints no name.
    Ok(if child.wait()?.success() { Verdict::Survives } else { Verdict::Caught("the program".to_owned()) })
}
