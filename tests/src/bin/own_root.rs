//! `own_root --root FOLDER [--bind FROM TO]... [--env NAME=VALUE]... --name NAME -- PROGRAM [ARGUMENTS]`: becomes the program in a root of
//! its own, as a container has one, for programs whose paths are fixed when they are compiled.
//!
//! It needs no root: who may not make a mount namespace makes a user namespace first, in which they may. The machine's
//! system folders are there, and what is bound; nothing else, and no other variable of the environment.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::Parser;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::setsid;
use rustix::process::{Signal, chroot, getgid, getuid, set_parent_process_death_signal};

/// What a program of this machine needs to run: itself and its libraries, names and certificates, devices, processes.
/// The stores of Nix and Guix are for machines whose programs lie there.
const SYSTEM: [&str; 12] =
    ["/bin", "/dev", "/etc", "/gnu", "/lib", "/lib32", "/lib64", "/nix", "/proc", "/sbin", "/sys", "/usr"];

/// Becomes a program in a root of its own.
#[derive(Debug, Parser)]
struct Arguments {
    /// An empty folder that the root is mounted over, where nobody else sees it.
    #[arg(long)]
    root: PathBuf,
    /// What lies where in the root, over what is there.
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    bind: Vec<PathBuf>,
    /// The program's environment.
    #[arg(long)]
    env: Vec<String>,
    /// The name that the program is called by, its first argument.
    #[arg(long)]
    name: String,
    /// The program, and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

fn main() -> ExitCode {
    if let Err(error) = become_program(&Arguments::parse()) {
        eprintln!("own_root: {error:#}");
    }
    ExitCode::FAILURE
}

fn become_program(arguments: &Arguments) -> anyhow::Result<()> {
    // Its children are in its session, so that they can be ended with it.
    setsid().context("failed to start a session")?;
    part()
        .context("this machine lets its user make no mount namespace: be root, or allow user namespaces")?;
    // Being another user, even the same in a namespace, can take the signal away.
    set_parent_process_death_signal(Some(Signal::KILL)).context("failed to keep to the parent's end")?;
    let pairs = arguments.bind.chunks_exact(2).map(|pair| (pair[0].as_path(), pair[1].as_path()));
    enter(&arguments.root, pairs)?;
    let (program, rest) = arguments.program.split_first().context("no program is given")?;
    let environment = arguments.env.iter().filter_map(|variable| variable.split_once('='));
    let mut command = Command::new(program);
    command.arg0(&arguments.name).args(rest).env_clear().envs(environment);
    Err(command.exec()).with_context(|| format!("failed to become {program}"))
}

/// Mounts of its own, by a user namespace if there is no other way.
fn part() -> anyhow::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    match unshare(CloneFlags::CLONE_NEWNS) {
        Err(Errno::EPERM) => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
        }
        parted => parted?,
    }
    let root = Path::new("/");
    Ok(mount(None::<&Path>, root, None::<&Path>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&Path>)?)
}

/// Makes the root and enters it.
fn enter<'a>(root: &Path, binds: impl Iterator<Item = (&'a Path, &'a Path)>) -> anyhow::Result<()> {
    mount(Some("root"), root, Some("tmpfs"), MsFlags::empty(), None::<&Path>)
        .with_context(|| format!("failed to mount a root over {}", root.display()))?;
    for folder in SYSTEM.map(Path::new) {
        let Ok(found) = fs::symlink_metadata(folder) else { continue };
        if found.is_symlink() {
            symlink(fs::read_link(folder)?, within(root, folder))?;
        } else {
            // With all that is mounted below: to see what lies under a mount is refused in a user namespace.
            bind(root, folder, folder, MsFlags::MS_REC)?;
        }
    }
    fs::create_dir(within(root, Path::new("/tmp")))?;
    for (from, to) in binds {
        bind(root, from, to, MsFlags::empty())?;
    }
    chroot(root).context("failed to enter the root")?;
    Ok(std::env::set_current_dir("/")?)
}

fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn bind(root: &Path, from: &Path, to: &Path, more: MsFlags) -> anyhow::Result<()> {
    let there = within(root, to);
    fs::create_dir_all(&there).with_context(|| format!("failed to make room for {}", to.display()))?;
    mount(Some(from), &there, None::<&Path>, MsFlags::MS_BIND | more, None::<&Path>)
        .with_context(|| format!("failed to bind {} to {}", from.display(), to.display()))
}
