//! The Go toolchain: is it there and new enough, and how one program is built with it. Never lets Go edit go.mod or
//! go.sum.

use std::env::consts;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, anyhow, bail};

use super::catalog::{CONTROL_PLANE, Program, Set, linker_flags, tags};
use super::cgo;
use super::progress::Progress;
use super::redact::redact;
use crate::workspace::Workspace;

/// How many of the last lines of a failed build are shown: errors stand at the end, downloads before them.
const SHOWN_LINES: usize = 40;

/// Fails with the remedy unless `go` is there and as new as the modules demand.
pub fn check(workspace: &Workspace, set: &Set) -> anyhow::Result<()> {
    for module in set.modules {
        let folder = workspace.go_module(module);
        let required = required_version(&folder)?;
        // Asked inside the module: with GOTOOLCHAIN=auto an older Go fetches the required one by itself.
        match command(&folder).args(["env", "GOVERSION"]).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("`go` is not on the PATH, and {}", remedy(&required))
            }
            Err(error) => return Err(error).context("failed to run `go env GOVERSION`"),
            Ok(output) if !output.status.success() => {
                let said = redact(String::from_utf8_lossy(&output.stderr).trim());
                bail!("this machine's Go does not do: {said}\n{}", remedy(&required));
            }
            Ok(output) => {
                let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                if numbers(&found) < numbers(&required) {
                    bail!("this machine has {found}, but {}", remedy(&required));
                }
            }
        }
    }
    Ok(())
}

/// Builds one program to `output`, a path in a folder that exists.
pub fn build(
    workspace: &Workspace,
    program: &Program,
    output: &Path,
    mut progress: Progress,
) -> anyhow::Result<()> {
    progress.tick("starting");
    let mut go = command(&workspace.go_module(program.module));
    let mut linker_flags = linker_flags(program.module);
    cgo::check(program.c)?;
    let settings = cgo::settings(program.c);
    linker_flags.push_str(settings.linker_flags);
    let mut child = go
        .arg("build")
        .args(settings.arguments)
        .envs(settings.environment)
        .args(["-mod=readonly", "-buildvcs=false", "-trimpath", "-tags", tags(program.module)])
        .args(["-ldflags", &linker_flags])
        .arg("-o")
        .arg(output)
        .arg(program.package)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start `go build`")?;
    let said = child.stderr.take().map(lines_of).context("`go build` has no stderr")?;
    let said = follow(&said, &mut progress);
    let status = child.wait().context("failed to wait for `go build`")?;
    if status.success() {
        progress.finish("built");
        return Ok(());
    }
    progress.finish("failed");
    let last = &said[said.len().saturating_sub(SHOWN_LINES)..];
    Err(anyhow!("failed to build {} ({status}):\n{}", program.name, redact(&last.join("\n"))))
}

/// Go in a module's folder. Without cgo nothing but Go is needed and the programs run on any libc; a workspace file, or
/// a target meant for somebody's other build, must not leak in.
fn command(folder: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(folder)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env_remove("GOOS")
        .env_remove("GOARCH");
    go
}

/// Reads lines in a thread, so that progress is told also while Go is silent.
fn lines_of(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(io::Result::ok);
        lines.for_each(|line| drop(sender.send(line)));
    });
    receiver
}

/// Ticks the progress until Go closes its stderr; gives what it said.
fn follow(lines: &Receiver<String>, progress: &mut Progress) -> Vec<String> {
    let mut said = Vec::new();
    let mut doing = "compiling";
    loop {
        match lines.recv_timeout(Duration::from_millis(500)) {
            Ok(line) if line.starts_with("go: downloading ") => doing = "downloading modules",
            Ok(line) => said.push(line),
            Err(RecvTimeoutError::Timeout) => doing = "compiling",
            Err(RecvTimeoutError::Disconnected) => return said,
        }
        progress.tick(doing);
    }
}

/// The `go` line of a module's go.mod.
fn required_version(folder: &Path) -> anyhow::Result<String> {
    let path = folder.join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix("go "));
    version.map(str::to_owned).with_context(|| format!("{} has no `go` line", path.display()))
}

/// Release numbers of `go1.26.8` or `1.26.0`; anything after them (`-rc1`, ` X:exp`) is left out.
fn numbers(version: &str) -> Vec<u32> {
    let version = version.strip_prefix("go").unwrap_or(version);
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    version[..end].split('.').map_while(|number| number.parse().ok()).collect()
}

/// What to do about a Go that is missing or too old, to be pasted.
fn remedy(required: &str) -> String {
    let arch = match consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let names = CONTROL_PLANE.names().join(", ");
    format!(
        "the control plane's programs need Go {required} or newer. Install it, then run `cargo xtask tools` again:\n    \
         curl -fsSL https://go.dev/dl/go{required}.{os}-{arch}.tar.gz | sudo tar -C /usr/local -xz\n    \
         export PATH=/usr/local/go/bin:$PATH\n\
         or set KUBEBUILDER_ASSETS to a folder that holds {names}",
        os = consts::OS,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("go1.26.8") >= numbers("1.26.0"));
        assert!(numbers("go1.9") < numbers("1.26.0"));
        assert!(numbers("go1.27-rc1") >= numbers("1.26.0"));
        assert!(numbers("go1.26.0 X:nogreenteagc") >= numbers("1.26.0"));
        assert!(numbers("devel") < numbers("1.26.0"));
    }

    #[test]
    fn the_remedy_can_be_pasted() {
        let text = remedy("1.26.0");
        assert!(text.contains("/go1.26.0.linux-"), "{text}");
        assert!(text.contains("cargo xtask tools") && text.contains("KUBEBUILDER_ASSETS"));
    }
}
