//! The NVML calls that nvml-wrapper does not wrap: GPU and compute instances.
//!
//! The agent's only unsafe code. Every function here checks the return code and keeps raw pointers inside its own
//! handle types; none decides anything.

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t,
    nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};
use std::ffi::{CStr, c_char};
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;

// Layouts on x86-64 and aarch64 as nvml.h has them; a driver that wrote more than this would write past our values.
const _: () = {
    assert!(size_of::<nvmlGpuInstanceProfileInfo_v2_t>() == 152);
    assert!(size_of::<nvmlGpuInstanceInfo_t>() == 24);
    assert!(size_of::<nvmlComputeInstanceInfo_t>() == 32);
    assert!(size_of::<nvmlComputeInstanceProfileInfo_t>() == 36);
    assert!(size_of::<nvmlGpuInstancePlacement_t>() == 8);
};

/// `nvmlGpuInstanceProfileInfo_v2`: the structure's size, 152, with its version in the top byte
/// (`NVML_STRUCT_VERSION`).
const PROFILE_INFO_V2: u32 = 0x0200_0098;

/// Room for the instances of one profile, whatever the driver says is the most: no GPU has more memory slices.
const MOST_INSTANCES: u32 = 32;

/// A GPU instance of the driver's.
#[derive(Clone, Copy)]
pub struct GiHandle(nvmlGpuInstance_t);

/// A compute instance of the driver's.
#[derive(Clone, Copy)]
pub struct CiHandle(nvmlComputeInstance_t);

/// One GPU instance profile.
pub struct GiProfile {
    pub id: u32,
    pub name: String,
    pub instances: u32,
    pub memory_mib: u64,
}

/// Which GPU instance a handle stands for.
pub struct GiInfo {
    pub id: u32,
    pub start: u32,
    pub size: u32,
}

/// One compute instance profile of a GPU instance.
#[derive(Clone, Copy)]
pub struct CiProfile {
    pub id: u32,
    pub slices: u32,
    pub multiprocessors: u32,
}

/// `nvmlDeviceGetGpuInstanceProfileInfoV` with the structure that has the name.
pub fn gi_profile(device: &Device<'_>, index: u32) -> Result<GiProfile, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    // SAFETY: the structure is plain data for which zeroes are valid, its version tells the driver its size, and the
    // handle belongs to the library that is called.
    let info = unsafe {
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = zeroed();
        info.version = PROFILE_INFO_V2;
        nvml_try(call(device.handle(), index, &raw mut info))?;
        info
    };
    Ok(GiProfile {
        id: info.id,
        name: text(&info.name)?,
        instances: info.instanceCount,
        memory_mib: info.memorySizeMB,
    })
}

/// A C string in a field of fixed size.
fn text(field: &[c_char]) -> Result<String, NvmlError> {
    let bytes: Vec<u8> = field.iter().map(|c| c.to_ne_bytes()[0]).chain([0]).collect();
    Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_str()?.to_owned())
}

/// `nvmlDeviceGetGpuInstancePossiblePlacements_v2`: starts and sizes. (nvml-wrapper's own always gives none.)
pub fn placements(device: &Device<'_>, profile: u32) -> Result<Vec<(u32, u32)>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
    let mut found = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; MOST_INSTANCES as usize];
    let mut count = MOST_INSTANCES;
    // SAFETY: the buffer has room for `count` placements, more than any GPU has of one profile.
    unsafe { nvml_try(call(device.handle(), profile, found.as_mut_ptr(), &raw mut count))? };
    Ok(found.iter().take(count as usize).map(|p| (p.start, p.size)).collect())
}

/// `nvmlDeviceGetGpuInstances`.
pub fn gpu_instances(device: &Device<'_>, profile: u32) -> Result<Vec<GiHandle>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut found = vec![null_mut(); MOST_INSTANCES as usize];
    let mut count = MOST_INSTANCES;
    // SAFETY: the driver writes at most the profile's instance count, for which the buffer has room.
    unsafe { nvml_try(call(device.handle(), profile, found.as_mut_ptr(), &raw mut count))? };
    Ok(found.into_iter().take(count as usize).map(GiHandle).collect())
}

