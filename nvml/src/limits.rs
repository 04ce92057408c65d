//! Sets GPU memory limits of cgroups, which drivers support from R615 on.

use crate::processes::MIB;
use crate::{GpuError, NvmlBackend, NvmlCode, ffi};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::ffi::CString;
use std::path::Path;

const CALL: &str = "nvmlDeviceSetMemoryLimits_v1";

impl NvmlBackend {
    /// Implements [`crate::GpuBackend::limit_memory`]. The soft limit equals the hard limit, because kerf never assigns
    /// the same memory twice.
    pub(crate) fn set_memory_limit(
        &mut self,
        gpu: &GpuUuid,
        cgroup: &str,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        let path = CString::new(cgroup).map_err(|_| GpuError::Cgroup(cgroup.to_owned()))?;
        let (soft, hard) = limit.map_or((0, ffi::NO_LIMIT), |limit| {
            let bytes = limit.0.saturating_mul(MIB);
            (bytes, bytes)
        });
        let result = ffi::set_memory_limits(&self.device(gpu)?, &path, soft, hard);
        let result = result.map_err(GpuError::call(CALL)).map_err(|error| match error.code() {
            NvmlCode::FunctionNotFound => GpuError::TooOld { call: CALL, since: "R615" },
            _ => error,
        });
        match result {
            // A cgroup's limits end with it, so a failed call to lift them counts as done.
            Err(GpuError::Call { .. }) if limit.is_none() && !Path::new(cgroup).exists() => Ok(()),
            result => result,
        }
    }
}
