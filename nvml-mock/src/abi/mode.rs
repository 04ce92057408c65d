//! Calls about the modes of a GPU: MIG, compute, persistence, and fixed ones.

use std::ffi::c_uint;

use super::pointer::Out;
use crate::code::NvmlCode;
use crate::handle::{Device, DeviceHandle};

/// Values of `nvmlComputeMode_t`: default, prohibited, exclusive process. Exclusive thread (1) was removed long ago.
const COMPUTE_MODES: [c_uint; 3] = [0, 2, 3];

/// The index of a GPU; a MIG device is rejected.
fn whole(device: DeviceHandle) -> Result<u32, NvmlCode> {
    match device.device()? {
        Device::Gpu { gpu } => Ok(gpu),
        Device::Mig { .. } => Err(NvmlCode::INVALID_ARGUMENT),
    }
}

fn flag(value: c_uint) -> Result<bool, NvmlCode> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(NvmlCode::INVALID_ARGUMENT),
    }
}

exports! {
    fn nvmlDeviceGetMigMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) call => {
        let mode = call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            if subject.gpu.model.has_mig() { Ok(subject.gpu.mig) } else { Err(NvmlCode::NOT_SUPPORTED) }
        })?;
        current.put(mode.current.into())?;
        pending.put(mode.pending.into())
    }

    fn nvmlDeviceSetMigMode(device: DeviceHandle, mode: c_uint, activation: Out<c_uint>) call => {
        activation.check()?;
        let (gpu, on) = (whole(device)?, flag(mode)?);
        let done = call.change(gpu, |state, control| state.set_mig_mode(gpu, on, control))?;
        activation.put(done.code().0)
    }

    fn nvmlDeviceGetComputeMode(device: DeviceHandle, mode: Out<c_uint>) call => {
        mode.put(call.device(device, |subject| Ok(subject.gpu.compute_mode))?)
    }

    fn nvmlDeviceSetComputeMode(device: DeviceHandle, mode: c_uint) call => {
        let gpu = whole(device)?;
        if !COMPUTE_MODES.contains(&mode) {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        call.change(gpu, |state, _| {
            state.gpu_at(gpu)?.compute_mode = mode;
            Ok(())
        })
    }

    fn nvmlDeviceGetPersistenceMode(device: DeviceHandle, mode: Out<c_uint>) call => {
        mode.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| Ok(subject.gpu.persistence.into()))?)
    }

    fn nvmlDeviceSetPersistenceMode(device: DeviceHandle, mode: c_uint) call => {
        let (gpu, on) = (whole(device)?, flag(mode)?);
        call.change(gpu, |state, _| {
            state.gpu_at(gpu)?.persistence = on;
            Ok(())
        })
    }

    fn nvmlDeviceGetVirtualizationMode(device: DeviceHandle, mode: Out<c_uint>) call => {
        mode.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(0))?)
    }

    fn nvmlDeviceGetDisplayMode(device: DeviceHandle, mode: Out<c_uint>) call => {
        mode.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(0))?)
    }

    fn nvmlDeviceGetDisplayActive(device: DeviceHandle, active: Out<c_uint>) call => {
        active.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(0))?)
    }

    // Only GPUs whose memory is a node of the host's memory have one.
    fn nvmlDeviceGetNumaNodeId(device: DeviceHandle, node: Out<c_uint>) call => {
        node.check()?;
        call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Err(NvmlCode::NOT_SUPPORTED))
    }
}
