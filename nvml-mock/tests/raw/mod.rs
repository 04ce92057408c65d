//! The calls that nvml-wrapper does not wrap, through the symbols that it loaded, as an agent makes them.

use std::ffi::{CStr, c_char, c_uint};
use std::ptr;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_v2_t, nvmlProcessInfo_t,
};

pub struct Raw<'nvml> {
    nvml: &'nvml Nvml,
    handle: nvmlDevice_t,
}

/// NVML's code if it is not success.
type Raws<T> = Result<T, u32>;

fn check<T>(code: u32, value: T) -> Raws<T> {
    if code == 0 { Ok(value) } else { Err(code) }
}

/// A fixed array of C characters as text.
pub fn text(characters: &[c_char]) -> String {
    // SAFETY: the mock ends every name with NUL within its array.
    unsafe { CStr::from_ptr(characters.as_ptr()) }.to_str().unwrap().to_owned()
}

/// Calls a symbol of the library, which must exist.
macro_rules! call {
    ($raw:expr, $name:ident($($argument:expr),*)) => {{
        let function = $raw.lib().$name.as_ref().unwrap();
        // SAFETY: the arguments are those of NVML's declaration, and pointers go to live locals or are null.
        unsafe { function($($argument),*) }
    }};
}

type ProcessList = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> u32;

impl<'nvml> Raw<'nvml> {
    pub fn from_device(device: &Device<'nvml>) -> Raw<'nvml> {
        // SAFETY: the handle is used only while the library is loaded, which `nvml` keeps it.
        Raw { nvml: device.nvml(), handle: unsafe { device.handle() } }
    }

    pub fn lib(&self) -> &'nvml NvmlLib {
        self.nvml.lib()
    }

    pub fn profile(&self, index: u32) -> Raws<nvmlGpuInstanceProfileInfo_v2_t> {
        // SAFETY: all zeros is a value of this plain structure.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = 0x0200_0098;
        let code = call!(self, nvmlDeviceGetGpuInstanceProfileInfoV(self.handle, index, &raw mut info));
        check(code, info)
    }

