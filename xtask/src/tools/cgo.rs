//! Settings for building Go programs that have parts in C.

use std::process::{Command, Stdio};

use anyhow::ensure;

use super::catalog::C;

const STATIC: &str = " -extldflags -static";

/// runc needs libseccomp to filter system calls. The other tags avoid libc's name look-up, because a static libc cannot
/// load its modules.
const TAGS: &str = "seccomp netgo osusergo";

/// All programs resolve names in Go, so that Go's library and its users are compiled only once.
const LOOKUPS_IN_GO: &str = "netgo osusergo";

/// Symbols of a library that is loaded at run time are missing at link time (NVIDIA's own Makefile sets the same).
const UNRESOLVED: &str = "-Wl,--unresolved-symbols=ignore-in-object-files";

#[derive(Debug, Default)]
pub struct Settings {
    pub environment: Vec<(&'static str, &'static str)>,
    pub tags: &'static str,
    pub linker_flags: &'static str,
}

pub fn settings(c: C) -> Settings {
    match c {
        C::None => Settings { tags: LOOKUPS_IN_GO, ..Settings::default() },
        C::Static => Settings { environment: vec![("CGO_ENABLED", "1")], tags: TAGS, linker_flags: STATIC },
        C::OpensLibraries => Settings {
            environment: vec![("CGO_ENABLED", "1"), ("CGO_LDFLAGS", UNRESOLVED)],
            tags: LOOKUPS_IN_GO,
            linker_flags: "",
        },
    }
}

/// The part of the settings that changes a program's content, so that it belongs to the key of the programs.
pub fn flags(c: C) -> &'static str {
    match c {
        C::None => "",
        C::Static => TAGS,
        C::OpensLibraries => UNRESOLVED,
    }
}

pub fn check(c: C) -> anyhow::Result<()> {
    match c {
        C::None => Ok(()),
        C::Static => check_seccomp(),
        C::OpensLibraries => check_compiler(),
    }
}

fn check_compiler() -> anyhow::Result<()> {
    let mut asked = Command::new("go");
    asked.args(["env", "CC"]).env("CGO_ENABLED", "1");
    let compiler = asked.output().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let compiler = compiler.ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "gcc".to_owned());
    let mut asked = Command::new(&compiler);
    asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    ensure!(
        asked.status().is_ok_and(|status| status.success()),
        "NVIDIA's programs take a C compiler, and {compiler} is missing (Debian: apt-get install gcc libc6-dev)"
    );
    Ok(())
}

/// runc can be built without libseccomp, but then fails for every pod: the kubelet asks for a filter for each pod's
/// first container.
fn check_seccomp() -> anyhow::Result<()> {
    let mut asked = Command::new("pkg-config");
    asked.args(["--exists", "libseccomp"]).stdout(Stdio::null()).stderr(Stdio::null());
    ensure!(
        asked.status().is_ok_and(|status| status.success()),
        "runc takes a C compiler, pkg-config and libseccomp, and one of them is missing (Debian: apt-get install gcc \
         pkg-config libseccomp-dev)"
    );
    Ok(())
}
