//! `die_with_parent <parent's process id> <program> [arguments]`: becomes the program, after having asked the kernel to
//! kill it when its parent ends. A separate executable, because asking between fork and exec would need unsafe code.
//!
//! The kernel counts the *thread* that forked as the parent; [`kerf_tests::process`] forks from one that lives as long
//! as its process.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Never returns success: that would mean the program was not become.
fn main() -> ExitCode {
    if let Err(error) = become_program() {
        // Into the child's log, in one line: a backtrace of ours would push out what the reader looks for.
        eprintln!("die_with_parent: {error:#}");
    }
    ExitCode::FAILURE
}

fn become_program() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let parent = arguments.next().context("the first argument is missing: the parent's process id")?;
    let parent: i32 = parent.to_string_lossy().parse().context("the parent's process id is not a number")?;
    let program = arguments.next().context("the second argument is missing: the program to become")?;

    set_parent_process_death_signal(Some(Signal::KILL))
        .context("failed to ask for the parent death signal")?;
    // A parent that ended before the line above sends no signal any more; the orphan then has another parent.
    ensure!(getppid() == Pid::from_raw(parent), "the parent {parent} has ended already");

    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("failed to become {}", program.display()))
}
