//! NVML's opaque handles as tagged numbers: a kind, a GPU's index and an instance's serial.
//!
//! A handle is looked up and never dereferenced, so a garbage handle is an invalid argument and not a crash. Serials
//! are not reused, so a handle becomes invalid with its instance.

use crate::code::{NvmlCode, Outcome};

/// Marks the mock's handles; any other number is invalid.
const MAGIC: usize = 0x4B46;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gpu = 1,
    MigDevice = 2,
    GpuInstance = 3,
    ComputeInstance = 4,
    EventSet = 5,
    GpmSample = 6,
}

const _: () = assert!(size_of::<usize>() == 8, "handles need 64 bits, as do the GPUs");

fn encode(kind: Kind, gpu: u32, serial: u32) -> usize {
    (MAGIC << 48) | ((kind as usize) << 40) | (((gpu & 0xFF) as usize) << 32) | serial as usize
}

fn decode(handle: usize, kind: Kind) -> Outcome<(u32, u32)> {
    if handle >> 48 != MAGIC || (handle >> 40) & 0xFF != kind as usize {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    let gpu = u32::try_from((handle >> 32) & 0xFF).map_err(|_| NvmlCode::INVALID_ARGUMENT)?;
    let serial = u32::try_from(handle & 0xFFFF_FFFF).map_err(|_| NvmlCode::INVALID_ARGUMENT)?;
    Ok((gpu, serial))
}

/// The type `nvmlDevice_t`: a GPU or a MIG device.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceHandle(usize);

/// What a device handle refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Gpu { gpu: u32 },
    Mig { gpu: u32, serial: u32 },
}

impl Device {
    pub(crate) fn gpu(self) -> u32 {
        match self {
            Device::Gpu { gpu } | Device::Mig { gpu, .. } => gpu,
        }
    }
}

impl DeviceHandle {
    pub(crate) fn gpu(gpu: u32) -> DeviceHandle {
        DeviceHandle(encode(Kind::Gpu, gpu, 0))
    }

    /// Another handle of the same GPU.
    pub(crate) fn renewed(gpu: u32) -> DeviceHandle {
        DeviceHandle(encode(Kind::Gpu, gpu, 1))
    }

    pub(crate) fn mig(gpu: u32, serial: u32) -> DeviceHandle {
        DeviceHandle(encode(Kind::MigDevice, gpu, serial))
    }

    /// The form in NVML's structures.
    pub(crate) fn as_pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }

    pub(crate) fn device(self) -> Outcome<Device> {
        if let Ok((gpu, _)) = decode(self.0, Kind::Gpu) {
            return Ok(Device::Gpu { gpu });
        }
        decode(self.0, Kind::MigDevice).map(|(gpu, serial)| Device::Mig { gpu, serial })
    }
}

/// Defines handle types, each for one kind of object.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(usize);

        impl $name {
            pub(crate) fn new(gpu: u32, serial: u32) -> $name {
                $name(encode(Kind::$kind, gpu, serial))
            }

            /// The index of the GPU and the serial of the object.
            pub(crate) fn parts(self) -> Outcome<(u32, u32)> {
                decode(self.0, Kind::$kind)
            }
        }
    )*};
}

handles! {
    /// The type `nvmlGpuInstance_t` of NVML.
    GpuInstanceHandle => GpuInstance;
    /// The type `nvmlComputeInstance_t` of NVML.
    ComputeInstanceHandle => ComputeInstance;
    /// The type `nvmlEventSet_t`; its GPU is always 0.
    EventSetHandle => EventSet;
    /// The type `nvmlGpmSample_t`; its GPU is always 0.
    GpmSampleHandle => GpmSample;
}

impl GpmSampleHandle {
    /// Converts the form in NVML's structures.
    pub(crate) fn from_pointer<T>(pointer: *mut T) -> Self {
        Self(pointer.addr())
    }
}

impl GpuInstanceHandle {
    /// The form in NVML's structures.
    pub(crate) fn as_pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_returns_the_object_that_it_was_made_of() {
        assert_eq!(DeviceHandle::gpu(3).device(), Ok(Device::Gpu { gpu: 3 }));
        assert_eq!(DeviceHandle::mig(31, 9).device(), Ok(Device::Mig { gpu: 31, serial: 9 }));
        assert_eq!(GpuInstanceHandle::new(2, u32::MAX).parts(), Ok((2, u32::MAX)));
    }

    #[test]
    fn null_garbage_and_other_kinds_are_invalid_arguments() {
        for garbage in [0, 1, 0x7FFF_1234_5678, usize::MAX, encode(Kind::EventSet, 0, 1)] {
            assert_eq!(DeviceHandle(garbage).device(), Err(NvmlCode::INVALID_ARGUMENT), "{garbage:x}");
            assert_eq!(GpuInstanceHandle(garbage).parts(), Err(NvmlCode::INVALID_ARGUMENT), "{garbage:x}");
        }
        let mig = DeviceHandle::mig(0, 1);
        assert_eq!(ComputeInstanceHandle(mig.0).parts(), Err(NvmlCode::INVALID_ARGUMENT));
    }
}
