//! What a test does to a running node from outside: faults, delays, hangs, a reboot, processes, XID errors.
//!
//! The mock only reads this file; how often a fault has struck is kept in the state.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::code::NvmlCode;
use crate::files::{self, FileError};

/// Stands for every function in a fault, a delay or a hang.
pub const ANY_FUNCTION: &str = "*";

/// Makes calls of a function fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The exported name, such as `nvmlDeviceCreateGpuInstanceWithPlacement`, or `*`.
    pub function: String,
    /// The code to return.
    pub code: NvmlCode,
    /// How many calls fail; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// Only on this GPU (by index); on all, and on calls that name no GPU, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The call takes effect and then returns the code all the same: an answer lost on its way.
    #[serde(default, skip_serializing_if = "is_false")]
    pub after_effect: bool,
    /// Tells two faults of equal content apart; the count belongs to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Numbers faults made by this process, so that a second equal fault counts anew.
static FAULTS_MADE: AtomicU64 = AtomicU64::new(1);

impl Fault {
    /// Every call of `function` returns `code`.
    #[must_use]
    pub fn new(function: impl Into<String>, code: NvmlCode) -> Fault {
        let number = FAULTS_MADE.fetch_add(1, Ordering::Relaxed);
        let id = Some(format!("{}-{number}", std::process::id()));
        Fault { function: function.into(), code, times: None, gpu: None, after_effect: false, id }
    }

    /// Only the first `times` calls fail.
    #[must_use]
    pub fn times(mut self, times: u32) -> Fault {
        self.times = Some(times);
        self
    }

    /// Only calls on the GPU of that index fail.
    #[must_use]
    pub fn on_gpu(mut self, index: u32) -> Fault {
        self.gpu = Some(index);
        self
    }

    /// The call takes effect and then fails.
    #[must_use]
    pub fn after_effect(mut self) -> Fault {
        self.after_effect = true;
        self
    }

    /// What the state counts this fault under.
    pub(crate) fn key(&self) -> String {
        self.id
            .clone()
            .unwrap_or_else(|| format!("{}/{}/{:?}/{:?}", self.function, self.code.0, self.times, self.gpu))
    }

    fn strikes(&self, function: &str, gpu: Option<u32>) -> bool {
        names(&self.function, function) && (self.gpu.is_none() || self.gpu == gpu)
    }
}

fn names(pattern: &str, function: &str) -> bool {
    pattern == ANY_FUNCTION || pattern == function
}

/// What a process does on a GPU, which decides the list that it shows up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    /// In the compute list.
    Compute,
    /// In the graphics list.
    Graphics,
    /// In the list of MPS clients.
    Mps,
    /// In no list, yet it holds the instance, as a monitoring program may.
    Holder,
}

/// A process that uses a GPU or one of its instances, which cannot be destroyed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Index of the GPU.
    pub gpu: u32,
    /// GPU instance id; left out, the process is on the GPU itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Compute instance id; left out, the first of the GPU instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
    /// GPU memory in use, in MiB.
    #[serde(default)]
    pub used_mib: u64,
    /// What it does there.
    #[serde(default = "compute")]
    pub kind: ProcessKind,
}

fn compute() -> ProcessKind {
    ProcessKind::Compute
}

impl Process {
    /// A compute process on the compute instance 0 of a GPU instance.
    #[must_use]
    pub fn on_instance(pid: u32, gpu: u32, gi: u32, used_mib: u64) -> Process {
        Process { pid, gpu, gi: Some(gi), ci: Some(0), used_mib, kind: ProcessKind::Compute }
    }

    /// A compute process on a whole GPU.
    #[must_use]
    pub fn on_gpu(pid: u32, gpu: u32, used_mib: u64) -> Process {
        Process { pid, gpu, gi: None, ci: None, used_mib, kind: ProcessKind::Compute }
    }

    /// Whether the process is on that compute instance (0 unless it says otherwise).
    pub(crate) fn is_on(&self, gpu: u32, gi: u32, ci: u32) -> bool {
        self.gpu == gpu && self.gi == Some(gi) && self.ci.unwrap_or(0) == ci
    }
}

/// An XID error that event sets registered for critical XIDs receive once each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// Tells it from other ones, so that each is delivered once.
    pub id: String,
    /// Index of the GPU.
    pub gpu: u32,
    /// The XID number.
    pub xid: u64,
    /// GPU instance id, if only one is hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Compute instance id, if only one is hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
}

/// The control file. Every field may be left out of the JSON; no file at all is an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockControl {
    /// Faults; the first that fits and is not used up strikes.
    pub faults: Vec<Fault>,
    /// Milliseconds that a function takes longer, by name or `*`.
    pub delays_ms: BTreeMap<String, u64>,
    /// Functions (or `*`) that do not return while they are listed here.
    pub hang: Vec<String>,
    /// The boot that this is; another id than the state's is a reboot.
    pub boot: Option<String>,
    /// Processes on the GPUs.
    pub processes: Vec<Process>,
    /// XID errors that have happened.
    pub xids: Vec<Xid>,
}

