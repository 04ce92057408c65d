//! Calls about compute instances: profiles, places, create, list, destroy.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlComputeInstanceProfileInfo_v3_t,
};

use super::pointer::{In, Out, OutList, Versioned, characters, version_word};
use crate::code::{NvmlCode, Outcome};
use crate::compute_profile::{COMPUTE_PROFILE_INDEX_COUNT, ComputeProfile, compute_name, compute_profiles};
use crate::handle::{ComputeInstanceHandle, DeviceHandle, GpuInstanceHandle};
use crate::lifecycle::{compute_places, free_compute_places};
use crate::profile::{Engines, Profile};
use crate::rules::Placement;
use crate::session::Call;
use crate::state::{GpuInstance, GpuState};

/// A compute instance profile and the GPU instance profile that it belongs to.
struct Found {
    own: ComputeProfile,
    outer: &'static Profile,
}

impl Found {
    fn engines(&self) -> Engines {
        self.outer.engines
    }

    fn name(&self) -> String {
        format!("MIG {}", compute_name(self.outer, self.own.slices))
    }
}

/// Answers a call about a GPU instance.
fn within<T>(
    call: &Call,
    instance: GpuInstanceHandle,
    answer: impl FnOnce(&GpuState, &GpuInstance) -> Outcome<T>,
) -> Outcome<T> {
    let (gpu, serial) = instance.parts()?;
    call.device(DeviceHandle::gpu(gpu), |subject| {
        let found = subject.gpu.instance(serial).ok_or(NvmlCode::NOT_FOUND)?;
        answer(subject.gpu, found)
    })
}

