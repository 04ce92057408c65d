//! Memory limits of cgroups, which driver R615 brought. Pure: no files, and no cgroups.

use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::state::{GpuState, MemoryLimits, MockState};

/// First driver branch that has them.
const FIRST_BRANCH: u32 = 615;

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no limit.
const UNLIMITED: u64 = u64::MAX;

impl MockState {
    /// The branch of a driver is the first number of its version.
    pub(crate) fn has_memory_limits(&self) -> bool {
        let branch = self.driver_version.split('.').next().and_then(|branch| branch.parse::<u32>().ok());
        branch.is_some_and(|branch| branch >= FIRST_BRANCH)
    }
}

impl GpuState {
    fn limitable(&self) -> Outcome<()> {
        if self.mig.current { Err(NvmlCode::NOT_SUPPORTED) } else { Ok(()) }
    }

    /// `nvmlDeviceSetMemoryLimits_v1`. No limit at all takes the cgroup out of the list.
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

    /// `nvmlDeviceGetMemoryLimits_v1`, with what the processes in the cgroup and below it use, in bytes.
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
