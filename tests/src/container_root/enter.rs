//! Turns a process into a container: it mounts the container's file system, then executes the program.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::process::{
    Signal, getegid, geteuid, getppid, pivot_root, set_parent_process_death_signal, setsid,
};

use super::{ContainerRoot, image};

const NONE: Option<&str> = None;

#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The mount namespace was not created.
    #[error(
        "failed to make a mount namespace; that takes root, or user namespaces for everyone (Ubuntu: sysctl \
         kernel.apparmor_restrict_unprivileged_userns=0)"
    )]
    Namespace(#[source] nix::Error),
    #[error("failed to mount {path} in a container")]
    Mount {
        /// The path below the scratch folder.
        path: PathBuf,
        #[source]
        source: nix::Error,
    },
    #[error("failed to make {path} in a container")]
    Path {
        /// The path below the scratch folder.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A call by which the process changes itself failed.
    #[error("failed to prepare a container's process")]
    Process(#[source] io::Error),
    #[error("failed to run {program}")]
    Exec {
        program: String,
        #[source]
        source: io::Error,
    },
}

/// Maps an I/O error to one with its path.
pub(super) fn io_error(path: &Path) -> impl Fn(io::Error) -> EnterError {
    move |source| EnterError::Path { path: path.to_owned(), source }
}

/// Becomes the container's program in a new session, so that all processes of the container can be signalled
/// together. The process must have only one thread. Returns only on failure.
#[must_use]
pub fn become_container(root: &ContainerRoot) -> EnterError {
    match enter(root) {
        Ok(()) => exec(&root.command, root),
        Err(error) => error,
    }
}

/// Becomes a command in the namespaces and the environment of a container's process. The process must have
/// only one thread. Returns only on failure.
#[must_use]
pub fn run_beside(process: u32, root: &ContainerRoot, command: &[String]) -> EnterError {
    match join(process)
        .and_then(|()| std::env::set_current_dir(&root.working_dir).map_err(io_error(&root.working_dir)))
    {
        Ok(()) => exec(command, root),
        Err(error) => error,
    }
}

fn join(process: u32) -> Result<(), EnterError> {
    let namespace = |process: &str, kind: &str| PathBuf::from(format!("/proc/{process}/ns/{kind}"));
    let process = process.to_string();
    for (kind, flag) in [("user", CloneFlags::CLONE_NEWUSER), ("mnt", CloneFlags::CLONE_NEWNS)] {
        let (own, theirs) = (namespace("self", kind), namespace(&process, kind));
        let is_same = fs::read_link(&own).map_err(io_error(&own))?
            == fs::read_link(&theirs).map_err(io_error(&theirs))?;
        // The kernel rejects joining the process's own user namespace.
        if !is_same {
            let file = File::open(&theirs).map_err(io_error(&theirs))?;
            setns(file, flag).map_err(EnterError::Namespace)?;
        }
    }
    Ok(())
}

fn exec(line: &[String], root: &ContainerRoot) -> EnterError {
    let program = line.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    command.args(line.iter().skip(1)).env_clear().envs(&root.environment);
    EnterError::Exec { program, source: command.exec() }
}

fn enter(root: &ContainerRoot) -> Result<(), EnterError> {
    let parent = getppid();
    setsid().map_err(|error| EnterError::Process(error.into()))?;
    own_namespace()?;
    assemble(root)?;
    leave_the_machine(&root.scratch)?;
    std::env::set_current_dir(&root.working_dir).map_err(io_error(&root.working_dir))?;
    // The capabilities of a new user namespace cancel the parent death signal that `die_with_parent` set, so
    // it is set again.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| EnterError::Process(error.into()))?;
    // A parent that ended before that line sends no signal.
    if getppid() == parent {
        Ok(())
    } else {
        Err(EnterError::Process(io::Error::other("the parent has ended")))
    }
}

/// Creates a mount namespace that the machine does not see. An ordinary user also gets a user namespace with
/// root in it.
fn own_namespace() -> Result<(), EnterError> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        unshare(CloneFlags::CLONE_NEWNS).map_err(EnterError::Namespace)?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(EnterError::Namespace)?;
        let maps = [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("0 {} 1", user.as_raw())),
            ("gid_map", format!("0 {} 1", group.as_raw())),
        ];
        for (file, text) in maps {
            let path = Path::new("/proc/self").join(file);
            fs::write(&path, text).map_err(io_error(&path))?;
        }
    }
    // A slave receives later mounts of the machine and propagates none back. This is the first call that
    // Ubuntu's restriction rejects.
    let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    mount(NONE, "/", NONE, slave, NONE).map_err(EnterError::Namespace)
}

