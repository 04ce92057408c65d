//! Creating and destroying instances: the effects, and NVML's answers. Pure, without files.

use crate::code::{NvmlCode, Outcome};
use crate::compute_profile::compute_profiles;
use crate::control::MockControl;
use crate::identity;
use crate::model::Model;
use crate::rules::{self, Placed, Placement, Refusal};
use crate::state::{ComputeInstance, GpuInstance, GpuState, MockState};

impl MockState {
    pub(crate) fn gpu_at(&mut self, index: u32) -> Outcome<&mut GpuState> {
        self.gpus.get_mut(index as usize).ok_or(NvmlCode::INVALID_ARGUMENT)
    }

    fn next_serial(&mut self) -> u32 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Carries out `nvmlDeviceCreateGpuInstance`, with or without a placement. Returns the new instance's serial.
    pub fn create_gpu_instance(
        &mut self,
        index: u32,
        profile_id: u32,
        wanted: Option<Placement>,
        control: &MockControl,
    ) -> Outcome<u32> {
        let serial = self.next_serial();
        let gpu = self.gpu_at(index)?;
        cuttable(gpu)?;
        let profile = gpu.model.profile(profile_id).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        let placed = gpu.placed();
        let placement = match wanted {
            Some(placement) => placement,
            None => {
                rules::drivers_choice(gpu.model, &placed, profile).ok_or(NvmlCode::INSUFFICIENT_RESOURCES)?
            }
        };
        rules::admit(gpu.model, &placed, Placed { profile, placement }).map_err(refused)?;
        // A process that uses the whole GPU keeps it from being cut.
        if control.processes.iter().any(|process| process.gpu == index && process.gi.is_none()) {
            return Err(NvmlCode::IN_USE);
        }
        gpu.instances.push(GpuInstance {
            id: rules::instance_id(gpu.model, placement),
            profile_id,
            placement,
            serial,
            compute: Vec::new(),
            sram_uncorrected: 0,
        });
        gpu.instances.sort_by_key(|instance| instance.id);
        Ok(serial)
    }

    /// Carries out `nvmlGpuInstanceDestroy`, by the instance's serial.
    pub fn destroy_gpu_instance(&mut self, index: u32, serial: u32, control: &MockControl) -> Outcome<()> {
        let gpu = self.gpu_at(index)?;
        let instance = gpu.instance(serial).ok_or(NvmlCode::NOT_FOUND)?;
        let id = instance.id;
        let held = control.processes.iter().any(|process| process.gpu == index && process.gi == Some(id));
        if held || !instance.compute.is_empty() {
            return Err(NvmlCode::IN_USE);
        }
        gpu.instances.retain(|instance| instance.serial != serial);
        Ok(())
    }

    /// Carries out `nvmlGpuInstanceCreateComputeInstance`, with or without a placement. Returns the new instance's
    /// serial.
    pub fn create_compute_instance(
        &mut self,
        index: u32,
        gi_serial: u32,
        profile_id: u32,
        wanted: Option<Placement>,
    ) -> Outcome<u32> {
        let serial = self.next_serial();
        let gpu = self.gpu_at(index)?;
        cuttable(gpu)?;
        let mig_index = lowest_free(gpu.compute_instances().map(|(_, compute)| compute.mig_index));
        let uuid = identity::mig_uuid(&gpu.uuid, serial);
        let model = gpu.model;
        let instance = gpu.instances.iter_mut().find(|one| one.serial == gi_serial);
        let instance = instance.ok_or(NvmlCode::NOT_FOUND)?;
        let placement = compute_place(model, instance, profile_id, wanted)?;
        let id = lowest_free(instance.compute.iter().map(|compute| compute.id));
        instance.compute.push(ComputeInstance { id, profile_id, placement, serial, uuid, mig_index });
        instance.compute.sort_by_key(|compute| compute.id);
        Ok(serial)
    }

