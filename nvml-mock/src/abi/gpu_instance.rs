//! Calls about GPU instances: profiles, places, create, list, destroy.
//!
//! Like an H200 under driver 580, the mock answers queries with MIG mode off too; only creating is not supported then.
//! The version word of a profile structure comes back as zero, so a caller must set it each time.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};

use super::pointer::{In, Out, OutList, Versioned, characters, version_word};
use crate::code::{NvmlCode, Outcome};
use crate::handle::{Device, DeviceHandle, GpuInstanceHandle};
use crate::model::Model;
use crate::profile::{PROFILE_INDEX_COUNT, Profile};
use crate::rules::{self, Placement};
use crate::session::{Call, Subject};

fn profile_at(model: Model, index: u32) -> Outcome<&'static Profile> {
    if index >= PROFILE_INDEX_COUNT {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    model.profiles().iter().find(|profile| profile.index == index).ok_or(NvmlCode::NOT_SUPPORTED)
}

/// A GPU without MIG does not support any of this; a GPU with MIG rejects unknown ids.
fn profile_of(model: Model, id: u32) -> Outcome<&'static Profile> {
    if !model.has_mig() {
        return Err(NvmlCode::NOT_SUPPORTED);
    }
    model.profile(id).ok_or(NvmlCode::INVALID_ARGUMENT)
}

fn find_profile(
    call: &Call,
    device: DeviceHandle,
    find: impl FnOnce(Model) -> Outcome<&'static Profile>,
) -> Outcome<&'static Profile> {
    call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| find(subject.gpu.model))
}

