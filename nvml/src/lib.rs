//! A node's GPUs through NVML: observation, and the calls that change them. It decides nothing.
//!
//! It is the only program crate with unsafe code. That code is in one module, for the NVML calls that nvml-wrapper does
//! not wrap. (The mock of NVML for tests has the other side of the C interface.)
#![deny(unsafe_code)]

mod attributes;
mod create;
mod destroy;
mod differences;
mod error;
mod events;
#[expect(unsafe_code, reason = "raw NVML calls; everything else is safe code")]
mod ffi;
mod gpu;
mod holders;
mod instances;
mod limits;
mod mode;
mod observe;
mod pci;
mod process;
mod processes;
mod repair;
mod tables;
mod topology;
mod utilization;

pub use error::{GpuError, ModeRefusal, NvmlCode};
pub use events::{EventWatch, GpuEvent, GpuTrouble};
pub use gpu::{
    Compute, ComputeMode, ComputePart, Gpu, GpuBackend, GpuInstance, MigMode, RowRemapping, Utilization,
};
pub use holders::{Holder, Holders, command};
pub use process::Process;
pub use topology::Topology;

use kerf_core::mig::{ComputeInstance, Instance, MigTable};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use observe::Seen;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tables::Tables;
use utilization::Meter;

/// NVML, loaded and initialised, for all GPUs of the node or for one ([`GpuBackend::for_one`]).
pub struct NvmlBackend {
    nvml: Arc<Nvml>,
    only: Option<u32>,
    sys: PathBuf,
    tables: Tables,
    seen: Seen,
    meters: BTreeMap<GpuUuid, Meter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its version, such as `580.159.04`.
    pub version: String,
    /// The newest CUDA version that it supports, major and minor.
    pub cuda: (u32, u32),
}

fn open(library: &OsStr) -> Result<Nvml, GpuError> {
    Nvml::builder().lib_path(library).init().map_err(|error| match error {
        NvmlError::LibloadingError(reason) => {
            GpuError::Library { library: library.to_string_lossy().into_owned(), reason: reason.to_string() }
        }
        other => GpuError::call("nvmlInit_v2")(other),
    })
}

fn count(nvml: &Nvml) -> Result<u32, GpuError> {
    nvml.device_count().map_err(GpuError::call("nvmlDeviceGetCount_v2"))
}

impl NvmlBackend {
    /// Loads NVML from `library`, a path or a name that the loader finds.
    pub fn open(library: &OsStr) -> Result<Self, GpuError> {
        Ok(Self::new(Arc::new(open(library)?), None, "/sys".into()))
    }

    #[must_use]
    pub fn with_sys(self, sys: PathBuf) -> Self {
        Self::new(Arc::clone(&self.nvml), self.only, sys)
    }

    fn new(nvml: Arc<Nvml>, only: Option<u32>, sys: PathBuf) -> Self {
        Self { nvml, only, sys, tables: Tables::default(), seen: Seen::default(), meters: BTreeMap::new() }
    }

    fn indexes(&self) -> Result<Range<u32>, GpuError> {
        match self.only {
            Some(index) => Ok(index..index + 1),
            None => Ok(0..count(&self.nvml)?),
        }
    }

    pub fn driver(&self) -> Result<Driver, GpuError> {
        let version = self.nvml.sys_driver_version().map_err(GpuError::call("nvmlSystemGetDriverVersion"))?;
        let cuda = self.nvml.sys_cuda_driver_version();
        let cuda = cuda.map_err(GpuError::call("nvmlSystemGetCudaDriverVersion_v2"))?;
        // The number is major * 1000 + minor * 10, by nvml.h.
        let cuda = u32::try_from(cuda).unwrap_or(0);
        Ok(Driver { version, cuda: (cuda / 1000, cuda % 1000 / 10) })
    }

    /// The profiles of MIG on `gpu`, with MIG mode on or off; empty on a GPU without MIG.
    pub fn profiles(&self, gpu: &GpuUuid) -> Result<MigTable, GpuError> {
        tables::read(&self.device(gpu)?)
    }

    fn device(&self, gpu: &GpuUuid) -> Result<Device<'_>, GpuError> {
        instances::device(&self.nvml, self.indexes()?, gpu)
    }
}

impl Drop for NvmlBackend {
    fn drop(&mut self) {
        for meter in std::mem::take(&mut self.meters).into_values() {
            meter.free(&self.nvml);
        }
    }
}

impl GpuBackend for NvmlBackend {
    fn count(&mut self) -> Result<u32, GpuError> {
        count(&self.nvml)
    }

    fn for_one(&self, index: u32) -> Box<dyn GpuBackend> {
        Box::new(Self::new(Arc::clone(&self.nvml), Some(index), self.sys.clone()))
    }

    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError> {
        self.observe_all()
    }

    fn unresponsive(&self) -> &BTreeMap<u32, GpuError> {
        self.seen.unresponsive()
    }

    fn utilization(&mut self, gpus: &[Gpu]) -> BTreeMap<GpuUuid, Utilization> {
        self.measure(gpus)
    }

    fn create(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError> {
        self.create_instance(gpu, wanted, part)
    }

    fn destroy(
        &mut self,
        gpu: &GpuUuid,
        instance: &GpuInstance,
        part: Option<ComputeInstance>,
    ) -> Result<(), GpuError> {
        self.destroy_instance(gpu, instance, part)
    }

    fn set_mig_mode(&mut self, gpu: &GpuUuid, on: bool, reset: bool) -> Result<(), GpuError> {
        self.switch_mig(gpu, on, reset)
    }

    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, GpuError> {
        observe::compute_mode(&self.device(gpu)?)
    }

    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), GpuError> {
        self.switch_compute_mode(gpu, mode)
    }

    fn limit_memory(
        &mut self,
        gpu: &GpuUuid,
        cgroup: &str,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        self.set_memory_limit(gpu, cgroup, limit)
    }
}