fn assemble(root: &ContainerRoot) -> Result<(), EnterError> {
    let scratch = &root.scratch;
    let failed = |source| EnterError::Mount { path: scratch.clone(), source };
    mount(Some("tmpfs"), scratch, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).map_err(failed)?;
    image::make(scratch)?;
    let mut mounts: Vec<_> = root.mounts.iter().collect();
    // Outer mounts come first, because they would hide inner ones.
    mounts.sort_by_key(|mount| mount.target.components().count());
    for mount in mounts {
        let target = scratch.join(mount.target.strip_prefix("/").unwrap_or(&mount.target));
        let flags = if mount.read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        bind(&mount.source, &target, flags)?;
    }
    if !root.read_only {
        return Ok(());
    }
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(NONE, scratch, NONE, flags, NONE).map_err(failed)
}

/// Mounts a file or folder recursively over a target of the same kind, which is created if missing.
pub(super) fn bind(source: &Path, target: &Path, more: MsFlags) -> Result<(), EnterError> {
    let metadata = fs::metadata(source).map_err(io_error(source))?;
    if metadata.is_dir() {
        fs::create_dir_all(target).map_err(io_error(target))?;
    } else if !target.exists() {
        let folder = target.parent().unwrap_or(target);
        fs::create_dir_all(folder).map_err(io_error(folder))?;
        File::create(target).map_err(io_error(target))?;
    }
    let failed = |error| EnterError::Mount { path: target.to_owned(), source: error };
    mount(Some(source), target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE).map_err(failed)?;
    if more.is_empty() {
        return Ok(());
    }
    // The kernel ignores such flags when a bind mount is made, so a remount sets them.
    let remount = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | more | kept_flags(target)?;
    mount(NONE, target, NONE, remount, NONE).map_err(failed)
}

/// The flags that a remount in a user namespace must keep.
fn kept_flags(path: &Path) -> Result<MsFlags, EnterError> {
    use rustix::fs::StatVfsMountFlags as Has;
    let has = rustix::fs::statvfs(path).map_err(|error| io_error(path)(error.into()))?.f_flag;
    let pairs = [
        (Has::NODEV, MsFlags::MS_NODEV),
        (Has::NOEXEC, MsFlags::MS_NOEXEC),
        (Has::NOSUID, MsFlags::MS_NOSUID),
        (Has::NOATIME, MsFlags::MS_NOATIME),
        (Has::NODIRATIME, MsFlags::MS_NODIRATIME),
        (Has::RELATIME, MsFlags::MS_RELATIME),
    ];
    Ok(pairs.into_iter().filter(|(flag, _)| has.contains(*flag)).map(|(_, flag)| flag).collect())
}

/// Makes the scratch folder the root, so that no other file of the machine can be reached.
fn leave_the_machine(scratch: &Path) -> Result<(), EnterError> {
    std::env::set_current_dir(scratch).map_err(io_error(scratch))?;
    pivot_root(".", ".").map_err(|error| EnterError::Process(error.into()))?;
    // The old root is now mounted over the new one, and hides it until it is unmounted.
    umount2(".", MntFlags::MNT_DETACH).map_err(|error| EnterError::Process(error.into()))
}
