//! Switches a GPU's MIG mode and its compute mode.

use crate::holders::Holders;
use crate::instances::Site;
use crate::observe::{compute_mode, mig_mode};
use crate::processes::{self, refusal};
use crate::{ComputeMode, GpuError, MigMode, ModeRefusal, NvmlBackend, NvmlCode};
use kerf_core::names::GpuUuid;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlComputeMode;
use std::collections::BTreeSet;

const SET: &str = "nvmlDeviceSetMigMode";

/// The CUDA compute capability of Ampere, which needs a reset to switch MIG mode. Hopper (9) does not.
const AMPERE: u32 = 8;

impl NvmlBackend {
    pub(crate) fn switch_mig(&mut self, gpu: &GpuUuid, on: bool, reset: bool) -> Result<(), GpuError> {
        let result = self.site(gpu)?.switch_mig(on, reset);
        // The profiles are forgotten even after an error, because the mode may have changed all the same. Minors and
        // handles may differ too, but each observation reads those.
        self.tables.forget(gpu);
        result
    }

    pub(crate) fn switch_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), GpuError> {
        let mode = match mode {
            ComputeMode::Default => NvmlComputeMode::Default,
            ComputeMode::ExclusiveProcess => NvmlComputeMode::ExclusiveProcess,
            ComputeMode::Other => NvmlComputeMode::Prohibited,
        };
        self.device(gpu)?.set_compute_mode(mode).map_err(GpuError::call("nvmlDeviceSetComputeMode"))
    }
}

impl Site<'_> {
    fn switch_mig(&mut self, on: bool, reset: bool) -> Result<(), GpuError> {
        match mig_mode(&self.device)? {
            MigMode::Unsupported => return Err(GpuError::MigMode(ModeRefusal::Unsupported)),
            MigMode::Settled(now) if now == on => return Ok(()),
            MigMode::Pending(now) if now != on && reset => return Ok(()),
            // The other mode is pending, so a call that sets the current one cancels the change.
            MigMode::Pending(now) if now == on => return set(&self.device, on).map(drop),
            MigMode::Settled(_) | MigMode::Pending(_) => {}
        }
        let index = self.device.index().map_err(GpuError::call("nvmlDeviceGetIndex"))?;
        check_free(&self.device, index)?;
        // With MIG mode off no GPU instance can exist, so none is counted.
        if !on {
            self.check_uncut()?;
        }
        let capability = self
            .device
            .cuda_compute_capability()
            .map_err(GpuError::call("nvmlDeviceGetCudaComputeCapability"))?;
        // This comes before the call, because a successful call would leave the change pending.
        if u32::try_from(capability.major) == Ok(AMPERE) && !reset {
            return Err(GpuError::MigMode(ModeRefusal::NeedsReset(index)));
        }
        match set(&self.device, on)? {
            None => Ok(()),
            Some(NvmlCode::ResetRequired) if reset => {
                tracing::warn!(gpu = %self.gpu, index, on, "the GPU's MIG mode changes at its next reset");
                Ok(())
            }
            Some(code) => Err(self.cancel(on, index, code)),
        }
    }

    fn check_uncut(&mut self) -> Result<(), GpuError> {
        let table = self.tables.get(self.gpu, &self.device)?;
        let mut ids = BTreeSet::new();
        for entry in table.entries() {
            for gi in self.with_profile(entry)? {
                ids.insert(self.info(gi)?.id);
            }
        }
        if ids.is_empty() { Ok(()) } else { Err(GpuError::MigMode(ModeRefusal::Instances(ids.len()))) }
    }

    /// Cancels a pending change, because otherwise any later reset would switch the mode. Returns the error with its
    /// reason.
    fn cancel(&self, on: bool, index: u32, code: NvmlCode) -> GpuError {
        if let Err(error) = set(&self.device, !on) {
            tracing::error!(gpu = %self.gpu, index, on, %error, "the GPU's MIG mode will change at its next reset");
        }
        match code {
            NvmlCode::InUse => {
                GpuError::Busy(Holders::from_processes(&processes::on_gpu(&self.device).unwrap_or_default()))
            }
            NvmlCode::ResetRequired => GpuError::MigMode(ModeRefusal::NeedsReset(index)),
            code => GpuError::Call { call: SET, code },
        }
    }
}

/// Sets a mode. The call also succeeds if the mode is only pending. Then it returns the reason, so that the caller can
/// cancel it.
fn set(device: &Device<'_>, on: bool) -> Result<Option<NvmlCode>, GpuError> {
    let status = device.set_mig_mode(on).map_err(|error| refusal(device, SET, error, |_| true))?;
    Ok((status != 0).then(|| NvmlCode::from_number(status)))
}

/// Fails if a process uses the GPU, or if its compute mode is not `DEFAULT`. In both cases the driver would refuse the
/// change or leave it pending.
fn check_free(device: &Device<'_>, index: u32) -> Result<(), GpuError> {
    let processes = processes::on_gpu(device)?;
    if !processes.is_empty() {
        return Err(GpuError::Busy(Holders::from_processes(&processes)));
    }
    match compute_mode(device)? {
        ComputeMode::Default => Ok(()),
        ComputeMode::ExclusiveProcess | ComputeMode::Other => {
            Err(GpuError::MigMode(ModeRefusal::ComputeMode(index)))
        }
    }
}
