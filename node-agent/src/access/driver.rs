//! Finds the driver's user-space files, the same that `nvidia-ctk cdi generate` mounts into a container.
//!
//! These are the files of every driver capability (`compute`, `utility`, `video`, `graphics`, `display`, `ngx`),
//! whatever `NVIDIA_DRIVER_CAPABILITIES` says. CDI specifications are written before the containers exist, and
//! `Allocate` does not see a container's environment, so the variable has no effect here, as with GPU Operator's CDI
//! mode. Left out on purpose:
//! - the sockets of `nvidia-persistenced` and of the fabric manager, and the programs of MPS, because they control a
//!   GPU that others share;
//! - libraries of 32 bits (`compat32`), because they have not been tested here with data centre drivers.

use super::error::AccessError;
use super::rooted::{outside, resolve};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The link to the library whose file name has the driver's version. Without this library the others are useless.
const CUDA: &str = "libcuda.so.1";

/// Files of the driver whose names end with versions of their own, by the part before it (nvidia-container-toolkit,
/// `pkg/nvcdi/driver-nvml.go` and `internal/discover/graphics.go`).
const OF_OTHER_VERSIONS: [&str; 8] = [
    "libnvidia-api.so",
    "libnvidia-egl-gbm.so",
    "libnvidia-egl-wayland.so",
    "libnvidia-egl-wayland2.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
    "libnvidia-nvvm70.so",
    "nvidia_drv.so",
];

/// Names that programs open but not every driver package has, and the library that each is a link to (same source,
/// `internal/discover/symlinks.go`).
const EXPECTED: [(&str, &str); 3] = [
    ("libcuda.so", "libcuda.so"),
    ("libGLX_indirect.so.0", "libGLX_nvidia.so"),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so"),
];

/// Files that the loaders of OpenGL, EGL, Vulkan, OpenCL and OptiX read, and the folder of each in a container (same
/// source, `internal/discover/graphics.go`).
const CONFIGURATION: [(&str, &str); 15] = [
    ("/etc", "OpenCL/vendors/nvidia.icd"),
    ("/etc", "vulkan/icd.d/nvidia_icd.json"),
    ("/etc", "vulkan/icd.d/nvidia_icd.x86_64.json"),
    ("/etc", "vulkan/icd.d/nvidia_icd.aarch64.json"),
    ("/etc", "vulkan/icd.d/nvidia_layers.json"),
    ("/etc", "vulkan/implicit_layer.d/nvidia_layers.json"),
    ("/usr/share", "X11/xorg.conf.d/10-nvidia.conf"),
    ("/usr/share", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    ("/usr/share", "egl/egl_external_platform.d/09_nvidia_wayland2.json"),
    ("/usr/share", "egl/egl_external_platform.d/10_nvidia_wayland.json"),
    ("/usr/share", "egl/egl_external_platform.d/15_nvidia_gbm.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xcb.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xlib.json"),
    ("/usr/share", "glvnd/egl_vendor.d/10_nvidia.json"),
    ("/usr/share", "nvidia/nvoptix.bin"),
];

/// Where these files are in the driver's root: in a folder of NVIDIA's own, in the distribution's folders, or in the
/// root itself (GKE's `vulkan`).
const CONFIGURATION_FOLDERS: [&str; 5] =
    ["/usr/local/nvidia/share", "/etc", "/usr/local/share", "/usr/share", "/"];

/// Programs for containers (libnvidia-container, `nvc_info.c`). `nvidia-persistenced` and the MPS programs are left
/// out, because they belong to the node: with them a tenant could control the daemon of its GPU.
const PROGRAMS: [&str; 2] = ["nvidia-smi", "nvidia-debugdump"];

/// Where drivers are installed: NVIDIA's own folder, the Debian family on either processor, the Red Hat family.
pub(super) const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
];

/// Subfolders with libraries for VDPAU, GBM and the X server, which no loader searches.
const BELOW: [&str; 6] =
    ["", "vdpau", "gbm", "nvidia/xorg", "xorg/modules/drivers", "xorg/modules/extensions"];

/// Where Debian and Red Hat have the X server's modules, on every processor.
const XORG_FOLDERS: [&str; 2] = ["/usr/lib/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions"];

/// Firmware of the GPU's own processor, in a folder named by the driver's version.
const FIRMWARE: &str = "/lib/firmware/nvidia";

const PROGRAM_FOLDERS: [&str; 3] = ["/usr/local/nvidia/bin", "/usr/bin", "/usr/sbin"];

/// Debian's links to the driver that is in use.
const ALTERNATIVES: &str = "/etc/alternatives";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DriverFile {
    pub(super) container: PathBuf,
    pub(super) host: PathBuf,
}

#[derive(Debug)]
pub(super) struct Driver {
    root: PathBuf,
    host_root: PathBuf,
    scan: Mutex<Option<Scan>>,
}

