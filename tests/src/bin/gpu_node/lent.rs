//! What pods have of the machine on a node that reaches no registry: its Python, in its /usr and /opt.

use kerf_tests::real_node::RuntimeHandler;
use serde_json::{Value, json};

use crate::args::Args;
use crate::job;

/// The `RuntimeClass` whose containers have it without a volume, which a pod in a user namespace may not have.
pub const RUNTIME_CLASS: &str = "machine";

/// Volumes' names, and where the files are on the machine and in the container.
const FILES: [(&str, &str); 3] = [("usr", "/usr"), ("opt", "/opt"), ("libraries", "/etc/ld.so.cache")];

/// The volumes.
pub fn volumes() -> Vec<Value> {
    FILES.map(|(name, path)| json!({"name": name, "hostPath": {"path": path}})).into()
}

/// Where they are mounted: none can be written.
pub fn mounts() -> Vec<Value> {
    FILES.map(|(name, path)| json!({"name": name, "mountPath": path, "readOnly": true})).into()
}

/// The handler of [`RUNTIME_CLASS`]: the same files, and the scripts.
pub fn handler(args: &Args) -> RuntimeHandler {
    let files =
        FILES.iter().map(|(_, path)| (path.into(), None)).chain([(job::folder(args), Some(job::INSIDE))]);
    RuntimeHandler { name: RUNTIME_CLASS, files: files.collect(), ..RuntimeHandler::default() }
}
