//! Calls about utilisation, power, temperature and clocks, with the answers of an idle, healthy GPU.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlUtilization_t};

use super::pointer::{Out, OutList};
use crate::code::{NvmlCode, Outcome};
use crate::handle::DeviceHandle;
use crate::session::{Call, Subject};

/// Temperature of an idle H200, in degrees Celsius.
const IDLE_TEMPERATURE_C: c_uint = 31;

/// Answers a call about a GPU; a MIG device supports none of these.
fn of_gpu<T>(
    call: &Call,
    device: DeviceHandle,
    out: Out<T>,
    answer: impl FnOnce(&Subject<'_>) -> Outcome<T>,
) -> Outcome<()> {
    out.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, answer)?)
}

fn power_limit(call: &Call, device: DeviceHandle, milliwatts: Out<c_uint>) -> Outcome<()> {
    of_gpu(call, device, milliwatts, |subject| Ok(subject.gpu.model.facts().power_limit_mw))
}

fn clock(call: &Call, device: DeviceHandle, kind: c_uint, mhz: Out<c_uint>) -> Outcome<()> {
    of_gpu(call, device, mhz, |subject| {
        subject.gpu.model.facts().clocks_mhz.get(kind as usize).copied().ok_or(NvmlCode::INVALID_ARGUMENT)
    })
}

fn link_generation(call: &Call, device: DeviceHandle, generation: Out<c_uint>) -> Outcome<()> {
    of_gpu(call, device, generation, |subject| Ok(subject.gpu.model.facts().pcie_generation))
}

fn link_width(call: &Call, device: DeviceHandle, width: Out<c_uint>) -> Outcome<()> {
    of_gpu(call, device, width, |_| Ok(16))
}

exports! {
    fn nvmlDeviceGetUtilizationRates(device: DeviceHandle, rates: Out<nvmlUtilization_t>) call => {
        of_gpu(call, device, rates, |subject| {
            // A driver has no utilisation value for a GPU in MIG mode.
            if subject.gpu.mig.current {
                return Err(NvmlCode::NOT_SUPPORTED);
            }
            let here = subject.control.processes.iter().filter(|process| process.gpu == subject.gpu.index);
            let busy = here.map(|process| process.sm_util).sum::<u32>().min(100);
            Ok(nvmlUtilization_t { gpu: busy, memory: busy / 2 })
        })
    }

    fn nvmlDeviceGetPowerUsage(device: DeviceHandle, milliwatts: Out<c_uint>) call => {
        of_gpu(call, device, milliwatts, |subject| Ok(subject.gpu.model.facts().power_limit_mw / 6))
    }

    fn nvmlDeviceGetPowerManagementLimit(device: DeviceHandle, milliwatts: Out<c_uint>) call => {
        power_limit(call, device, milliwatts)
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(device: DeviceHandle, milliwatts: Out<c_uint>) call => {
        power_limit(call, device, milliwatts)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(device: DeviceHandle, milliwatts: Out<c_uint>) call => {
        power_limit(call, device, milliwatts)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(device: DeviceHandle, millijoules: Out<c_ulonglong>) call => {
        of_gpu(call, device, millijoules, |_| Ok(0))
    }

    fn nvmlDeviceGetTemperature(device: DeviceHandle, sensor: c_uint, degrees: Out<c_uint>) call => {
        if sensor != 0 {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        of_gpu(call, device, degrees, |_| Ok(IDLE_TEMPERATURE_C))
    }

    fn nvmlDeviceGetPerformanceState(device: DeviceHandle, state: Out<c_uint>) call => {
        of_gpu(call, device, state, |_| Ok(0))
    }

    fn nvmlDeviceGetClockInfo(device: DeviceHandle, kind: c_uint, mhz: Out<c_uint>) call => {
        clock(call, device, kind, mhz)
    }

    fn nvmlDeviceGetMaxClockInfo(device: DeviceHandle, kind: c_uint, mhz: Out<c_uint>) call => {
        clock(call, device, kind, mhz)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: DeviceHandle, generation: Out<c_uint>) call => {
        link_generation(call, device, generation)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: DeviceHandle, generation: Out<c_uint>) call => {
        link_generation(call, device, generation)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: DeviceHandle, width: Out<c_uint>) call => {
        link_width(call, device, width)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: DeviceHandle, width: Out<c_uint>) call => {
        link_width(call, device, width)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: DeviceHandle, replays: Out<c_uint>) call => {
        of_gpu(call, device, replays, |_| Ok(0))
    }

    // Each field has its own return code; the mock supports none.
    fn nvmlDeviceGetFieldValues(device: DeviceHandle, count: c_int, values: OutList<nvmlFieldValue_t>) call => {
        let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        call.device(device, |_| Ok(()))?;
        values.change_each(count, |value| value.nvmlReturn = NvmlCode::NOT_SUPPORTED.0)
    }
}
