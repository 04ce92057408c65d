//! The sizes of NVML's structures on 64-bit Linux, checked while compiling.

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t,
    nvmlComputeInstanceProfileInfo_v3_t, nvmlDeviceAttributes_t, nvmlEccErrorCounts_t, nvmlEventData_t,
    nvmlFieldValue_t, nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfo_v3_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t, nvmlUtilization_t,
};

use super::memory_limits::{GetMemoryLimits, SetMemoryLimits};
use super::pointer::{In, Out, OutList, TextIn, TextOut, Versioned, version_word};
use crate::handle::{
    ComputeInstanceHandle, DeviceHandle, EventSetHandle, GpmSampleHandle, GpuInstanceHandle,
};

macro_rules! sizes {
    ($($type:ty = $bytes:literal;)*) => {
        $(const _: () = assert!(size_of::<$type>() == $bytes);)*
    };
}

sizes! {
    nvmlGpuInstancePlacement_t = 8;
    nvmlComputeInstancePlacement_t = 8;
    nvmlGpuInstanceProfileInfo_t = 48;
    nvmlGpuInstanceProfileInfo_v2_t = 152;
    nvmlGpuInstanceProfileInfo_v3_t = 152;
    nvmlComputeInstanceProfileInfo_t = 36;
    nvmlComputeInstanceProfileInfo_v2_t = 136;
    nvmlComputeInstanceProfileInfo_v3_t = 140;
    nvmlGpuInstanceInfo_t = 24;
    nvmlComputeInstanceInfo_t = 32;
    nvmlDeviceAttributes_t = 40;
    nvmlPciInfo_t = 68;
    nvmlMemory_t = 24;
    nvmlMemory_v2_t = 40;
    nvmlEventData_t = 32;
    nvmlProcessInfo_t = 24;
    nvmlProcessUtilizationSample_t = 32;
    nvmlFieldValue_t = 40;
    nvmlBAR1Memory_t = 24;
    nvmlUtilization_t = 8;
    nvmlGpmMetric_t = 40;
    nvmlGpmMetricsGet_t = 8424;
    nvmlEccErrorCounts_t = 32;
    nvmlGpuFabricInfo_t = 28;
    nvmlGpuFabricInfo_v2_t = 36;
    nvmlGpuFabricInfo_v3_t = 40;
    SetMemoryLimits = 24;
    GetMemoryLimits = 32;
    Out<u64> = 8;
    OutList<u64> = 8;
    In<u64> = 8;
    TextIn = 8;
    TextOut = 8;
    Versioned = 8;
    DeviceHandle = 8;
    GpuInstanceHandle = 8;
    ComputeInstanceHandle = 8;
    EventSetHandle = 8;
    GpmSampleHandle = 8;
}

const _: () = assert!(version_word::<nvmlGpuInstanceProfileInfo_v2_t>(2) == 0x0200_0098);
const _: () = assert!(version_word::<nvmlGpuInstanceProfileInfo_v3_t>(3) == 0x0300_0098);
const _: () = assert!(version_word::<nvmlComputeInstanceProfileInfo_v2_t>(2) == 0x0200_0088);
const _: () = assert!(version_word::<nvmlComputeInstanceProfileInfo_v3_t>(3) == 0x0300_008C);
const _: () = assert!(version_word::<nvmlMemory_v2_t>(2) == 0x0200_0028);
const _: () = assert!(version_word::<nvmlGpuFabricInfo_v2_t>(2) == 0x0200_0024);
const _: () = assert!(version_word::<nvmlGpuFabricInfo_v3_t>(3) == 0x0300_0028);
