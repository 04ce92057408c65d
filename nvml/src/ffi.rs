//! The NVML calls that nvml-wrapper lacks or wraps in part: GPU and compute instances, process lists, events with their
//! instance, remapped rows, memory limits.
//!
//! This is the only unsafe code. Every function checks the return code and keeps raw pointers inside its own handle
//! types. None of them decides anything.

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, GpmSample, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t,
    nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t,
    nvmlComputeInstanceProfileInfo_v3_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlEventData_t,
    nvmlEventSet_t, nvmlGpmSample_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
    nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
};
use std::ffi::{CStr, c_char};
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;

/// Sizes on x86-64 and aarch64 as in nvml.h, also of structures that only nvml-wrapper uses. If a structure were
/// smaller than the driver's, the driver would write past our values.
macro_rules! sizes {
    ($($kind:ty = $bytes:literal,)*) => { $(const _: () = assert!(size_of::<$kind>() == $bytes);)* };
}

sizes! {
    nvmlGpuInstanceProfileInfo_t = 48,
    nvmlGpuInstanceProfileInfo_v2_t = 152,
    nvmlGpuInstanceProfileInfo_v3_t = 152,
    nvmlGpuInstanceInfo_t = 24,
    nvmlGpuInstancePlacement_t = 8,
    nvmlComputeInstanceProfileInfo_t = 36,
    nvmlComputeInstanceProfileInfo_v2_t = 136,
    nvmlComputeInstanceProfileInfo_v3_t = 140,
    nvmlComputeInstanceInfo_t = 32,
    nvmlComputeInstancePlacement_t = 8,
    nvmlDeviceAttributes_t = 40,
    nvmlPciInfo_t = 68,
    nvmlMemory_t = 24,
    nvmlMemory_v2_t = 40,
    nvmlEventData_t = 32,
    nvmlProcessInfo_t = 24,
    MemoryLimits = 24,
    nvmlDevice_t = 8,
    nvmlGpuInstance_t = 8,
    nvmlComputeInstance_t = 8,
    nvmlEventSet_t = 8,
}

const fn version_word<T>(version: u32) -> u32 {
    // The cast is lossless, because the sizes above are far below 2^24.
    #[expect(clippy::cast_possible_truncation, reason = "no structure of NVML's is larger than some KiB")]
    let size = size_of::<T>() as u32;
    size | version << 24
}

// A wrong word would make the driver refuse the call, so these are compared with nvml.h.
const _: () = {
    assert!(version_word::<nvmlGpuInstanceProfileInfo_v2_t>(2) == 0x0200_0098);
    assert!(version_word::<nvmlGpuInstanceProfileInfo_v3_t>(3) == 0x0300_0098);
    assert!(version_word::<nvmlComputeInstanceProfileInfo_v2_t>(2) == 0x0200_0088);
    assert!(version_word::<nvmlComputeInstanceProfileInfo_v3_t>(3) == 0x0300_008C);
    assert!(version_word::<nvmlMemory_v2_t>(2) == 0x0200_0028);
};

/// NVML's value for a GPU or compute instance that does not exist.
const NO_INSTANCE: u32 = u32::MAX;

/// NVML's value for memory that it cannot determine (`NVML_VALUE_NOT_AVAILABLE`).
const NO_MEMORY: u64 = u64::MAX;

/// Space for the instances of one profile. It does not depend on the maximum that the driver reports, because the
/// driver would write past a smaller buffer. No GPU has more memory slices.
const INSTANCE_LIMIT: u32 = 32;

/// The limit at which the growth of a process list's buffer stops, so that a faulty driver cannot exhaust memory.
const PROCESS_LIMIT: u32 = 1 << 16;

#[derive(Clone, Copy)]
pub struct GiHandle(nvmlGpuInstance_t);

#[derive(Clone, Copy)]
pub struct CiHandle(nvmlComputeInstance_t);

pub struct GiProfile {
    pub id: u32,
    pub name: String,
    pub instances: u32,
    pub memory_mib: u64,
}

pub struct GiInfo {
    pub id: u32,
    pub profile: u32,
    pub start: u32,
    pub size: u32,
}

/// The compute instance of a handle; `start` and `size` are compute slices of its GPU instance.
pub struct CiInfo<'nvml> {
    pub id: u32,
    pub start: u32,
    pub size: u32,
    pub device: Device<'nvml>,
}

#[derive(Clone, Copy)]
pub struct CiProfile {
    pub id: u32,
    pub slices: u32,
    pub multiprocessors: u32,
}

