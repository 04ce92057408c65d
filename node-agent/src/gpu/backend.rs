//! What is seen of a GPU, and the calls that change it.

use super::GpuError;
use kerf_core::mig::{Instance, MigTable};
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;

/// One GPU as NVML shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Its NVML index.
    pub index: u32,
    /// The product name.
    pub product: String,
    /// Total memory.
    pub memory: MemoryMib,
    /// What MIG offers; `None` while MIG mode is off.
    pub table: Option<MigTable>,
    /// The GPU instances on it.
    pub instances: Vec<GpuInstance>,
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
    /// Whether a process ran on it when it was looked at.
    pub has_processes: bool,
}

/// The compute instances of a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compute {
    /// None: its creation was cut short, or its destruction.
    Missing,
    /// One of full size, which is how kerf makes them.
    Full {
        /// The MIG device's UUID.
        device: DeviceId,
    },
    /// Others. Somebody else made them; kerf neither offers nor destroys such an instance.
    Foreign,
}

impl GpuInstance {
    /// The MIG device that a container can be given.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceId> {
        match &self.compute {
            Compute::Full { device } => Some(device),
            Compute::Missing | Compute::Foreign => None,
        }
    }
}

/// Whoever can see and cut the node's GPUs. Every call may block, and each can be repeated: it does what is left to do.
pub trait GpuBackend {
    /// All GPUs by index.
    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError>;

    /// Makes a GPU instance at its place, with one compute instance of full size. If the latter fails the former goes
    /// again. An instance of the same profile at that place which has no compute instance is completed.
    fn create(&mut self, gpu: &GpuUuid, wanted: Instance) -> Result<GpuInstance, GpuError>;

    /// Destroys a GPU instance and its compute instance. One that is gone counts as destroyed; one on which a process
    /// runs is refused.
    fn destroy(&mut self, gpu: &GpuUuid, instance: &GpuInstance) -> Result<(), GpuError>;
}
