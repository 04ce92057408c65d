//! MIG mode, resets and boots: what changes a GPU as a whole.

use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::happening::GpuReset;
use crate::proc_files::GPU_MINORS;
use crate::state::{GpuState, MockState};

/// How `nvmlDeviceSetMigMode` took effect. The call itself succeeds either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// The mode is in force.
    Done,
    /// Pending: somebody uses the GPU.
    InUse,
    /// Pending: the GPU must be reset.
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
    /// `nvmlDeviceSetMigMode`. A mode that comes into force at once unbinds the GPU from the driver, which gives it the
    /// lowest minor number that no GPU has; so neither it nor the number of a neighbour that changes later stays true.
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

    /// A boot: every GPU restarts, Hopper and later lose MIG mode, minor numbers are those of the first boot, and
    /// there are no cgroups of before.
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

    /// Whether the control file tells of errors or resets that have yet to take effect.
    pub(crate) fn is_behind(&self, control: &MockControl) -> bool {
        control.ecc_errors.iter().any(|errors| !self.happened.contains(&errors.key()))
            || control.resets.iter().any(|reset| self.is_due(reset, control))
    }

    fn is_due(&self, reset: &GpuReset, control: &MockControl) -> bool {
        !self.happened.contains(&reset.key()) && !control.uses(reset.gpu)
    }

    /// Lets what the control file tells of take effect: errors first, as a reset is what an operator does about them.
    /// A GPU that the node does not have is passed over.
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
    /// What a reset and a boot have in common: instances are gone, Ampere takes up the pending mode, a pending mode of
    /// Hopper and later is forgotten, volatile counters begin anew.
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