    pub fn places(&self, profile: u32) -> Raws<Vec<(u32, u32)>> {
        let mut count = 0;
        let list = ptr::null_mut();
        let code = call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(self.handle, profile, list, &raw mut count)
        );
        check(code, ())?;
        let mut places = vec![nvmlGpuInstancePlacement_t { start: 99, size: 99 }; count as usize];
        let list = places.as_mut_ptr();
        let code = call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(self.handle, profile, list, &raw mut count)
        );
        check(code, places.iter().map(|place| (place.start, place.size)).collect())
    }

    pub fn remaining(&self, profile: u32) -> Raws<u32> {
        let mut count = 0;
        let code =
            call!(self, nvmlDeviceGetGpuInstanceRemainingCapacity(self.handle, profile, &raw mut count));
        check(code, count)
    }

    pub fn create(&self, profile: u32, place: Option<(u32, u32)>) -> Raws<nvmlGpuInstance_t> {
        let mut instance = ptr::null_mut();
        let out = &raw mut instance;
        let Some((start, size)) = place else {
            let code = call!(self, nvmlDeviceCreateGpuInstance(self.handle, profile, out));
            return check(code, instance);
        };
        let place = nvmlGpuInstancePlacement_t { start, size };
        let place = &raw const place;
        let code = call!(self, nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, profile, place, out));
        check(code, instance)
    }

    pub fn destroy(&self, instance: nvmlGpuInstance_t) -> Raws<()> {
        check(call!(self, nvmlGpuInstanceDestroy(instance)), ())
    }

    pub fn instance_info(&self, instance: nvmlGpuInstance_t) -> Raws<nvmlGpuInstanceInfo_t> {
        // SAFETY: all zeros is a value of this plain structure.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
        let code = call!(self, nvmlGpuInstanceGetInfo(instance, &raw mut info));
        check(code, info)
    }

    pub fn instances(&self, profile: u32, room: usize) -> Raws<Vec<nvmlGpuInstance_t>> {
        let mut list = vec![ptr::null_mut(); room];
        let mut count = 0;
        let code =
            call!(self, nvmlDeviceGetGpuInstances(self.handle, profile, list.as_mut_ptr(), &raw mut count));
        list.truncate(count as usize);
        check(code, list)
    }

    pub fn instance_by_id(&self, id: u32) -> Raws<nvmlGpuInstance_t> {
        let mut instance = ptr::null_mut();
        let code = call!(self, nvmlDeviceGetGpuInstanceById(self.handle, id, &raw mut instance));
        check(code, instance)
    }

    pub fn compute_profile(
        &self,
        instance: nvmlGpuInstance_t,
        index: u32,
    ) -> Raws<nvmlComputeInstanceProfileInfo_v2_t> {
        // SAFETY: all zeros is a value of this plain structure.
        let mut info: nvmlComputeInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = 0x0200_0088;
        let out = &raw mut info;
        check(call!(self, nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, index, 0, out)), ())?;
        Ok(info)
    }

    pub fn create_compute(&self, instance: nvmlGpuInstance_t, profile: u32) -> Raws<nvmlComputeInstance_t> {
        let mut compute = ptr::null_mut();
        let code = call!(self, nvmlGpuInstanceCreateComputeInstance(instance, profile, &raw mut compute));
        check(code, compute)
    }

    pub fn create_compute_at(
        &self,
        instance: nvmlGpuInstance_t,
        profile: u32,
        (start, size): (u32, u32),
    ) -> Raws<nvmlComputeInstance_t> {
        let mut compute = ptr::null_mut();
        let place = nvmlComputeInstancePlacement_t { start, size };
        let (place, out) = (&raw const place, &raw mut compute);
        let code =
            call!(self, nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, profile, place, out));
        check(code, compute)
    }

    /// How many more of a compute instance profile fit into a GPU instance.
    pub fn compute_remaining(&self, instance: nvmlGpuInstance_t, profile: u32) -> Raws<u32> {
        let mut count = 0;
        let out = &raw mut count;
        check(call!(self, nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, profile, out)), ())?;
        Ok(count)
    }

    pub fn compute_places(&self, instance: nvmlGpuInstance_t, profile: u32) -> Raws<Vec<(u32, u32)>> {
        let mut count = 8;
        let mut places = vec![nvmlComputeInstancePlacement_t { start: 99, size: 99 }; count as usize];
        let (list, number) = (places.as_mut_ptr(), &raw mut count);
        let code =
            call!(self, nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, profile, list, number));
        places.truncate(count as usize);
        check(code, places.iter().map(|place| (place.start, place.size)).collect())
    }

    pub fn compute_info(&self, compute: nvmlComputeInstance_t) -> Raws<nvmlComputeInstanceInfo_t> {
        // SAFETY: all zeros is a value of this plain structure.
        let mut info: nvmlComputeInstanceInfo_t = unsafe { std::mem::zeroed() };
        let code = call!(self, nvmlComputeInstanceGetInfo_v2(compute, &raw mut info));
        check(code, info)
    }

    pub fn compute_instances(
        &self,
        instance: nvmlGpuInstance_t,
        profile: u32,
        room: usize,
    ) -> Raws<Vec<nvmlComputeInstance_t>> {
        let mut list = vec![ptr::null_mut(); room];
        let mut count = 0;
        let (out, number) = (list.as_mut_ptr(), &raw mut count);
        let code = call!(self, nvmlGpuInstanceGetComputeInstances(instance, profile, out, number));
        list.truncate(count as usize);
        check(code, list)
    }

    pub fn destroy_compute(&self, compute: nvmlComputeInstance_t) -> Raws<()> {
        check(call!(self, nvmlComputeInstanceDestroy(compute)), ())
    }

    /// The MIG device of a compute instance, by its info.
    pub fn device(&self, compute: nvmlComputeInstance_t) -> Device<'nvml> {
        let info = self.compute_info(compute).unwrap();
        // SAFETY: NVML gave the handle for this library.
        unsafe { Device::new(info.device, self.nvml) }
    }

    /// The ids of a MIG device's GPU instance and compute instance.
    pub fn ids_of(&self, device: &Device<'_>) -> Raws<(u32, u32)> {
        // SAFETY: the library stays loaded for the call.
        let handle = unsafe { device.handle() };
        let (mut gi, mut ci) = (0, 0);
        check(call!(self, nvmlDeviceGetGpuInstanceId(handle, &raw mut gi)), ())?;
        check(call!(self, nvmlDeviceGetComputeInstanceId(handle, &raw mut ci)), (gi, ci))
    }

    /// Code and count if a process list is asked for its length.
    pub fn process_count<E: std::fmt::Debug>(&self, list: Result<&ProcessList, E>) -> (u32, u32) {
        let mut count = 0;
        // SAFETY: a null list with a count of zero asks for the length.
        let code = unsafe { list.unwrap()(self.handle, &raw mut count, ptr::null_mut()) };
        (code, count)
    }

    /// The code of the v2 memory call with that version word.
    pub fn memory_version(&self, version: u32) -> u32 {
        let mut info = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        call!(self, nvmlDeviceGetMemoryInfo_v2(self.handle, &raw mut info))
    }

    /// The code of the versioned profile call with that version word.
    pub fn profile_version(&self, version: u32) -> u32 {
        // SAFETY: all zeros is a value of this plain structure.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = version;
        call!(self, nvmlDeviceGetGpuInstanceProfileInfoV(self.handle, 0, &raw mut info))
    }

    /// The code of a request for the name with this much room.
    pub fn name_in(&self, room: u32) -> u32 {
        let mut buffer = [0; 96];
        call!(self, nvmlDeviceGetName(self.handle, buffer.as_mut_ptr(), room))
    }

    /// The code for a null pointer in place of a number.
    pub fn null_count(&self) -> u32 {
        call!(self, nvmlDeviceGetCount_v2(ptr::null_mut()))
    }

    /// The codes for handles that no call ever returned.
    pub fn garbage_handles(&self) -> [u32; 4] {
        [0, 8, 0x7F00_0000_1234, usize::MAX].map(|garbage| {
            let mut index = 0;
            call!(self, nvmlDeviceGetIndex(ptr::without_provenance_mut(garbage), &raw mut index))
        })
    }
}
