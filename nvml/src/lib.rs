//! A node's GPUs through NVML: what is seen of them, and the calls that change them. It decides nothing.
//!
//! The one crate with unsafe code, and there in one module: the NVML calls that nvml-wrapper does not wrap.
#![deny(unsafe_code)]

mod differences;
mod discover;
mod error;
#[expect(unsafe_code, reason = "raw NVML calls; everything else is safe code")]
mod ffi;
mod gpu;
mod mig;

pub use error::{GpuError, NvmlCode};
pub use gpu::{Compute, ComputeMode, ComputePart, Gpu, GpuBackend, GpuInstance, MigMode, Process};

use discover::ProfileIds;
use kerf_core::mig::{Instance, MigTable};
use kerf_core::names::GpuUuid;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// NVML, loaded and initialised.
pub struct NvmlBackend {
    nvml: Nvml,
    /// What MIG offers on each GPU. It does not change while the driver is loaded, and asking takes two calls a profile.
    tables: BTreeMap<GpuUuid, MigTable>,
    /// Compute instance profiles of each GPU instance profile, likewise.
    compute: BTreeMap<(GpuUuid, u32), ProfileIds>,
}

impl NvmlBackend {
    /// Loads NVML from `library`, a path or a name that the loader finds.
    pub fn open(library: &OsString) -> Result<Self, GpuError> {
        let nvml = Nvml::builder().lib_path(library).init().map_err(|error| match error {
            nvml_wrapper::error::NvmlError::LibloadingError(reason) => GpuError::Library {
                library: library.to_string_lossy().into_owned(),
                reason: reason.to_string(),
            },
            other => GpuError::call("nvmlInit_v2")(other),
        })?;
        Ok(Self { nvml, tables: BTreeMap::new(), compute: BTreeMap::new() })
    }

    fn device(&self, gpu: &GpuUuid) -> Result<Device<'_>, GpuError> {
        self.nvml.device_by_uuid(gpu.as_str()).map_err(|error| match error {
            nvml_wrapper::error::NvmlError::NotFound => GpuError::NoSuchGpu(gpu.clone()),
            other => GpuError::call("nvmlDeviceGetHandleByUUID")(other),
        })
    }
}

impl GpuBackend for NvmlBackend {
    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError> {
        self.observe_all()
    }

    fn create(&mut self, gpu: &GpuUuid, wanted: Instance) -> Result<GpuInstance, GpuError> {
        self.create_instance(gpu, wanted)
    }

    fn destroy(&mut self, gpu: &GpuUuid, instance: &GpuInstance) -> Result<(), GpuError> {
        self.destroy_instance(gpu, instance)
    }
}
