//! The driver's user-space files: what NVIDIA's container toolkit brings into a container for `compute,utility`.

use super::error::AccessError;
use super::rooted::{outside, resolve};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The link to the library whose version is the driver's; without it nothing else is of use.
const CUDA: &str = "libcuda.so.1";

/// Libraries, by their names up to the version (libnvidia-container, `nvc_info.c`: utility and compute).
const LIBRARIES: [&str; 14] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-allocator.so",
    "libnvidia-cfg.so",
    "libnvidia-compiler.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ml.so",
    "libnvidia-nvvm.so",
    "libnvidia-opencl.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-pkcs11.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-tileiras.so",
];

/// Programs (same source). `nvidia-persistenced` is the node's and not a container's, and so are MPS's: with them a tenant would
/// command the daemon of its GPU.
const PROGRAMS: [&str; 2] = ["nvidia-smi", "nvidia-debugdump"];

/// Where drivers are installed: a folder of NVIDIA's alone, Debian's family on either processor, Red Hat's family.
const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
];
const PROGRAM_FOLDERS: [&str; 3] = ["/usr/local/nvidia/bin", "/usr/bin", "/usr/sbin"];

/// Debian's links to the driver that is in use.
const ALTERNATIVES: &str = "/etc/alternatives";

/// One file of the driver's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DriverFile {
    /// Its path in the container.
    pub(super) container: PathBuf,
    /// Its path on the host.
    pub(super) host: PathBuf,
}

/// The driver under a root folder.
#[derive(Debug)]
pub(super) struct Driver {
    root: PathBuf,
    host_root: PathBuf,
    scan: Mutex<Option<Scan>>,
}

/// What was found. It holds until one of the folders changes.
#[derive(Debug)]
struct Scan {
    changed: Vec<Option<SystemTime>>,
    files: Arc<[DriverFile]>,
}

impl Driver {
    /// The driver installed under `root`, which is `host_root` on the host.
    pub(super) fn new(root: PathBuf, host_root: PathBuf) -> Self {
        Self { root, host_root, scan: Mutex::new(None) }
    }

    /// Its files, in the order of their paths in the container.
    pub(super) fn files(&self) -> Result<Arc<[DriverFile]>, AccessError> {
        let changed = self.changed();
        let mut scan = self.scan.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scan) = scan.as_ref().filter(|scan| scan.changed == changed) {
            return Ok(Arc::clone(&scan.files));
        }
        let files: Arc<[DriverFile]> = self.find()?.into();
        tracing::info!(files = files.len(), root = %self.root.display(), "found the driver's files for containers");
        *scan = Some(Scan { changed, files: Arc::clone(&files) });
        Ok(files)
    }

    fn changed(&self) -> Vec<Option<SystemTime>> {
        let folders = LIBRARY_FOLDERS.iter().chain(&PROGRAM_FOLDERS).chain([&ALTERNATIVES]);
        folders.map(|folder| fs::metadata(self.folder(folder)?).and_then(|m| m.modified()).ok()).collect()
    }

    /// A folder as the agent sees it.
    fn folder(&self, folder: &str) -> Option<PathBuf> {
        resolve(&self.root, Path::new(folder)).map(|real| outside(&self.root, &real))
    }

    fn find(&self) -> Result<Vec<DriverFile>, AccessError> {
        let no_driver = || AccessError::NoDriver { library: CUDA, root: self.root.clone() };
        let version = LIBRARY_FOLDERS.iter().find_map(|folder| self.version(folder)).ok_or_else(no_driver)?;
        let mut found = BTreeMap::new();
        for folder in LIBRARY_FOLDERS {
            for name in self.folder(folder).into_iter().flat_map(|folder| names(&folder)) {
                let path = Path::new(folder).join(&name);
                let library = LIBRARIES.iter().find(|library| is_version_of(&name, library));
                let real = library.and_then(|library| self.real(&path, &format!("{library}.{version}")));
                let Some(real) = real else { continue };
                let host = outside(&self.host_root, &real);
                found.insert(real, host.clone());
                found.insert(path, host);
            }
        }
        for program in PROGRAMS {
            let mut paths = PROGRAM_FOLDERS.iter().map(|folder| Path::new(folder).join(program));
            let there = paths.find_map(|path| Some((resolve(&self.root, &path)?, path)));
            found.extend(there.map(|(real, path)| (path, outside(&self.host_root, &real))));
        }
        Ok(found.into_iter().map(|(container, host)| DriverFile { container, host }).collect())
    }

    /// The driver's version, from the name of the library that `libcuda.so.1` leads to.
    fn version(&self, folder: &str) -> Option<String> {
        let real = resolve(&self.root, &Path::new(folder).join(CUDA))?;
        let version = real.file_name()?.to_str()?.strip_prefix("libcuda.so.")?;
        (version.contains('.')).then(|| version.to_owned())
    }

    /// The real path of `path`, if its last part is `name`: a library of another version is another driver's.
    fn real(&self, path: &Path, name: &str) -> Option<PathBuf> {
        resolve(&self.root, path).filter(|real| real.file_name().is_some_and(|last| last == name))
    }
}

