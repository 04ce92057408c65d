//! NVML's return codes and their texts. Decides nothing: names numbers.

use serde::{Deserialize, Serialize};

/// What every call inside the mock gives: a value, or the code that the caller of NVML sees.
pub(crate) type Outcome<T> = Result<T, NvmlCode>;

/// A return code of NVML (`nvmlReturn_t`), by number so that a fault may name any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NvmlCode(pub u32);

/// Numbers and texts as `nvmlErrorString` of driver 580.159.04 gives them on an H200.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl NvmlCode {
            $($(#[$doc])* pub const $name: NvmlCode = NvmlCode($number);)*

            /// NVML's own text of the code, as a NUL-terminated string.
            pub(crate) fn text(self) -> &'static std::ffi::CStr {
                match self.0 {
                    $($number => $text,)*
                    _ => c"Unknown Error",
                }
            }
        }
    };
}

codes! {
    /// The call did what was asked.
    SUCCESS = 0, c"Success";
    /// `nvmlInit` was not called, or was undone by as many shutdowns.
    UNINITIALIZED = 1, c"Uninitialized";
    /// A null pointer, an unknown handle, profile or placement, an index out of range.
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    /// The GPU, or its present mode, has no such thing.
    NOT_SUPPORTED = 3, c"Not Supported";
    /// The caller may not do this.
    NO_PERMISSION = 4, c"Insufficient Permissions";
    /// Unused since reference counting came; kept because a fault may name it.
    ALREADY_INITIALIZED = 5, c"Already Initialized";
    /// Nothing has that id, UUID or index; or a handle's instance is gone.
    NOT_FOUND = 6, c"Not Found";
    /// The buffer given is too small.
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    /// The board's power cables are off.
    INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    /// No driver: here, the mock's environment is not set.
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    /// Nothing came within the time given.
    TIMEOUT = 10, c"Timeout";
    /// The kernel reports an interrupt problem.
    IRQ_ISSUE = 11, c"Interrupt Request Issue";
    /// libnvidia-ml is missing.
    LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    /// The driver has no such function, or no such version of a structure.
    FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    /// The infoROM is damaged.
    CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    /// The GPU fell off the bus.
    GPU_IS_LOST = 15, c"GPU is lost";
    /// The GPU must be reset first.
    RESET_REQUIRED = 16, c"GPU requires reset";
    /// The operating system blocks the GPU.
    OPERATING_SYSTEM = 17, c"GPU access blocked by the operating system";
    /// The driver was upgraded under a running process.
    LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    /// A process holds what the call wants to take away.
    IN_USE = 19, c"In use by another client";
    /// Out of host memory.
    MEMORY = 20, c"Insufficient Memory";
    /// There are no data.
    NO_DATA = 21, c"No data";
    /// vGPU without ECC.
    VGPU_ECC_NOT_SUPPORTED = 22, c"vGPU ECC not supported";
    /// No room for the instance: overlap, too many, or no compute slices left.
    INSUFFICIENT_RESOURCES = 23, c"Insufficient Resources";
    /// The frequency is not allowed.
    FREQ_NOT_SUPPORTED = 24, c"Invalid Frequency";
    /// The structure's version word is not one that the driver knows.
    ARGUMENT_VERSION_MISMATCH = 25, c"Argument version mismatch";
    /// The function is no more.
    DEPRECATED = 26, c"Requested functionality has been deprecated";
    /// The system is not ready yet.
    NOT_READY = 27, c"System is not in ready state";
    /// No GPU at all.
    GPU_NOT_FOUND = 28, c"No supported GPUs were found";
    /// The resource is in the wrong state for the operation.
    INVALID_STATE = 29, c"Resource not in correct state to perform requested operation";
    /// The reset type is not supported.
    RESET_TYPE_NOT_SUPPORTED = 30, c"Reset type is not supported for given device";
    /// Anything else.
    UNKNOWN = 999, c"Unknown Error";
}

impl std::fmt::Display for NvmlCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.text().to_string_lossy(), self.0)
    }
}
