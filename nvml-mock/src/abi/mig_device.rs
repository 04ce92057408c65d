//! Calls about MIG devices, which are the device handles of compute instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlDeviceAttributes_t;

use super::pointer::Out;
use crate::code::{NvmlCode, Outcome};
use crate::compute_profile::compute_profiles;
use crate::handle::DeviceHandle;
use crate::session::{Call, Subject};

fn attributes_of(subject: &Subject<'_>) -> Outcome<nvmlDeviceAttributes_t> {
    let (instance, compute) = subject.mig.ok_or(NvmlCode::NOT_SUPPORTED)?;
    let model = subject.gpu.model;
    let profile = subject.gpu.profile_of(instance).ok_or(NvmlCode::UNKNOWN)?;
    let own = compute_profiles(model, profile).into_iter().find(|own| own.id == compute.profile_id);
    let own = own.ok_or(NvmlCode::UNKNOWN)?;
    Ok(nvmlDeviceAttributes_t {
        multiprocessorCount: own.multiprocessors,
        sharedCopyEngineCount: profile.engines.copy,
        sharedDecoderCount: profile.engines.decoder,
        sharedEncoderCount: profile.engines.encoder,
        sharedJpegCount: profile.engines.jpeg,
        sharedOfaCount: profile.engines.ofa,
        gpuInstanceSliceCount: profile.compute_slices,
        computeInstanceSliceCount: own.slices,
        memorySizeMB: profile.memory_mib,
    })
}

fn attributes(call: &Call, device: DeviceHandle, out: Out<nvmlDeviceAttributes_t>) -> Outcome<()> {
    out.put(call.device(device, attributes_of)?)
}

/// An id of a MIG device; a GPU has none.
fn id(call: &Call, device: DeviceHandle, id: Out<c_uint>, of: fn(&Subject<'_>) -> Option<u32>) -> Outcome<()> {
    id.put(call.device(device, |subject| of(subject).ok_or(NvmlCode::INVALID_ARGUMENT))?)
}

exports! {
    fn nvmlDeviceIsMigDeviceHandle(device: DeviceHandle, is_mig: Out<c_uint>) call => {
        is_mig.put(call.device(device, |subject| Ok(subject.mig.is_some().into()))?)
    }

    fn nvmlDeviceGetGpuInstanceId(device: DeviceHandle, instance: Out<c_uint>) call => {
        id(call, device, instance, |subject| subject.mig.map(|(instance, _)| instance.id))
    }

    fn nvmlDeviceGetComputeInstanceId(device: DeviceHandle, instance: Out<c_uint>) call => {
        id(call, device, instance, |subject| subject.mig.map(|(_, compute)| compute.id))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: DeviceHandle, parent: Out<DeviceHandle>) call => {
        parent.put(call.device(device, |subject| match subject.mig {
            Some(_) => Ok(DeviceHandle::gpu(subject.gpu.index)),
            None => Err(NvmlCode::INVALID_ARGUMENT),
        })?)
    }

    // Zero if MIG is off or unsupported, which is how an H200 with MIG off answers.
    fn nvmlDeviceGetMaxMigDeviceCount(device: DeviceHandle, count: Out<c_uint>) call => {
        count.put(call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            Ok(if subject.gpu.mig.current { subject.gpu.model.compute_slices() } else { 0 })
        })?)
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: DeviceHandle, index: c_uint, mig: Out<DeviceHandle>) call => {
        mig.put(call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            let mut devices = subject.gpu.compute_instances();
            let found = devices.find(|(_, compute)| compute.mig_index == index);
            let (_, compute) = found.ok_or(NvmlCode::NOT_FOUND)?;
            Ok(DeviceHandle::mig(subject.gpu.index, compute.serial))
        })?)
    }

    fn nvmlDeviceGetAttributes(device: DeviceHandle, out: Out<nvmlDeviceAttributes_t>) call => {
        attributes(call, device, out)
    }

    fn nvmlDeviceGetAttributes_v2(device: DeviceHandle, out: Out<nvmlDeviceAttributes_t>) call => {
        attributes(call, device, out)
    }
}
