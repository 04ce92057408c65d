//! Memory limits of cgroups, new in driver R615. Pure, without files and cgroups.

use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::state::{GpuState, MemoryLimits, MockState};

/// The first driver branch that has them.
const FIRST_BRANCH: u32 = 615;

/// The value for no limit, `NVML_DEVICE_MEMORY_LIMIT_MAX`.
const UNLIMITED: u64 = u64::MAX;

impl MockState {
    /// Whether the driver has them. Its branch is the first number of its version.
    pub(crate) fn has_memory_limits(&self) -> bool {
        let branch = self.driver_version.split('.').next().and_then(|branch| branch.parse::<u32>().ok());
        branch.is_some_and(|branch| branch >= FIRST_BRANCH)
    }
}

impl GpuState {
    fn limitable(&self) -> Outcome<()> {
        if self.mig.current { Err(NvmlCode::NOT_SUPPORTED) } else { Ok(()) }
    }

    /// Carries out `nvmlDeviceSetMemoryLimits_v1`. A cgroup without any limit is removed from the list.
    pub(crate) fn set_memory_limits(&mut self, cgroup: &str, limits: MemoryLimits) -> Outcome<()> {
        self.limitable()?;
        if limits.soft > limits.hard {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        if limits == (MemoryLimits { soft: 0, hard: UNLIMITED }) {
            self.memory_limits.remove(cgroup);
        } else {
            self.memory_limits.insert(cgroup.to_owned(), limits);
        }
        Ok(())
    }

    /// Carries out `nvmlDeviceGetMemoryLimits_v1`, with the use of the processes in the cgroup and below it, in bytes.
    pub(crate) fn memory_limits_of(
        &self,
        cgroup: &str,
        control: &MockControl,
    ) -> Outcome<(MemoryLimits, u64)> {
        self.limitable()?;
        let limits = self.memory_limits.get(cgroup).ok_or(NvmlCode::NOT_FOUND)?;
        let here = control.processes.iter().filter(|one| one.gpu == self.index && one.is_within(cgroup));
        Ok((*limits, here.map(|process| process.used_mib * 1024 * 1024).sum()))
    }
}
