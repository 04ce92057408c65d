//! What is seen of a GPU, and the calls that change it.

use crate::{Driver, GpuError, Topology, Utilization};
use kerf_core::gfd_labels::Attributes;
use kerf_core::mig::{ComputeInstance, Instance, MigTable};
use kerf_core::names::{DeviceId, GpuUuid, PciBusId};
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;

/// One GPU as NVML shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Its NVML index.
    pub index: u32,
    /// The number in `/dev/nvidia<minor>`. It may change with the MIG mode.
    pub minor: u32,
    /// The product name.
    pub product: String,
    /// Its address on the PCI bus, where the driver says it.
    pub pci_bus_id: Option<PciBusId>,
    /// Total memory.
    pub memory: MemoryMib,
    /// The part of it that the driver reserves and no process can have.
    pub reserved: MemoryMib,
    /// Memory in use on the whole GPU, by whomever.
    pub used: MemoryMib,
    /// CUDA compute capability, major and minor.
    pub capability: (u32, u32),
    /// Its driver.
    pub driver: Driver,
    /// Where it is in the machine.
    pub topology: Topology,
    /// Its class on the PCI bus, where the machine tells.
    pub pci_class: Option<u32>,
    /// Its MIG mode.
    pub mig: MigMode,
    /// Whether only one process at a time may have a context on it (`NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`), or none may.
    pub compute_mode: ComputeMode,
    /// What MIG offers; `None` while MIG mode is off.
    pub table: Option<MigTable>,
    /// The GPU instances on it.
    pub instances: Vec<GpuInstance>,
    /// What its MIG devices have, where the driver tells.
    pub attributes: BTreeMap<DeviceId, Attributes>,
    /// The processes that the driver lists on it, its instances included. None where the list could not be read.
    pub processes: Vec<Process>,
    /// What it waits for a reset to repair, in words, where it must not be used before.
    pub pending_repair: Option<String>,
    /// How it replaces bad rows of its memory.
    pub remapping: RowRemapping,
    /// Why it does not answer, while that is so. Everything else is then as it was last seen.
    pub fault: Option<GpuError>,
}

/// How a GPU replaces bad rows of its memory. One that remaps them (Ampere and newer) contains their errors: it ends the
/// programs that used the row, and keeps everybody off it until a reset replaces it (NVIDIA's GPU Memory Error Management).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowRemapping {
    /// It does not, or the driver does not tell.
    #[default]
    Unsupported,
    /// It does, and no row waits.
    Settled,
    /// A row is remapped at the next reset. The GPU can be used meanwhile.
    Pending,
}

/// A GPU's MIG mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigMode {
    /// The GPU has none.
    Unsupported,
    /// On or off, as it should stay.
    Settled(bool),
    /// On or off, and the other once the GPU is reset.
    Pending(bool),
}

impl MigMode {
    /// Whether it is on now.
    #[must_use]
    pub fn is_on(self) -> bool {
        matches!(self, Self::Settled(true) | Self::Pending(true))
    }
}

/// Who may have a context on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One process at a time: with an MPS server running, its clients alone.
    ExclusiveProcess,
    /// No process (`PROHIBITED`), or one thread.
    Other,
}

impl ComputeMode {
    /// As kerf prints and notes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::ExclusiveProcess => "exclusive-process",
            Self::Other => "other",
        }
    }

    /// The mode that is noted so.
    #[must_use]
    pub fn from_note(text: &str) -> Option<Self> {
        [Self::Default, Self::ExclusiveProcess, Self::Other].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id in the host's PID namespace.
    pub pid: u32,
    /// The memory it uses, where the driver tells.
    pub memory: Option<MemoryMib>,
    /// The GPU instance it runs on.
    pub gi: Option<u32>,
    /// The compute instance of that GPU instance.
    pub ci: Option<u32>,
}

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its profile and place.
    pub instance: Instance,
    /// NVML's id of it, which is given again once it is destroyed.
    pub gi: u32,
    /// The compute instances on it.
    pub compute: Compute,
    /// Whether a process ran on it when it was looked at, or may have: the driver did not list them.
    pub has_processes: bool,
}

