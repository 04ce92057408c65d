//! Calls that find GPUs and describe them: handles, names, ids, PCI.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use super::pointer::{Out, TextIn, TextOut, characters};
use crate::code::{NvmlCode, Outcome};
use crate::compute_profile::compute_name;
use crate::handle::DeviceHandle;
use crate::session::{Call, Subject};
use crate::state::{GpuState, MockState};
use crate::sys_files;

pub(super) fn pci_info(gpu: &GpuState) -> nvmlPciInfo_t {
    let facts = gpu.model.facts();
    nvmlPciInfo_t {
        busIdLegacy: characters(&format!("0000:{:02X}:00.0", gpu.bus())),
        domain: 0,
        bus: gpu.bus(),
        device: 0,
        pciDeviceId: facts.pci_device_id,
        pciSubSystemId: facts.pci_subsystem_id,
        busId: characters(&sys_files::bus_id(gpu.index)),
    }
}

/// Parses the bus of `domain:bus:device.function` in hexadecimal, with four or eight digits of domain or none.
fn parse_bus(text: &str) -> Option<u32> {
    let (head, function) = text.rsplit_once('.')?;
    let mut parts = head.rsplit(':');
    let mut number = |default: u32| parts.next().map_or(Some(default), |p| u32::from_str_radix(p, 16).ok());
    let (device, bus, domain) = (number(u32::MAX)?, number(u32::MAX)?, number(0)?);
    (device == 0 && domain == 0 && function == "0").then_some(bus)
}

fn count(call: &Call, count: Out<c_uint>) -> Outcome<()> {
    let gpus = call.view(None, |view| Ok(view.state.gpus.len()))?;
    count.put(u32::try_from(gpus).unwrap_or(u32::MAX))
}

fn by_index(call: &Call, index: c_uint, device: Out<DeviceHandle>) -> Outcome<()> {
    device.check()?;
    let known = call.view(Some(index), |view| Ok((index as usize) < view.state.gpus.len()))?;
    if known { device.put(DeviceHandle::gpu(index)) } else { Err(NvmlCode::INVALID_ARGUMENT) }
}

fn find(state: &MockState, is_it: impl Fn(&GpuState) -> bool) -> Option<(u32, DeviceHandle)> {
    let gpu = state.gpus.iter().find(|gpu| is_it(gpu))?;
    Some((gpu.index, DeviceHandle::gpu(gpu.index)))
}

/// Finds a GPU by its address; unlike a search by UUID it succeeds while another GPU is lost.
fn by_bus(call: &Call, text: TextIn, device: Out<DeviceHandle>) -> Outcome<()> {
    let wanted = parse_bus(&text.get()?).ok_or(NvmlCode::INVALID_ARGUMENT)?;
    device.check()?;
    device.put(call.search(|state| find(state, |gpu| gpu.bus() == wanted))?)
}

fn by_uuid(call: &Call, text: &str) -> Outcome<DeviceHandle> {
    call.search_all(|state| {
        state.gpus.iter().find_map(|gpu| {
            if gpu.uuid == text {
                return Some((gpu.index, DeviceHandle::gpu(gpu.index)));
            }
            let (_, compute) = gpu.compute_instances().find(|(_, compute)| compute.uuid == text)?;
            Some((gpu.index, DeviceHandle::mig(gpu.index, compute.serial)))
        })
    })
}

/// The product's name; for a MIG device with the name of its profile.
fn name(subject: &Subject<'_>) -> Outcome<String> {
    let product = subject.gpu.model.product_name();
    let Some((instance, compute)) = subject.mig else { return Ok(product.to_owned()) };
    let profile = subject.gpu.profile_of(instance).ok_or(NvmlCode::UNKNOWN)?;
    Ok(format!("{product} MIG {}", compute_name(profile, compute.placement.size)))
}

fn pci(call: &Call, device: DeviceHandle, info: Out<nvmlPciInfo_t>) -> Outcome<()> {
    info.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| Ok(pci_info(subject.gpu)))?)
}

