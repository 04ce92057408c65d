//! Device access: what a container needs to open its slice is there before the kubelet hears of the device, and is
//! removed only after the kubelet has forgotten it.
//!
//! For every device: the driver's device files are checked, the files of a MIG instance's capabilities are made, and a
//! CDI spec of its own is written. Libraries appear at the host's paths, and a hook adds them to the container's library
//! cache, so that images of any distribution find them and `ldconfig -p` shows them.
//!
//! The device files are granted beside the CDI device. A runtime with CDI replaces them by the specification's, which are the
//! same; one without still gives the container its GPU.

mod capability;
mod device_file;
mod driver;
mod error;
mod extras;
mod hook;
pub mod keep;
mod library;
mod node_file;
mod rooted;
mod spec;
mod spec_folder;

#[cfg(test)]
mod tests;

pub use error::{AccessError, FileTrouble};
pub use extras::{Extras, ImexChannel};
pub use hook::HookPlaces;
pub use library::Library;

use device_file::DeviceFiles;
use driver::Driver;
use hook::Hook;
use kerf_core::names::DeviceId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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
    /// The device files. With CDI they come twice and are the same.
    pub files: Vec<DeviceFile>,
    /// Variables by which NVIDIA's runtime brings extras, where CDI does not.
    pub environment: Vec<(&'static str, &'static str)>,
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
    /// The hook's program; without one, containers find the driver's libraries by their paths only.
    pub hook: Option<HookPlaces>,
    /// What containers get beside their GPU.
    pub extras: Extras,
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
            hook: None,
            extras: Extras::default(),
            device_nodes: true,
        }
    }
}

/// Removes kerf's CDI specs from a folder but those of these devices, and the hook with the last of them.
///
/// # Errors
/// Which could not be removed, and why.
pub fn remove_but(
    folder: &Path,
    hook: Option<&HookPlaces>,
    spared: &BTreeSet<DeviceId>,
) -> Result<(), String> {
    let left = spec_folder::remove_others(folder, |device| spared.contains(device));
    let mut texts: Vec<_> = left.values().map(ToString::to_string).collect();
    // A specification that stays names the hook, and its pod's containers may start again.
    if let Some(hook) = hook.filter(|_| spared.is_empty() && left.is_empty()) {
        texts.extend(hook.remove().err().map(|error| error.to_string()));
    }
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
        let grant = |(id, access): (&DeviceId, &Access)| (id.clone(), self.grant(id, access, files.as_ref()));
        let mut answers: BTreeMap<_, _> = wanted.iter().map(grant).collect();
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
        let (visible, mps) = (Some(access.visible.clone()), access.mps.clone());
        let mut grant = AccessGrant { visible, mps, ..AccessGrant::default() };
        if let Some(device_files) = files {
            grant.files = device_files.ensure(access.target)?;
            grant.files.extend(self.places.extras.device_files(&self.places)?);
            grant.environment = self.places.extras.environment();
        }
        let Some(folder) = &self.places.cdi else { return Ok(grant) };
        let name = spec::device_name(device)?;
        spec_folder::write(folder, name, &self.document(name, &grant.files)?)?;
        Ok(AccessGrant { cdi: Some(spec::full_name(name)), ..grant })
    }

    fn document(&self, name: &str, files: &[DeviceFile]) -> Result<String, AccessError> {
        if !self.places.device_nodes {
            return spec::document(name, files, std::iter::empty(), None);
        }
        let driver = self.driver.files()?;
        let extras = self.places.extras.mounts(&self.places, files);
        let program = self.places.hook.as_ref().map_or(Ok(None), HookPlaces::install)?;
        let hook = program.as_ref().and_then(|program| Hook::new(program, &driver));
        spec::document(name, files, driver.iter().chain(&extras), hook)
    }
}
