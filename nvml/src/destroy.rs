//! Destroys instances in steps, each of which may have been done before.

use crate::ffi::{self, GiHandle};
use crate::holders::Holders;
use crate::instances::{Found, Site, placement};
use crate::processes::{self, refusal};
use crate::{GpuError, GpuInstance, NvmlBackend, Process};
use kerf_core::mig::ComputeInstance;
use kerf_core::names::GpuUuid;

impl NvmlBackend {
    pub(crate) fn destroy_instance(
        &mut self,
        gpu: &GpuUuid,
        instance: &GpuInstance,
        part: Option<ComputeInstance>,
    ) -> Result<(), GpuError> {
        let mut site = self.site(gpu)?;
        let Some(gi) = site.find_by_id(instance.gi)? else { return Ok(()) };
        let found = site.unchanged(gi, instance)?;
        let doomed: Vec<Found> =
            found.into_iter().filter(|one| part.is_none_or(|part| one.place == part)).collect();
        if part.is_some() && doomed.is_empty() {
            return Ok(());
        }
        // A process without a known compute instance may be on any of them, so it counts.
        let holds = |p: &Process| {
            p.gi == Some(instance.gi)
                && (part.is_none() || p.ci.is_none_or(|ci| doomed.iter().any(|one| one.ci == ci)))
        };
        // This check comes before the first destroy, so that a refusal leaves the instance as it is.
        site.check_free(holds)?;
        for one in &doomed {
            const CALL: &str = "nvmlComputeInstanceDestroy";
            let result = ffi::destroy_ci(site.nvml, one.handle);
            missing_is_done(result.map_err(|error| refusal(&site.device, CALL, error, holds)))?;
        }
        if part.is_some() {
            return Ok(());
        }
        let result = ffi::destroy_gi(site.nvml, gi);
        missing_is_done(result.map_err(|error| refusal(&site.device, "nvmlGpuInstanceDestroy", error, holds)))
    }
}

impl Site<'_> {
    fn find_by_id(&self, id: u32) -> Result<Option<GiHandle>, GpuError> {
        let found =
            ffi::gpu_instance(&self.device, id).map_err(GpuError::call("nvmlDeviceGetGpuInstanceById"));
        match found {
            Err(error) if error.is_not_found() => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the compute instances, if they and the GPU instance are those that were observed. NVML reuses ids, so an
    /// instance with this id may be another one.
    fn unchanged(&mut self, gi: GiHandle, observed: &GpuInstance) -> Result<Vec<Found>, GpuError> {
        let changed = || GpuError::Changed(observed.gi);
        let entry = self.entry(observed.instance.profile)?;
        let info = self.info(gi)?;
        if placement(&info)? != observed.instance.placement || info.profile != entry.id.0 {
            return Err(changed());
        }
        let profiles = self.tables.compute(self.gpu, self.nvml, gi, &entry)?;
        let found = self.compute_instances(gi, &profiles)?;
        let is_known = |one: &Found| observed.devices().any(|(_, _, device)| *device == one.device);
        if found.iter().all(is_known) { Ok(found) } else { Err(changed()) }
    }

    fn check_free(&self, holds: impl Fn(&Process) -> bool) -> Result<(), GpuError> {
        let processes = processes::on_gpu(&self.device)?;
        let holders: Vec<&Process> = processes.iter().filter(|p| holds(p)).collect();
        if holders.is_empty() { Ok(()) } else { Err(GpuError::Busy(Holders::from_processes(holders))) }
    }
}

/// Treats a missing instance as destroyed, because an earlier call may have destroyed it and lost its answer.
fn missing_is_done(result: Result<(), GpuError>) -> Result<(), GpuError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
