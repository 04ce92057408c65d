//! The codes that each NVML function may return: those that nvml.h documents, and those that a driver returns
//! from any call when it is unloaded, replaced, out of memory or slow, or when its GPU is gone.

use kerf_nvml_mock::NvmlCode as C;

/// Codes of any call after `nvmlInit`.
const ANY: [C; 7] = [
    C::UNINITIALIZED,
    C::INVALID_ARGUMENT,
    C::DRIVER_NOT_LOADED,
    C::TIMEOUT,
    C::LIB_RM_VERSION_MISMATCH,
    C::MEMORY,
    C::UNKNOWN,
];

/// Codes of calls that name a GPU or a part of it.
const OF_A_GPU: [C; 4] = [C::NOT_SUPPORTED, C::GPU_IS_LOST, C::RESET_REQUIRED, C::NOT_READY];

/// Codes of calls that only root may make, or that open the GPU.
const PRIVILEGED: [C; 2] = [C::NO_PERMISSION, C::OPERATING_SYSTEM];

/// Codes of calls that change something.
const CHANGING: [C; 2] = [C::IN_USE, C::INVALID_STATE];

/// Functions that change a GPU. Their answer can be lost after the effect.
const MUTATORS: [&str; 8] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlDeviceSetMigMode",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
];

/// Further codes of single functions.
const OWN: [(&str, &[C]); 17] = [
    ("nvmlDeviceCreateGpuInstanceWithPlacement", &[C::INSUFFICIENT_RESOURCES]),
    ("nvmlDeviceGetGpuInstanceById", &[C::NOT_FOUND, C::NO_PERMISSION]),
    ("nvmlDeviceGetGpuInstancePossiblePlacements_v2", &[C::NO_PERMISSION, C::INSUFFICIENT_SIZE]),
    ("nvmlDeviceGetGpuInstanceProfileInfoV", &[C::NO_PERMISSION, C::ARGUMENT_VERSION_MISMATCH]),
    ("nvmlDeviceGetGpuInstances", &[C::NO_PERMISSION]),
    ("nvmlDeviceGetHandleByIndex_v2", &[C::NO_PERMISSION, C::INSUFFICIENT_POWER, C::IRQ_ISSUE]),
    ("nvmlDeviceGetHandleByUUID", &[C::NOT_FOUND, C::INSUFFICIENT_POWER, C::IRQ_ISSUE]),
    ("nvmlDeviceGetMemoryInfo_v2", &[C::ARGUMENT_VERSION_MISMATCH, C::FUNCTION_NOT_FOUND]),
    ("nvmlDeviceGetName", &[C::INSUFFICIENT_SIZE]),
    ("nvmlDeviceGetUUID", &[C::INSUFFICIENT_SIZE, C::NOT_FOUND]),
    ("nvmlDeviceSetMemoryLimits_v1", &[C::FUNCTION_NOT_FOUND]),
    ("nvmlGpuInstanceCreateComputeInstance", &[C::INSUFFICIENT_RESOURCES]),
    ("nvmlGpuInstanceCreateComputeInstanceWithPlacement", &[C::INSUFFICIENT_RESOURCES]),
    ("nvmlGpuInstanceDestroy", &[C::NOT_FOUND]),
    ("nvmlGpuInstanceGetComputeInstances", &[C::NO_PERMISSION, C::NOT_FOUND]),
    ("nvmlGpuInstanceGetInfo", &[C::NO_PERMISSION, C::NOT_FOUND]),
    ("nvmlComputeInstanceGetInfo_v2", &[C::NO_PERMISSION, C::NOT_FOUND]),
];

pub(super) fn changes(function: &str) -> bool {
    MUTATORS.contains(&function)
}

/// The codes that the function may return, ascending.
pub(super) fn codes(function: &str) -> Vec<C> {
    let own = OWN.iter().find(|(name, _)| *name == function).map_or(&[][..], |(_, codes)| codes);
    let mut codes = own.to_vec();
    match function {
        "nvmlInit_v2" | "nvmlInitWithFlags" => {
            codes.extend([C::DRIVER_NOT_LOADED, C::NO_PERMISSION, C::LIB_RM_VERSION_MISMATCH, C::MEMORY]);
            codes.extend([C::OPERATING_SYSTEM, C::GPU_NOT_FOUND, C::UNKNOWN]);
        }
        "nvmlShutdown" => codes.extend([C::UNINITIALIZED, C::UNKNOWN]),
        name if name.starts_with("nvmlEventSet") => codes.extend(ANY.into_iter().chain([C::GPU_IS_LOST])),
        "nvmlDeviceGetCount_v2" => codes.extend(ANY),
        name => {
            codes.extend(ANY.into_iter().chain(OF_A_GPU));
            if name.contains("RunningProcesses") {
                codes.extend([C::NO_PERMISSION, C::INSUFFICIENT_SIZE, C::FUNCTION_NOT_FOUND]);
            }
            if changes(name) {
                codes.extend(PRIVILEGED.into_iter().chain(CHANGING));
            }
        }
    }
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_codes_and_what_it_alone_may_give_is_among_them() {
        assert_eq!(codes("nvmlShutdown"), [C::UNINITIALIZED, C::UNKNOWN]);
        for (function, own) in OWN {
            let all = codes(function);
            assert!(own.iter().all(|code| all.contains(code)) && all.len() > own.len(), "{function}");
        }
        assert!(codes("nvmlDeviceSetMigMode").contains(&C::IN_USE));
        assert!(!codes("nvmlDeviceGetMigMode").contains(&C::IN_USE));
    }
}
