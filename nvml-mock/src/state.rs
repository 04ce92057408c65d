//! The state of a simulated node, in the form of its file: GPUs, their modes, their instances. Tests and demos read it.
//!
//! The changes are in `lifecycle`, `mode`, `ecc` and `memory_limits`; this module only describes and looks things up.

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

/// The file format that this version writes.
const FORMAT: u32 = 2;

/// A node: everything that survives the end of the agent and not a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MockState {
    pub format: u32,
    /// The boot that this state belongs to.
    pub boot_id: String,
    /// The answer to `nvmlSystemGetDriverVersion`.
    pub driver_version: String,
    /// The answer to `nvmlSystemGetCudaDriverVersion`.
    pub cuda_version: i32,
    /// Whether Ampere switches MIG mode at once.
    pub ampere_reset_free: bool,
    /// The last serial of an instance. It never decreases, not even at a reboot.
    pub last_serial: u32,
    /// How often each counted fault has struck.
    pub faults_struck: BTreeMap<String, u32>,
    /// Events of the control file that have taken effect: `ecc/<id>` and `reset/<id>`.
    pub happened: BTreeSet<String>,
    /// The calls that hang; see [`MockState::hanging_now`].
    pub hanging: Vec<HangingCall>,
    /// How often each function was called while the control file enabled counting.
    pub calls: BTreeMap<String, u64>,
    pub gpus: Vec<GpuState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangingCall {
    pub pid: u32,
    pub function: String,
    /// Index of the GPU that the call names; `None` if it names none.
    pub gpu: Option<u32>,
}

/// MIG mode as NVML reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigModeState {
    /// Whether it is on now.
    pub current: bool,
    /// Whether it is on after the next reset.
    pub pending: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    pub index: u32,
    /// The number in `/dev/nvidia<minor>` and in `gpu<minor>` among the capabilities. It is the index until a switch of
    /// MIG mode takes effect at once.
    pub minor: u32,
    pub model: Model,
    pub uuid: String,
    pub serial_number: String,
    pub mig: MigModeState,
    /// The value of `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive process.
    pub compute_mode: u32,
    pub persistence: bool,
    pub ecc: EccState,
    /// Memory limits by the folder of their cgroup. They outlive the folder: the memory that a nonzero soft limit
    /// reserves is then lost to the cgroups above.
    pub memory_limits: BTreeMap<String, MemoryLimits>,
    /// The GPU instances, sorted by id.
    pub instances: Vec<GpuInstance>,
    /// Where its NVLinks end, by PCI address.
    #[serde(default)]
    pub nvlinks: Vec<String>,
    #[serde(default)]
    pub numa_node: Option<u32>,
}

/// Limits of one cgroup's use of one GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimits {
    /// The memory that is guaranteed to the cgroup.
    pub soft: u64,
    /// The memory that it cannot exceed; `u64::MAX` for no limit.
    pub hard: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// The id, which may be reused once the instance is gone.
    pub id: u32,
    pub profile_id: u32,
    /// Its place on the memory-slice axis.
    pub placement: Placement,
    /// Never reused; handles contain it.
    pub serial: u32,
    /// The compute instances, sorted by id.
    pub compute: Vec<ComputeInstance>,
    /// Uncorrected errors outside DRAM that hit this instance.
    pub sram_uncorrected: u64,
}

/// A compute instance, which NVML calls a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// The id within its GPU instance.
    pub id: u32,
    pub profile_id: u32,
    /// Its place on the GPU instance's compute slices.
    pub placement: Placement,
    /// Never reused; handles contain it.
    pub serial: u32,
    pub uuid: String,
    /// Index among the GPU's MIG devices, as `nvmlDeviceGetMigDeviceHandleByIndex` counts.
    pub mig_index: u32,
}

/// One GPU instance, in a form for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub gpu_index: u32,
    pub gpu_uuid: String,
    /// The profile's name, such as `1g.10gb`.
    pub profile: String,
    pub gi: u32,
    /// Its place on the memory-slice axis.
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

    /// Replaces a state file of a node on which no program runs, because it ignores the lock.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        files::write(path, self)
    }

    /// The calls that hang now. A process that is killed while it waits cannot remove its entry. So entries of ended
    /// processes are left out here, and removed when the next call hangs.
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

    #[must_use]
    pub fn gpu(&self, uuid: &str) -> Option<&GpuState> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }
}

impl HangingCall {
    /// Whether its process runs. A zombie has no program any more.
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

    #[must_use]
    pub fn profile_of(&self, instance: &GpuInstance) -> Option<&'static Profile> {
        self.model.profile(instance.profile_id)
    }

    /// Every rule that the current instances break. Empty unless the file was changed by hand.
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

    pub(crate) fn compute_instances(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.instances.iter().flat_map(|instance| instance.compute.iter().map(move |one| (instance, one)))
    }
}
