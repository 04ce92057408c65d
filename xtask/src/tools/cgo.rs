//! How programs with parts in C are built: static, so that they run on any libc.

use std::process::{Command, Stdio};

use anyhow::ensure;

/// Linker flags for one file that needs no other.
pub const STATIC: &str = " -extldflags -static";

/// runc filters system calls by libseccomp; the others are for a static libc, which cannot load what it would look up names by.
pub const TAGS: &str = "seccomp netgo osusergo";

/// Fails with the remedy unless libseccomp is there. Without it runc can be built, and then refuses every pod: the kubelet asks
/// for a filter for each pod's first container.
pub fn check() -> anyhow::Result<()> {
    let mut asked = Command::new("pkg-config");
    asked.args(["--exists", "libseccomp"]).stdout(Stdio::null()).stderr(Stdio::null());
    ensure!(
        asked.status().is_ok_and(|status| status.success()),
        "runc takes a C compiler, pkg-config and libseccomp, and one of them is missing (Debian: apt-get install gcc \
         pkg-config libseccomp-dev)"
    );
    Ok(())
}
