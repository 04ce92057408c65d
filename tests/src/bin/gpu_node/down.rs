//! `down`: ends the holder, and what it has left behind if it did not end in order.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kerf_tests::real_node::{Leftovers, MPS_CGROUP, is_alive, kernel};
use rustix::process::{Pid, Signal, kill_process};

use crate::args::Args;
use crate::standing::{holder, log_file};
use crate::up::show;

/// How long the holder may take: the pods have to end, the agent to leave, all programs to stop.
const PATIENCE: Duration = Duration::from_mins(2);

/// Ends everything and removes the files.
pub fn down(args: &Args) -> anyhow::Result<()> {
    end(args)?;
    args.places().remove()?;
    let over = args.places().over();
    for fixed in over.iter().map(|(_, fixed)| *fixed).chain([Path::new(MPS_CGROUP)]) {
        // Made by `up` where it was not there; somebody else's is not empty, or stays as empty as it was.
        let _ = std::fs::remove_dir(fixed);
    }
    println!("everything has ended");
    Ok(())
}

/// Ends everything; the files stay for who wants to know why it failed.
pub fn end(args: &Args) -> anyhow::Result<()> {
    let ended = holder(args).map_or(Ok(()), |holder| end_holder(args, holder));
    let left = Leftovers::find(&args.places());
    if !left.names().is_empty() {
        println!("left behind, and killed: {}", left.names().join(", "));
    }
    let immortal = left.kill();
    ensure!(immortal.is_empty(), "these processes do not end: {}", immortal.join(", "));
    Leftovers::remove_cgroups();
    kernel::put_back(&args.places())?;
    ended
}

fn end_holder(args: &Args, holder: Pid) -> anyhow::Result<()> {
    let mut log = File::open(log_file(args)).context("failed to open the holder's log")?;
    log.seek(SeekFrom::End(0)).context("failed to read the holder's log")?;
    kill_process(holder, Signal::TERM).context("failed to tell the holder to end")?;
    let begun = Instant::now();
    while is_alive(holder) {
        if begun.elapsed() > PATIENCE {
            // All programs end with it, by the kernel's hand.
            kill_process(holder, Signal::KILL).context("failed to kill the holder")?;
            anyhow::bail!("the node did not end within {PATIENCE:?} and was killed");
        }
        thread::sleep(Duration::from_millis(50));
    }
    let said = show(&mut log)?;
    // Another command's child: nobody here gets its exit code.
    ensure!(
        !said.lines().any(|line| line.starts_with("error: ")),
        "the node did not end in order, see above"
    );
    Ok(())
}
