//! Device access: what a container needs to open its slice is there before the kubelet hears of the device, and is
//! removed only after the kubelet has forgotten it.
//!
//! For every device: the driver's device files are checked, the files of a MIG instance's capabilities are made, and a
//! CDI spec of its own is written. There is no ldconfig hook in the specs: libraries appear at the host's paths, where
//! the loader of an image of the same family finds them; other images set `LD_LIBRARY_PATH`, as NVIDIA's do.

mod capability;
mod device_file;
mod driver;
mod error;
pub mod keep;
mod node_file;
mod rooted;
mod spec;
mod spec_folder;

#[cfg(test)]
mod tests;

pub use error::{AccessError, FileTrouble};

use device_file::DeviceFiles;
use driver::Driver;
use kerf_core::names::DeviceId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a container opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A GPU, whole or shared.
    Gpu {
        /// The GPU's minor number, which a change of its MIG mode may change.
        minor: u32,
    },
    /// A MIG device.
    Mig {
        /// Its GPU's minor number.
        minor: u32,
        /// Its GPU instance's id.
        gi: u32,
        /// Its compute instance's id.
        ci: u32,
    },
}

impl Target {
    fn minor(self) -> u32 {
        match self {
            Self::Gpu { minor } | Self::Mig { minor, .. } => minor,
        }
    }
}

/// What one of the kubelet's devices needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The UUID by which NVIDIA's runtime knows the target: `GPU-…` or `MIG-…`.
    pub visible: String,
    /// The target.
    pub target: Target,
    /// The MPS daemon that serves the device, for an MPS share. Whoever runs the daemon makes its folders.
    pub mps: Option<MpsAccess>,
}

/// Where an MPS daemon is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsAccess {
    /// Its pipe folder on the host. Containers see it at the same path, read-only.
    pub pipe: PathBuf,
}

/// A device file that a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    /// Its path in the container.
    pub container: PathBuf,
    /// Its path on the host.
    pub host: PathBuf,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// What a container gets with a device beside environment variables; nothing by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessGrant {
    /// What NVIDIA's runtime shall bring in, where it is not what the device's id says.
    pub visible: Option<String>,
    /// The CDI device's full name.
    pub cdi: Option<String>,
    /// The device files, where CDI does not bring them.
    pub files: Vec<DeviceFile>,
    /// The MPS daemon.
    pub mps: Option<MpsAccess>,
}

/// Where things are. Paths are as the agent sees them, but for those named `host_…`.
#[derive(Debug, Clone)]
pub struct Places {
    /// The folder of CDI specs; without one, containers get device files from the kubelet and no driver.
    pub cdi: Option<PathBuf>,
    /// The host's `/dev`.
    pub dev: PathBuf,
    /// The same on the host.
    pub host_dev: PathBuf,
    /// The host's `/proc`; its `driver` and `devices` are the same in every mount of proc.
    pub proc: PathBuf,
    /// The root of the file system in which the driver is installed.
    pub driver_root: PathBuf,
    /// The same on the host.
    pub host_driver_root: PathBuf,
    /// Whether the GPUs are real. Simulated ones have neither device files nor a driver, and none is looked for.
    pub device_nodes: bool,
}

impl Default for Places {
    /// A host without containers around the agent or the driver.
    fn default() -> Self {
        Self {
            cdi: Some(PathBuf::from("/var/run/cdi")),
            dev: PathBuf::from("/dev"),
            host_dev: PathBuf::from("/dev"),
            proc: PathBuf::from("/proc"),
            driver_root: PathBuf::from("/"),
            host_driver_root: PathBuf::from("/"),
            device_nodes: true,
        }
    }
}

/// Removes kerf's CDI specs from a folder but those of these devices.
///
/// # Errors
/// Which could not be removed, and why.
pub fn remove_specs_but(folder: &Path, spared: &BTreeSet<DeviceId>) -> Result<(), String> {
    let left = spec_folder::remove_others(folder, |device| spared.contains(device));
    let texts: Vec<_> = left.values().map(ToString::to_string).collect();
    if texts.is_empty() { Ok(()) } else { Err(texts.join("; ")) }
}

/// The files by which containers reach their devices.
#[derive(Debug)]
pub struct AccessFiles {
    places: Places,
    driver: Driver,
}

impl AccessFiles {
    /// Files at these places. Touches nothing yet.
    #[must_use]
    pub fn new(places: Places) -> Self {
        let driver = Driver::new(places.driver_root.clone(), places.host_driver_root.clone());
        Self { places, driver }
    }

    /// Makes what is missing for the wanted devices and removes what was made for others, also by an earlier process.
    ///
    /// Answers for every wanted device: what a container gets with it, or why it must not be offered. A device that is
    /// not wanted is in the answer if its spec could not be removed. With nothing wanted, nothing of kerf's is left but
    /// for the spared devices.
    ///
    /// Level-triggered: it may be called at any time with the whole set, and writes only what differs. It blocks on
    /// files.
    pub fn ensure(
        &self,
        wanted: &BTreeMap<DeviceId, Access>,
        spared: &BTreeSet<DeviceId>,
    ) -> BTreeMap<DeviceId, Result<AccessGrant, AccessError>> {
        let files = self.places.device_nodes.then(|| DeviceFiles::new(&self.places));
        let mut answers: BTreeMap<_, _> =
            wanted.iter().map(|(id, access)| (id.clone(), self.grant(id, access, files.as_ref()))).collect();
        if let Some(folder) = &self.places.cdi {
            let left = spec_folder::remove_others(folder, |device| {
                wanted.contains_key(device) || spared.contains(device)
            });
            answers.extend(left.into_iter().map(|(id, error)| (id, Err(error))));
        }
        answers
    }

    fn grant(
        &self,
        device: &DeviceId,
        access: &Access,
        files: Option<&DeviceFiles<'_>>,
    ) -> Result<AccessGrant, AccessError> {
        let files = files.map_or(Ok(Vec::new()), |files| files.ensure(access.target))?;
        let (visible, mps) = (Some(access.visible.clone()), access.mps.clone());
        let Some(folder) = &self.places.cdi else {
            return Ok(AccessGrant { visible, cdi: None, files, mps });
        };
        let driver = if self.places.device_nodes { self.driver.files()? } else { Arc::default() };
        let name = spec::device_name(device)?;
        spec_folder::write(folder, name, &spec::document(name, &files, &driver)?)?;
        Ok(AccessGrant { visible, cdi: Some(spec::full_name(name)), files: Vec::new(), mps })
    }
}