/// The result of a scan, valid until one of the folders changes.
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

    /// Its files, sorted by their paths in the container.
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
        let folders = LIBRARY_FOLDERS.iter().chain(&PROGRAM_FOLDERS).chain([&ALTERNATIVES, &FIRMWARE]);
        let folders = folders.map(PathBuf::from).chain(library_folders()).chain(configuration_folders());
        folders.map(|folder| fs::metadata(self.folder(&folder)?).and_then(|m| m.modified()).ok()).collect()
    }

    /// Resolves a folder to the path at which the agent sees it.
    fn folder(&self, folder: &Path) -> Option<PathBuf> {
        resolve(&self.root, folder).map(|real| outside(&self.root, &real))
    }

    fn find(&self) -> Result<Vec<DriverFile>, AccessError> {
        let no_driver = || AccessError::NoDriver { library: CUDA, root: self.root.clone() };
        let version = LIBRARY_FOLDERS.iter().find_map(|folder| self.version(folder)).ok_or_else(no_driver)?;
        let mut found = self.libraries(&version);
        let firmware = Path::new(FIRMWARE).join(&version);
        let names = self.folder(&firmware).into_iter().flat_map(|folder| names(&folder));
        let blobs = names.filter(|name| name.starts_with("gsp"));
        let configuration = CONFIGURATION.iter().filter_map(|(container, path)| {
            let places = CONFIGURATION_FOLDERS.iter().map(|folder| Path::new(folder).join(path));
            Some((Path::new(container).join(path), self.first(places)?.1))
        });
        let programs = PROGRAMS
            .iter()
            .filter_map(|program| self.first(PROGRAM_FOLDERS.iter().map(|f| Path::new(f).join(program))));
        found.extend(
            configuration.chain(programs).chain(blobs.filter_map(|blob| self.first([firmware.join(blob)]))),
        );
        let host = |real: PathBuf| outside(&self.host_root, &real);
        Ok(found.into_iter().map(|(container, real)| DriverFile { container, host: host(real) }).collect())
    }

    /// Maps paths in the container to real paths. Every name of a library becomes a mount of its own, because a link
    /// would need a hook.
    fn libraries(&self, version: &str) -> BTreeMap<PathBuf, PathBuf> {
        let mut found = BTreeMap::new();
        for folder in library_folders() {
            for name in self.folder(&folder).into_iter().flat_map(|folder| names(&folder)) {
                let path = folder.join(&name);
                let Some(real) = resolve(&self.root, &path).filter(|real| is_of_driver(real, version)) else {
                    continue;
                };
                found.insert(real.clone(), real.clone());
                found.insert(path, real);
            }
            for (name, library) in EXPECTED {
                if let Some(real) = found.get(&folder.join(format!("{library}.{version}"))).cloned() {
                    found.entry(folder.join(name)).or_insert(real);
                }
            }
        }
        found
    }

    /// Returns the first of these paths that exists, and its real path.
    fn first(&self, paths: impl IntoIterator<Item = PathBuf>) -> Option<(PathBuf, PathBuf)> {
        paths.into_iter().find_map(|path| resolve(&self.root, &path).map(|real| (path, real)))
    }

    /// The driver's version, from the file name of the target of `libcuda.so.1`.
    fn version(&self, folder: &str) -> Option<String> {
        let real = resolve(&self.root, &Path::new(folder).join(CUDA))?;
        let version = real.file_name()?.to_str()?.strip_prefix("libcuda.so.")?;
        (version.contains('.')).then(|| version.to_owned())
    }
}

impl DriverFile {
    /// Whether the loader must find the file by its name: it is neither a program nor a module that is loaded by its
    /// path.
    pub(super) fn is_library(&self) -> bool {
        let name = self.container.file_name().and_then(|name| name.to_str());
        let is_named = name.is_some_and(|name| name.starts_with("lib") && name.contains(".so"));
        is_named && LIBRARY_FOLDERS.iter().any(|folder| self.container.parent() == Some(Path::new(folder)))
    }
}

fn library_folders() -> impl Iterator<Item = PathBuf> {
    let below = LIBRARY_FOLDERS.iter().flat_map(|folder| BELOW.map(|below| Path::new(folder).join(below)));
    below.chain(XORG_FOLDERS.map(PathBuf::from))
}

fn configuration_folders() -> impl Iterator<Item = PathBuf> {
    let parents = CONFIGURATION.iter().filter_map(|(_, path)| Path::new(path).parent());
    parents.flat_map(|parent| CONFIGURATION_FOLDERS.map(|folder| Path::new(folder).join(parent)))
}

/// Whether the file belongs to this driver: a library with another version belongs to another driver.
fn is_of_driver(real: &Path, version: &str) -> bool {
    let Some(name) = real.file_name().and_then(|name| name.to_str()) else { return false };
    let is_version_of = |library: &str| {
        name.strip_prefix(library).is_some_and(|version| version.is_empty() || version.starts_with('.'))
    };
    name.strip_suffix(version).is_some_and(|name| name.ends_with(".so."))
        || OF_OTHER_VERSIONS.iter().any(|library| is_version_of(library))
}

/// The names in a folder; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
