//! Maps a node's paths to this machine, which may run several nodes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Folders that every node has from its start.
const FOLDERS: [&str; 6] = ["etc", "run", "sys/fs/cgroup", "tmp", "var/lib", "var/run"];

/// Paths that all nodes share: devices and the kernel's file systems.
const OF_THE_MACHINE: [&str; 3] = ["dev", "proc", "sys"];

#[derive(Debug, Clone)]
pub(in crate::kubelet) struct NodeFiles {
    kubelet: PathBuf,
    root: PathBuf,
}

impl NodeFiles {
    /// The file system of the node whose kubelet's folder is `kubelet`. That folder is the node's
    /// `/var/lib/kubelet`.
    pub(in crate::kubelet) fn new(kubelet: &Path) -> Self {
        Self { kubelet: kubelet.to_owned(), root: kubelet.join("host") }
    }

    /// Creates the folders that every node has.
    pub(in crate::kubelet) fn make(&self) -> io::Result<()> {
        FOLDERS.into_iter().try_for_each(|folder| fs::create_dir_all(self.root.join(folder)))
    }

    /// The path on this machine of a path on the node.
    pub(in crate::kubelet) fn locate(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix("/").unwrap_or(path);
        if let Ok(of_kubelet) = below.strip_prefix("var/lib/kubelet") {
            return self.kubelet.join(of_kubelet);
        }
        let is_machines = OF_THE_MACHINE.iter().any(|part| below.starts_with(part));
        if is_machines && !below.starts_with("sys/fs/cgroup") {
            return Path::new("/").join(below);
        }
        self.root.join(below)
    }

    /// The path of a `hostPath` volume on this machine. Its type says what must exist and what is created.
    pub(in crate::kubelet) fn host_path(&self, path: &str, kind: &str) -> Result<PathBuf, String> {
        let here = self.locate(Path::new(path));
        let made = match kind {
            "DirectoryOrCreate" => fs::create_dir_all(&here),
            "FileOrCreate" if !here.exists() => File::create(&here).map(drop),
            // A path without a type may be missing, because a container runtime creates it as a folder.
            "" if !here.exists() => fs::create_dir_all(&here),
            _ => Ok(()),
        };
        made.map_err(|error| format!("hostPath {path} cannot be made: {error}"))?;
        let fits = match kind {
            "Directory" | "DirectoryOrCreate" => here.is_dir(),
            "File" | "FileOrCreate" => here.is_file(),
            _ => here.exists(),
        };
        let type_name = if kind.is_empty() { "path" } else { kind };
        if fits { Ok(here) } else { Err(format!("hostPath type check failed: {path} is not a {type_name}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_files_of_its_own() {
        let files = NodeFiles::new(Path::new("/n/a"));
        for (path, expected) in [
            ("/var/lib/kubelet/device-plugins", "/n/a/device-plugins"),
            ("/var/lib/kerf", "/n/a/host/var/lib/kerf"),
            ("/sys/fs/cgroup", "/n/a/host/sys/fs/cgroup"),
            ("/sys/class", "/sys/class"),
            ("/dev", "/dev"),
            ("/", "/n/a/host/"),
        ] {
            assert_eq!(files.locate(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn a_missing_path_is_created_or_refused_by_its_type() {
        let folder = tempfile::tempdir().unwrap();
        let files = NodeFiles::new(folder.path());
        files.make().unwrap();
        assert!(files.host_path("/run/kerf", "Directory").is_err());
        assert!(files.host_path("/run/kerf", "DirectoryOrCreate").unwrap().is_dir());
        assert!(files.host_path("/run/kerf", "Directory").is_ok());
        let refused = files.host_path("/run/kerf", "File").unwrap_err();
        assert_eq!(refused, "hostPath type check failed: /run/kerf is not a File");
    }
}
