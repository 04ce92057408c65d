//! Gives a node its own session and mount namespace. The node outlives the command that started it, and its
//! mounts end with it.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::setsid;

use super::Places;

/// The cgroup in which the chart's agent runs MPS daemons.
pub const MPS_CGROUP: &str = "/sys/fs/cgroup/kerf-mps";

/// Enters the session and namespace. It must be called before there are threads, because each thread has its
/// own namespace.
pub fn enter(places: &Places) -> anyhow::Result<()> {
    setsid().context("failed to start a session")?;
    unshare(CloneFlags::CLONE_NEWNS).context("failed to make a mount namespace (is this root?)")?;
    // The mounts are first detached from the machine's propagation. Then they are shared again, as on a
    // machine of its own, so that mounts reach the containers.
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

/// Mounts version 2 of cgroups at [`MPS_CGROUP`] on a machine with version 1, where the chart's agent would
/// find none.
fn provide_cgroup() -> anyhow::Result<()> {
    let (root, folder) = (Path::new("/sys/fs/cgroup"), Path::new(MPS_CGROUP));
    if root.join("cgroup.controllers").exists() {
        return Ok(());
    }
    fs::create_dir_all(folder).with_context(|| format!("failed to create {MPS_CGROUP}"))?;
    mount(None::<&Path>, folder, Some("cgroup2"), MsFlags::empty(), None::<&Path>)
        .with_context(|| format!("failed to mount version 2 of cgroups at {MPS_CGROUP}"))
}