/// Calls `nvmlDeviceGetGpuInstanceProfileInfoV` with version 2 of the structure, because version 1 lacks the profile's
/// name.
pub fn gi_profile(device: &Device<'_>, index: u32) -> Result<GiProfile, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    // SAFETY: the structure is plain data for which zeroes are valid, the driver reads its size from its version, and
    // the handle belongs to the library that is called.
    let info = unsafe {
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = zeroed();
        info.version = version_word::<nvmlGpuInstanceProfileInfo_v2_t>(2);
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

fn text(field: &[c_char]) -> Result<String, NvmlError> {
    let bytes: Vec<u8> = field.iter().map(|c| c.to_ne_bytes()[0]).chain([0]).collect();
    Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_str()?.to_owned())
}

/// Calls `nvmlDeviceGetGpuInstancePossiblePlacements_v2` and returns starts and sizes. nvml-wrapper's own function
/// always returns none.
pub fn placements(device: &Device<'_>, profile: u32) -> Result<Vec<(u32, u32)>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
    let mut found = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; INSTANCE_LIMIT as usize];
    let mut count = INSTANCE_LIMIT;
    // SAFETY: the buffer has room for `count` placements, more than any GPU has of one profile.
    unsafe { nvml_try(call(device.handle(), profile, found.as_mut_ptr(), &raw mut count))? };
    Ok(found.iter().take(count as usize).map(|p| (p.start, p.size)).collect())
}

pub fn gpu_instances(device: &Device<'_>, profile: u32) -> Result<Vec<GiHandle>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut found = vec![null_mut(); INSTANCE_LIMIT as usize];
    let mut count = INSTANCE_LIMIT;
    // SAFETY: the driver writes at most the profile's instance count, for which the buffer has room.
    unsafe { nvml_try(call(device.handle(), profile, found.as_mut_ptr(), &raw mut count))? };
    Ok(found.into_iter().take(count as usize).map(GiHandle).collect())
}

pub fn gpu_instance(device: &Device<'_>, id: u32) -> Result<GiHandle, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut gi = null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { nvml_try(call(device.handle(), id, &raw mut gi))? };
    Ok(GiHandle(gi))
}

pub fn gi_info(nvml: &Nvml, gi: GiHandle) -> Result<GiInfo, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetInfo.as_ref())?;
    // SAFETY: zeroes are valid for the structure, and the handle came from the same library; the driver checks it.
    let info = unsafe {
        let mut info: nvmlGpuInstanceInfo_t = zeroed();
        nvml_try(call(gi.0, &raw mut info))?;
        info
    };
    let nvmlGpuInstancePlacement_t { start, size } = info.placement;
    Ok(GiInfo { id: info.id, profile: info.profileId, start, size })
}

/// Calls `nvmlDeviceCreateGpuInstanceWithPlacement`, because without a placement the driver would choose one.
pub fn create_gi(device: &Device<'_>, profile: u32, start: u32, size: u32) -> Result<GiHandle, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let placement = nvmlGpuInstancePlacement_t { start, size };
    let mut gi = null_mut();
    // SAFETY: the driver reads one placement and writes one handle.
    unsafe { nvml_try(call(device.handle(), profile, &raw const placement, &raw mut gi))? };
    Ok(GiHandle(gi))
}

pub fn destroy_gi(nvml: &Nvml, gi: GiHandle) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceDestroy.as_ref())?;
    // SAFETY: the handle came from the same library; one that is gone is refused by the driver.
    unsafe { nvml_try(call(gi.0)) }
}

/// Calls `nvmlGpuInstanceGetComputeInstanceProfileInfo` with shared engines, because no other kind exists.
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

/// Calls `nvmlGpuInstanceGetComputeInstancePossiblePlacements` and returns starts and sizes, in compute slices.
pub fn ci_placements(nvml: &Nvml, gi: GiHandle, profile: u32) -> Result<Vec<(u32, u32)>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetComputeInstancePossiblePlacements.as_ref())?;
    let mut found = vec![nvmlComputeInstancePlacement_t { start: 0, size: 0 }; INSTANCE_LIMIT as usize];
    let mut count = INSTANCE_LIMIT;
    // SAFETY: the buffer has room for `count` placements, more than any GPU instance has of one profile.
    unsafe { nvml_try(call(gi.0, profile, found.as_mut_ptr(), &raw mut count))? };
    Ok(found.iter().take(count as usize).map(|p| (p.start, p.size)).collect())
}

pub fn compute_instances(nvml: &Nvml, gi: GiHandle, profile: u32) -> Result<Vec<CiHandle>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
    let mut found = vec![null_mut(); INSTANCE_LIMIT as usize];
    let mut count = INSTANCE_LIMIT;
    // SAFETY: the driver writes at most the profile's instance count, for which the buffer has room.
    unsafe { nvml_try(call(gi.0, profile, found.as_mut_ptr(), &raw mut count))? };
    Ok(found.into_iter().take(count as usize).map(CiHandle).collect())
}