/// Whether a file's name is the library's, with any version or none.
fn is_version_of(name: &str, library: &str) -> bool {
    name.strip_prefix(library).is_some_and(|version| version.is_empty() || version.starts_with('.'))
}

/// The names in a folder that can be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn file(root: &Path, path: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn link(root: &Path, path: &str, to: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    fn found(root: &Path) -> Vec<String> {
        let driver = Driver::new(root.to_owned(), PathBuf::from("/run/nvidia/driver"));
        let files = driver.files().unwrap();
        files.iter().map(|f| format!("{} <- {}", f.container.display(), f.host.display())).collect()
    }

    #[test]
    fn libraries_of_the_drivers_version_are_found_with_all_their_names() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for name in
            ["libcuda.so.580.1.2", "libcuda.so.570.9.9", "libnvidia-gpucomp.so.580.1.2", "libcudart.so.12"]
        {
            file(root, &format!("usr/lib64/{name}"));
        }
        link(root, "usr/lib64/libcuda.so.1", "libcuda.so.580.1.2");
        link(root, "usr/lib64/libcuda.so", "libcuda.so.1");
        for program in ["nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
            file(root, &format!("usr/bin/{program}"));
        }
        insta::assert_snapshot!(found(root).join("\n"), @"
        /usr/bin/nvidia-smi <- /run/nvidia/driver/usr/bin/nvidia-smi
        /usr/lib64/libcuda.so <- /run/nvidia/driver/usr/lib64/libcuda.so.580.1.2
        /usr/lib64/libcuda.so.1 <- /run/nvidia/driver/usr/lib64/libcuda.so.580.1.2
        /usr/lib64/libcuda.so.580.1.2 <- /run/nvidia/driver/usr/lib64/libcuda.so.580.1.2
        /usr/lib64/libnvidia-gpucomp.so.580.1.2 <- /run/nvidia/driver/usr/lib64/libnvidia-gpucomp.so.580.1.2
        ");
    }

    #[test]
    fn debians_alternatives_are_followed_inside_the_root() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        file(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1.2");
        link(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1", "libcuda.so.535.1.2");
        link(root, "etc/alternatives/libcuda", "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1");
        link(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/alternatives/libcuda");
        let real = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1.2";
        let seen = found(root);
        assert_eq!(seen[0], format!("/usr/lib/x86_64-linux-gnu/libcuda.so.1 <- {real}"));
        assert_eq!(seen.len(), 3, "{seen:#?}");
    }

    #[test]
    fn a_new_driver_is_found_without_a_restart_and_none_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let driver = Driver::new(root.path().to_owned(), PathBuf::from("/"));
        assert!(matches!(driver.files(), Err(AccessError::NoDriver { .. })));
        file(root.path(), "usr/lib64/libcuda.so.580.1");
        link(root.path(), "usr/lib64/libcuda.so.1", "libcuda.so.580.1");
        assert_eq!(driver.files().unwrap().len(), 2);
        fs::rename(root.path().join("usr/lib64"), root.path().join("usr/old")).unwrap();
        file(root.path(), "usr/lib64/libcuda.so.590.1");
        link(root.path(), "usr/lib64/libcuda.so.1", "libcuda.so.590.1");
        assert_eq!(driver.files().unwrap()[1].container, Path::new("/usr/lib64/libcuda.so.590.1"));
    }
}
