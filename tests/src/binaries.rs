//! Finds executables: the workspace's own beside the running test, the control plane's where
//! `cargo xtask tools` put them.
//!
//! It never builds anything. Only xtask computes the key of a set of Kubernetes programs; this code reads it
//! from the file `k8s-tools/current`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The programs that identify an envtest folder. `cargo xtask tools` builds everything if one is missing.
const ASSETS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];

#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// The path of the running executable is unknown.
    #[error("failed to find the running executable, beside which the others lie")]
    CurrentExe(#[source] std::io::Error),
    /// One of the workspace's own programs is not built.
    #[error("{name} is not in {folder}: run `cargo build --workspace --bins` (or set KERF_BIN_DIR)")]
    NotBuilt {
        name: String,
        /// The folder in which the program was expected.
        folder: PathBuf,
    },
    /// A program of the control plane, or one that an admin installs with, is missing.
    #[error("{name} is missing: run `cargo xtask tools`, which builds the programs that tests need once")]
    NoTool {
        /// File name of the missing program.
        name: String,
    },
    /// A program of a GPU node is missing.
    #[error("{name} is missing: run `cargo xtask gpu pack`, which builds a node's programs once")]
    NoNodeTool {
        /// File name of the missing program.
        name: String,
    },
}

/// A program of the workspace, from the running executable's build: `<target>/<profile>/<name>`, or
/// `$KERF_BIN_DIR/<name>` for tests that run away from their target folder.
pub fn ours(name: &str) -> Result<PathBuf, BinaryError> {
    let folder = match env::var_os("KERF_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => profile_folder(&env::current_exe().map_err(BinaryError::CurrentExe)?),
    };
    let path = folder.join(name);
    if path.is_file() { Ok(path) } else { Err(BinaryError::NotBuilt { name: name.to_owned(), folder }) }
}

/// A program of the control plane (`etcd`, `kube-apiserver`, `kube-scheduler`, `kube-controller-manager`,
/// `kubectl`): from `$KUBEBUILDER_ASSETS` if that is complete, otherwise from the current set of
/// `cargo xtask tools`.
pub fn tool(name: &str) -> Result<PathBuf, BinaryError> {
    let executable = env::current_exe().map_err(BinaryError::CurrentExe)?;
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    assets
        .into_iter()
        .filter(|folder| ASSETS.iter().all(|program| folder.join(program).is_file()))
        .chain(current_set(&executable, "k8s-tools"))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| BinaryError::NoTool { name: name.to_owned() })
}

/// A program that an admin installs with (`helm`, `kustomize`), from the current set of `cargo xtask tools`.
pub fn admin_tool(name: &str) -> Result<PathBuf, BinaryError> {
    in_set("admin-tools", name)?.ok_or_else(|| BinaryError::NoTool { name: name.to_owned() })
}

/// A program of a node (`kubelet`, `containerd`, `containerd-shim-runc-v2`, `ctr`, `runc`), from the current
/// set of `cargo xtask gpu pack`.
pub fn node_tool(name: &str) -> Result<PathBuf, BinaryError> {
    in_set("node-tools", name)?.ok_or_else(|| BinaryError::NoNodeTool { name: name.to_owned() })
}

/// A program of NVIDIA's (`nvidia-device-plugin`, `gpu-feature-discovery`, `config-manager`,
/// `mps-control-daemon`), from the current set of `cargo xtask tools`.
pub fn nvidia_tool(name: &str) -> Result<PathBuf, BinaryError> {
    in_set("nvidia-tools", name)?.ok_or_else(|| BinaryError::NoTool { name: name.to_owned() })
}

/// A program that tests alerts, metrics and the dashboard (`promtool`, `prometheus`), from the current set of
/// `cargo xtask tools`.
pub fn monitoring_tool(name: &str) -> Result<PathBuf, BinaryError> {
    in_set("monitoring-tools", name)?.ok_or_else(|| BinaryError::NoTool { name: name.to_owned() })
}

/// The program of this name in the current set of a store; `None` if it is missing.
fn in_set(store: &str, name: &str) -> Result<Option<PathBuf>, BinaryError> {
    let executable = env::current_exe().map_err(BinaryError::CurrentExe)?;
    let path = current_set(&executable, store).map(|folder| folder.join(name));
    Ok(path.filter(|path| path.is_file()))
}

/// The folder `<target>/<profile>` of an executable in it, in its `deps` (tests) or in its `examples`.
fn profile_folder(executable: &Path) -> PathBuf {
    let folder = executable.parent().unwrap_or(Path::new("."));
    match folder.file_name().and_then(|name| name.to_str()) {
        Some("deps" | "examples") => folder.parent().unwrap_or(folder).to_path_buf(),
        _ => folder.to_path_buf(),
    }
}

/// The set that the nearest `<store>/current` above the executable names. Searching all folders above finds
/// the target folder with and without a target triple in the path.
fn current_set(executable: &Path, store: &str) -> Option<PathBuf> {
    executable.ancestors().skip(1).find_map(|folder| {
        let store = folder.join(store);
        let key = fs::read_to_string(store.join("current")).ok()?;
        Some(store.join(key.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_lie_one_folder_above_tests() {
        assert_eq!(profile_folder(Path::new("/t/debug/deps/x-1")), Path::new("/t/debug"));
        assert_eq!(profile_folder(Path::new("/t/debug/bench")), Path::new("/t/debug"));
    }

    #[test]
    fn the_current_set_is_found_above_the_executable() {
        let target = tempfile::tempdir().unwrap();
        let executable = target.path().join("x86_64-unknown-linux-gnu/release/deps/x-1");
        assert_eq!(current_set(&executable, "k8s-tools"), None);
        let store = target.path().join("k8s-tools");
        fs::create_dir(&store).unwrap();
        fs::write(store.join("current"), "0123\n").unwrap();
        assert_eq!(current_set(&executable, "k8s-tools"), Some(store.join("0123")));
    }

    #[test]
    fn a_missing_program_comes_with_its_remedy() {
        let error = tool("no-such-program").unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("cargo xtask tools"), "{error}");
        let error = node_tool("no-such-program").unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("cargo xtask gpu pack"), "{error}");
        let error = ours("no-such-program").unwrap_err().to_string();
        assert!(error.contains("cargo build --workspace --bins"), "{error}");
    }
}
