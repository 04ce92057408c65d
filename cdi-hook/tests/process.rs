//! Runs the program as a runtime starts it, on a root in a mount namespace of its own, because only the loader and the
//! kernel can show that libraries are found and volumes are not written.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The container's library. No loader searches its folder by itself, so it is found only by the cache.
const LIBRARY: &str = "/opt/driver/libkerf-probe.so.1";

/// The shell's commands before the hook. They make a root with this machine's programs in a mount namespace.
const IMAGE: &str = r#"
set -e
cd "$1/rootfs"
mkdir -p etc opt/driver usr proc
mount --bind /usr usr
for link in bin lib lib32 lib64 sbin; do if test -L /$link; then ln -s usr/$link $link; elif test -d /$link; then mkdir $link; mount --bind /$link $link; fi; done
cp /etc/ld.so.cache etc/
cp "$(ldconfig -p | sed -n 's/.*libm.so.6 .*=> //p' | head -n 1)" opt/driver/libkerf-probe.so.1
"#;

/// Runs the commands after [`IMAGE`]. Returns `None` where no mount namespace can be made, because a machine may forbid
/// it.
fn in_namespace(bundle: &Path, commands: &str) -> Option<Output> {
    fs::create_dir(bundle.join("rootfs")).unwrap();
    fs::write(bundle.join("config.json"), r#"{"root": {"path": "rootfs"}}"#).unwrap();
    fs::write(bundle.join("state.json"), serde_json::json!({"bundle": bundle}).to_string()).unwrap();
    let may = Command::new("unshare").args(["--mount", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) || !Path::new("/etc/ld.so.cache").exists() {
        eprintln!("SKIPPED: it takes glibc, and root for a mount namespace");
        return None;
    }
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-s"]).arg(bundle);
    shell.arg(env!("CARGO_BIN_EXE_kerf-cdi-hook")).arg(LIBRARY);
    let mut shell =
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(format!("{IMAGE}{commands}").as_bytes()).unwrap();
    Some(shell.wait_with_output().unwrap())
}

/// Starts the hook with an empty environment, as the runtime does.
const HOOK: &str = r#"env -i "$2" add-libraries "$3" < "$1/state.json""#;

/// Makes the loader in the container find the library by its name alone.
const LOAD: &str = r"chroot . /usr/bin/env LD_PRELOAD=libkerf-probe.so.1 /bin/true";

#[test]
fn the_loader_finds_a_library_by_its_name_once_the_hook_has_run() {
    let bundle = tempfile::tempdir().unwrap();
    let commands = format!("{LOAD}\necho --- >&2\n{HOOK}\n{LOAD}\n");
    let Some(output) = in_namespace(bundle.path(), &commands) else { return };
    let said = String::from_utf8(output.stderr).unwrap();
    let (before, after) = said.split_once("---\n").unwrap_or_else(|| panic!("{said}"));
    assert!(before.contains("cannot be preloaded"), "{before}");
    assert_eq!((after, output.status.success()), ("", true));
}

#[test]
fn a_volume_is_not_written_and_the_container_starts() {
    for (volume, make) in [("etc", "mkdir"), ("etc/ld.so.cache", "touch")] {
        let bundle = tempfile::tempdir().unwrap();
        let host = bundle.path().join("host");
        let make_host = format!("{make} {host}\nmount --bind {host} {volume}\n", host = host.display());
        let Some(output) = in_namespace(bundle.path(), &(make_host + HOOK + "\n")) else { return };
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("stays as it is: a volume is mounted"), "{volume}: {said}");
        assert!(output.status.success(), "{volume}");
        let is_empty = if host.is_dir() {
            fs::read_dir(&host).unwrap().next().is_none()
        } else {
            fs::read(&host).unwrap().is_empty()
        };
        assert!(is_empty, "{volume} was written to");
    }
}