/// `nvmlDeviceGetGpuInstanceById`.
pub fn gpu_instance(device: &Device<'_>, id: u32) -> Result<GiHandle, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut gi = null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { nvml_try(call(device.handle(), id, &raw mut gi))? };
    Ok(GiHandle(gi))
}

/// `nvmlGpuInstanceGetInfo`.
pub fn gi_info(nvml: &Nvml, gi: GiHandle) -> Result<GiInfo, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetInfo.as_ref())?;
    // SAFETY: zeroes are valid for the structure, and the handle came from the same library; the driver checks it.
    let info = unsafe {
        let mut info: nvmlGpuInstanceInfo_t = zeroed();
        nvml_try(call(gi.0, &raw mut info))?;
        info
    };
    Ok(GiInfo { id: info.id, start: info.placement.start, size: info.placement.size })
}

/// `nvmlDeviceCreateGpuInstanceWithPlacement`. (Without a placement the driver would choose one.)
pub fn create_gi(device: &Device<'_>, profile: u32, start: u32, size: u32) -> Result<GiHandle, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let placement = nvmlGpuInstancePlacement_t { start, size };
    let mut gi = null_mut();
    // SAFETY: the driver reads one placement and writes one handle.
    unsafe { nvml_try(call(device.handle(), profile, &raw const placement, &raw mut gi))? };
    Ok(GiHandle(gi))
}

/// `nvmlGpuInstanceDestroy`.
pub fn destroy_gi(nvml: &Nvml, gi: GiHandle) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceDestroy.as_ref())?;
    // SAFETY: the handle came from the same library; one that is gone is refused by the driver.
    unsafe { nvml_try(call(gi.0)) }
}

/// `nvmlGpuInstanceGetComputeInstanceProfileInfo` with shared engines, the only kind there is.
pub fn ci_profile(nvml: &Nvml, gi: GiHandle, index: u32) -> Result<CiProfile, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref())?;
    // SAFETY: zeroes are valid for the structure; the driver writes one of it.
    let info = unsafe {
        let mut info: nvmlComputeInstanceProfileInfo_t = zeroed();
        nvml_try(call(gi.0, index, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, &raw mut info))?;
        info
    };
    Ok(CiProfile { id: info.id, slices: info.sliceCount, multiprocessors: info.multiprocessorCount })
}

/// `nvmlGpuInstanceGetComputeInstances`.
pub fn compute_instances(nvml: &Nvml, gi: GiHandle, profile: u32) -> Result<Vec<CiHandle>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
    let mut found = vec![null_mut(); MOST_INSTANCES as usize];
    let mut count = MOST_INSTANCES;
    // SAFETY: the driver writes at most the profile's instance count, for which the buffer has room.
    unsafe { nvml_try(call(gi.0, profile, found.as_mut_ptr(), &raw mut count))? };
    Ok(found.into_iter().take(count as usize).map(CiHandle).collect())
}

/// `nvmlGpuInstanceCreateComputeInstance`.
pub fn create_ci(nvml: &Nvml, gi: GiHandle, profile: u32) -> Result<CiHandle, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    let mut ci = null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { nvml_try(call(gi.0, profile, &raw mut ci))? };
    Ok(CiHandle(ci))
}

/// `nvmlComputeInstanceDestroy`.
pub fn destroy_ci(nvml: &Nvml, ci: CiHandle) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlComputeInstanceDestroy.as_ref())?;
    // SAFETY: as for a GPU instance.
    unsafe { nvml_try(call(ci.0)) }
}

/// The UUID of the MIG device that a compute instance is: `nvmlComputeInstanceGetInfo_v2`, whose `device` is the
/// device's handle. Walking the GPU's MIG devices by index takes seconds on a busy node.
pub fn mig_uuid(nvml: &Nvml, ci: CiHandle) -> Result<String, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlComputeInstanceGetInfo_v2.as_ref())?;
    // SAFETY: zeroes are valid for the structure; the device handle in it belongs to the same library.
    let device = unsafe {
        let mut info: nvmlComputeInstanceInfo_t = zeroed();
        nvml_try(call(ci.0, &raw mut info))?;
        Device::new(info.device, nvml)
    };
    device.uuid()
}
