//! The state of a simulated node, as its file holds it: GPUs, their modes, what is cut. Read by tests and demos.
//!
//! Changes are those of `lifecycle`, `mode`, `ecc` and `memory_limits`; this module only describes and looks things up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::MockConfig;
use crate::ecc::EccState;
use crate::files::{self, FileError};
use crate::identity;
use crate::model::Model;
use crate::profile::Profile;
use crate::rules::{self, Placed, Placement};

/// The format that this version writes.
const FORMAT: u32 = 2;

/// A node: everything that survives the end of the agent and not a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MockState {
    /// Format of the file.
    pub format: u32,
    /// The boot that this state belongs to.
    pub boot_id: String,
    /// `nvmlSystemGetDriverVersion`.
    pub driver_version: String,
    /// `nvmlSystemGetCudaDriverVersion`.
    pub cuda_version: i32,
    /// Ampere switches MIG mode at once.
    pub ampere_reset_free: bool,
    /// The last serial given to an instance. Never goes back, not even at a reboot.
    pub last_serial: u32,
    /// How often each counted fault has struck.
    pub faults_struck: BTreeMap<String, u32>,
    /// What of the control file has happened: `ecc/<id>` and `reset/<id>`.
    pub happened: BTreeSet<String>,
    /// The calls that hang; see [`MockState::hanging_now`].
    pub hanging: Vec<HangingCall>,
    /// How often each function was called while the control file asked for it.
    pub calls: BTreeMap<String, u64>,
    /// The GPUs by index.
    pub gpus: Vec<GpuState>,
}

/// A call that hangs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangingCall {
    /// The process that waits.
    pub pid: u32,
    /// The function.
    pub function: String,
    /// Index of the GPU that the call names, if it names one.
    pub gpu: Option<u32>,
}

/// MIG mode as NVML tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigModeState {
    /// In force.
    pub current: bool,
    /// In force after the next reset.
    pub pending: bool,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    /// Index.
    pub index: u32,
    /// The number of `/dev/nvidia<minor>` and of `gpu<minor>` among the capabilities. The index until a change of MIG
    /// mode takes effect at once.
    pub minor: u32,
    /// The model.
    pub model: Model,
    /// `GPU-…`.
    pub uuid: String,
    /// Board serial.
    pub serial_number: String,
    /// MIG mode.
    pub mig: MigModeState,
    /// `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive process.
    pub compute_mode: u32,
    /// Persistence mode.
    pub persistence: bool,
    /// Memory errors.
    pub ecc: EccState,
    /// Memory limits by the folder of their cgroup. They outlive the folder, for what a soft limit that is not zero
    /// reserves is lost to the cgroups above it then.
    pub memory_limits: BTreeMap<String, MemoryLimits>,
    /// GPU instances by id.
    pub instances: Vec<GpuInstance>,
    /// Where its NVLinks end, by PCI address.
    #[serde(default)]
    pub nvlinks: Vec<String>,
    /// Its NUMA node.
    #[serde(default)]
    pub numa_node: Option<u32>,
}

/// Limits of one cgroup's use of one GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimits {
    /// What the cgroup is sure to get.
    pub soft: u64,
    /// What it cannot exceed; `u64::MAX` for no limit.
    pub hard: u64,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// Id, free for use again once the instance is gone.
    pub id: u32,
    /// Id of its profile.
    pub profile_id: u32,
    /// Where it lies.
    pub placement: Placement,
    /// Never given twice; handles carry it.
    pub serial: u32,
    /// Compute instances by id.
    pub compute: Vec<ComputeInstance>,
    /// Errors outside DRAM that hit this instance and could not be corrected.
    pub sram_uncorrected: u64,
}

/// A compute instance, which is what NVML calls a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Id within its GPU instance.
    pub id: u32,
    /// Id of its profile.
    pub profile_id: u32,
    /// Where it lies on the GPU instance's compute slices.
    pub placement: Placement,
    /// Never given twice.
    pub serial: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// Index among the GPU's MIG devices, as `nvmlDeviceGetMigDeviceHandleByIndex` counts.
    pub mig_index: u32,
}

/// One cut slice as an onlooker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the GPU.
    pub gpu_index: u32,
    /// `GPU-…`.
    pub gpu_uuid: String,
    /// `1g.10gb`.
    pub profile: String,
    /// GPU instance id.
    pub gi: u32,
    /// Memory slices.
    pub placement: Placement,
    /// The MIG UUIDs of its compute instances; empty while only the GPU instance exists.
    pub mig_uuids: Vec<String>,
}

