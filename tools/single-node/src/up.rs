//! `up`: starts a holder that outlives this command, and shows its output until the node is up.

use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::real_node::{Process, kernel};

use crate::args::Args;
use crate::running_node::{RunningNode, holder, log_file, pid_file};

/// Timeout for the start, which takes some tens of seconds on an idle machine. Together with the other steps
/// it stays below the limit of a command on a lent machine.
const TIMEOUT: Duration = Duration::from_mins(2);

pub fn up(args: &Args) -> anyhow::Result<()> {
    ensure!(holder(args).is_none(), "a node is up in {}: run `single_node down` first", args.state.display());
    ensure!(!args.state.exists(), "{} is there already: run `single_node down`", args.state.display());
    no_other_kubelet()?;
    fs::create_dir_all(args.state.join("tmp"))
        .with_context(|| format!("failed to create {} (is this root?)", args.state.display()))?;
    // The settings are recorded before the kubelet changes them.
    kernel::record(&args.places())?;
    let mut child = start(args)?;
    fs::write(pid_file(args), format!("{}\n", child.id())).context("failed to note the holder's process")?;
    let mut log = File::open(log_file(args)).context("failed to open the holder's log")?;
    let begun = Instant::now();
    while !RunningNode::is_written(args) {
        show(&mut log)?;
        if let Some(status) = child.try_wait()? {
            show(&mut log)?;
            bail!("the node did not come up ({status}); logs are in {}", args.state.display());
        }
        if begun.elapsed() > TIMEOUT {
            bail!("the node is not up after {TIMEOUT:?}; logs are in {}", args.state.display());
        }
        thread::sleep(Duration::from_millis(50));
    }
    show(&mut log).map(drop)
}

/// Two kubelets on one machine end each other's pods: each takes the other's cgroups for those of deleted
/// pods.
fn no_other_kubelet() -> anyhow::Result<()> {
    let other = Process::all().into_values().find(|process| process.name == "kubelet");
    other.map_or(Ok(()), |other| {
        bail!("a kubelet runs on this machine already (process {}): its pods would be ended; use another machine", other.id)
    })
}

/// Starts this program again as the holder, without this command's standard streams and folder.
fn start(args: &Args) -> anyhow::Result<Child> {
    let log = File::create(log_file(args)).context("failed to create the holder's log")?;
    let mut holder = Command::new(env::current_exe().context("failed to find this program")?);
    let given = env::args_os().skip(1).filter(|word| word != "up" && word != "all");
    holder.arg("hold").args(given).env("TMPDIR", args.state.join("tmp")).current_dir("/");
    holder.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    holder.spawn().context("failed to start the holder")
}

/// Prints what was added to the log, and returns it.
pub fn show(log: &mut File) -> anyhow::Result<String> {
    let mut text = String::new();
    log.read_to_string(&mut text).context("failed to read the holder's log")?;
    print!("{text}");
    Ok(text)
}
