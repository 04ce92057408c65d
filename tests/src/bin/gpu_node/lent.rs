//! What pods have of the machine on a node that reaches no registry: its Python, in its /usr and /opt.

use std::path::Path;

use kerf_tests::real_node::RuntimeHandler;
use serde_json::{Value, json};

use crate::args::{Args, DRIVER};
use crate::job;

/// The `RuntimeClass` whose containers have it without a volume, which a pod in a user namespace may not have.
pub const RUNTIME_CLASS: &str = "machine";

/// Volumes' names, and where the files are on the machine and in the container.
const FILES: [(&str, &str); 2] = [("usr", "/usr"), ("opt", "/opt")];

/// The machine's driver is not among them: the folder is empty, so that a container has of it what kerf brings, and can be
/// written, so that kerf's files can be mounted there.
const DRIVER_VOLUME: &str = "driver";

/// The folders of the machine's that are empty in containers: none on a machine without a driver, for nothing can be made in its
/// `/usr`.
fn hidden() -> Vec<&'static str> {
    [DRIVER].into_iter().filter(|folder| Path::new(folder).is_dir()).collect()
}

/// The volumes.
pub fn volumes() -> Vec<Value> {
    let files = FILES.map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}));
    let hidden = hidden().into_iter().map(|_| json!({"name": DRIVER_VOLUME, "emptyDir": {}}));
    files.into_iter().chain(hidden).collect()
}

/// Where they are mounted: what is the machine's cannot be written.
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
