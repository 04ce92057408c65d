//! What NVML shows of a GPU, and the calls that change it.

use crate::process::Process;
use crate::{Driver, GpuError, Topology};
use kerf_core::gfd_labels::Attributes;
use kerf_core::mig::{ComputeInstance, Instance, MigTable};
use kerf_core::names::{DeviceId, GpuUuid, PciBusId};
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub uuid: GpuUuid,
    pub index: u32,
    /// The number in `/dev/nvidia<minor>`, which may change with the MIG mode.
    pub minor: u32,
    pub product: String,
    /// The short name of its model, `H100-80GB`.
    pub model: String,
    pub pci_bus_id: Option<PciBusId>,
    pub memory: MemoryMib,
    /// The part of the memory that the driver reserves, so that no process can have it.
    pub reserved: MemoryMib,
    pub used: MemoryMib,
    /// CUDA compute capability, major and minor.
    pub capability: (u32, u32),
    pub driver: Driver,
    pub topology: Topology,
    /// Its class on the PCI bus; `None` if it cannot be read.
    pub pci_class: Option<u32>,
    pub mig: MigMode,
    /// How many processes may have a context on it. It is `Default` on a GPU without compute modes.
    pub compute_mode: ComputeMode,
    /// The profiles that MIG offers; `None` while MIG mode is off.
    pub table: Option<MigTable>,
    pub instances: Vec<GpuInstance>,
    /// Attributes of its MIG devices, as far as the driver reports them.
    pub attributes: BTreeMap<DeviceId, Attributes>,
    /// The processes that the driver lists on it, its instances included. Empty if the list could not be read.
    pub processes: Vec<Process>,
    /// The repair for which it needs a reset, as a text, if it must not be used before.
    pub pending_repair: Option<String>,
    /// How it replaces bad rows of its memory.
    pub remapping: RowRemapping,
    /// Why it does not answer; `None` if it does. With a fault everything else is from its last observation.
    pub fault: Option<GpuError>,
}

impl Gpu {
    /// A GPU of which only the UUID is known. Its observation fills the other fields.
    #[must_use]
    pub fn empty(uuid: GpuUuid) -> Self {
        Self {
            uuid,
            index: 0,
            minor: 0,
            product: String::new(),
            model: String::new(),
            pci_bus_id: None,
            memory: MemoryMib(0),
            reserved: MemoryMib(0),
            used: MemoryMib(0),
            capability: (0, 0),
            driver: Driver { version: String::new(), cuda: (0, 0) },
            topology: Topology::default(),
            pci_class: None,
            mig: MigMode::Unsupported,
            compute_mode: ComputeMode::Default,
            table: None,
            instances: Vec::new(),
            attributes: BTreeMap::new(),
            processes: Vec::new(),
            pending_repair: None,
            remapping: RowRemapping::Unsupported,
            fault: None,
        }
    }
}

/// How a GPU replaces bad rows of its memory. A GPU that remaps rows (Ampere and newer) contains their errors: it ends
/// the programs that used the row, and keeps others off it until a reset replaces it (NVIDIA's GPU Memory Error
/// Management).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowRemapping {
    /// The GPU does not remap rows, or the driver does not report it.
    #[default]
    Unsupported,
    /// The GPU remaps rows, and none is pending.
    Settled,
    /// A row is remapped at the next reset. The GPU can be used meanwhile.
    Pending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigMode {
    /// The GPU has no MIG mode.
    Unsupported,
    /// The current mode, which stays: `true` is on.
    Settled(bool),
    /// The current mode, which changes at the next reset: `true` is on.
    Pending(bool),
}

