//! What NVML says of the node's GPUs.

use super::differences::warn_of_differences;
use super::{NvmlBackend, ffi};
use crate::{Compute, Gpu, GpuError, GpuInstance};
use kerf_core::mig::{GiProfileId, Instance, MigTable, Placement, Profile, ProfileEntry};
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;

/// GPU instance profile indexes to try. NVML 13 knows 18 (`NVML_GPU_INSTANCE_PROFILE_COUNT`); newer drivers may know
/// more, and answer an index beyond theirs with an error that ends the walk.
const GI_PROFILE_INDEXES: u32 = 32;

/// Compute instance profile indexes to try: `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` is 9 with the NVL profile.
const CI_PROFILE_INDEXES: u32 = 9;

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;

/// The compute instance profiles of a GPU instance profile.
#[derive(Clone, Default)]
pub(super) struct ProfileIds {
    /// All of them.
    pub(super) all: Vec<u32>,
    /// The one that takes the whole GPU instance with the most multiprocessors: some have two of the same slices.
    pub(super) full: Option<u32>,
    /// All that take the whole GPU instance.
    pub(super) full_size: BTreeSet<u32>,
}

impl NvmlBackend {
    pub(super) fn observe_all(&mut self) -> Result<Vec<Gpu>, GpuError> {
        let count = self.nvml.device_count().map_err(GpuError::call("nvmlDeviceGetCount_v2"))?;
        (0..count).map(|index| self.observe_gpu(index)).collect()
    }

    fn observe_gpu(&mut self, index: u32) -> Result<Gpu, GpuError> {
        let device =
            self.nvml.device_by_index(index).map_err(GpuError::call("nvmlDeviceGetHandleByIndex_v2"))?;
        let uuid = GpuUuid::new(device.uuid().map_err(GpuError::call("nvmlDeviceGetUUID"))?);
        let product = device.name().map_err(GpuError::call("nvmlDeviceGetName"))?;
        let memory = device.memory_info().map_err(GpuError::call("nvmlDeviceGetMemoryInfo_v2"))?;
        let memory = MemoryMib(memory.total / MIB);
        let is_mig = is_mig_enabled(&device)?;
        let table = if is_mig { Some(self.table(&uuid, index, &product, memory)?) } else { None };
        let instances = match &table {
            Some(table) => self.instances(&uuid, index, table)?,
            None => Vec::new(),
        };
        Ok(Gpu { uuid, index, product, memory, table, instances })
    }

    fn table(
        &mut self,
        uuid: &GpuUuid,
        index: u32,
        product: &str,
        memory: MemoryMib,
    ) -> Result<MigTable, GpuError> {
        if let Some(known) = self.tables.get(uuid) {
            return Ok(known.clone());
        }
        let device =
            self.nvml.device_by_index(index).map_err(GpuError::call("nvmlDeviceGetHandleByIndex_v2"))?;
        let table = read_table(&device)?;
        warn_of_differences(uuid, product, memory, &table);
        self.tables.insert(uuid.clone(), table.clone());
        Ok(table)
    }

    fn instances(
        &mut self,
        uuid: &GpuUuid,
        index: u32,
        table: &MigTable,
    ) -> Result<Vec<GpuInstance>, GpuError> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        let busy = self.busy(index)?;
        for entry in table.entries() {
            let device =
                self.nvml.device_by_index(index).map_err(GpuError::call("nvmlDeviceGetHandleByIndex_v2"))?;
            let handles = ffi::gpu_instances(&device, entry.id.0)
                .map_err(GpuError::call("nvmlDeviceGetGpuInstances"))?;
            for gi in handles {
                let info = ffi::gi_info(&self.nvml, gi).map_err(GpuError::call("nvmlGpuInstanceGetInfo"))?;
                if seen.insert(info.id) {
                    let has_processes = busy.contains(&info.id);
                    let instance = Instance { profile: entry.profile, placement: placement(&info)? };
                    let compute = self.compute_of(uuid, gi, entry)?;
                    found.push(GpuInstance { instance, gi: info.id, compute, has_processes });
                }
            }
        }
        found.sort_by_key(|i| i.instance.placement.start);
        Ok(found)
    }

    /// Ids of the GPU instances on which processes run.
    fn busy(&self, index: u32) -> Result<BTreeSet<u32>, GpuError> {
        let device =
            self.nvml.device_by_index(index).map_err(GpuError::call("nvmlDeviceGetHandleByIndex_v2"))?;
        busy_instances(&device)
    }

    fn compute_of(
        &mut self,
        uuid: &GpuUuid,
        gi: ffi::GiHandle,
        entry: &ProfileEntry,
    ) -> Result<Compute, GpuError> {
        let ids = self.compute_profiles(uuid, gi, entry)?;
        let mut found = Vec::new();
        for profile in &ids.all {
            let handles = ffi::compute_instances(&self.nvml, gi, *profile)
                .map_err(GpuError::call("nvmlGpuInstanceGetComputeInstances"))?;
            found.extend(handles.into_iter().map(|ci| (*profile, ci)));
        }
        match found.as_slice() {
            [] => Ok(Compute::Missing),
            [(profile, ci)] if ids.full_size.contains(profile) => {
                let uuid = ffi::mig_uuid(&self.nvml, *ci)
                    .map_err(GpuError::call("nvmlComputeInstanceGetInfo_v2"))?;
                Ok(Compute::Full { device: DeviceId::new(uuid) })
            }
            _ => Ok(Compute::Foreign),
        }
    }

    /// The compute instance profiles of GPU instances like `gi`.
    pub(super) fn compute_profiles(
        &mut self,
        uuid: &GpuUuid,
        gi: ffi::GiHandle,
        entry: &ProfileEntry,
    ) -> Result<ProfileIds, GpuError> {
        let key = (uuid.clone(), entry.id.0);
        if let Some(known) = self.compute.get(&key) {
            return Ok(known.clone());
        }
        let mut profiles = Vec::new();
        for index in 0..CI_PROFILE_INDEXES {
            match ffi::ci_profile(&self.nvml, gi, index) {
                Ok(profile) => profiles.push(profile),
                Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
                Err(error) => {
                    return Err(GpuError::call("nvmlGpuInstanceGetComputeInstanceProfileInfo")(error));
                }
            }
        }
        let full: Vec<_> =
            profiles.iter().filter(|p| p.slices == u32::from(entry.profile.compute())).collect();
        let ids = ProfileIds {
            all: profiles.iter().map(|p| p.id).collect(),
            full: full.iter().max_by_key(|p| p.multiprocessors).map(|p| p.id),
            full_size: full.iter().map(|p| p.id).collect(),
        };
        self.compute.insert(key, ids.clone());
        Ok(ids)
    }
}