    /// Does the same as `nvidia-smi mig -cgi <name> -C`: creates an instance where the driver puts it, and one compute
    /// instance that fills it.
    pub fn cut(&mut self, index: u32, profile: &str) -> Outcome<()> {
        let model = self.gpu_at(index)?.model;
        let profile = model.profile_named(profile).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        let all =
            compute_profiles(model, profile).into_iter().find(|part| part.slices == profile.compute_slices);
        let all = all.ok_or(NvmlCode::NOT_SUPPORTED)?.id;
        let gi = self.create_gpu_instance(index, profile.id, None, &MockControl::new())?;
        self.create_compute_instance(index, gi, all, None).map(drop)
    }

    /// Carries out `nvmlComputeInstanceDestroy`, by the instance's serial.
    pub fn destroy_compute_instance(
        &mut self,
        index: u32,
        serial: u32,
        control: &MockControl,
    ) -> Outcome<()> {
        let gpu = self.gpu_at(index)?;
        let (instance, compute) = gpu.compute(serial).ok_or(NvmlCode::NOT_FOUND)?;
        if control.processes.iter().any(|process| process.is_on(index, instance.id, compute.id)) {
            return Err(NvmlCode::IN_USE);
        }
        for instance in &mut gpu.instances {
            instance.compute.retain(|compute| compute.serial != serial);
        }
        Ok(())
    }
}

/// NVML's code for a refusal: a place that is not in the profile's list is an invalid argument; everything else is a
/// lack of room.
fn refused(refusal: Refusal) -> NvmlCode {
    match refusal {
        Refusal::NoSuchPlace => NvmlCode::INVALID_ARGUMENT,
        Refusal::Overlap | Refusal::ComputeSpent | Refusal::TooMany | Refusal::MediaTaken => {
            NvmlCode::INSUFFICIENT_RESOURCES
        }
    }
}

fn cuttable(gpu: &GpuState) -> Outcome<()> {
    if gpu.mig.current { Ok(()) } else { Err(NvmlCode::NOT_SUPPORTED) }
}

fn lowest_free(taken: impl Iterator<Item = u32>) -> u32 {
    let taken: Vec<u32> = taken.collect();
    (0..=u32::MAX).find(|id| !taken.contains(id)).unwrap_or(u32::MAX)
}

/// The place of a new compute instance of that profile.
fn compute_place(
    model: Model,
    instance: &GpuInstance,
    profile_id: u32,
    wanted: Option<Placement>,
) -> Outcome<Placement> {
    let free = free_compute_places(model, instance, profile_id)?;
    let Some(placement) = wanted else {
        return free.first().copied().ok_or(NvmlCode::INSUFFICIENT_RESOURCES);
    };
    if !compute_places(model, instance, profile_id)?.contains(&placement) {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    if free.contains(&placement) { Ok(placement) } else { Err(NvmlCode::INSUFFICIENT_RESOURCES) }
}

/// Every place of a compute instance profile in a GPU instance.
pub(crate) fn compute_places(
    model: Model,
    instance: &GpuInstance,
    profile_id: u32,
) -> Outcome<Vec<Placement>> {
    let gpu_profile = model.profile(instance.profile_id).ok_or(NvmlCode::UNKNOWN)?;
    let profiles = compute_profiles(model, gpu_profile);
    let profile =
        profiles.iter().find(|profile| profile.id == profile_id).ok_or(NvmlCode::INVALID_ARGUMENT)?;
    Ok(profile.starts.iter().map(|&start| Placement { start, size: profile.slices }).collect())
}

/// The places that are free now. Compute instances of one GPU instance never share a slice.
pub(crate) fn free_compute_places(
    model: Model,
    instance: &GpuInstance,
    profile_id: u32,
) -> Outcome<Vec<Placement>> {
    let mut places = compute_places(model, instance, profile_id)?;
    places.retain(|&place| !instance.compute.iter().any(|other| other.placement.overlaps(place)));
    Ok(places)
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