pub fn create_ci(nvml: &Nvml, gi: GiHandle, profile: u32) -> Result<CiHandle, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    let mut ci = null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { nvml_try(call(gi.0, profile, &raw mut ci))? };
    Ok(CiHandle(ci))
}

pub fn create_ci_at(
    nvml: &Nvml,
    gi: GiHandle,
    profile: u32,
    start: u32,
    size: u32,
) -> Result<CiHandle, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceCreateComputeInstanceWithPlacement.as_ref())?;
    let placement = nvmlComputeInstancePlacement_t { start, size };
    let mut ci = null_mut();
    // SAFETY: the driver reads one placement and writes one handle.
    unsafe { nvml_try(call(gi.0, profile, &raw const placement, &raw mut ci))? };
    Ok(CiHandle(ci))
}

pub fn destroy_ci(nvml: &Nvml, ci: CiHandle) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlComputeInstanceDestroy.as_ref())?;
    // SAFETY: as for a GPU instance.
    unsafe { nvml_try(call(ci.0)) }
}

/// Calls `nvmlComputeInstanceGetInfo_v2`, whose `device` is the handle of the MIG device. A walk over the GPU's MIG
/// devices by index would take seconds on a busy node.
pub fn ci_info(nvml: &Nvml, ci: CiHandle) -> Result<CiInfo<'_>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlComputeInstanceGetInfo_v2.as_ref())?;
    // SAFETY: zeroes are valid for the structure; the device handle in it belongs to the same library.
    unsafe {
        let mut info: nvmlComputeInstanceInfo_t = zeroed();
        nvml_try(call(ci.0, &raw mut info))?;
        let nvmlComputeInstancePlacement_t { start, size } = info.placement;
        Ok(CiInfo { id: info.id, start, size, device: Device::new(info.device, nvml) })
    }
}

#[derive(Clone, Copy)]
pub enum ProcessList {
    Compute,
    Graphics,
    MpsClients,
}

pub struct RawProcess {
    pub pid: u32,
    pub bytes: Option<u64>,
    pub gi: Option<u32>,
    pub ci: Option<u32>,
}

/// Calls `nvmlDeviceGetComputeRunningProcesses_v3` or one of its two siblings. nvml-wrapper's functions fail if
/// processes start meanwhile.
pub fn processes(device: &Device<'_>, list: ProcessList) -> Result<Vec<RawProcess>, NvmlError> {
    let lib = device.nvml().lib();
    let call = nvml_sym(match list {
        ProcessList::Compute => lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref(),
        ProcessList::Graphics => lib.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref(),
        ProcessList::MpsClients => lib.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref(),
    })?;
    let mut room = 64;
    loop {
        let empty = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut found = vec![empty; room as usize];
        let mut count = room;
        // SAFETY: the driver reads the buffer's room from `count`, and writes no more.
        let answer = unsafe { nvml_try(call(device.handle(), &raw mut count, found.as_mut_ptr())) };
        match answer {
            Ok(()) => return Ok(found.iter().take(count as usize).map(RawProcess::from).collect()),
            Err(NvmlError::InsufficientSize(_)) if room < PROCESS_LIMIT => room *= 4,
            Err(error) => return Err(error),
        }
    }
}

impl From<&nvmlProcessInfo_t> for RawProcess {
    fn from(raw: &nvmlProcessInfo_t) -> Self {
        Self {
            pid: raw.pid,
            bytes: Some(raw.usedGpuMemory).filter(|bytes| *bytes != NO_MEMORY),
            gi: instance(raw.gpuInstanceId),
            ci: instance(raw.computeInstanceId),
        }
    }
}

fn instance(id: u32) -> Option<u32> {
    Some(id).filter(|id| *id != NO_INSTANCE)
}

pub struct RemappedRows {
    pub is_pending: bool,
    pub has_failed: bool,
}

pub fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the driver writes four numbers.
    unsafe {
        nvml_try(call(
            device.handle(),
            &raw mut corrected,
            &raw mut uncorrected,
            &raw mut pending,
            &raw mut failed,
        ))?;
    }
    Ok(RemappedRows { is_pending: pending != 0, has_failed: failed != 0 })
}

/// A GPU's handle as a number. It identifies the GPU later, because a GPU that fell off the bus has no readable UUID.
pub fn handle_number(device: &Device<'_>) -> usize {
    // SAFETY: only the handle's address is read; the driver is not called with it.
    unsafe { device.handle() }.addr()
}

