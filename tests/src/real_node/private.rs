//! A session and a mount namespace of a node's own: it outlives the command that started it, and what it mounts is gone
//! with it.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::setsid;

use super::Places;

/// Where the chart's agent puts MPS daemons.
pub const MPS_CGROUP: &str = "/sys/fs/cgroup/kerf-mps";

/// To be called before there are threads: each has a namespace.
pub fn enter(places: &Places) -> anyhow::Result<()> {
    setsid().context("failed to start a session")?;
    unshare(CloneFlags::CLONE_NEWNS).context("failed to make a mount namespace (is this root?)")?;
    // Out of the machine's propagation first, then as on a machine of its own, where mounts reach those within.
    for propagation in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
        let root = Path::new("/");
        mount(None::<&Path>, root, None::<&Path>, MsFlags::MS_REC | propagation, None::<&Path>)
            .context("failed to part the mounts from the machine's")?;
    }
    places.create()?;
    for (own, fixed) in places.over() {
        fs::create_dir_all(fixed).with_context(|| format!("failed to create {}", fixed.display()))?;
        mount(Some(&own), fixed, None::<&Path>, MsFlags::MS_BIND, None::<&Path>)
            .with_context(|| format!("failed to mount {} over {}", own.display(), fixed.display()))?;
    }
    provide_cgroup()
}

/// A machine with version 1 of cgroups has none of version 2 where the chart's agent puts MPS daemons: it gets one there.
fn provide_cgroup() -> anyhow::Result<()> {
    let (root, folder) = (Path::new("/sys/fs/cgroup"), Path::new(MPS_CGROUP));
    if root.join("cgroup.controllers").exists() {
        return Ok(());
    }
    fs::create_dir_all(folder).with_context(|| format!("failed to create {MPS_CGROUP}"))?;
    mount(None::<&Path>, folder, Some("cgroup2"), MsFlags::empty(), None::<&Path>)
        .with_context(|| format!("failed to mount version 2 of cgroups at {MPS_CGROUP}"))
}
