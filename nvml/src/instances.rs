//! Reads the GPU instances of a GPU and their compute instances.

use crate::ffi::{self, CiHandle, GiHandle};
use crate::tables::{CiProfiles, Tables, narrow};
use crate::{Compute, ComputePart, GpuError, GpuInstance, NvmlBackend, Process, attributes};
use kerf_core::gfd_labels::Attributes;
use kerf_core::mig::{
    ComputeGeometry, ComputeInstance, Instance, MigTable, Placement, Profile, ProfileEntry,
};
use kerf_core::names::{DeviceId, GpuUuid};
use nvml_wrapper::{Device, Nvml};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Site<'a> {
    pub(crate) nvml: &'a Nvml,
    pub(crate) device: Device<'a>,
    pub(crate) gpu: &'a GpuUuid,
    pub(crate) tables: &'a mut Tables,
    /// The attributes of its MIG devices; `None` if the caller did not ask for them. Known ones are not read again,
    /// because they never change.
    pub(crate) attributes: Option<BTreeMap<DeviceId, Attributes>>,
}

pub(crate) struct Found {
    pub(crate) handle: CiHandle,
    pub(crate) ci: u32,
    pub(crate) profile: u32,
    pub(crate) place: ComputeInstance,
    pub(crate) device: DeviceId,
}

impl NvmlBackend {
    pub(crate) fn site<'a>(&'a mut self, gpu: &'a GpuUuid) -> Result<Site<'a>, GpuError> {
        let device = device(&self.nvml, self.indexes()?, gpu)?;
        Ok(Site { nvml: &self.nvml, device, gpu, tables: &mut self.tables, attributes: None })
    }
}

/// The handle of `gpu`, which is one of those at `indexes`. The search goes by index, because by nvml.h
/// `nvmlDeviceGetHandleByUUID` fails if any GPU has fallen off the bus, and `nvmlDeviceGetHandleByIndex_v2` only if the
/// GPU at that index has.
pub(crate) fn device<'a>(
    nvml: &'a Nvml,
    indexes: impl IntoIterator<Item = u32>,
    gpu: &GpuUuid,
) -> Result<Device<'a>, GpuError> {
    let mut unknown = None;
    for index in indexes {
        match find_by_index(nvml, index) {
            Ok((device, uuid)) if uuid == *gpu => return Ok(device),
            Ok(_) => {}
            // This error is kept, because the GPU that cannot be read may be the requested one.
            Err(error) => unknown = unknown.or(Some(error)),
        }
    }
    Err(unknown.unwrap_or_else(|| GpuError::NoSuchGpu(gpu.clone())))
}

pub(crate) fn find_by_index(nvml: &Nvml, index: u32) -> Result<(Device<'_>, GpuUuid), GpuError> {
    let device = nvml.device_by_index(index).map_err(GpuError::call("nvmlDeviceGetHandleByIndex_v2"))?;
    let uuid = device.uuid().map_err(GpuError::call("nvmlDeviceGetUUID"))?;
    Ok((device, GpuUuid::new(uuid)))
}

impl Site<'_> {
    pub(crate) fn entry(&mut self, profile: Profile) -> Result<ProfileEntry, GpuError> {
        let table = self.tables.get(self.gpu, &self.device)?;
        table.entry(profile).cloned().ok_or(GpuError::NoSuchProfile(profile))
    }

    pub(crate) fn instances(
        &mut self,
        table: &MigTable,
        processes: Option<&[Process]>,
    ) -> Result<Vec<GpuInstance>, GpuError> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for entry in table.entries() {
            for gi in self.with_profile(entry)? {
                let info = self.info(gi)?;
                if seen.insert(info.id) {
                    let instance = Instance { profile: entry.profile, placement: placement(&info)? };
                    found.push(GpuInstance {
                        instance,
                        gi: info.id,
                        compute: self.compute(gi, entry)?,
                        // Without a process list the instance counts as occupied, because it must not be destroyed
                        // under a process.
                        has_processes: processes
                            .is_none_or(|listed| listed.iter().any(|p| p.gi == Some(info.id))),
                    });
                }
            }
        }
        found.sort_by_key(|i| i.instance.placement.start);
        Ok(found)
    }

    pub(crate) fn with_profile(&self, entry: &ProfileEntry) -> Result<Vec<GiHandle>, GpuError> {
        ffi::gpu_instances(&self.device, entry.id.0).map_err(GpuError::call("nvmlDeviceGetGpuInstances"))
    }

    pub(crate) fn info(&self, gi: GiHandle) -> Result<ffi::GiInfo, GpuError> {
        ffi::gi_info(self.nvml, gi).map_err(GpuError::call("nvmlGpuInstanceGetInfo"))
    }

    pub(crate) fn compute(&mut self, gi: GiHandle, entry: &ProfileEntry) -> Result<Compute, GpuError> {
        let profiles = self.tables.compute(self.gpu, self.nvml, gi, entry)?;
        let found = self.compute_instances(gi, &profiles)?;
        Ok(classify(entry.profile, &profiles, found))
    }

    pub(crate) fn compute_instances(
        &mut self,
        gi: GiHandle,
        profiles: &CiProfiles,
    ) -> Result<Vec<Found>, GpuError> {
        let mut found = Vec::new();
        for profile in &profiles.all {
            let handles = ffi::compute_instances(self.nvml, gi, *profile)
                .map_err(GpuError::call("nvmlGpuInstanceGetComputeInstances"))?;
            for handle in handles {
                found.push(self.read_compute(handle, *profile)?);
            }
        }
        Ok(found)
    }

    fn read_compute(&mut self, handle: CiHandle, profile: u32) -> Result<Found, GpuError> {
        const CALL: &str = "nvmlComputeInstanceGetInfo_v2";
        let info = ffi::ci_info(self.nvml, handle).map_err(GpuError::call(CALL))?;
        let uuid = info.device.uuid().map_err(GpuError::call("nvmlDeviceGetUUID"))?;
        let place = ComputeInstance { start: narrow(CALL, info.start)?, compute: narrow(CALL, info.size)? };
        let device = DeviceId::new(uuid);
        if let Some(known) = &mut self.attributes
            && !known.contains_key(&device)
        {
            known.extend(attributes::read(&info.device, &device).map(|read| (device.clone(), read)));
        }
        Ok(Found { handle, ci: info.id, profile, place, device })
    }
}

/// Classifies `found`: one of full size, legal parts by their places, or foreign ones.
fn classify(of: Profile, profiles: &CiProfiles, mut found: Vec<Found>) -> Compute {
    if found.is_empty() {
        return Compute::Missing;
    }
    if let [one] = found.as_slice()
        && profiles.full_size.contains(&one.profile)
    {
        return Compute::Full { ci: one.ci, device: one.device.clone() };
    }
    let is_legal = ComputeGeometry::from_instances(of, found.iter().map(|one| one.place)).is_ok();
    if !is_legal || !found.iter().all(|one| profiles.is_plain(one.profile)) {
        return Compute::Foreign;
    }
    found.sort_by_key(|one| one.place);
    let part = |one: Found| ComputePart { instance: one.place, ci: one.ci, device: one.device };
    Compute::Parts(found.into_iter().map(part).collect())
}

pub(crate) fn placement(info: &ffi::GiInfo) -> Result<Placement, GpuError> {
    const CALL: &str = "nvmlGpuInstanceGetInfo";
    Ok(Placement { start: narrow(CALL, info.start)?, size: narrow(CALL, info.size)? })
}