/// The profile at an index. The engine profile can only be 0, shared.
fn profile_at(call: &Call, instance: GpuInstanceHandle, index: u32, engines: u32) -> Outcome<Found> {
    if index >= COMPUTE_PROFILE_INDEX_COUNT || engines != 0 {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    within(call, instance, |gpu, instance| {
        let outer = gpu.profile_of(instance).ok_or(NvmlCode::UNKNOWN)?;
        let own = compute_profiles(gpu.model, outer).into_iter().find(|own| own.id == index);
        Ok(Found { own: own.ok_or(NvmlCode::NOT_SUPPORTED)?, outer })
    })
}

fn to_c(placement: Placement) -> nvmlComputeInstancePlacement_t {
    nvmlComputeInstancePlacement_t { start: placement.start, size: placement.size }
}

fn create(
    call: &Call,
    instance: GpuInstanceHandle,
    id: c_uint,
    placement: Option<Placement>,
    out: Out<ComputeInstanceHandle>,
) -> Outcome<()> {
    out.check()?;
    let (gpu, gi) = instance.parts()?;
    let serial = call.change(gpu, |state, _| state.create_compute_instance(gpu, gi, id, placement))?;
    out.put(ComputeInstanceHandle::new(gpu, serial))
}

fn info(call: &Call, instance: ComputeInstanceHandle, out: Out<nvmlComputeInstanceInfo_t>) -> Outcome<()> {
    let (gpu, serial) = instance.parts()?;
    out.put(call.device(DeviceHandle::gpu(gpu), |subject| {
        let (outer, compute) = subject.gpu.compute(serial).ok_or(NvmlCode::NOT_FOUND)?;
        Ok(nvmlComputeInstanceInfo_t {
            device: DeviceHandle::mig(gpu, serial).as_pointer(),
            gpuInstance: GpuInstanceHandle::new(gpu, outer.serial).as_pointer(),
            id: compute.id,
            profileId: compute.profile_id,
            placement: to_c(compute.placement),
        })
    })?)
}

fn count_of(places: &[Placement]) -> u32 {
    u32::try_from(places.len()).unwrap_or(u32::MAX)
}

exports! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: GpuInstanceHandle,
        index: c_uint,
        engine_profile: c_uint,
        info: Out<nvmlComputeInstanceProfileInfo_t>,
    ) call => {
        let found = profile_at(call, instance, index, engine_profile)?;
        info.put(nvmlComputeInstanceProfileInfo_t {
            id: found.own.id,
            sliceCount: found.own.slices,
            instanceCount: found.own.max_instances,
            multiprocessorCount: found.own.multiprocessors,
            sharedCopyEngineCount: found.engines().copy,
            sharedDecoderCount: found.engines().decoder,
            sharedEncoderCount: found.engines().encoder,
            sharedJpegCount: found.engines().jpeg,
            sharedOfaCount: found.engines().ofa,
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: GpuInstanceHandle,
        index: c_uint,
        engine_profile: c_uint,
        info: Versioned,
    ) call => {
        const V2: c_uint = version_word::<nvmlComputeInstanceProfileInfo_v2_t>(2);
        const V3: c_uint = version_word::<nvmlComputeInstanceProfileInfo_v3_t>(3);
        let version = info.version()?;
        if version != V2 && version != V3 {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let found = profile_at(call, instance, index, engine_profile)?;
        let v2 = nvmlComputeInstanceProfileInfo_v2_t {
            version: 0,
            id: found.own.id,
            sliceCount: found.own.slices,
            instanceCount: found.own.max_instances,
            multiprocessorCount: found.own.multiprocessors,
            sharedCopyEngineCount: found.engines().copy,
            sharedDecoderCount: found.engines().decoder,
            sharedEncoderCount: found.engines().encoder,
            sharedJpegCount: found.engines().jpeg,
            sharedOfaCount: found.engines().ofa,
            name: characters(&found.name()),
        };
        if version == V2 {
            return info.put(v2);
        }
        info.put(nvmlComputeInstanceProfileInfo_v3_t {
            version: 0,
            id: v2.id,
            sliceCount: v2.sliceCount,
            instanceCount: v2.instanceCount,
            multiprocessorCount: v2.multiprocessorCount,
            sharedCopyEngineCount: v2.sharedCopyEngineCount,
            sharedDecoderCount: v2.sharedDecoderCount,
            sharedEncoderCount: v2.sharedEncoderCount,
            sharedJpegCount: v2.sharedJpegCount,
            sharedOfaCount: v2.sharedOfaCount,
            name: v2.name,
            capabilities: 0,
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: GpuInstanceHandle,
        id: c_uint,
        count: Out<c_uint>,
    ) call => {
        count.put(within(call, instance, |gpu, instance| {
            Ok(count_of(&free_compute_places(gpu.model, instance, id)?))
        })?)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: GpuInstanceHandle,
        id: c_uint,
        list: OutList<nvmlComputeInstancePlacement_t>,
        count: Out<c_uint>,
    ) call => {
        let places = within(call, instance, |gpu, instance| compute_places(gpu.model, instance, id))?;
        let places: Vec<_> = places.into_iter().map(to_c).collect();
        list.fill_up_to(count, &places)
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        instance: GpuInstanceHandle,
        id: c_uint,
        out: Out<ComputeInstanceHandle>,
    ) call => { create(call, instance, id, None, out) }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: GpuInstanceHandle,
        id: c_uint,
        placement: In<nvmlComputeInstancePlacement_t>,
        out: Out<ComputeInstanceHandle>,
    ) call => {
        let nvmlComputeInstancePlacement_t { start, size } = placement.get()?;
        create(call, instance, id, Some(Placement { start, size }), out)
    }

    // As with GPU instances, the count is only written.
    fn nvmlGpuInstanceGetComputeInstances(
        instance: GpuInstanceHandle,
        id: c_uint,
        list: OutList<ComputeInstanceHandle>,
        count: Out<c_uint>,
    ) call => {
        count.check()?;
        let found = within(call, instance, |gpu, instance| {
            compute_places(gpu.model, instance, id)?;
            let of_profile = instance.compute.iter().filter(|one| one.profile_id == id);
            Ok(of_profile.map(|one| ComputeInstanceHandle::new(gpu.index, one.serial)).collect::<Vec<_>>())
        })?;
        list.fill(&found)?;
        count.put(u32::try_from(found.len()).unwrap_or(u32::MAX))
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        instance: GpuInstanceHandle,
        id: c_uint,
        out: Out<ComputeInstanceHandle>,
    ) call => {
        out.put(within(call, instance, |gpu, instance| {
            let found = instance.compute.iter().find(|one| one.id == id).ok_or(NvmlCode::NOT_FOUND)?;
            Ok(ComputeInstanceHandle::new(gpu.index, found.serial))
        })?)
    }

    fn nvmlComputeInstanceGetInfo(instance: ComputeInstanceHandle, out: Out<nvmlComputeInstanceInfo_t>) call => {
        info(call, instance, out)
    }

    fn nvmlComputeInstanceGetInfo_v2(instance: ComputeInstanceHandle, out: Out<nvmlComputeInstanceInfo_t>) call => {
        info(call, instance, out)
    }

    fn nvmlComputeInstanceDestroy(instance: ComputeInstanceHandle) call => {
        let (gpu, serial) = instance.parts()?;
        call.change(gpu, |state, control| state.destroy_compute_instance(gpu, serial, control))
    }
}
