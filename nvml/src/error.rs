//! Errors of GPU calls, each with the NVML function and its return code.

use crate::holders::Holders;
use kerf_core::mig::Profile;
use kerf_core::names::GpuUuid;
use nvml_wrapper::error::NvmlError;
use std::fmt;
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GpuError {
    #[error("failed to load NVML from {library}: {reason}; is the driver installed and --nvml right?")]
    Library { library: String, reason: String },
    #[error("{call} answered {code}")]
    Call { call: &'static str, code: NvmlCode },
    #[error("{call} gave {what}")]
    Malformed { call: &'static str, what: String },
    #[error("the node has no GPU {0}")]
    NoSuchGpu(GpuUuid),
    #[error("the GPU has no profile {0}")]
    NoSuchProfile(Profile),
    #[error("{0} offers no compute instance of full size")]
    NoFullCompute(Profile),
    #[error("a {1} offers no compute instance of {0} slices")]
    NoSuchCompute(u8, Profile),
    #[error("a {1} offers no compute instance of {0} slices at slice {2} under this driver")]
    NoSuchPlace(u8, Profile, u8),
    #[error("{0}")]
    Busy(Holders),
    #[error("{0}")]
    MigMode(ModeRefusal),
    /// The driver lacks the function, because it is too old.
    #[error(
        "{call} is not in this NVML: the driver is older than {since}; update it or switch off what needs it"
    )]
    TooOld { call: &'static str, since: &'static str },
    #[error("the path of cgroup {0:?} cannot be given to NVML: it has a zero byte")]
    Cgroup(String),
    /// NVML reuses ids, so an instance with this id may be another one than was observed.
    #[error("GPU instance {0} is not what it was when it was observed")]
    Changed(u32),
    #[error(
        "NVML has not answered for {0} s; see the node's kernel log, and reset the GPU or reboot the node"
    )]
    Hangs(u64),
    #[error("failed to start a thread for NVML: {0}; raise the limit on the agent's threads")]
    Thread(String),
    /// The thread that calls NVML has ended, which is a fault of the agent.
    #[error("the thread that talks to NVML has ended; restart the agent")]
    Stopped,
}

/// Why a GPU's MIG mode or compute mode cannot be switched now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModeRefusal {
    #[error("the GPU has no MIG mode")]
    Unsupported,
    #[error("the GPU has {0} GPU instances; its MIG mode is switched when they are gone")]
    Instances(usize),
    /// An MPS server has the GPU to itself, or no process may use it. The number is the GPU's index, for the remedy.
    #[error("the GPU's compute mode is not DEFAULT; end its MPS daemon, or run nvidia-smi -i {0} -c DEFAULT")]
    ComputeMode(u32),
    #[error(
        "the GPU's MIG mode changes only with a reset: drain the node, run nvidia-smi -i {0} -mig with 1 or 0 and \
         nvidia-smi --gpu-reset -i {0}, or reboot after the first; or allow resets in the node's policy"
    )]
    NeedsReset(u32),
}

impl ModeRefusal {
    fn code(&self) -> NvmlCode {
        match self {
            Self::Unsupported => NvmlCode::NotSupported,
            Self::Instances(_) | Self::ComputeMode(_) => NvmlCode::InUse,
            Self::NeedsReset(_) => NvmlCode::ResetRequired,
        }
    }
}

impl GpuError {
    pub(crate) fn call(call: &'static str) -> impl Fn(NvmlError) -> Self {
        move |error| Self::Call { call, code: NvmlCode::from(&error) }
    }

    /// NVML's code; for kerf's own errors the code that NVML would return, so that metrics count both alike.
    #[must_use]
    pub fn code(&self) -> NvmlCode {
        match self {
            Self::Call { code, .. } => *code,
            Self::Library { .. } => NvmlCode::LibraryNotFound,
            Self::NoSuchPlace(..) => NvmlCode::InvalidArgument,
            Self::Busy(_) => NvmlCode::InUse,
            Self::MigMode(refusal) => refusal.code(),
            Self::TooOld { .. } => NvmlCode::FunctionNotFound,
            _ => NvmlCode::Other,
        }
    }

    /// Whether a retry may help, because a process holds what the call needs.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.code() == NvmlCode::InUse
    }

    /// Whether a process that NVML does not list, such as DCGM's, holds what the call needs.
    #[must_use]
    pub fn is_held_by_unlisted(&self) -> bool {
        matches!(self, Self::Busy(holders) if holders.0.is_empty())
    }

    #[must_use]
    pub fn needs_reopening(&self) -> bool {
        matches!(self.code(), NvmlCode::Uninitialized | NvmlCode::DriverNotLoaded | NvmlCode::VersionMismatch)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == NvmlCode::NotFound
    }
}

