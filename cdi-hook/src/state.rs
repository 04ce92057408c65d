//! Finds the container's root by the state that the runtime gives a hook (OCI runtime specification: `runtime.md`,
//! `config.md`).

use crate::error::HookError;
use serde::Deserialize;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The most bytes of a state that are read. Annotations make up most of it, and Kubernetes limits them to 256 KiB a
/// pod.
const STATE_LIMIT: u64 = 4 << 20;

const CONFIGURATION: &str = "config.json";

#[derive(Debug, Deserialize)]
struct State {
    bundle: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Configuration {
    root: Option<Root>,
}

#[derive(Debug, Deserialize)]
struct Root {
    path: PathBuf,
}

pub fn root(state: impl Read) -> Result<PathBuf, HookError> {
    let State { bundle } = serde_json::from_reader(state.take(STATE_LIMIT)).map_err(HookError::State)?;
    let path = bundle.join(CONFIGURATION);
    let unreadable = |source| HookError::Configuration { path: path.clone(), source };
    let text = fs::read(&path).map_err(unreadable)?;
    let document: Configuration = serde_json::from_slice(&text).map_err(|error| unreadable(error.into()))?;
    let root = document.root.map(|root| bundle.join(root.path)).filter(|root| is_own(root));
    root.ok_or(HookError::NoRoot { path })
}

/// Whether the root is an absolute path and not the host's own root, to which the hook must not write.
fn is_own(root: &Path) -> bool {
    root.is_absolute()
        && root.components().any(|part| matches!(part, Component::Normal(_)))
        && !root.components().any(|part| part == Component::ParentDir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bundle: &Path, configuration: &str) -> Result<PathBuf, HookError> {
        fs::write(bundle.join(CONFIGURATION), configuration).unwrap();
        let state = serde_json::json!({"ociVersion": "1.0.2", "id": "x", "pid": 7, "status": "creating", "bundle": bundle});
        root(state.to_string().as_bytes())
    }

    #[test]
    fn the_root_of_the_host_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path();
        let rootfs = bundle.join("rootfs");
        assert_eq!(read(bundle, r#"{"root": {"path": "rootfs"}, "hooks": {}}"#).unwrap(), rootfs);
        let absolute = serde_json::json!({"root": {"path": rootfs}}).to_string();
        assert_eq!(read(bundle, &absolute).unwrap(), rootfs);
        for bad in [r#"{"root": {"path": "/"}}"#, r#"{"root": {"path": "/.."}}"#, "{}"] {
            assert!(matches!(read(bundle, bad), Err(HookError::NoRoot { .. })), "{bad}");
        }
        assert!(matches!(read(bundle, "{"), Err(HookError::Configuration { .. })));
        assert!(matches!(root(&b"{}"[..]), Err(HookError::State(_))));
    }
}
