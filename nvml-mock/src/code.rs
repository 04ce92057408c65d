//! NVML's return codes and their texts. It decides nothing and only names numbers.

use serde::{Deserialize, Serialize};

/// The result of every call inside the mock: a value, or the code that the caller of NVML gets.
pub(crate) type Outcome<T> = Result<T, NvmlCode>;

/// A return code of NVML (`nvmlReturn_t`), stored as a number so that a fault may use any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NvmlCode(pub u32);

/// Numbers and texts of `nvmlErrorString` of driver 580.159.04 on an H200.
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
    SUCCESS = 0, c"Success";
    /// `nvmlInit` was not called, or was undone by as many shutdowns.
    UNINITIALIZED = 1, c"Uninitialized";
    /// A null pointer, an unknown handle, profile or placement, or an index out of range.
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    /// The GPU, or its current mode, lacks what was requested.
    NOT_SUPPORTED = 3, c"Not Supported";
    NO_PERMISSION = 4, c"Insufficient Permissions";
    /// Unused since NVML counts references; kept because a fault may use it.
    ALREADY_INITIALIZED = 5, c"Already Initialized";
    /// Nothing has that id, UUID or index; or a handle's instance is gone.
    NOT_FOUND = 6, c"Not Found";
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    /// The board's power cables are not connected.
    INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    /// There is no driver: here, the mock's environment is not set.
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    /// Nothing arrived within the timeout.
    TIMEOUT = 10, c"Timeout";
    /// The kernel reports an interrupt problem.
    IRQ_ISSUE = 11, c"Interrupt Request Issue";
    /// The library libnvidia-ml is missing.
    LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    /// The driver lacks the function, or the version of a structure.
    FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    /// The GPU fell off the bus.
    GPU_IS_LOST = 15, c"GPU is lost";
    RESET_REQUIRED = 16, c"GPU requires reset";
    OPERATING_SYSTEM = 17, c"GPU access blocked by the operating system";
    /// The driver was upgraded under a running process.
    LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    /// A process holds what the call would remove.
    IN_USE = 19, c"In use by another client";
    /// The host is out of memory.
    MEMORY = 20, c"Insufficient Memory";
    NO_DATA = 21, c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22, c"vGPU ECC not supported";
    /// No room for the instance: overlap, too many, or no compute slices left.
    INSUFFICIENT_RESOURCES = 23, c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24, c"Invalid Frequency";
    /// The driver does not support the structure's version word.
    ARGUMENT_VERSION_MISMATCH = 25, c"Argument version mismatch";
    DEPRECATED = 26, c"Requested functionality has been deprecated";
    NOT_READY = 27, c"System is not in ready state";
    /// The node has no GPU at all.
    GPU_NOT_FOUND = 28, c"No supported GPUs were found";
    /// The resource is in the wrong state for the operation.
    INVALID_STATE = 29, c"Resource not in correct state to perform requested operation";
    RESET_TYPE_NOT_SUPPORTED = 30, c"Reset type is not supported for given device";
    UNKNOWN = 999, c"Unknown Error";
}

impl std::fmt::Display for NvmlCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.text().to_string_lossy(), self.0)
    }
}