fn put_versioned(
    call: &Call,
    device: DeviceHandle,
    info: Versioned,
    find: impl FnOnce(Model) -> Outcome<&'static Profile>,
) -> Outcome<()> {
    const V2: c_uint = version_word::<nvmlGpuInstanceProfileInfo_v2_t>(2);
    const V3: c_uint = version_word::<nvmlGpuInstanceProfileInfo_v3_t>(3);
    let version = info.version()?;
    if version != V2 && version != V3 {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    let profile = find_profile(call, device, find)?;
    if version == V2 { info.put(profile_v2(profile)) } else { info.put(profile_v3(profile)) }
}

fn profile_v2(profile: &Profile) -> nvmlGpuInstanceProfileInfo_v2_t {
    nvmlGpuInstanceProfileInfo_v2_t {
        version: 0,
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.compute_slices,
        instanceCount: profile.max_instances,
        multiprocessorCount: profile.multiprocessors,
        copyEngineCount: profile.engines.copy,
        decoderCount: profile.engines.decoder,
        encoderCount: profile.engines.encoder,
        jpegCount: profile.engines.jpeg,
        ofaCount: profile.engines.ofa,
        memorySizeMB: profile.memory_mib,
        name: characters(&format!("MIG {}", profile.name)),
    }
}

/// Driver 580.159.04 fills this version's name wrongly. Where the header has it there are eight zero bytes, so it reads
/// as empty, and the following bytes name another profile. So a caller must use version 2.
fn profile_v3(profile: &Profile) -> nvmlGpuInstanceProfileInfo_v3_t {
    nvmlGpuInstanceProfileInfo_v3_t {
        version: 0,
        id: profile.id,
        sliceCount: profile.compute_slices,
        instanceCount: profile.max_instances,
        multiprocessorCount: profile.multiprocessors,
        copyEngineCount: profile.engines.copy,
        decoderCount: profile.engines.decoder,
        encoderCount: profile.engines.encoder,
        jpegCount: profile.engines.jpeg,
        ofaCount: profile.engines.ofa,
        memorySizeMB: profile.memory_mib,
        name: [0; 96],
        capabilities: 0,
    }
}

fn places(
    call: &Call,
    device: DeviceHandle,
    id: c_uint,
    list: OutList<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
) -> Outcome<()> {
    let profile = find_profile(call, device, |model| profile_of(model, id))?;
    let places: Vec<_> = profile.places().into_iter().map(to_c).collect();
    list.fill_up_to(count, &places)
}

fn to_c(placement: Placement) -> nvmlGpuInstancePlacement_t {
    nvmlGpuInstancePlacement_t { start: placement.start, size: placement.size }
}

fn create(
    call: &Call,
    device: DeviceHandle,
    id: c_uint,
    placement: Option<Placement>,
    instance: Out<GpuInstanceHandle>,
) -> Outcome<()> {
    instance.check()?;
    let Device::Gpu { gpu } = device.device()? else { return Err(NvmlCode::INVALID_ARGUMENT) };
    let serial =
        call.change(gpu, |state, control| state.create_gpu_instance(gpu, id, placement, control))?;
    instance.put(GpuInstanceHandle::new(gpu, serial))
}

fn info_of(subject: &Subject<'_>, serial: u32) -> Outcome<nvmlGpuInstanceInfo_t> {
    let instance = subject.gpu.instance(serial).ok_or(NvmlCode::NOT_FOUND)?;
    Ok(nvmlGpuInstanceInfo_t {
        device: DeviceHandle::gpu(subject.gpu.index).as_pointer(),
        id: instance.id,
        profileId: instance.profile_id,
        placement: to_c(instance.placement),
    })
}

exports! {
    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: DeviceHandle,
        index: c_uint,
        info: Out<nvmlGpuInstanceProfileInfo_t>,
    ) call => {
        let profile = find_profile(call, device, |model| profile_at(model, index))?;
        info.put(nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.compute_slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.engines.copy,
            decoderCount: profile.engines.decoder,
            encoderCount: profile.engines.encoder,
            jpegCount: profile.engines.jpeg,
            ofaCount: profile.engines.ofa,
            memorySizeMB: profile.memory_mib,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(device: DeviceHandle, index: c_uint, info: Versioned) call => {
        put_versioned(call, device, info, |model| profile_at(model, index))
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(device: DeviceHandle, id: c_uint, info: Versioned) call => {
        put_versioned(call, device, info, |model| profile_of(model, id))
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: DeviceHandle,
        id: c_uint,
        list: OutList<nvmlGpuInstancePlacement_t>,
        count: Out<c_uint>,
    ) call => { places(call, device, id, list, count) }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: DeviceHandle,
        id: c_uint,
        list: OutList<nvmlGpuInstancePlacement_t>,
        count: Out<c_uint>,
    ) call => { places(call, device, id, list, count) }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: DeviceHandle, id: c_uint, count: Out<c_uint>) call => {
        count.put(call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            let profile = profile_of(subject.gpu.model, id)?;
            Ok(rules::remaining(subject.gpu.model, &subject.gpu.placed(), profile))
        })?)
    }

    fn nvmlDeviceCreateGpuInstance(device: DeviceHandle, id: c_uint, instance: Out<GpuInstanceHandle>) call => {
        create(call, device, id, None, instance)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: DeviceHandle,
        id: c_uint,
        placement: In<nvmlGpuInstancePlacement_t>,
        instance: Out<GpuInstanceHandle>,
    ) call => {
        let nvmlGpuInstancePlacement_t { start, size } = placement.get()?;
        create(call, device, id, Some(Placement { start, size }), instance)
    }

    // The count is only written: by NVML's rule the caller's buffer has room for the profile's maximum.
    fn nvmlDeviceGetGpuInstances(
        device: DeviceHandle,
        id: c_uint,
        list: OutList<GpuInstanceHandle>,
        count: Out<c_uint>,
    ) call => {
        count.check()?;
        let found = call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            profile_of(subject.gpu.model, id)?;
            let of_profile = subject.gpu.instances.iter().filter(|one| one.profile_id == id);
            Ok(of_profile.map(|one| GpuInstanceHandle::new(subject.gpu.index, one.serial)).collect::<Vec<_>>())
        })?;
        list.fill(&found)?;
        count.put(u32::try_from(found.len()).unwrap_or(u32::MAX))
    }

    fn nvmlDeviceGetGpuInstanceById(device: DeviceHandle, id: c_uint, instance: Out<GpuInstanceHandle>) call => {
        instance.put(call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            if !subject.gpu.model.has_mig() {
                return Err(NvmlCode::NOT_SUPPORTED);
            }
            let found = subject.gpu.instances.iter().find(|one| one.id == id).ok_or(NvmlCode::NOT_FOUND)?;
            Ok(GpuInstanceHandle::new(subject.gpu.index, found.serial))
        })?)
    }

    fn nvmlGpuInstanceGetInfo(instance: GpuInstanceHandle, info: Out<nvmlGpuInstanceInfo_t>) call => {
        let (gpu, serial) = instance.parts()?;
        info.put(call.device(DeviceHandle::gpu(gpu), |subject| info_of(subject, serial))?)
    }

    fn nvmlGpuInstanceDestroy(instance: GpuInstanceHandle) call => {
        let (gpu, serial) = instance.parts()?;
        call.change(gpu, |state, control| state.destroy_gpu_instance(gpu, serial, control))
    }
}