macro_rules! codes {
    ($($name:ident = $number:literal $label:literal,)*) => {
        /// NVML's return codes that an operator would act on. The set is closed, because metrics count by it. Numbers
        /// and names are those of `nvmlReturn_t` in `nvml.h`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum NvmlCode {
            $(#[doc = concat!("`NVML_ERROR_", $label, "`")] $name,)*
            Other,
        }

        impl NvmlCode {
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $label,)* Self::Other => "OTHER" }
            }

            pub(crate) fn from_number(number: u32) -> Self {
                match number { $($number => Self::$name,)* _ => Self::Other }
            }
        }
    };
}

codes! {
    Uninitialized = 1 "UNINITIALIZED",
    InvalidArgument = 2 "INVALID_ARGUMENT",
    NotSupported = 3 "NOT_SUPPORTED",
    NoPermission = 4 "NO_PERMISSION",
    NotFound = 6 "NOT_FOUND",
    InsufficientSize = 7 "INSUFFICIENT_SIZE",
    DriverNotLoaded = 9 "DRIVER_NOT_LOADED",
    Timeout = 10 "TIMEOUT",
    LibraryNotFound = 12 "LIBRARY_NOT_FOUND",
    FunctionNotFound = 13 "FUNCTION_NOT_FOUND",
    GpuIsLost = 15 "GPU_IS_LOST",
    ResetRequired = 16 "RESET_REQUIRED",
    OperatingSystem = 17 "OPERATING_SYSTEM",
    VersionMismatch = 18 "LIB_RM_VERSION_MISMATCH",
    InUse = 19 "IN_USE",
    Memory = 20 "MEMORY",
    InsufficientResources = 23 "INSUFFICIENT_RESOURCES",
    ArgumentVersionMismatch = 25 "ARGUMENT_VERSION_MISMATCH",
    NotReady = 27 "NOT_READY",
    GpuNotFound = 28 "GPU_NOT_FOUND",
    InvalidState = 29 "INVALID_STATE",
    Unknown = 999 "UNKNOWN",
}

impl fmt::Display for NvmlCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&NvmlError> for NvmlCode {
    /// nvml-wrapper has no variants for codes from 23 on, so these arrive as `UnexpectedVariant`.
    fn from(error: &NvmlError) -> Self {
        match error {
            NvmlError::UnexpectedVariant(number) => Self::from_number(*number),
            NvmlError::Uninitialized => Self::Uninitialized,
            NvmlError::InvalidArg => Self::InvalidArgument,
            NvmlError::NotSupported => Self::NotSupported,
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::NotFound => Self::NotFound,
            NvmlError::InsufficientSize(_) => Self::InsufficientSize,
            NvmlError::DriverNotLoaded => Self::DriverNotLoaded,
            NvmlError::Timeout => Self::Timeout,
            NvmlError::LibraryNotFound | NvmlError::LibloadingError(_) => Self::LibraryNotFound,
            NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => Self::FunctionNotFound,
            NvmlError::GpuLost => Self::GpuIsLost,
            NvmlError::ResetRequired => Self::ResetRequired,
            NvmlError::OperatingSystem => Self::OperatingSystem,
            NvmlError::LibRmVersionMismatch => Self::VersionMismatch,
            NvmlError::InUse => Self::InUse,
            NvmlError::InsufficientMemory => Self::Memory,
            NvmlError::Unknown => Self::Unknown,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_without_a_variant_keep_their_names() {
        let no_room =
            GpuError::call("nvmlDeviceCreateGpuInstanceWithPlacement")(NvmlError::UnexpectedVariant(23));
        assert_eq!(
            no_room.to_string(),
            "nvmlDeviceCreateGpuInstanceWithPlacement answered INSUFFICIENT_RESOURCES"
        );
        assert_eq!(NvmlCode::from(&NvmlError::UnexpectedVariant(4711)), NvmlCode::Other);
    }

    #[test]
    fn only_a_held_gpu_is_busy() {
        assert!(
            GpuError::call("x")(NvmlError::InUse).is_busy() && GpuError::Busy(Holders::default()).is_busy()
        );
        assert!(GpuError::MigMode(ModeRefusal::Instances(1)).is_busy());
        assert!(!GpuError::call("x")(NvmlError::InvalidArg).is_busy());
    }
}
