//! MIG mode, resets and boots, which change a GPU as a whole.

use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::happening::GpuReset;
use crate::proc_files::GPU_MINORS;
use crate::state::{GpuState, MockState};

/// How `nvmlDeviceSetMigMode` took effect. The call itself succeeds in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// The mode is in force.
    Done,
    /// The mode is pending, because a process uses the GPU.
    InUse,
    /// The mode is pending, because the GPU must be reset.
    ResetRequired,
}

impl Activation {
    /// The code that NVML writes into `activationStatus`.
    pub(crate) fn code(self) -> NvmlCode {
        match self {
            Activation::Done => NvmlCode::SUCCESS,
            Activation::InUse => NvmlCode::IN_USE,
            Activation::ResetRequired => NvmlCode::RESET_REQUIRED,
        }
    }
}

impl MockState {
    /// Carries out `nvmlDeviceSetMigMode`. A mode that takes effect at once unbinds the GPU from the driver, which then
    /// assigns the lowest free minor number. So neither this GPU's number stays, nor that of a neighbour that is
    /// switched later.
    pub(crate) fn set_mig_mode(
        &mut self,
        index: u32,
        on: bool,
        control: &MockControl,
    ) -> Outcome<Activation> {
        let reset_free = self.ampere_reset_free;
        let minor = (0..GPU_MINORS).find(|minor| self.gpus.iter().all(|gpu| gpu.minor != *minor));
        let gpu = self.gpu_at(index)?;
        if !gpu.model.has_mig() {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        gpu.mig.pending = on;
        if gpu.mig.current == on {
            return Ok(Activation::Done);
        }
        if !gpu.instances.is_empty() || control.uses(index) {
            return Ok(Activation::InUse);
        }
        if !gpu.model.mig_mode_lives_in_driver() && !reset_free {
            return Ok(Activation::ResetRequired);
        }
        gpu.mig.current = on;
        gpu.minor = minor.unwrap_or(gpu.minor);
        Ok(Activation::Done)
    }

    /// Boots the node: every GPU restarts, Hopper and later lose MIG mode, minor numbers are those of the first boot,
    /// and the old cgroups are gone.
    pub(crate) fn reboot(&mut self, boot_id: &str) {
        boot_id.clone_into(&mut self.boot_id);
        for gpu in &mut self.gpus {
            gpu.restart();
            if gpu.model.mig_mode_lives_in_driver() {
                (gpu.mig.current, gpu.mig.pending) = (false, false);
            }
            gpu.minor = gpu.index;
            gpu.memory_limits.clear();
        }
    }

    /// Whether the control file lists errors or resets that must still take effect.
    pub(crate) fn is_behind(&self, control: &MockControl) -> bool {
        control.ecc_errors.iter().any(|errors| !self.happened.contains(&errors.key()))
            || control.resets.iter().any(|reset| self.is_due(reset, control))
    }

    fn is_due(&self, reset: &GpuReset, control: &MockControl) -> bool {
        !self.happened.contains(&reset.key()) && !control.uses(reset.gpu)
    }

    /// Applies the events of the control file: errors first, because an operator resets a GPU to repair them. A GPU
    /// that the node does not have is skipped.
    pub(crate) fn catch_up(&mut self, control: &MockControl) {
        for errors in &control.ecc_errors {
            if self.happened.insert(errors.key())
                && let Ok(gpu) = self.gpu_at(errors.gpu)
            {
                gpu.suffer(errors);
            }
        }
        for reset in &control.resets {
            if !self.is_due(reset, control) {
                continue;
            }
            self.happened.insert(reset.key());
            if let Ok(gpu) = self.gpu_at(reset.gpu) {
                gpu.restart();
            }
        }
    }
}

impl GpuState {
    /// The common effects of a reset and a boot: instances are gone, Ampere applies the pending mode, Hopper and later
    /// drop it, and volatile counters start again.
    fn restart(&mut self) {
        self.instances.clear();
        self.compute_mode = 0;
        self.ecc.restart();
        if self.model.mig_mode_lives_in_driver() {
            self.mig.pending = self.mig.current;
        } else {
            self.mig.current = self.mig.pending;
        }
    }
}

#[cfg(test)]
#[path = "mode_tests.rs"]
mod tests;
