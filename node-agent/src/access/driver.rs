//! The driver's user-space files: what `nvidia-ctk cdi generate` brings into a container.
//!
//! These are the files of every driver capability (`compute`, `utility`, `video`, `graphics`, `display`, `ngx`), whatever
//! `NVIDIA_DRIVER_CAPABILITIES` says. CDI specifications are made ahead of the containers, and `Allocate` does not see a
//! container's environment, so the variable has no effect here, as with GPU Operator's CDI mode. Left out on purpose:
//! - the sockets of `nvidia-persistenced` and of the fabric manager, and the programs of MPS: they command a GPU that others share;
//! - libraries of 32 bits (`compat32`), which data centre drivers have not been tested with here.

use super::error::AccessError;
use super::rooted::{outside, resolve};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The link to the library whose version is the driver's; without it nothing else is of use.
const CUDA: &str = "libcuda.so.1";

/// Files of the driver's that do not end with its version, by their names up to their own (nvidia-container-toolkit,
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

/// Names that programs open and not every driver package has, and the library that they stand for (same source,
/// `internal/discover/symlinks.go`).
const EXPECTED: [(&str, &str); 3] = [
    ("libcuda.so", "libcuda.so"),
    ("libGLX_indirect.so.0", "libGLX_nvidia.so"),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so"),
];

/// What loaders of OpenGL, EGL, Vulkan, OpenCL and OptiX read, and below which folder they do in a container (same source,
/// `internal/discover/graphics.go`).
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

/// Where that lies in the driver's root: in a folder of NVIDIA's alone, as distributions have it, or in the root itself (GKE's
/// `vulkan`).
const CONFIGURATION_FOLDERS: [&str; 5] =
    ["/usr/local/nvidia/share", "/etc", "/usr/local/share", "/usr/share", "/"];

/// Programs (libnvidia-container, `nvc_info.c`). `nvidia-persistenced` is the node's and not a container's, and so are MPS's: with
/// them a tenant would command the daemon of its GPU.
const PROGRAMS: [&str; 2] = ["nvidia-smi", "nvidia-debugdump"];

/// Where drivers are installed: a folder of NVIDIA's alone, Debian's family on either processor, Red Hat's family.
pub(super) const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
];

/// Folders of libraries that no loader searches, below those: for VDPAU, GBM, and the X server.
const BELOW: [&str; 6] =
    ["", "vdpau", "gbm", "nvidia/xorg", "xorg/modules/drivers", "xorg/modules/extensions"];

/// Where Debian and Red Hat have the X server's modules, whatever the processor.
const XORG_FOLDERS: [&str; 2] = ["/usr/lib/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions"];

/// The firmware of the GPU's own processor, in a folder of the driver's version.
const FIRMWARE: &str = "/lib/firmware/nvidia";

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
        let folders = LIBRARY_FOLDERS.iter().chain(&PROGRAM_FOLDERS).chain([&ALTERNATIVES, &FIRMWARE]);
        let folders = folders.map(PathBuf::from).chain(library_folders()).chain(configuration_folders());
        folders.map(|folder| fs::metadata(self.folder(&folder)?).and_then(|m| m.modified()).ok()).collect()
    }

    /// A folder as the agent sees it.
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

    /// Real paths by those in the container. Every name that a library has is a mount of its own: a link would take a hook.
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

    /// The first of these paths that is there, and its real path.
    fn first(&self, paths: impl IntoIterator<Item = PathBuf>) -> Option<(PathBuf, PathBuf)> {
        paths.into_iter().find_map(|path| resolve(&self.root, &path).map(|real| (path, real)))
    }

    /// The driver's version, from the name of the library that `libcuda.so.1` leads to.
    fn version(&self, folder: &str) -> Option<String> {
        let real = resolve(&self.root, &Path::new(folder).join(CUDA))?;
        let version = real.file_name()?.to_str()?.strip_prefix("libcuda.so.")?;
        (version.contains('.')).then(|| version.to_owned())
    }
}

impl DriverFile {
    /// Whether the loader shall find it by its name: neither a program, nor a module that others load by its path.
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

/// Whether the file is the driver's: a library of another version is another driver's.
fn is_of_driver(real: &Path, version: &str) -> bool {
    let Some(name) = real.file_name().and_then(|name| name.to_str()) else { return false };
    let is_version_of = |library: &str| {
        name.strip_prefix(library).is_some_and(|version| version.is_empty() || version.starts_with('.'))
    };
    name.strip_suffix(version).is_some_and(|name| name.ends_with(".so."))
        || OF_OTHER_VERSIONS.iter().any(|library| is_version_of(library))
}

/// The names in a folder that can be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
