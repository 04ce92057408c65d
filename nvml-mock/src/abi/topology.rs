//! Calls about connections between GPUs: all are under one host bridge, with the `NVLink`s of the configuration, and
//! without a fabric.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t,
};

use super::pointer::{Out, OutList, Versioned, characters, version_word};
use crate::code::{NvmlCode, Outcome};
use crate::config::MAX_NVLINKS;
use crate::handle::{Device, DeviceHandle};
use crate::session::Call;

const HOST_BRIDGE: c_uint = 30;
const P2P_NOT_SUPPORTED: c_uint = 6;

/// The end of a GPU's link, if it is active. An H100 returns 2 for links beyond its own; a GPU without links returns 3.
fn end_of(call: &Call, device: DeviceHandle, link: c_uint) -> Outcome<Option<String>> {
    call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| match subject.gpu.nvlinks.as_slice() {
        [] => Err(NvmlCode::NOT_SUPPORTED),
        _ if link as usize >= MAX_NVLINKS => Err(NvmlCode::INVALID_ARGUMENT),
        // MIG mode takes the links down.
        _ if subject.gpu.mig.current => Ok(None),
        ends => Ok(ends.get(link as usize).cloned()),
    })
}

/// Checks that both handles are GPUs of the node.
fn both(call: &Call, one: DeviceHandle, other: DeviceHandle) -> Outcome<()> {
    let Device::Gpu { gpu } = other.device()? else { return Err(NvmlCode::INVALID_ARGUMENT) };
    call.gpu(one, NvmlCode::INVALID_ARGUMENT, |subject| {
        if (gpu as usize) < subject.state.gpus.len() { Ok(()) } else { Err(NvmlCode::INVALID_ARGUMENT) }
    })
}

exports! {
    fn nvmlDeviceGetTopologyCommonAncestor(
        one: DeviceHandle, other: DeviceHandle, level: Out<c_uint>,
    ) call => {
        both(call, one, other)?;
        level.put(HOST_BRIDGE)
    }

    fn nvmlDeviceGetTopologyNearestGpus(
        device: DeviceHandle, level: c_uint, count: Out<c_uint>, list: OutList<DeviceHandle>,
    ) call => {
        let near = call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            let others = subject.state.gpus.iter().filter(|gpu| gpu.index != subject.gpu.index);
            let all = others.map(|gpu| DeviceHandle::gpu(gpu.index)).collect::<Vec<_>>();
            Ok(if level == HOST_BRIDGE { all } else { Vec::new() })
        })?;
        list.fill_up_to(count, &near)
    }

    fn nvmlDeviceGetP2PStatus(
        one: DeviceHandle, other: DeviceHandle, _index: c_uint, status: Out<c_uint>,
    ) call => {
        both(call, one, other)?;
        status.put(P2P_NOT_SUPPORTED)
    }

    fn nvmlDeviceGetNvLinkState(device: DeviceHandle, link: c_uint, active: Out<c_uint>) call => {
        active.check()?;
        active.put(c_uint::from(end_of(call, device, link)?.is_some()))
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: DeviceHandle, link: c_uint, info: Out<nvmlPciInfo_t>) call => {
        info.check()?;
        let end = end_of(call, device, link)?.ok_or(NvmlCode::INVALID_ARGUMENT)?;
        info.put(nvmlPciInfo_t {
            busIdLegacy: characters(&end[4.min(end.len())..]),
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: characters(&end),
        })
    }

    fn nvmlDeviceGetGpuFabricInfo(device: DeviceHandle, info: Out<nvmlGpuFabricInfo_t>) call => {
        call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(()))?;
        info.put(nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 })
    }
    // A GPU without a fabric: all zero, and the version word stays as it was, as on an H200.
    fn nvmlDeviceGetGpuFabricInfoV(device: DeviceHandle, info: Versioned) call => {
        const V2: c_uint = version_word::<nvmlGpuFabricInfo_v2_t>(2);
        const V3: c_uint = version_word::<nvmlGpuFabricInfo_v3_t>(3);
        let version = info.version()?;
        if version != V2 && version != V3 {
            return Err(NvmlCode::ARGUMENT_VERSION_MISMATCH);
        }
        call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(()))?;
        if version == V2 {
            return info.put(nvmlGpuFabricInfo_v2_t {
                version,
                clusterUuid: [0; 16],
                status: 0,
                cliqueId: 0,
                state: 0,
                healthMask: 0,
            });
        }
        info.put(nvmlGpuFabricInfo_v3_t {
            version,
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
            healthSummary: 0,
        })
    }
}
