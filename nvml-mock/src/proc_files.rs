//! The kernel module's files below `/proc`: capabilities of MIG devices and the numbers of their device nodes.
//!
//! They are written as an H200 under driver 580.159.04 shows them. The numbers of capabilities are fixed for every
//! instance that any GPU could have; the files of instances appear and disappear with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::files::{self, FileError};
use crate::state::{GpuState, MockState};

/// How many GPUs the module has numbers for.
pub(crate) const GPU_MINORS: u32 = 32;
/// How many GPU instances of a GPU the module has numbers for.
const GPU_INSTANCES: u32 = 15;
/// How many compute instances of a GPU instance the module has numbers for.
const COMPUTE_INSTANCES: u32 = 8;

/// Minor number of the capability to change MIG.
const CONFIG: u32 = 1;
/// Minor number of the capability to monitor MIG.
const MONITOR: u32 = 2;
/// Minor number of the first GPU instance.
const FIRST_INSTANCE: u32 = 3;

/// Mode of the device nodes that all may read: 0444, which the files have in decimal.
const READABLE: u32 = 0o444;
/// Mode of the node that only root may read.
const ROOT_ONLY: u32 = 0o400;

/// Major numbers for `/proc/devices`. Those from 234 on are assigned as modules are loaded, and differ between
/// machines.
const MAJORS: [(u32, &str); 6] = [
    (1, "mem"),
    (195, "nvidia"),
    (195, "nvidiactl"),
    (238, "nvidia-uvm"),
    (241, "nvidia-caps"),
    (242, "nvidia-caps-imex-channels"),
];

/// The number in `/dev/nvidia-caps/nvidia-cap<number>` of a GPU instance, or of a compute instance in it, on the GPU
/// with that minor number. `None` for ids for which the kernel module has no number.
#[must_use]
pub fn capability_minor(gpu_minor: u32, gi: u32, ci: Option<u32>) -> Option<u32> {
    let known = gpu_minor < GPU_MINORS && gi < GPU_INSTANCES && ci.is_none_or(|ci| ci < COMPUTE_INSTANCES);
    let instance = FIRST_INSTANCE + (gpu_minor * GPU_INSTANCES + gi) * (1 + COMPUTE_INSTANCES);
    known.then_some(instance + ci.map_or(0, |ci| 1 + ci))
}

impl MockState {
    /// Brings the files below `proc`, which replaces `/proc`, in line with this state: `devices`,
    /// `driver/nvidia-caps/mig-minors` and `driver/nvidia/capabilities`. Files that are correct already are not
    /// touched.
    pub fn write_proc(&self, proc: &Path) -> Result<(), FileError> {
        write_once(&proc.join("devices"), devices)?;
        write_once(&proc.join("driver/nvidia-caps/mig-minors"), mig_minors)?;
        let capabilities = proc.join("driver/nvidia/capabilities");
        let (folders, wanted) = self.capabilities();
        for folder in &folders {
            let folder = capabilities.join(folder);
            std::fs::create_dir_all(&folder).map_err(|source| FileError::Write { path: folder, source })?;
        }
        for (file, text) in &wanted {
            write_once(&capabilities.join(file), || text.clone())?;
        }
        remove_others(&capabilities, Path::new(""), &folders)
    }

    /// Folders and files below `capabilities`.
    fn capabilities(&self) -> (BTreeSet<PathBuf>, BTreeMap<PathBuf, String>) {
        let mut files = BTreeMap::from([
            (PathBuf::from("mig/config"), capability(CONFIG, ROOT_ONLY)),
            (PathBuf::from("mig/monitor"), capability(MONITOR, READABLE)),
        ]);
        let mut folders = BTreeSet::from([PathBuf::from("mig")]);
        for gpu in self.gpus.iter().filter(|gpu| gpu.model.has_mig()) {
            let own = PathBuf::from(format!("gpu{}", gpu.minor));
            folders.extend([own.join("mig"), own.clone()]);
            for (folder, minor) in instances(gpu) {
                files.insert(own.join(&folder).join("access"), capability(minor, READABLE));
                folders.insert(own.join(folder));
            }
        }
        (folders, files)
    }
}

/// Folder and number of each instance of a GPU.
fn instances(gpu: &GpuState) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for instance in &gpu.instances {
        let folder = PathBuf::from(format!("mig/gi{}", instance.id));
        let ids = instance.compute.iter().map(|compute| compute.id);
        let compute = ids.map(|ci| (folder.join(format!("ci{ci}")), Some(ci)));
        for (folder, ci) in std::iter::once((folder.clone(), None)).chain(compute) {
            found.extend(capability_minor(gpu.minor, instance.id, ci).map(|minor| (folder, minor)));
        }
    }
    found
}

fn capability(minor: u32, mode: u32) -> String {
    format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")
}

fn devices() -> String {
    let mut text = "Character devices:\n".to_owned();
    for (major, name) in MAJORS {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{major:>3} {name}");
    }
    text.push_str("\nBlock devices:\n259 blkext\n");
    text
}

fn mig_minors() -> String {
    let mut text = format!("config {CONFIG}\nmonitor {MONITOR}\n");
    let mut number = FIRST_INSTANCE..;
    for gpu in 0..GPU_MINORS {
        for gi in 0..GPU_INSTANCES {
            let compute = (0..COMPUTE_INSTANCES).map(|ci| format!("/ci{ci}"));
            for end in std::iter::once(String::new()).chain(compute) {
                let minor = number.next().unwrap_or(u32::MAX);
                let _ = writeln!(text, "gpu{gpu}/gi{gi}{end}/access {minor}");
            }
        }
    }
    text
}

/// Writes a file if it is missing. An existing one stays, because the kernel lets root change `DeviceFileModify`.
fn write_once(path: &Path, text: impl FnOnce() -> String) -> Result<(), FileError> {
    if path.exists() {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .map_err(|source| FileError::Write { path: folder.to_owned(), source })?;
    }
    files::write_whole(path, text().as_bytes())
}

/// Removes the folders below `root/at` that belong to no instance.
fn remove_others(root: &Path, at: &Path, wanted: &BTreeSet<PathBuf>) -> Result<(), FileError> {
    let here = root.join(at);
    let reported = |source| FileError::Read { path: here.clone(), source };
    for entry in std::fs::read_dir(&here).map_err(reported)? {
        let entry = entry.map_err(reported)?;
        if !entry.file_type().map_err(reported)?.is_dir() {
            continue;
        }
        let below = at.join(entry.file_name());
        if wanted.contains(&below) {
            remove_others(root, &below, wanted)?;
            continue;
        }
        match std::fs::remove_dir_all(entry.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(FileError::Write { path: entry.path(), source: error });
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "proc_files_tests.rs"]
mod tests;
