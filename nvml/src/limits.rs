//! GPU memory limits of cgroups, which drivers offer from R615 on.

use crate::processes::MIB;
use crate::{GpuError, NvmlBackend, NvmlCode, ffi};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::ffi::CString;

const CALL: &str = "nvmlDeviceSetMemoryLimits_v1";

impl NvmlBackend {
    /// See [`crate::GpuBackend::limit_memory`]. Soft and hard limit are one, and zero is none.
    pub(crate) fn set_memory_limit(
        &mut self,
        gpu: &GpuUuid,
        cgroup: &str,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        let path = CString::new(cgroup).ok().filter(|path| path.count_bytes() < ffi::NAMESPACE_BYTES);
        let path = path.ok_or_else(|| GpuError::Cgroup(cgroup.to_owned()))?;
        let bytes = limit.map_or(0, |limit| limit.0.saturating_mul(MIB));
        let result = ffi::set_memory_limits(&self.device(gpu)?, &path, bytes, bytes);
        result.map_err(GpuError::call(CALL)).map_err(|error| match error.code() {
            NvmlCode::FunctionNotFound => GpuError::TooOld { call: CALL, since: "R615" },
            _ => error,
        })
    }
}
