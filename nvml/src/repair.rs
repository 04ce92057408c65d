//! Whether a GPU waits for a repair that its next reset brings.

use crate::{GpuError, NvmlCode, ffi};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::error::NvmlError;

/// What the GPU waits for, in words; `None` for a healthy one, and for one that cannot tell.
pub(crate) fn pending(device: &Device<'_>) -> Result<Option<String>, GpuError> {
    let rows = known(ffi::remapped_rows(device), "nvmlDeviceGetRemappedRows")?;
    if rows.as_ref().is_some_and(|rows| rows.has_failed) {
        return Ok(Some("a row of its memory could not be remapped; have the GPU replaced".to_owned()));
    }
    if rows.is_some_and(|rows| rows.is_pending) {
        return Ok(Some("a row of its memory is remapped at its next reset".to_owned()));
    }
    let pages = known(device.are_pages_pending_retired(), "nvmlDeviceGetRetiredPagesPendingStatus")?;
    if pages == Some(true) {
        return Ok(Some("a page of its memory is retired at its next reset".to_owned()));
    }
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let errors = known(errors, "nvmlDeviceGetTotalEccErrors")?.unwrap_or(0);
    Ok((errors > 0).then(|| format!("{errors} uncorrected memory errors since its last reset")))
}

/// The answer, where the GPU and the driver have one: MIG instances, older GPUs and older drivers leave it out. A driver that does not
/// take the question has no answer either, and the GPU is as well as before.
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
