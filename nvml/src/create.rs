//! Creates instances, in steps that can be repeated after an interruption.

use crate::ffi::{self, CiHandle, GiHandle};
use crate::instances::{Site, placement};
use crate::processes::{self, refusal};
use crate::tables::CiProfiles;
use crate::{GpuError, GpuInstance, NvmlBackend};
use kerf_core::mig::{ComputeInstance, Instance, ProfileEntry};
use kerf_core::names::GpuUuid;

impl NvmlBackend {
    pub(crate) fn create_instance(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError> {
        let mut site = self.site(gpu)?;
        let entry = site.entry(wanted.profile)?;
        // A GPU instance may exist already, because an earlier call was interrupted or its answer was lost.
        let (gi, is_new) = match site.find(wanted, &entry, part)? {
            Some(gi) => (gi, false),
            None => (site.create_gi(wanted, &entry)?, true),
        };
        let made = site.create_compute(gi, wanted, &entry, part);
        if let Err(error) = &made
            // An instance from before this call stays, because this call did not make it.
            && is_new
        {
            site.undo(gi, &entry, error);
        }
        made
    }
}

impl Site<'_> {
    /// Finds the GPU instance for the compute instance. If that is to be of full size, the GPU instance must be empty,
    /// as an interrupted creation leaves it.
    fn find(
        &mut self,
        wanted: Instance,
        entry: &ProfileEntry,
        part: Option<ComputeInstance>,
    ) -> Result<Option<GiHandle>, GpuError> {
        for gi in self.with_profile(entry)? {
            if placement(&self.info(gi)?)? == wanted.placement {
                let profiles = self.tables.compute(self.gpu, self.nvml, gi, entry)?;
                let fits = part.is_some() || self.compute_instances(gi, &profiles)?.is_empty();
                return Ok(fits.then_some(gi));
            }
        }
        Ok(None)
    }

    fn create_gi(&self, wanted: Instance, entry: &ProfileEntry) -> Result<GiHandle, GpuError> {
        const CALL: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
        let (start, size) = (u32::from(wanted.placement.start), u32::from(wanted.placement.size));
        // A process that uses the whole GPU keeps it from being cut, so such processes count as holders.
        ffi::create_gi(&self.device, entry.id.0, start, size)
            .map_err(|error| refusal(&self.device, CALL, error, |p| p.gi.is_none()))
    }

    fn create_compute(
        &mut self,
        gi: GiHandle,
        wanted: Instance,
        entry: &ProfileEntry,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError> {
        let id = self.info(gi)?.id;
        let profiles = self.tables.compute(self.gpu, self.nvml, gi, entry)?;
        let ci = match part {
            None => self.create_full(gi, id, wanted, &profiles)?,
            Some(part) => self.create_part(gi, id, wanted, &profiles, part)?,
        };
        let seen = self.observe(gi, id, wanted, entry);
        if seen.is_err() {
            // The result is ignored, because an instance without a readable device can be given to no container anyway.
            drop(ffi::destroy_ci(self.nvml, ci));
        }
        seen
    }

    fn create_full(
        &self,
        gi: GiHandle,
        id: u32,
        wanted: Instance,
        profiles: &CiProfiles,
    ) -> Result<CiHandle, GpuError> {
        const CALL: &str = "nvmlGpuInstanceCreateComputeInstance";
        let profile = profiles.full.ok_or(GpuError::NoFullCompute(wanted.profile))?;
        ffi::create_ci(self.nvml, gi, profile)
            .map_err(|error| refusal(&self.device, CALL, error, |p| p.gi == Some(id)))
    }

    fn create_part(
        &self,
        gi: GiHandle,
        id: u32,
        wanted: Instance,
        profiles: &CiProfiles,
        part: ComputeInstance,
    ) -> Result<CiHandle, GpuError> {
        const CALL: &str = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";
        let profile = profiles.plain.get(&u32::from(part.compute)).copied();
        let profile = profile.ok_or(GpuError::NoSuchCompute(part.compute, wanted.profile))?;
        let starts = profiles.starts.get(&u32::from(part.compute));
        // This check comes first, because NVML would only answer that an argument is invalid.
        if starts.is_some_and(|starts| !starts.contains(&u32::from(part.start))) {
            return Err(GpuError::NoSuchPlace(part.compute, wanted.profile, part.start));
        }
        ffi::create_ci_at(self.nvml, gi, profile, part.start.into(), part.compute.into())
            .map_err(|error| refusal(&self.device, CALL, error, |p| p.gi == Some(id)))
    }

    fn observe(
        &mut self,
        gi: GiHandle,
        id: u32,
        wanted: Instance,
        entry: &ProfileEntry,
    ) -> Result<GpuInstance, GpuError> {
        let compute = self.compute(gi, entry)?;
        let has_processes = processes::on_gpu(&self.device)?.iter().any(|p| p.gi == Some(id));
        Ok(GpuInstance { instance: wanted, gi: id, compute, has_processes })
    }

    /// Removes a GPU instance whose compute instance could not be created. NVML may have created one despite its error,
    /// and a GPU instance is only destroyed once it is empty.
    fn undo(&mut self, gi: GiHandle, entry: &ProfileEntry, cause: &GpuError) {
        let profiles = self.tables.compute(self.gpu, self.nvml, gi, entry).unwrap_or_default();
        for one in self.compute_instances(gi, &profiles).unwrap_or_default() {
            drop(ffi::destroy_ci(self.nvml, one.handle));
        }
        if let Err(error) = ffi::destroy_gi(self.nvml, gi) {
            let error = GpuError::call("nvmlGpuInstanceDestroy")(error);
            tracing::warn!(gpu = %self.gpu, %cause, %error, "failed to destroy a GPU instance without a compute instance");
        }
    }
}
