//! What a test does to a running node from outside: faults, delays, hangs, a reboot, processes, errors, resets.
//!
//! The mock only reads this file. The state keeps which of its faults have struck, and which of its events have
//! happened.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::code::NvmlCode;
use crate::fault::{ANY_FUNCTION, Fault, Strike, names};
use crate::files::{self, FileError};
use crate::happening::{EccErrors, GpuReset, Xid};
use crate::load::Process;

/// The control file. Every field may be left out of the JSON; a missing file is an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockControl {
    /// Faults; the first that matches and is not used up strikes.
    pub faults: Vec<Fault>,
    /// Milliseconds by which a function is delayed, by name or `*`.
    pub delays_ms: BTreeMap<String, u64>,
    /// Functions (or `*`) that do not return while they are listed here, on any GPU.
    pub hang: Vec<String>,
    /// The current boot; another id than the state's is a reboot.
    pub boot: Option<String>,
    pub processes: Vec<Process>,
    /// XID errors that have happened.
    pub xids: Vec<Xid>,
    /// Memory errors that have happened.
    pub ecc_errors: Vec<EccErrors>,
    /// GPUs that an operator resets.
    pub resets: Vec<GpuReset>,
    /// Whether events use other GPU handles than those that the process got, as after a change of the GPU.
    pub renewed_handles: bool,
    /// Whether the state counts the calls of each function, at the cost of a write per call.
    pub count_calls: bool,
}

impl MockControl {
    #[must_use]
    pub fn new() -> MockControl {
        MockControl::default()
    }

    #[must_use]
    pub fn fault(mut self, fault: Fault) -> MockControl {
        self.faults.push(fault);
        self
    }

    #[must_use]
    pub fn delay(mut self, function: impl Into<String>, time: Duration) -> MockControl {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.delays_ms.insert(function.into(), millis);
        self
    }

    /// Makes a function hang until a control file without it is written.
    #[must_use]
    pub fn hang(mut self, function: impl Into<String>) -> MockControl {
        self.hang.push(function.into());
        self
    }

    /// Sets the boot id: a new id is a reboot.
    #[must_use]
    pub fn boot(mut self, id: impl Into<String>) -> MockControl {
        self.boot = Some(id.into());
        self
    }

    #[must_use]
    pub fn process(mut self, process: Process) -> MockControl {
        self.processes.push(process);
        self
    }

    #[must_use]
    pub fn ecc(mut self, errors: EccErrors) -> MockControl {
        self.ecc_errors.push(errors);
        self
    }

    /// Resets the GPU at that index.
    #[must_use]
    pub fn reset(mut self, id: impl Into<String>, gpu: u32) -> MockControl {
        self.resets.push(GpuReset { id: id.into(), gpu });
        self
    }

    /// Makes the state count the calls of each function.
    #[must_use]
    pub fn count_calls(mut self) -> MockControl {
        self.count_calls = true;
        self
    }

    /// Reads a control file; a missing one is an empty one.
    pub fn load(path: &Path) -> Result<MockControl, FileError> {
        Ok(files::read(path)?.unwrap_or_default())
    }

    /// Changes the current control file under a lock, so that several programs of a test do not undo each other's
    /// changes: a stand-in kubelet starts and ends processes, and a test injects faults.
    pub fn edit(path: &Path, change: impl FnOnce(&mut MockControl)) -> Result<(), FileError> {
        let lock = files::lock_file(path)?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| FileError::Write { path: path.to_owned(), source: error.into() })?;
        let mut control = MockControl::load(path)?;
        change(&mut control);
        control.write(path)
        // Closing the file releases the lock.
    }

    /// Writes the control file, replacing it as a whole.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        files::write(path, self)
    }

    pub(crate) fn hangs(&self, function: &str) -> bool {
        self.hang.iter().any(|pattern| names(pattern, function))
    }

    /// Whether the fault that the state counts under `key` is still listed.
    pub(crate) fn has_fault(&self, key: &str) -> bool {
        self.faults.iter().any(|fault| fault.key() == key)
    }

    /// Whether a GPU has fallen off the bus, for all calls and until the fault is removed.
    pub(crate) fn has_lost_gpu(&self) -> bool {
        let is_lost = Strike::Code(NvmlCode::GPU_IS_LOST);
        let mut faults = self.faults.iter();
        faults
            .any(|fault| fault.function == ANY_FUNCTION && fault.strike == is_lost && fault.limit().is_none())
    }

    pub(crate) fn delay_of(&self, function: &str) -> Duration {
        let own = self.delays_ms.get(function).or_else(|| self.delays_ms.get(ANY_FUNCTION));
        Duration::from_millis(own.copied().unwrap_or(0))
    }

    /// The first fault for a call, by how often each has struck.
    pub(crate) fn fault_for(
        &self,
        function: &str,
        gpu: Option<u32>,
        struck: &BTreeMap<String, u32>,
    ) -> Option<&Fault> {
        self.faults.iter().find(|fault| fault.strikes(function, gpu) && fault.is_left(struck))
    }

    /// Whether any process, listed or not, is on the GPU or on one of its instances.
    pub(crate) fn uses(&self, gpu: u32) -> bool {
        self.processes.iter().any(|process| process.gpu == gpu)
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
