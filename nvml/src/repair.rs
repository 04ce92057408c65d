//! Finds out whether a GPU needs a reset before it may be used.

use crate::{Gpu, GpuError, NvmlCode, RowRemapping, ffi};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, MemoryLocation};
use nvml_wrapper::error::NvmlError;

#[derive(Default)]
pub(crate) struct Health {
    /// Why the GPU must not be used until it is repaired. `None` for a healthy GPU, and for one that cannot report it.
    pub(crate) pending_repair: Option<String>,
    pub(crate) remapping: RowRemapping,
}

impl Health {
    pub(crate) fn from_gpu(gpu: &Gpu) -> Self {
        Self { pending_repair: gpu.pending_repair.clone(), remapping: gpu.remapping }
    }
}

/// Reads the GPU's health. Uncorrectable errors in memory with row remapping are contained and repaired. So on such a
/// GPU only errors of caches count, which nothing replaces.
pub(crate) fn read(device: &Device<'_>) -> Result<Health, GpuError> {
    let Some(rows) = known(ffi::remapped_rows(device), "nvmlDeviceGetRemappedRows")? else {
        let pending_repair = without_remapping(device)?;
        return Ok(Health { pending_repair, remapping: RowRemapping::Unsupported });
    };
    let remapping = if rows.is_pending { RowRemapping::Pending } else { RowRemapping::Settled };
    if rows.has_failed {
        let text = "a row of its memory could not be remapped; have the GPU replaced";
        return Ok(Health { pending_repair: Some(text.to_owned()), remapping });
    }
    let errors =
        device.memory_error_counter(MemoryError::Uncorrected, EccCounter::Volatile, MemoryLocation::SRAM);
    let errors = known(errors, "nvmlDeviceGetMemoryErrorCounter")?.unwrap_or(0);
    let text = || format!("{errors} uncorrected errors in its caches since its last reset");
    Ok(Health { pending_repair: (errors > 0).then(text), remapping })
}

fn without_remapping(device: &Device<'_>) -> Result<Option<String>, GpuError> {
    let pages = known(device.are_pages_pending_retired(), "nvmlDeviceGetRetiredPagesPendingStatus")?;
    if pages == Some(true) {
        return Ok(Some("a page of its memory is retired at its next reset".to_owned()));
    }
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let errors = known(errors, "nvmlDeviceGetTotalEccErrors")?.unwrap_or(0);
    Ok((errors > 0).then(|| format!("{errors} uncorrected memory errors since its last reset")))
}

/// The answer, if the GPU and the driver support the query: MIG instances, older GPUs and older drivers do not. An
/// unsupported query counts as no trouble, because otherwise no such GPU could be used.
fn known<T>(answer: Result<T, NvmlError>, call: &'static str) -> Result<Option<T>, GpuError> {
    match answer.map_err(GpuError::call(call)) {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => match error.code() {
            NvmlCode::NotSupported
            | NvmlCode::FunctionNotFound
            | NvmlCode::NoPermission
            | NvmlCode::InvalidArgument => Ok(None),
            _ => Err(error),
        },
    }
}
