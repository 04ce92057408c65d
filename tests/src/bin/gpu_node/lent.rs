//! What pods have of the machine on a node that reaches no registry: its Python, in its /usr and /opt.

use serde_json::{Value, json};

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
