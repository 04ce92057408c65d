//! Device access: what a container needs to open its slice exists before the kubelet learns of the device, and is
//! removed only after the kubelet has forgotten it.
//!
//! For every device the agent checks the driver's device files, creates the files of a MIG instance's capabilities, and
//! writes a CDI spec. Libraries appear at the host's paths, and a hook adds them to the container's library cache, so
//! that images of any distribution find them and `ldconfig -p` lists them.
//!
//! The device files are granted besides the CDI device. A runtime with CDI replaces them by the specification's, which
//! are the same; a runtime without CDI still gives the container its GPU.

mod capability;
mod device_file;
mod driver;
mod error;
mod extras;
mod hook;
mod library;
mod node_file;
mod rooted;
mod spec;
mod spec_folder;

#[cfg(test)]
mod tests;

pub use error::AccessError;
pub use extras::{Extras, ImexChannel};
pub use hook::HookPlaces;
pub use library::Library;

use device_file::DeviceFiles;
use driver::Driver;
use hook::Hook;
use kerf_core::names::DeviceId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a container opens: a GPU or a MIG device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Gpu {
        /// The minor number of the GPU, which a switch of its MIG mode may change.
        minor: u32,
    },
    Mig {
        /// The minor number of the device's GPU.
        minor: u32,
        gi: u32,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The UUID that NVIDIA's runtime has for the target: `GPU-…` or `MIG-…`.
    pub visible: String,
    pub target: Target,
    /// The MPS daemon of an MPS share; `None` for other devices. The supervisor of the daemon makes its folders.
    pub mps: Option<MpsAccess>,
}

/// How a container reaches an MPS daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsAccess {
    /// The daemon's pipe folder on the host. Containers see it at the same path, read-only.
    pub pipe: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    pub container: PathBuf,
    pub host: PathBuf,
    pub major: u32,
    pub minor: u32,
}

/// What a container gets with a device besides environment variables; nothing by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessGrant {
    /// The UUID for NVIDIA's runtime, if it differs from the device's id.
    pub visible: Option<String>,
    pub cdi: Option<String>,
    /// The device files. With CDI the container gets them twice, and both are the same.
    pub files: Vec<DeviceFile>,
    /// Variables by which NVIDIA's runtime mounts extras if CDI does not.
    pub environment: Vec<(&'static str, &'static str)>,
    pub mps: Option<MpsAccess>,
}

/// Paths for device access, as the agent sees them; those named `host_…` are the host's.
#[derive(Debug, Clone)]
pub struct Places {
    /// The folder of CDI specs. Without it containers get device files from the kubelet, and no driver.
    pub cdi: Option<PathBuf>,
    /// The host's `/dev`, as the agent sees it.
    pub dev: PathBuf,
    /// The path of the same folder on the host.
    pub host_dev: PathBuf,
    /// The host's `/proc`. Its `driver` and `devices` are the same in every mount of proc.
    pub proc: PathBuf,
    pub driver_root: PathBuf,
    /// The path of the same root on the host.
    pub host_driver_root: PathBuf,
    /// The hook's program. Without it containers find the driver's libraries by their paths only.
    pub hook: Option<HookPlaces>,
    pub extras: Extras,
    /// Whether the GPUs are real. Simulated GPUs have neither device files nor a driver, so neither is searched.
    pub device_nodes: bool,
}

impl Default for Places {
    /// The paths of a host on which neither the agent nor the driver is in a container.
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

/// Removes kerf's CDI specs from a folder except those of the spared devices. The hook goes with the last spec.
///
/// # Errors
/// Which files could not be removed, and why.
pub fn remove_but(
    folder: &Path,
    hook: Option<&HookPlaces>,
    spared: &BTreeSet<DeviceId>,
) -> Result<(), String> {
    let left = spec_folder::remove_others(folder, |device| spared.contains(device));
    let mut texts: Vec<_> = left.values().map(ToString::to_string).collect();
    // The hook stays with any spec that stays, because the spec names it and its pod's containers may restart.
    if let Some(hook) = hook.filter(|_| spared.is_empty() && left.is_empty()) {
        texts.extend(hook.remove().err().map(|error| error.to_string()));
    }
    if texts.is_empty() { Ok(()) } else { Err(texts.join("; ")) }
}

/// Creates and removes the files by which containers reach their devices.
#[derive(Debug)]
pub struct AccessFiles {
    places: Places,
    driver: Driver,
}

impl AccessFiles {
    /// Prepares access with these paths. It does not touch any file yet.
    #[must_use]
    pub fn new(places: Places) -> Self {
        let driver = Driver::new(places.driver_root.clone(), places.host_driver_root.clone());
        Self { places, driver }
    }

    /// Creates what the desired devices lack, and removes what was created for others, also by an earlier process.
    ///
    /// The result has an entry for every desired device: what a container gets with it, or why it must not be offered.
    /// It also has each other device whose spec could not be removed. If no device is desired, only the files of spared
    /// devices remain.
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
        // The spec comes last, so that it never names a device file that does not exist.
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
        // Install the program before the spec is written, because the spec names it.
        let program = self.places.hook.as_ref().map_or(Ok(None), HookPlaces::install)?;
        let hook = program.as_ref().and_then(|program| Hook::new(program, &driver));
        spec::document(name, files, driver.iter().chain(&extras), hook)
    }
}
