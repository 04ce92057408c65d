//! What pods use from the machine on a node without a registry: its Python, from its `/usr` and `/opt`.

use std::path::Path;

use crate::real_node::RuntimeHandler;
use serde_json::{Value, json};

use crate::args::{Args, DRIVER};
use crate::job;

/// The `RuntimeClass` whose containers get these files without a volume, because a pod in a user namespace
/// may not have one.
pub const RUNTIME_CLASS: &str = "machine";

/// Names of the volumes, and the path of the files on the machine and in the container.
const FILES: [(&str, &str); 2] = [("usr", "/usr"), ("opt", "/opt")];

/// An empty, writable volume over the machine's driver. It hides the machine's files, so that a container
/// sees only the files that kerf brings; it is writable, so that kerf's files can be mounted in it.
const DRIVER_VOLUME: &str = "driver";

/// The machine's folders that are empty in containers. Without a driver on the machine there is none, because
/// its `/usr` is read-only and takes no mount point.
fn hidden() -> Vec<&'static str> {
    [DRIVER].into_iter().filter(|folder| Path::new(folder).is_dir()).collect()
}

pub fn volumes() -> Vec<Value> {
    let files = FILES.map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}));
    let hidden = hidden().into_iter().map(|_| json!({"name": DRIVER_VOLUME, "emptyDir": {}}));
    files.into_iter().chain(hidden).collect()
}

/// Mounts of the volumes. The machine's files are read-only.
pub fn mounts() -> Vec<Value> {
    let files = FILES.map(|(name, path)| json!({"name": name, "mountPath": path, "readOnly": true}));
    let hidden = hidden().into_iter().map(|folder| json!({"name": DRIVER_VOLUME, "mountPath": folder}));
    files.into_iter().chain(hidden).collect()
}

/// The handler of [`RUNTIME_CLASS`]: the same files, and the scripts.
pub fn handler(args: &Args) -> RuntimeHandler {
    let files =
        FILES.iter().map(|(_, path)| (path.into(), None)).chain([(job::folder(args), Some(job::INSIDE))]);
    RuntimeHandler {
        name: RUNTIME_CLASS,
        files: files.collect(),
        hidden: hidden(),
        ..RuntimeHandler::default()
    }
}
