//! Limits of a cgroup's use of a GPU's memory, which driver R615 brought.
//!
//! Structures and codes are those of NVML's manual and of the header of CUDA 13.4; no driver was asked. An older driver
//! has no such symbols. A shared library cannot take its own away, so there they answer that the function is not found,
//! and a caller must hold both to be the same.

use std::ffi::c_ulonglong;
use std::path::Path;

use super::pointer::{Out, TextIn};
use crate::code::{NvmlCode, Outcome};
use crate::handle::{Device, DeviceHandle};
use crate::session::Call;
use crate::state::MemoryLimits;

/// `nvmlSetMemoryLimits_v1_t`, in bytes. It has no version word.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SetMemoryLimits {
    /// Folder of the cgroup.
    name_space: TextIn,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GetMemoryLimits {
    /// Folder of the cgroup, which the caller sets.
    name_space: TextIn,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

/// The GPU, where the driver knows limits and the handle is one of a GPU.
fn gpu(call: &Call, device: DeviceHandle) -> Outcome<u32> {
    if !call.peek()?.state.has_memory_limits() {
        return Err(NvmlCode::FUNCTION_NOT_FOUND);
    }
    match device.device()? {
        Device::Gpu { gpu } => Ok(gpu),
        Device::Mig { .. } => Err(NvmlCode::NOT_SUPPORTED),
    }
}

/// The folder of a cgroup, spelt without a slash at its end.
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
