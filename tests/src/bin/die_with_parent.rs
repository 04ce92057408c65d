//! `die_with_parent <parent's process id> <program> [arguments]` asks the kernel to kill it when its parent
//! ends, then becomes the program. It is a separate executable, because asking between fork and exec would
//! need unsafe code.
//!
//! For the kernel the parent is the *thread* that forked. [`kerf_tests::process`] therefore forks on a thread
//! that lives as long as its process.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Never returns success, because success means that another program has replaced this one.
fn main() -> ExitCode {
    if let Err(error) = become_program() {
        // The child's log gets the error in one line, because a backtrace would push out the lines that
        // matter.
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
    // If the parent ended before the line above, the kernel sends no signal; the orphan then has another
    // parent.
    ensure!(getppid() == Pid::from_raw(parent), "the parent {parent} has ended already");

    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("failed to become {}", program.display()))
}
