//! Kernel settings that a kubelet changes for its node. They are restored after the node's end, because the
//! machine is used for other work.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::Places;

/// The settings that the kubelet changes without `protectKernelDefaults` (its `setupKernelTunables`), and
/// that CNI's `ptp` changes.
const SET: [&str; 7] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
];

/// Records the current settings for [`put_back`].
pub fn record(places: &Places) -> anyhow::Result<()> {
    let read = |name: &str| Some((name.to_owned(), fs::read_to_string(path(name)).ok()?));
    let settings: BTreeMap<String, String> = SET.into_iter().filter_map(read).collect();
    let text = serde_json::to_vec_pretty(&settings)?;
    fs::write(file(places), text).context("failed to record the kernel's settings")
}

/// Restores the recorded settings, if there are any.
pub fn put_back(places: &Places) -> anyhow::Result<()> {
    let Ok(text) = fs::read(file(places)) else { return Ok(()) };
    let settings: BTreeMap<String, String> =
        serde_json::from_slice(&text).context("failed to read the record of the kernel's settings")?;
    for (name, value) in settings {
        // Only changed settings are written, because some cannot be written at all.
        if fs::read_to_string(path(&name)).is_ok_and(|now| now != value) {
            fs::write(path(&name), value).with_context(|| format!("failed to put back {name}"))?;
        }
    }
    Ok(())
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

fn file(places: &Places) -> PathBuf {
    places.state().join("kernel.json")
}
