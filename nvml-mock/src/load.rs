//! Processes on the GPUs, as the control file lists them.

use serde::{Deserialize, Serialize};

/// What a process does on a GPU, which determines the lists that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    /// A process in the compute list.
    Compute,
    /// A process in the graphics list.
    Graphics,
    /// A client of an MPS server: in the compute list and in the list of MPS clients, as on an H200 under driver
    /// 580.159.04. The server itself is a compute process.
    Mps,
    /// In no list, though it holds the instance, as a monitoring program may.
    Holder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessList {
    Compute,
    Graphics,
    MpsClients,
}

impl ProcessKind {
    pub(crate) fn is_in(self, list: ProcessList) -> bool {
        match list {
            ProcessList::Compute => matches!(self, ProcessKind::Compute | ProcessKind::Mps),
            ProcessList::Graphics => self == ProcessKind::Graphics,
            ProcessList::MpsClients => self == ProcessKind::Mps,
        }
    }
}

/// A process that uses a GPU or one of its instances. The instance cannot be destroyed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    pub gpu: u32,
    /// GPU instance id; if left out, the process is on the GPU itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Compute instance id; if left out, the first of the GPU instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
    /// GPU memory in use, in MiB.
    #[serde(default)]
    pub used_mib: u64,
    /// Percent of the time in which it runs on the GPU.
    #[serde(default)]
    pub sm_util: u32,
    #[serde(default = "compute")]
    pub kind: ProcessKind,
    /// Folder of its cgroup, whose memory limits count what it uses. Nothing else reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

fn compute() -> ProcessKind {
    ProcessKind::Compute
}

impl Process {
    /// A compute process on the compute instance 0 of a GPU instance.
    #[must_use]
    pub fn on_instance(pid: u32, gpu: u32, gi: u32, used_mib: u64) -> Process {
        Process { gi: Some(gi), ci: Some(0), ..Process::on_gpu(pid, gpu, used_mib) }
    }

    /// A compute process on a whole GPU.
    #[must_use]
    pub fn on_gpu(pid: u32, gpu: u32, used_mib: u64) -> Process {
        Process {
            pid,
            gpu,
            gi: None,
            ci: None,
            used_mib,
            sm_util: 0,
            kind: ProcessKind::Compute,
            cgroup: None,
        }
    }

    #[must_use]
    pub fn of_kind(mut self, kind: ProcessKind) -> Process {
        self.kind = kind;
        self
    }

    /// The same process, busy for this percentage of the time.
    #[must_use]
    pub fn busy(mut self, percent: u32) -> Process {
        self.sm_util = percent;
        self
    }

    #[must_use]
    pub fn in_cgroup(mut self, folder: impl Into<String>) -> Process {
        self.cgroup = Some(folder.into());
        self
    }

    /// Whether the process is on that compute instance (0 unless it says otherwise).
    pub(crate) fn is_on(&self, gpu: u32, gi: u32, ci: u32) -> bool {
        self.gpu == gpu && self.gi == Some(gi) && self.ci.unwrap_or(0) == ci
    }

    /// Whether the process is in that cgroup or in one below it.
    pub(crate) fn is_within(&self, cgroup: &str) -> bool {
        self.cgroup.as_deref().is_some_and(|own| std::path::Path::new(own).starts_with(cgroup))
    }
}
