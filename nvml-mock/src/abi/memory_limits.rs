//! Calls about limits of a cgroup's use of a GPU's memory, new in driver R615.
//!
//! Structures and codes are those of NVML's manual and of the header of CUDA 13.4; they were not checked against a
//! driver. An older driver has no such symbols. A shared library cannot remove its own symbols, so there they return
//! that the function is not found, and a caller must treat both alike.

use std::ffi::c_ulonglong;
use std::path::Path;

use super::pointer::{Out, TextIn};
use crate::code::{NvmlCode, Outcome};
use crate::handle::{Device, DeviceHandle};
use crate::session::Call;
use crate::state::MemoryLimits;

/// The structure `nvmlSetMemoryLimits_v1_t`, in bytes. It has no version word.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SetMemoryLimits {
    name_space: TextIn,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

/// The structure `nvmlGetMemoryLimits_v1_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GetMemoryLimits {
    /// The cgroup's folder, which the caller sets.
    name_space: TextIn,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

/// The GPU's index, if the driver has limits and the handle is a GPU's.
fn gpu(call: &Call, device: DeviceHandle) -> Outcome<u32> {
    if !call.peek()?.state.has_memory_limits() {
        return Err(NvmlCode::FUNCTION_NOT_FOUND);
    }
    match device.device()? {
        Device::Gpu { gpu } => Ok(gpu),
        Device::Mig { .. } => Err(NvmlCode::NOT_SUPPORTED),
    }
}

/// The folder of a cgroup, without a slash at its end.
fn cgroup(name_space: TextIn) -> Outcome<String> {
    let text = name_space.get()?;
    if !Path::new(&text).is_dir() {
        return Err(NvmlCode::OPERATING_SYSTEM);
    }
    Ok(text.trim_end_matches('/').to_owned())
}

exports! {
    fn nvmlDeviceSetMemoryLimits_v1(device: DeviceHandle, limits: Out<SetMemoryLimits>) call => {
        let gpu = gpu(call, device)?;
        let SetMemoryLimits { name_space, soft_limit: soft, hard_limit: hard } = limits.get()?;
        call.change(gpu, |state, _| {
            state.gpu_at(gpu)?.set_memory_limits(&cgroup(name_space)?, MemoryLimits { soft, hard })
        })
    }

    fn nvmlDeviceGetMemoryLimits_v1(device: DeviceHandle, limits: Out<GetMemoryLimits>) call => {
        gpu(call, device)?;
        let name_space = limits.get()?.name_space;
        let (found, current_used) = call.device(device, |subject| {
            subject.gpu.memory_limits_of(&cgroup(name_space)?, subject.control)
        })?;
        limits.put(GetMemoryLimits { name_space, soft_limit: found.soft, hard_limit: found.hard, current_used })
    }
}
