//! Calls about a GPU's health, its instances and its memory limits, through the symbols of the library.

use std::ffi::{CString, c_char, c_uint, c_ulonglong};
use std::path::Path;
use std::ptr;

use libloading::Library;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlGpuInstance_t};

/// A GPU or MIG device of a loaded library.
pub struct Raw<'nvml> {
    nvml: &'nvml Nvml,
    handle: nvmlDevice_t,
}

/// NVML's code if it is not success.
type Raws<T> = Result<T, u32>;

fn check<T>(code: u32, value: T) -> Raws<T> {
    if code == 0 { Ok(value) } else { Err(code) }
}

/// Calls a symbol of the library, which must exist.
macro_rules! call {
    ($raw:expr, $name:ident($($argument:expr),*)) => {{
        let function = $raw.lib().$name.as_ref().unwrap();
        // SAFETY: the arguments are those of NVML's declaration, and pointers go to live locals or are null.
        unsafe { function($($argument),*) }
    }};
}

impl<'nvml> Raw<'nvml> {
    pub fn from_device(device: &Device<'nvml>) -> Raw<'nvml> {
        // SAFETY: the handle is used only while the library is loaded, which `nvml` keeps it.
        Raw { nvml: device.nvml(), handle: unsafe { device.handle() } }
    }

    fn lib(&self) -> &'nvml NvmlLib {
        self.nvml.lib()
    }

    /// Creates a GPU instance where the driver chooses.
    pub fn create(&self, profile: u32) -> Raws<nvmlGpuInstance_t> {
        let mut instance = ptr::null_mut();
        let code = call!(self, nvmlDeviceCreateGpuInstance(self.handle, profile, &raw mut instance));
        check(code, instance)
    }

    /// Creates a compute instance and returns its MIG device.
    pub fn create_compute(&self, instance: nvmlGpuInstance_t, profile: u32) -> Raws<Raw<'nvml>> {
        let mut compute = ptr::null_mut();
        let code = call!(self, nvmlGpuInstanceCreateComputeInstance(instance, profile, &raw mut compute));
        check(code, ())?;
        // SAFETY: all zeros is a value of this plain structure.
        let mut info = unsafe { std::mem::zeroed() };
        check(call!(self, nvmlComputeInstanceGetInfo_v2(compute, &raw mut info)), ())?;
        Ok(Raw { nvml: self.nvml, handle: info.device })
    }

    pub fn uuid(&self) -> Raws<String> {
        // SAFETY: NVML gave the handle for this library.
        let device = unsafe { Device::new(self.handle, self.nvml) };
        device.uuid().map_err(|error| match error {
            nvml_wrapper::error::NvmlError::GpuLost => 15,
            _ => 999,
        })
    }

    /// How many GPU instances of a profile exist.
    pub fn instances(&self, profile: u32) -> Raws<u32> {
        let mut list = [ptr::null_mut(); 16];
        let mut count = 0;
        let out = list.as_mut_ptr();
        check(call!(self, nvmlDeviceGetGpuInstances(self.handle, profile, out, &raw mut count)), count)
    }

    /// The code of a query about a GPU instance.
    pub fn instance_info(&self, instance: nvmlGpuInstance_t) -> u32 {
        // SAFETY: all zeros is a value of this plain structure.
        let mut info = unsafe { std::mem::zeroed() };
        call!(self, nvmlGpuInstanceGetInfo(instance, &raw mut info))
    }

    pub fn total_ecc(&self, kind: u32, counter: u32) -> Raws<u64> {
        let mut count = 0;
        check(call!(self, nvmlDeviceGetTotalEccErrors(self.handle, kind, counter, &raw mut count)), count)
    }

    pub fn ecc_at(&self, kind: u32, counter: u32, location: u32) -> Raws<u64> {
        let mut count = 0;
        let out = &raw mut count;
        let code = call!(self, nvmlDeviceGetMemoryErrorCounter(self.handle, kind, counter, location, out));
        check(code, count)
    }

    /// Correctable, uncorrectable, pending, failed.
    pub fn remapped_rows(&self) -> Raws<[u32; 4]> {
        let [mut one, mut two, mut three, mut four] = [77; 4];
        let (a, b, c, d) = (&raw mut one, &raw mut two, &raw mut three, &raw mut four);
        check(call!(self, nvmlDeviceGetRemappedRows(self.handle, a, b, c, d)), [one, two, three, four])
    }

    /// Pages retired for a cause, and whether one is pending.
    pub fn retired_pages(&self, cause: u32) -> Raws<(Vec<u64>, bool)> {
        let (mut count, mut pending) = (8, 0);
        let mut pages = vec![0; count as usize];
        let list = pages.as_mut_ptr();
        check(call!(self, nvmlDeviceGetRetiredPages(self.handle, cause, &raw mut count, list)), ())?;
        pages.truncate(count as usize);
        let code = call!(self, nvmlDeviceGetRetiredPagesPendingStatus(self.handle, &raw mut pending));
        check(code, (pages, pending == 1))
    }

    /// The code of the fabric call with that version word, which must stay as it is.
    pub fn fabric(&self, version: u32) -> u32 {
        // SAFETY: all zeros is a value of this plain structure, the largest of its versions.
        let mut info = unsafe { std::mem::zeroed::<nvml_wrapper_sys::bindings::nvmlGpuFabricInfoV_t>() };
        info.version = version;
        let code = call!(self, nvmlDeviceGetGpuFabricInfoV(self.handle, &raw mut info));
        assert_eq!(info.version, version);
        code
    }
}

