//! Child processes: none outlives its test, and they can be ended and restarted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::anyhow;
use kerf_tests::process::{Child, ProcessError, Program};

/// [`children_die_when_their_parent_is_killed`] runs itself again with this variable, and then plays the parent.
const PLAY_PARENT: &str = "KERF_TEST_PLAY_PARENT_IN";

const TIMEOUT: Duration = Duration::from_secs(10);

fn shell(script: &str, folder: &Path) -> Result<Child, ProcessError> {
    Program::new("shell", "/bin/sh", folder).args(["-c", script]).spawn()
}

fn sleeper(folder: &Path) -> Result<Child, ProcessError> {
    Program::new("sleeper", "sleep", folder).arg("600").spawn()
}

/// A process that has ended but was not yet waited for by its new parent counts as dead.
fn is_alive(id: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn children_die_when_their_parent_is_killed() -> anyhow::Result<()> {
    if let Some(folder) = env::var_os(PLAY_PARENT) {
        return play_parent(Path::new(&folder));
    }
    let folder = tempfile::tempdir()?;
    let mut parent = Command::new(env::current_exe()?)
        .args(["--exact", "process::children_die_when_their_parent_is_killed"])
        .env(PLAY_PARENT, folder.path())
        .stdout(Stdio::null())
        .spawn()?;
    let children = folder.path().join("children");
    eventually("the parent has started its children", || children.exists());
    let children = fs::read_to_string(children)?;
    let children: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(children.len(), 2);
    assert!(children.iter().all(|id| is_alive(id)), "a child ended before its parent");

    parent.kill()?;
    parent.wait()?;
    eventually("both children are gone", || children.iter().all(|id| !is_alive(id)));
    Ok(())
}

/// Starts two children from a thread that ends, writes their ids, and waits to be killed.
fn play_parent(folder: &Path) -> anyhow::Result<()> {
    let asked = folder.to_path_buf();
    let asking = thread::spawn(move || Ok::<_, ProcessError>([sleeper(&asked)?, sleeper(&asked)?]));
    let children = asking.join().map_err(|_| anyhow!("the asking thread has panicked"))??;
    // Leaves time for a signal that the end of the asking thread might cause.
    thread::sleep(Duration::from_millis(300));
    let unfinished = folder.join("children.unfinished");
    fs::write(&unfinished, format!("{} {}", children[0].id(), children[1].id()))?;
    fs::rename(&unfinished, folder.join("children"))?;
    loop {
        thread::park();
    }
}

#[test]
fn a_dropped_child_is_dead() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let child = sleeper(folder.path())?;
    let id = child.id().to_string();
    assert!(is_alive(&id));
    drop(child);
    assert!(!is_alive(&id));
    Ok(())
}

#[test]
fn a_polite_child_ends_by_itself() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut child =
        shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done", folder.path())?;
    eventually("the trap is set", || child.log_tail() == "up");
    assert!(child.terminate(TIMEOUT)?);
    assert_eq!(child.exited()?.and_then(|status| status.code()), Some(3));
    assert_eq!(child.log_tail(), "up\nbye");
    Ok(())
}

#[test]
fn a_stubborn_child_is_killed_after_the_timeout() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut child = shell("trap '' TERM; echo up; while :; do sleep 0.05; done", folder.path())?;
    eventually("the trap is set", || child.log_tail() == "up");
    assert!(!child.terminate(Duration::from_millis(200))?);
    assert!(!is_alive(&child.id().to_string()));
    Ok(())
}

#[test]
fn a_restarted_child_is_a_new_process_with_the_same_log() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut child = shell("echo started; exec sleep 600", folder.path())?;
    eventually("it has started", || child.log_tail() == "started");
    let first = child.id();
    child.restart()?;
    eventually("it has started again", || child.log_tail() == "started\nstarted");
    assert_ne!(child.id(), first);
    assert!(!is_alive(&first.to_string()));
    assert!(child.exited()?.is_none());
    Ok(())
}

#[test]
fn a_missing_program_is_reported_in_the_log() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut child = Program::new("ghost", "/no/such/program", folder.path()).spawn()?;
    eventually("the wrapper has given up", || matches!(child.exited(), Ok(Some(_))));
    assert!(child.log_tail().contains("failed to become /no/such/program"), "{}", child.log_tail());
    Ok(())
}
