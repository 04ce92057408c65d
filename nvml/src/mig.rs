//! Making and destroying GPU instances, each so that it can be repeated after being cut short.

use super::discover::{busy_instances, placement};
use super::{NvmlBackend, ffi};
use crate::{Compute, GpuError, GpuInstance};
use kerf_core::mig::{Instance, ProfileEntry};
use kerf_core::names::{DeviceId, GpuUuid};

impl NvmlBackend {
    pub(super) fn create_instance(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
    ) -> Result<GpuInstance, GpuError> {
        let entry = self.entry(gpu, wanted)?;
        let gi = match self.unfinished(gpu, wanted, &entry)? {
            Some(gi) => gi,
            None => self.create_gi(gpu, wanted, &entry)?,
        };
        match self.complete(gpu, wanted, gi, &entry) {
            Ok(instance) => Ok(instance),
            Err(error) => {
                if let Err(second) = ffi::destroy_gi(&self.nvml, gi) {
                    let second = GpuError::call("nvmlGpuInstanceDestroy")(second);
                    tracing::warn!(%gpu, %error, %second, "a GPU instance without compute instance stays behind");
                }
                Err(error)
            }
        }
    }

    fn entry(&self, gpu: &GpuUuid, wanted: Instance) -> Result<ProfileEntry, GpuError> {
        let entry = self.tables.get(gpu).and_then(|table| table.entry(wanted.profile));
        entry.cloned().ok_or(GpuError::NoSuchProfile(wanted.profile))
    }

    /// A GPU instance as wanted which has no compute instance: what a creation left behind that was cut short.
    fn unfinished(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
        entry: &ProfileEntry,
    ) -> Result<Option<ffi::GiHandle>, GpuError> {
        let device = self.device(gpu)?;
        let handles =
            ffi::gpu_instances(&device, entry.id.0).map_err(GpuError::call("nvmlDeviceGetGpuInstances"))?;
        for gi in handles {
            let info = ffi::gi_info(&self.nvml, gi).map_err(GpuError::call("nvmlGpuInstanceGetInfo"))?;
            if placement(&info)? == wanted.placement && self.instances_of(gpu, gi, entry)?.is_empty() {
                return Ok(Some(gi));
            }
        }
        Ok(None)
    }

    fn create_gi(
        &self,
        gpu: &GpuUuid,
        wanted: Instance,
        entry: &ProfileEntry,
    ) -> Result<ffi::GiHandle, GpuError> {
        let device = self.device(gpu)?;
        let (start, size) = (u32::from(wanted.placement.start), u32::from(wanted.placement.size));
        ffi::create_gi(&device, entry.id.0, start, size)
            .map_err(GpuError::call("nvmlDeviceCreateGpuInstanceWithPlacement"))
    }

    fn complete(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
        gi: ffi::GiHandle,
        entry: &ProfileEntry,
    ) -> Result<GpuInstance, GpuError> {
        let info = ffi::gi_info(&self.nvml, gi).map_err(GpuError::call("nvmlGpuInstanceGetInfo"))?;
        let profiles = self.compute_profiles(gpu, gi, entry)?;
        let profile = profiles.full.ok_or(GpuError::NoFullCompute(wanted.profile))?;
        let ci = ffi::create_ci(&self.nvml, gi, profile)
            .map_err(GpuError::call("nvmlGpuInstanceCreateComputeInstance"))?;
        let uuid = ffi::mig_uuid(&self.nvml, ci).map_err(GpuError::call("nvmlComputeInstanceGetInfo_v2"));
        let uuid = uuid.inspect_err(|_| {
            // Best effort: without its UUID nobody can be given the device, and the caller removes the GPU instance.
            drop(ffi::destroy_ci(&self.nvml, ci));
        })?;
        Ok(GpuInstance {
            instance: wanted,
            gi: info.id,
            compute: Compute::Full { device: DeviceId::new(uuid) },
            has_processes: false,
        })
    }

    pub(super) fn destroy_instance(&mut self, gpu: &GpuUuid, instance: &GpuInstance) -> Result<(), GpuError> {
        let device = self.device(gpu)?;
        let found =
            ffi::gpu_instance(&device, instance.gi).map_err(GpuError::call("nvmlDeviceGetGpuInstanceById"));
        let gi = match found {
            Ok(gi) => gi,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let info = ffi::gi_info(&self.nvml, gi).map_err(GpuError::call("nvmlGpuInstanceGetInfo"))?;
        if placement(&info)? != instance.instance.placement {
            return Err(GpuError::Changed(instance.gi));
        }
        if busy_instances(&device)?.contains(&instance.gi) {
            return Err(GpuError::Busy);
        }
        let entry = self.entry(gpu, instance.instance)?;
        for ci in self.instances_of(gpu, gi, &entry)? {
            gone(ffi::destroy_ci(&self.nvml, ci).map_err(GpuError::call("nvmlComputeInstanceDestroy")))?;
        }
        gone(ffi::destroy_gi(&self.nvml, gi).map_err(GpuError::call("nvmlGpuInstanceDestroy")))
    }

    fn instances_of(
        &mut self,
        gpu: &GpuUuid,
        gi: ffi::GiHandle,
        entry: &ProfileEntry,
    ) -> Result<Vec<ffi::CiHandle>, GpuError> {
        let mut found = Vec::new();
        for profile in self.compute_profiles(gpu, gi, entry)?.all {
            let handles = ffi::compute_instances(&self.nvml, gi, profile);
            found.extend(handles.map_err(GpuError::call("nvmlGpuInstanceGetComputeInstances"))?);
        }
        Ok(found)
    }
}

/// What is not there any more counts as destroyed.
fn gone(result: Result<(), GpuError>) -> Result<(), GpuError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
