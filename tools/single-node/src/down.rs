//! `down`: ends the holder, and kills what it left behind if it did not end in order.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::real_node::{Leftovers, MPS_CGROUP, is_alive, kernel};
use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::args::Args;
use crate::running_node::{holder, log_file};
use crate::up::show;

/// Timeout for the holder's end: pods are deleted, the agent leaves, and all programs stop.
const TIMEOUT: Duration = Duration::from_mins(2);

pub fn down(args: &Args) -> anyhow::Result<()> {
    end(args)?;
    args.places().remove()?;
    let over = args.places().over();
    for fixed in over.iter().map(|(_, fixed)| *fixed).chain([Path::new(MPS_CGROUP)]) {
        // `up` creates these folders if they are missing. Removing a foreign one fails if it is in use; an
        // empty one is no loss.
        let _ = std::fs::remove_dir(fixed);
    }
    println!("everything has ended");
    Ok(())
}

/// Ends everything but keeps the files, so that a failure can be examined.
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
    // Only what the holder writes from now on is about its end.
    log.seek(SeekFrom::End(0)).context("failed to read the holder's log")?;
    kill_process(holder, Signal::TERM).context("failed to signal the holder to end")?;
    let begun = Instant::now();
    while is_alive(holder) {
        if begun.elapsed() > TIMEOUT {
            // Only the holder is killed, because the kernel kills all programs of the node with their parent.
            kill_process(holder, Signal::KILL).context("failed to kill the holder")?;
            anyhow::bail!("the node did not end within {TIMEOUT:?} and was killed");
        }
        thread::sleep(Duration::from_millis(50));
    }
    let said = show(&mut log)?;
    // The holder is another command's child, so its exit code is not available; its log is read instead.
    ensure!(
        !said.lines().any(|line| line.starts_with("error: ")),
        "the node did not end in order, see above"
    );
    Ok(())
}