/// The UUID of the GPU whose handle the driver returned as this number.
pub fn uuid_of_handle(nvml: &Nvml, number: usize) -> Result<String, NvmlError> {
    // SAFETY: the handle came from the same library, which rejects an unknown one.
    unsafe { Device::new(std::ptr::without_provenance_mut(number), nvml) }.uuid()
}

/// The driver's handle of an event set. Its owner must free it by [`free_event_set`].
pub struct EventSet(nvmlEventSet_t);

// SAFETY: NVML may be called from any thread; a set is used by one at a time, for it is not `Sync`.
unsafe impl Send for EventSet {}

/// An event with its instances, which nvml-wrapper's type leaves out.
pub struct RawEvent {
    /// The number of [`handle_number`] for this device.
    pub device: usize,
    pub kind: u64,
    pub data: u64,
    pub gi: Option<u32>,
    pub ci: Option<u32>,
}

pub fn create_event_set(nvml: &Nvml) -> Result<EventSet, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref())?;
    let mut set = null_mut();
    // SAFETY: the driver writes one handle.
    unsafe { nvml_try(call(&raw mut set))? };
    Ok(EventSet(set))
}

/// Calls `nvmlDeviceRegisterEvents`. nvml-wrapper's function frees the whole set if one GPU refuses.
pub fn register_events(device: &Device<'_>, kinds: u64, set: &EventSet) -> Result<(), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: both handles belong to the library that is called.
    unsafe { nvml_try(call(device.handle(), kinds, set.0)) }
}

pub fn wait_for_event(nvml: &Nvml, set: &EventSet, timeout_ms: u32) -> Result<RawEvent, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    // SAFETY: zeroes are valid for the structure, and the driver writes one of it.
    let data = unsafe {
        let mut data: nvmlEventData_t = zeroed();
        nvml_try(call(set.0, &raw mut data, timeout_ms))?;
        data
    };
    Ok(RawEvent {
        device: data.device.addr(),
        kind: data.eventType,
        data: data.eventData,
        gi: instance(data.gpuInstanceId),
        ci: instance(data.computeInstanceId),
    })
}

/// Calls `nvmlEventSetFree`. The set must not be used afterwards.
pub fn free_event_set(nvml: &Nvml, set: &mut EventSet) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetFree.as_ref())?;
    let set = std::mem::replace(&mut set.0, null_mut());
    // SAFETY: the set came from the same library, and its handle is forgotten here.
    unsafe { nvml_try(call(set)) }
}

/// A sample of GPM counters between two measurements. [`GpmHandle::into_sample`] frees it.
pub struct GpmHandle(nvmlGpmSample_t);

// SAFETY: NVML may be called from any thread; a sample is used by one at a time, for it is not `Sync`.
unsafe impl Send for GpmHandle {}

impl GpmHandle {
    pub fn from_sample(sample: GpmSample<'_>) -> Self {
        Self(sample.into_handle())
    }

    pub fn into_sample(self, nvml: &Nvml) -> GpmSample<'_> {
        // SAFETY: the handle came from a sample that gave up its ownership, and this value gives it up here, so the new
        // sample is its only owner. Backend and handles live and die together, so it is of this library.
        unsafe { GpmSample::from_handle(nvml, self.0) }
    }
}

/// The value for no hard limit, `NVML_DEVICE_MEMORY_LIMIT_MAX`.
pub const NO_LIMIT: u64 = u64::MAX;

/// The structure `nvmlSetMemoryLimits_v1_t`, new in driver R615: a cgroup's folder, soft and hard limit in bytes.
#[repr(C)]
struct MemoryLimits {
    cgroup: *const c_char,
    soft: u64,
    hard: u64,
}

type SetMemoryLimits = unsafe extern "C" fn(nvmlDevice_t, *mut MemoryLimits) -> nvmlReturn_t;

/// Calls `nvmlDeviceSetMemoryLimits_v1`. The symbol is looked up at each call, because nvml-wrapper lacks it.
pub fn set_memory_limits(device: &Device<'_>, cgroup: &CStr, soft: u64, hard: u64) -> Result<(), NvmlError> {
    let mut limits = MemoryLimits { cgroup: cgroup.as_ptr(), soft, hard };
    // SAFETY: the function has this type by nvml.h; it reads one structure and the text, which outlives the call.
    unsafe {
        let library = &device.nvml().lib().__library;
        let found = library.get::<SetMemoryLimits>(b"nvmlDeviceSetMemoryLimits_v1\0");
        let call = found.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
        nvml_try(call(device.handle(), &raw mut limits))
    }
}