/// Ids of the GPU instances of `device` on which processes run.
pub(super) fn busy_instances(device: &Device<'_>) -> Result<BTreeSet<u32>, GpuError> {
    let compute = device
        .running_compute_processes()
        .map_err(GpuError::call("nvmlDeviceGetComputeRunningProcesses_v3"))?;
    let graphics = device
        .running_graphics_processes()
        .map_err(GpuError::call("nvmlDeviceGetGraphicsRunningProcesses_v3"))?;
    Ok(compute.iter().chain(&graphics).filter_map(|p| p.gpu_instance_id).collect())
}

fn is_mig_enabled(device: &Device<'_>) -> Result<bool, GpuError> {
    match device.mig_mode() {
        Ok(mode) => Ok(mode.current == MIG_ENABLED),
        Err(NvmlError::NotSupported) => Ok(false),
        Err(error) => Err(GpuError::call("nvmlDeviceGetMigMode")(error)),
    }
}

fn read_table(device: &Device<'_>) -> Result<MigTable, GpuError> {
    let mut entries = Vec::new();
    for index in 0..GI_PROFILE_INDEXES {
        match ffi::gi_profile(device, index) {
            Ok(profile) => entries.extend(read_entry(device, &profile)?),
            Err(NvmlError::NotSupported) => {}
            Err(NvmlError::InvalidArg) => break,
            Err(error) => return Err(GpuError::call("nvmlDeviceGetGpuInstanceProfileInfoV")(error)),
        }
    }
    Ok(MigTable::new(entries))
}

const PLACEMENTS: &str = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";

/// The entry of a profile; `None` for one with a name that kerf does not know, which it then does not cut.
fn read_entry(device: &Device<'_>, profile: &ffi::GiProfile) -> Result<Option<ProfileEntry>, GpuError> {
    let name = profile.name.strip_prefix("MIG ").unwrap_or(&profile.name);
    let Ok(parsed) = name.parse::<Profile>() else {
        tracing::warn!(name, id = profile.id, "a GPU instance profile has a name that kerf does not know");
        return Ok(None);
    };
    let places = ffi::placements(device, profile.id).map_err(GpuError::call(PLACEMENTS))?;
    let mut starts =
        places.iter().map(|(start, _)| narrow(PLACEMENTS, *start)).collect::<Result<Vec<_>, _>>()?;
    starts.sort_unstable();
    let Some((_, size)) = places.first() else { return Ok(None) };
    Ok(Some(ProfileEntry {
        id: GiProfileId(profile.id),
        profile: parsed,
        memory: MemoryMib(profile.memory_mib),
        size: narrow(PLACEMENTS, *size)?,
        starts,
        max: narrow("nvmlDeviceGetGpuInstanceProfileInfoV", profile.instances)?,
    }))
}

pub(super) fn placement(info: &ffi::GiInfo) -> Result<Placement, GpuError> {
    const CALL: &str = "nvmlGpuInstanceGetInfo";
    Ok(Placement { start: narrow(CALL, info.start)?, size: narrow(CALL, info.size)? })
}

fn narrow(call: &'static str, number: u32) -> Result<u8, GpuError> {
    u8::try_from(number).map_err(|_| GpuError::Malformed { call, what: format!("the number {number}") })
}