/// The compute instances of a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compute {
    /// None: its creation was cut short, or its destruction.
    Missing,
    /// One of full size, which is how kerf makes most.
    Full {
        /// NVML's id of it.
        ci: u32,
        /// The MIG device's UUID.
        device: DeviceId,
    },
    /// Several that share the GPU instance's memory, each with its place, in their order.
    Parts(Vec<ComputePart>),
    /// Others. Somebody else made them; kerf neither offers nor destroys such an instance.
    Foreign,
}

/// A compute instance that has a part of a GPU instance's compute slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputePart {
    /// Its place.
    pub instance: ComputeInstance,
    /// NVML's id of it.
    pub ci: u32,
    /// The MIG device's UUID.
    pub device: DeviceId,
}

impl GpuInstance {
    /// The MIG device of full size that a container can be given.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceId> {
        match &self.compute {
            Compute::Full { device, .. } => Some(device),
            Compute::Missing | Compute::Parts(_) | Compute::Foreign => None,
        }
    }

    /// Its compute instances: place (none for one of full size), NVML's id, MIG device.
    pub fn devices(&self) -> impl Iterator<Item = (Option<ComputeInstance>, u32, &DeviceId)> {
        let full = match &self.compute {
            Compute::Full { ci, device } => Some((None, *ci, device)),
            Compute::Missing | Compute::Parts(_) | Compute::Foreign => None,
        };
        let parts = match &self.compute {
            Compute::Parts(parts) => parts.as_slice(),
            Compute::Missing | Compute::Full { .. } | Compute::Foreign => &[],
        };
        full.into_iter().chain(parts.iter().map(|p| (Some(p.instance), p.ci, &p.device)))
    }
}

/// Whoever can see and cut the node's GPUs. Every call may block, and each can be repeated: it does what is left to do.
pub trait GpuBackend: Send {
    /// How many GPUs there are, whether or not they answer.
    fn count(&mut self) -> Result<u32, GpuError>;

    /// A backend for the GPU at `index` alone, for a thread of its own: no other GPU is called for what it is asked.
    fn for_one(&self, index: u32) -> Box<dyn GpuBackend>;

    /// All GPUs by index. One that does not answer keeps what was last seen of it, with its fault; one that never did is
    /// left out.
    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError>;

    /// GPUs that never answered, by index, with what the last look met; they are missing in what it gave.
    /// None for one whose GPUs always answer.
    fn silent(&self) -> &BTreeMap<u32, GpuError> {
        const { &BTreeMap::new() }
    }

    /// How busy these GPUs are, as far as the driver tells. None for one that measures nothing.
    fn utilization(&mut self, _gpus: &[Gpu]) -> BTreeMap<GpuUuid, Utilization> {
        BTreeMap::new()
    }

    /// Makes a compute instance in the GPU instance `wanted`: at the place `part`, or without one of full size. The GPU
    /// instance is made first where it is not there; if the compute instance is then refused, it goes again.
    fn create(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError>;

    /// Destroys a GPU instance with all its compute instances, or with `part` that one alone. What is gone counts as
    /// destroyed; one on which a process runs is refused, with the processes named.
    fn destroy(
        &mut self,
        gpu: &GpuUuid,
        instance: &GpuInstance,
        part: Option<ComputeInstance>,
    ) -> Result<(), GpuError>;

    /// Switches MIG mode. Refused where that takes a reset of the GPU, unless `reset` allows to leave the change pending
    /// until somebody resets it; refused while anything runs on the GPU or is cut from it.
    fn set_mig_mode(&mut self, gpu: &GpuUuid, on: bool, reset: bool) -> Result<(), GpuError>;

    /// The compute mode; `DEFAULT` of a GPU that has none.
    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, GpuError>;

    /// Sets the compute mode: [`ComputeMode::Other`] is `PROHIBITED`.
    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), GpuError>;

    /// Limits the GPU memory of the processes in a cgroup and below it, or with `None` lifts the limit. `cgroup` is the full
    /// path of its folder, `/sys/fs/cgroup/…`. Drivers from R615 on; a GPU in MIG mode has none.
    fn limit_memory(&mut self, gpu: &GpuUuid, cgroup: &str, limit: Option<MemoryMib>)
    -> Result<(), GpuError>;
}