impl MockState {
    /// The state of a node at its first boot.
    pub fn first_boot(config: &MockConfig) -> Result<MockState, FileError> {
        config.check()?;
        let mut gpus = Vec::new();
        for group in &config.gpus {
            for _ in 0..group.count {
                let index = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
                let uuid = group.uuid.clone().unwrap_or_else(|| identity::gpu_uuid(&config.seed, index));
                let on = group.mig_enabled && group.model.has_mig();
                gpus.push(GpuState {
                    index,
                    minor: index,
                    model: group.model,
                    serial_number: identity::board_serial(&uuid),
                    uuid,
                    mig: MigModeState { current: on, pending: on },
                    compute_mode: 0,
                    persistence: true,
                    ecc: EccState::default(),
                    memory_limits: BTreeMap::new(),
                    instances: Vec::new(),
                    nvlinks: config.nvlinks(index).collect(),
                    numa_node: config.numa_nodes.get(index as usize).copied(),
                });
            }
        }
        Ok(MockState {
            format: FORMAT,
            boot_id: config.boot_id.clone(),
            driver_version: config.driver_version.clone(),
            cuda_version: config.cuda_version,
            ampere_reset_free: config.ampere_reset_free,
            last_serial: 0,
            faults_struck: BTreeMap::new(),
            happened: BTreeSet::new(),
            hanging: Vec::new(),
            calls: BTreeMap::new(),
            gpus,
        })
    }

    /// Reads a state file. Fails while no process has called `nvmlInit` on it yet.
    pub fn load(path: &Path) -> Result<MockState, FileError> {
        files::read(path)?.ok_or_else(|| FileError::Read {
            path: path.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Replaces a state file, for a node on which no program runs: it heeds no lock.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        files::write(path, self)
    }

    /// The calls that hang now. A process that is killed while it waits cannot take its line out, so those of processes
    /// that are gone are left out here, and taken out when the next call hangs.
    #[must_use]
    pub fn hanging_now(&self) -> Vec<&HangingCall> {
        self.hanging.iter().filter(|call| call.is_running()).collect()
    }

    /// Every GPU instance of the node, by GPU and place.
    #[must_use]
    pub fn slices(&self) -> Vec<Slice> {
        let mut slices: Vec<Slice> = self.gpus.iter().flat_map(GpuState::slices).collect();
        slices.sort_by_key(|slice| (slice.gpu_index, slice.placement));
        slices
    }

    /// The GPU with that UUID.
    #[must_use]
    pub fn gpu(&self, uuid: &str) -> Option<&GpuState> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }
}

impl HangingCall {
    /// Whether its process runs. One that ended and that nobody has waited for has no program any more.
    pub(crate) fn is_running(&self) -> bool {
        let program = std::fs::read_link(format!("/proc/{}/exe", self.pid));
        program.map_or_else(|error| error.kind() != std::io::ErrorKind::NotFound, |_| true)
    }
}

impl GpuState {
    pub(crate) fn placed(&self) -> Vec<Placed<'static>> {
        let known = self.instances.iter().filter_map(|instance| {
            let profile = self.model.profile(instance.profile_id)?;
            Some(Placed { profile, placement: instance.placement })
        });
        known.collect()
    }

    /// The places where the profile of that id could be created now, by start; empty for an unknown id.
    #[must_use]
    pub fn free_places(&self, profile_id: u32) -> Vec<Placement> {
        let profile = self.model.profile(profile_id);
        profile.map_or_else(Vec::new, |profile| rules::free_places(self.model, &self.placed(), profile))
    }

    /// The profile of one of this GPU's instances.
    #[must_use]
    pub fn profile_of(&self, instance: &GpuInstance) -> Option<&'static Profile> {
        self.model.profile(instance.profile_id)
    }

    /// Every rule that the present instances break. Empty unless the file was changed by hand.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let placed = self.placed();
        let broken = (0..placed.len()).filter_map(|n| {
            let refusal = rules::admit(self.model, &placed[..n], placed[n]).err()?;
            Some(format!("GPU {} {}: {refusal:?}", self.index, placed[n].profile.name))
        });
        broken.collect()
    }

    fn slices(&self) -> Vec<Slice> {
        let slice = |instance: &GpuInstance| Slice {
            gpu_index: self.index,
            gpu_uuid: self.uuid.clone(),
            profile: self.profile_of(instance).map_or_else(String::new, |profile| profile.name.clone()),
            gi: instance.id,
            placement: instance.placement,
            mig_uuids: instance.compute.iter().map(|compute| compute.uuid.clone()).collect(),
        };
        self.instances.iter().map(slice).collect()
    }

    pub(crate) fn instance(&self, serial: u32) -> Option<&GpuInstance> {
        self.instances.iter().find(|instance| instance.serial == serial)
    }

    pub(crate) fn compute(&self, serial: u32) -> Option<(&GpuInstance, &ComputeInstance)> {
        self.compute_instances().find(|(_, compute)| compute.serial == serial)
    }

    /// All MIG devices of the GPU.
    pub(crate) fn compute_instances(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.instances.iter().flat_map(|instance| instance.compute.iter().map(move |one| (instance, one)))
    }
}