/// The structure `nvmlSetMemoryLimits_v1_t` of NVML's manual.
#[repr(C)]
struct SetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

/// The structure `nvmlGetMemoryLimits_v1_t` of NVML's manual.
#[repr(C)]
struct GetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

type Call<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> c_uint;

/// The calls of driver R615, looked up by name as a program must that also supports older drivers.
pub struct Limits(Library);

impl Limits {
    pub fn open(library: &Path) -> Limits {
        // SAFETY: the mock runs nothing when it is loaded.
        Limits(unsafe { Library::new(library) }.unwrap())
    }

    fn call<T>(&self, name: &[u8], gpu: &Raw<'_>, limits: &mut T) -> u32 {
        // SAFETY: the symbol has this type, and the structure lives for the call.
        unsafe { self.0.get::<Call<T>>(name).unwrap()(gpu.handle, limits) }
    }

    pub fn set(&self, gpu: &Raw<'_>, cgroup: &Path, soft: u64, hard: u64) -> Raws<()> {
        let name = CString::new(cgroup.to_str().unwrap()).unwrap();
        let mut limits = SetLimits { name_space: name.as_ptr(), soft, hard };
        check(self.call(b"nvmlDeviceSetMemoryLimits_v1", gpu, &mut limits), ())
    }

    /// The soft limit, the hard limit and the use.
    pub fn get(&self, gpu: &Raw<'_>, cgroup: &Path) -> Raws<[u64; 3]> {
        let name = CString::new(cgroup.to_str().unwrap()).unwrap();
        let mut limits = GetLimits { name_space: name.as_ptr(), soft: 77, hard: 77, used: 77 };
        let code = self.call(b"nvmlDeviceGetMemoryLimits_v1", gpu, &mut limits);
        assert_eq!(limits.name_space, name.as_ptr(), "the caller's field stays");
        check(code, [limits.soft, limits.hard, limits.used])
    }

    /// The code for a structure without a namespace.
    pub fn set_nowhere(&self, gpu: &Raw<'_>) -> u32 {
        let mut limits = SetLimits { name_space: ptr::null(), soft: 0, hard: 1 };
        self.call(b"nvmlDeviceSetMemoryLimits_v1", gpu, &mut limits)
    }
}