exports! {
    fn nvmlDeviceGetCount(device_count: Out<c_uint>) call => { count(call, device_count) }

    fn nvmlDeviceGetCount_v2(device_count: Out<c_uint>) call => { count(call, device_count) }

    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<DeviceHandle>) call => {
        by_index(call, index, device)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<DeviceHandle>) call => {
        by_index(call, index, device)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, device: Out<DeviceHandle>) call => {
        device.check()?;
        device.put(by_uuid(call, &uuid.get()?)?)
    }

    fn nvmlDeviceGetHandleBySerial(serial: TextIn, device: Out<DeviceHandle>) call => {
        let wanted = serial.get()?;
        device.check()?;
        device.put(call.search_all(|state| find(state, |gpu| gpu.serial_number == wanted))?)
    }

    fn nvmlDeviceGetHandleByPciBusId(bus_id: TextIn, device: Out<DeviceHandle>) call => {
        by_bus(call, bus_id, device)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: TextIn, device: Out<DeviceHandle>) call => {
        by_bus(call, bus_id, device)
    }

    fn nvmlDeviceGetIndex(device: DeviceHandle, index: Out<c_uint>) call => {
        index.put(call.device(device, |subject| {
            Ok(subject.mig.map_or(subject.gpu.index, |(_, compute)| compute.mig_index))
        })?)
    }

    fn nvmlDeviceGetUUID(device: DeviceHandle, uuid: TextOut, length: c_uint) call => {
        let text = call.device(device, |subject| {
            Ok(subject.mig.map_or(&subject.gpu.uuid, |(_, compute)| &compute.uuid).clone())
        })?;
        uuid.put(length, &text)
    }

    fn nvmlDeviceGetName(device: DeviceHandle, text: TextOut, length: c_uint) call => {
        text.put(length, &call.device(device, name)?)
    }

    fn nvmlDeviceGetBrand(device: DeviceHandle, brand: Out<c_uint>) call => {
        brand.put(call.device(device, |subject| Ok(subject.gpu.model.brand()))?)
    }

    fn nvmlDeviceGetSerial(device: DeviceHandle, serial: TextOut, length: c_uint) call => {
        let text = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| Ok(subject.gpu.serial_number.clone()))?;
        serial.put(length, &text)
    }

    fn nvmlDeviceGetArchitecture(device: DeviceHandle, architecture: Out<c_uint>) call => {
        architecture.put(call.device(device, |subject| Ok(subject.gpu.model.facts().architecture as c_uint))?)
    }

    fn nvmlDeviceGetMinorNumber(device: DeviceHandle, minor: Out<c_uint>) call => {
        minor.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| Ok(subject.gpu.minor))?)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: DeviceHandle, major: Out<c_int>, minor: Out<c_int>) call => {
        let (high, low) = call.device(device, |subject| Ok(subject.gpu.model.facts().compute_capability))?;
        major.put(high)?;
        minor.put(low)
    }

    fn nvmlDeviceGetPciInfo(device: DeviceHandle, info: Out<nvmlPciInfo_t>) call => { pci(call, device, info) }

    fn nvmlDeviceGetPciInfo_v2(device: DeviceHandle, info: Out<nvmlPciInfo_t>) call => { pci(call, device, info) }

    fn nvmlDeviceGetPciInfo_v3(device: DeviceHandle, info: Out<nvmlPciInfo_t>) call => { pci(call, device, info) }

    fn nvmlDeviceGetMultiGpuBoard(device: DeviceHandle, multi: Out<c_uint>) call => {
        multi.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(0))?)
    }

    fn nvmlDeviceGetVbiosVersion(device: DeviceHandle, version: TextOut, length: c_uint) call => {
        call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(()))?;
        version.put(length, "00.00.00.00.01")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_read_in_each_of_the_forms_that_tools_write() {
        assert_eq!(parse_bus("0000:1B:00.0"), Some(0x1B));
        assert_eq!(parse_bus("00000000:1f:00.0"), Some(0x1F));
        assert_eq!(parse_bus("1B:00.0"), Some(0x1B));
        for wrong in ["", "1B", "0000:1B:00.1", "0001:1B:00.0", "0000:XX:00.0", "00.0"] {
            assert_ne!(parse_bus(wrong), Some(0x1B), "{wrong}");
        }
    }
}
