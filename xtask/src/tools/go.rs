//! The Go toolchain: checks that it is installed and new enough, and builds programs with it. It never lets Go edit
//! go.mod or go.sum, because they pin what is built.

use std::env::consts;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow, bail};

use super::batch::Batch;
use super::catalog::{CONTROL_PLANE, Set, linker_flags, tags};
use super::cgo;
use super::redact::redact;
use crate::cargo;
use crate::workspace::Workspace;

/// The number of a failed build's last lines that are shown. The first lines are downloads, so the errors are at the
/// end.
const SHOWN_LINES: usize = 40;

/// The linker would drop debug information, and the compiler needs a tenth of its time to create it.
const WITHOUT_DWARF: &str = "-gcflags=all=-dwarf=false";

pub fn check(workspace: &Workspace, set: &Set) -> anyhow::Result<()> {
    for module in set.modules {
        let folder = workspace.go_module(module);
        let required = required_version(&folder)?;
        // The command runs inside the module, because with GOTOOLCHAIN=auto an older Go fetches the required one by
        // itself.
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

/// Prints packages that are not compiled yet, with their module's version, because batches share packages that agree in
/// both.
const STALE: &str = "{{if .Stale}}{{.ImportPath}}{{with .Module}}@{{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}{{end}}";

pub fn stale(workspace: &Workspace, batch: &Batch) -> anyhow::Result<Vec<String>> {
    let mut list = configured(workspace, batch, "list");
    list.args(["-deps", "-f", STALE]).args(batch.packages());
    let output = list.stdin(Stdio::null()).output().context("failed to start `go list`")?;
    if !output.status.success() {
        let said = redact(&String::from_utf8_lossy(&output.stderr));
        bail!("Go cannot find the packages of tests/tools/{}:\n{said}", batch.module());
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

pub fn build(
    workspace: &Workspace,
    batch: &Batch,
    folder: &Path,
    mut compiled: impl FnMut(),
) -> anyhow::Result<()> {
    cgo::check(batch.c())?;
    let mut go = configured(workspace, batch, "build");
    // The trailing slash makes it a folder, which Go requires for several programs.
    go.arg("-v").arg("-o").arg(folder.join("")).args(batch.packages());
    // Cargo ends with the workspace's largest crates, one after the other. At a lower priority Go leaves them the
    // cores, so that both compilers have work until the end.
    let mut child = cargo::yielding(&go)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start `go build`")?;
    let messages = child.stderr.take().context("`go build` has no stderr")?;
    let mut said = Vec::new();
    for line in BufReader::new(messages).lines() {
        let line = line.context("failed to read what Go has built")?;
        if is_package(&line) { compiled() } else { said.push(line) }
    }
    let status = child.wait().context("failed to wait for `go build`")?;
    if status.success() {
        return Ok(());
    }
    let last = &said[said.len().saturating_sub(SHOWN_LINES)..];
    Err(anyhow!("failed to build tests/tools/{} ({status}):\n{}", batch.module(), redact(&last.join("\n"))))
}

/// Whether the line is a package's path. With `-v` Go prints one for each package that it compiles.
fn is_package(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#') && !line.contains(char::is_whitespace)
}

/// A Go subcommand with a batch's settings. All subcommands need the same ones, because other settings would be another
/// build.
fn configured(workspace: &Workspace, batch: &Batch, subcommand: &str) -> Command {
    let mut go = command(&workspace.go_module(batch.module()));
    let settings = cgo::settings(batch.c());
    let linker_flags = format!("{}{}", linker_flags(batch.module()), settings.linker_flags);
    let tags = format!("{} {}", settings.tags, tags(batch.module()));
    go.arg(subcommand).envs(settings.environment).args([
        "-mod=readonly",
        "-buildvcs=false",
        "-trimpath",
        WITHOUT_DWARF,
        "-tags",
        &tags,
        "-ldflags",
        &linker_flags,
    ]);
    go
}

/// Go in a module's folder. Cgo is off, so that only Go is needed and the programs run on any libc. A workspace file,
/// or another build's target, must not affect it.
fn command(folder: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(folder)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env_remove("GOOS")
        .env_remove("GOARCH");
    go
}

fn required_version(folder: &Path) -> anyhow::Result<String> {
    let path = folder.join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix("go "));
    version.map(str::to_owned).with_context(|| format!("{} has no `go` line", path.display()))
}

fn numbers(version: &str) -> Vec<u32> {
    let version = version.strip_prefix("go").unwrap_or(version);
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    version[..end].split('.').map_while(|number| number.parse().ok()).collect()
}

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
    fn packages_are_distinguished_from_errors() {
        assert!(is_package("k8s.io/api/core/v1") && is_package("bytes"));
        assert!(!is_package("# k8s.io/api/core/v1") && !is_package("main.go:3:5: undefined: x"));
    }

    #[test]
    fn the_remedy_can_be_pasted() {
        let text = remedy("1.26.0");
        assert!(text.contains("/go1.26.0.linux-"), "{text}");
        assert!(text.contains("cargo xtask tools") && text.contains("KUBEBUILDER_ASSETS"));
    }
}
