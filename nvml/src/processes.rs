//! Lists the processes on a GPU, and those that keep NVML from changing an instance.

use crate::ffi::{self, ProcessList, RawProcess};
use crate::holders::Holders;
use crate::{GpuError, NvmlCode, Process};
use kerf_core::units::MemoryMib;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;

pub(crate) const MIB: u64 = 1 << 20;

/// NVML's process lists. Only the first is required, because a GPU or its driver may lack the others.
const LISTS: [(ProcessList, &str, bool); 3] = [
    (ProcessList::Compute, "nvmlDeviceGetComputeRunningProcesses_v3", true),
    (ProcessList::Graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3", false),
    (ProcessList::MpsClients, "nvmlDeviceGetMPSComputeRunningProcesses_v3", false),
];

/// All processes on a GPU: those that compute, draw, or are clients of an MPS server. A process in several lists is
/// returned once for each compute instance, because otherwise metrics would count its memory twice.
pub(crate) fn on_gpu(device: &Device<'_>) -> Result<Vec<Process>, GpuError> {
    let mut found = BTreeMap::new();
    for (list, call, must) in LISTS {
        let listed = match ffi::processes(device, list).map_err(GpuError::call(call)) {
            Err(error) if !must && is_unknown(error.code()) => Vec::new(),
            result => result?,
        };
        for RawProcess { pid, bytes, gi, ci } in listed {
            let memory = bytes.map(|bytes| MemoryMib(bytes.div_ceil(MIB)));
            let one = found.entry((gi, ci, pid)).or_insert(Process { pid, memory, gi, ci });
            one.memory = one.memory.max(memory);
        }
    }
    Ok(found.into_values().collect())
}

fn is_unknown(code: NvmlCode) -> bool {
    matches!(code, NvmlCode::NotSupported | NvmlCode::FunctionNotFound)
}

pub(crate) fn refusal(
    device: &Device<'_>,
    call: &'static str,
    error: NvmlError,
    holds: impl Fn(&Process) -> bool,
) -> GpuError {
    if !matches!(error, NvmlError::InUse) {
        return GpuError::call(call)(error);
    }
    // A list that cannot be read is left empty, because the text then still names likely causes.
    let all = on_gpu(device).unwrap_or_default();
    GpuError::Busy(Holders::from_processes(all.iter().filter(|p| holds(p))))
}