impl MigMode {
    #[must_use]
    pub fn is_on(self) -> bool {
        matches!(self, Self::Settled(true) | Self::Pending(true))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    Default,
    /// One process at a time. While an MPS server runs, only its clients can use the GPU.
    ExclusiveProcess,
    /// No process (`PROHIBITED`), or one thread only.
    Other,
}

impl ComputeMode {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::ExclusiveProcess => "exclusive-process",
            Self::Other => "other",
        }
    }

    #[must_use]
    pub fn from_note(text: &str) -> Option<Self> {
        [Self::Default, Self::ExclusiveProcess, Self::Other].into_iter().find(|mode| mode.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    pub instance: Instance,
    /// NVML's id, which is reused once the instance is destroyed.
    pub gi: u32,
    pub compute: Compute,
    /// Whether a process ran on it at the last observation. Also `true` if the driver did not list the processes.
    pub has_processes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compute {
    /// There is none, because its creation or its destruction was interrupted.
    Missing,
    /// One of full size, which is what kerf usually makes.
    Full { ci: u32, device: DeviceId },
    /// Several that share the GPU instance's memory, each with its place, in their order.
    Parts(Vec<ComputePart>),
    /// kerf did not make these, so it neither offers nor destroys the instance.
    Foreign,
}

/// A compute instance that has a part of a GPU instance's compute slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputePart {
    pub instance: ComputeInstance,
    pub ci: u32,
    pub device: DeviceId,
}

impl GpuInstance {
    #[must_use]
    pub fn device(&self) -> Option<&DeviceId> {
        match &self.compute {
            Compute::Full { device, .. } => Some(device),
            Compute::Missing | Compute::Parts(_) | Compute::Foreign => None,
        }
    }

    /// Its compute instances: the place (`None` for one of full size), NVML's id, the MIG device.
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

/// How busy a GPU is, in percent of the time in which something ran. For GPUs and processes this is the driver's last
/// sample period; for instances it is the time since the previous measurement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Utilization {
    /// The GPU; `None` if the driver does not report it, as in MIG mode.
    pub gpu: Option<u32>,
    /// Its processes by id, without those that did nothing; `None` if the driver does not report them.
    pub processes: Option<BTreeMap<u32, u32>>,
    /// Its GPU instances by id. An instance is missing at its first measurement.
    pub instances: BTreeMap<u32, u32>,
}

/// A driver for the node's GPUs. Every call may block. Each call may be repeated, because it does only what is left to
/// do.
pub trait GpuBackend: Send {
    fn count(&mut self) -> Result<u32, GpuError>;

    /// A backend for the GPU at `index` only. It is for that GPU's own thread, so that a GPU that hangs blocks no
    /// other.
    fn for_one(&self, index: u32) -> Box<dyn GpuBackend>;

    /// All GPUs by index. A GPU that does not answer keeps its last state, with its fault, so that its instances still
    /// count as occupied. A GPU that never answered is left out, because nothing is known of it.
    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError>;

    /// GPUs that never answered, by index, with the error of the last observation. Empty for a backend whose GPUs
    /// always answer.
    fn unresponsive(&self) -> &BTreeMap<u32, GpuError> {
        const { &BTreeMap::new() }
    }

    /// How busy these GPUs are, as far as the driver reports it. Empty for a backend that measures nothing.
    fn utilization(&mut self, _gpus: &[Gpu]) -> BTreeMap<GpuUuid, Utilization> {
        BTreeMap::new()
    }

    /// Creates a compute instance in the GPU instance `wanted`: at the place `part`, or one of full size. A missing GPU
    /// instance is created first; it is destroyed again if the compute instance cannot be created.
    fn create(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError>;

    /// Destroys a GPU instance with all its compute instances, or only the compute instance `part`. A missing instance
    /// counts as destroyed, so that an interrupted call can be repeated. If a process runs on it the call fails, and
    /// the error lists the processes.
    fn destroy(
        &mut self,
        gpu: &GpuUuid,
        instance: &GpuInstance,
        part: Option<ComputeInstance>,
    ) -> Result<(), GpuError>;

    /// Switches MIG mode. If that needs a reset of the GPU, the call fails unless `reset` allows to leave the change
    /// pending until the reset. It also fails while a process or an instance is on the GPU.
    fn set_mig_mode(&mut self, gpu: &GpuUuid, on: bool, reset: bool) -> Result<(), GpuError>;

    /// The compute mode; `DEFAULT` for a GPU without compute modes.
    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, GpuError>;

    /// Sets the compute mode; [`ComputeMode::Other`] becomes `PROHIBITED`.
    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), GpuError>;

    /// Limits the GPU memory of the processes in a cgroup and below it; `None` lifts the limit. `cgroup` is the full
    /// path of its folder, `/sys/fs/cgroup/…`. It needs driver R615 or later, and a GPU that is not in MIG mode.
    fn limit_memory(&mut self, gpu: &GpuUuid, cgroup: &str, limit: Option<MemoryMib>)
    -> Result<(), GpuError>;
}
