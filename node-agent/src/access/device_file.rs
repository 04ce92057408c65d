//! The device files that a container needs for a GPU or a MIG device. The driver's own are checked; those of MIG
//! capabilities are created.

use super::capability::{self, Instance, Majors};
use super::error::AccessError;
use super::{DeviceFile, Places, Target, node_file};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Names of the driver's modules in `/proc/devices` (NVIDIA's kernel modules; older drivers have `nvidia-frontend`).
const FRONTEND: &[&str] = &["nvidia", "nvidia-frontend"];
const UVM: &[&str] = &["nvidia-uvm"];
const CAPS: &[&str] = &["nvidia-caps"];

/// Minor numbers of the files that belong to no single GPU (nvidia-modprobe, `nvidia-modprobe-utils.h`).
const CONTROL: u32 = 255;
const MODESET: u32 = 254;
const UVM_MINOR: u32 = 0;
const UVM_TOOLS: u32 = 1;

const CONTAINER_DEV: &str = "/dev";

pub(super) struct DeviceFiles<'a> {
    places: &'a Places,
    majors: Majors,
}

impl<'a> DeviceFiles<'a> {
    pub(super) fn new(places: &'a Places) -> Self {
        Self { places, majors: Majors::read(&places.proc) }
    }

    /// Returns the files of a target, after it has checked or created each of them.
    pub(super) fn ensure(&self, target: Target) -> Result<Vec<DeviceFile>, AccessError> {
        let gpu = target.minor();
        let mut files = vec![
            self.driver_file(&format!("nvidia{gpu}"), FRONTEND, gpu, gpu)?,
            self.driver_file("nvidiactl", FRONTEND, CONTROL, gpu)?,
            self.driver_file("nvidia-uvm", UVM, UVM_MINOR, gpu)?,
        ];
        // Profilers and graphics need these and computing does not, so their absence is no error.
        files.extend(self.driver_file("nvidia-uvm-tools", UVM, UVM_TOOLS, gpu).ok());
        files.extend(self.driver_file("nvidia-modeset", FRONTEND, MODESET, gpu).ok());
        if let Target::Mig { gi, ci, .. } = target {
            files.push(self.capability_file(Instance { gpu, gi, ci: None })?);
            files.push(self.capability_file(Instance { gpu, gi, ci: Some(ci) })?);
        }
        Ok(files)
    }

    fn driver_file(
        &self,
        name: &str,
        module: &[&str],
        minor: u32,
        gpu: u32,
    ) -> Result<DeviceFile, AccessError> {
        let path = self.places.dev.join(name);
        let metadata = fs::metadata(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => AccessError::Missing { path: path.clone(), gpu },
            _ => AccessError::file(&path)(error),
        })?;
        let found = node_file::number(&metadata);
        let right = found.filter(|(major, found)| {
            *found == minor && self.majors.major(module).is_none_or(|registered| registered == *major)
        });
        let (major, minor) = right.ok_or(AccessError::Foreign { path, gpu })?;
        Ok(self.file(name, major, minor))
    }

    fn capability_file(&self, instance: Instance) -> Result<DeviceFile, AccessError> {
        let capability = capability::read(&self.places.proc, instance)?;
        let missing = || AccessError::NoCapabilities { path: self.places.proc.join("devices") };
        let major = self.majors.major(CAPS).ok_or_else(missing)?;
        let name = format!("nvidia-caps/nvidia-cap{}", capability.minor);
        let number = (major, capability.minor);
        node_file::ensure(&self.places.dev.join(&name), number, capability.mode, capability.may_make)?;
        Ok(self.file(&name, major, capability.minor))
    }

    fn file(&self, name: &str, major: u32, minor: u32) -> DeviceFile {
        let container = Path::new(CONTAINER_DEV).join(name);
        DeviceFile { container, host: self.places.host_dev.join(name), major, minor }
    }
}