impl MockControl {
    /// An empty control file.
    #[must_use]
    pub fn new() -> MockControl {
        MockControl::default()
    }

    /// Adds a fault.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> MockControl {
        self.faults.push(fault);
        self
    }

    /// Makes a function take longer.
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

    /// Names the boot: a new name is a reboot.
    #[must_use]
    pub fn boot(mut self, id: impl Into<String>) -> MockControl {
        self.boot = Some(id.into());
        self
    }

    /// Adds a process.
    #[must_use]
    pub fn process(mut self, process: Process) -> MockControl {
        self.processes.push(process);
        self
    }

    /// Reads a control file; an absent one is an empty one.
    pub fn load(path: &Path) -> Result<MockControl, FileError> {
        Ok(files::read(path)?.unwrap_or_default())
    }

    /// Changes the control file as it is now, so that several tests' programs (a stand-in kubelet that starts and
    /// ends processes, a test that injects faults) do not undo each other.
    pub fn edit(path: &Path, change: impl FnOnce(&mut MockControl)) -> Result<(), FileError> {
        let lock = files::lock_file(path)?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| FileError::Write { path: path.to_owned(), source: error.into() })?;
        let mut control = MockControl::load(path)?;
        change(&mut control);
        control.write(path)
        // Closing the file ends the lock.
    }

    /// Writes the control file, replacing it whole.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        files::write(path, self)
    }

    pub(crate) fn hangs(&self, function: &str) -> bool {
        self.hang.iter().any(|pattern| names(pattern, function))
    }

    pub(crate) fn delay_of(&self, function: &str) -> Duration {
        let own = self.delays_ms.get(function).or_else(|| self.delays_ms.get(ANY_FUNCTION));
        Duration::from_millis(own.copied().unwrap_or(0))
    }

    /// The first fault for a call that `used` (times struck, by key) has not used up.
    pub(crate) fn fault_for(
        &self,
        function: &str,
        gpu: Option<u32>,
        used: &BTreeMap<String, u32>,
    ) -> Option<&Fault> {
        self.faults.iter().filter(|fault| fault.strikes(function, gpu)).find(|fault| {
            fault.times.is_none_or(|times| used.get(&fault.key()).copied().unwrap_or(0) < times)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_json_is_read() {
        let text = r#"{
            "faults": [{"function": "nvmlDeviceCreateGpuInstanceWithPlacement", "code": 19, "times": 2, "gpu": null}],
            "delays_ms": {"nvmlGpuInstanceDestroy": 50},
            "hang": ["nvmlDeviceGetMemoryInfo"],
            "boot": "b2",
            "processes": [{"pid": 7, "gpu": 0, "gi": 9, "ci": 0, "used_mib": 100, "kind": "mps"}],
            "xids": [{"id": "x1", "gpu": 0, "xid": 79}]
        }"#;
        let control: MockControl = serde_json::from_str(text).unwrap();
        assert_eq!(control.faults[0].code, NvmlCode::IN_USE);
        assert!(control.hangs("nvmlDeviceGetMemoryInfo"));
        assert_eq!(control.delay_of("nvmlGpuInstanceDestroy"), Duration::from_millis(50));
        assert_eq!(control.processes[0].kind, ProcessKind::Mps);
    }

    #[test]
    fn a_fault_strikes_its_function_and_gpu_as_often_as_it_says() {
        let control = MockControl::new().fault(Fault::new("f", NvmlCode::TIMEOUT).times(2).on_gpu(1));
        let key = control.faults[0].key();
        let with = |struck: u32| BTreeMap::from([(key.clone(), struck)]);
        assert!(control.fault_for("f", Some(1), &with(1)).is_some());
        assert!(control.fault_for("f", Some(1), &with(2)).is_none());
        assert!(control.fault_for("f", Some(0), &with(0)).is_none());
        assert!(control.fault_for("f", None, &with(0)).is_none());
        assert!(control.fault_for("g", Some(1), &with(0)).is_none());
    }

    #[test]
    fn edits_at_once_keep_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.json");
        std::thread::scope(|scope| {
            for pid in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    MockControl::edit(path, |control| control.processes.push(Process::on_gpu(pid, 0, 1)))
                        .unwrap();
                });
            }
        });
        assert_eq!(MockControl::load(&path).unwrap().processes.len(), 8);
    }

    #[test]
    fn two_faults_made_alike_are_counted_apart() {
        let [a, b] = [Fault::new("f", NvmlCode::TIMEOUT), Fault::new("f", NvmlCode::TIMEOUT)];
        assert_ne!(a.key(), b.key());
    }
}
