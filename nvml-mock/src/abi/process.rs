//! Calls that list processes, which the control file names.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};

use super::pointer::{Out, OutList};
use crate::code::{NvmlCode, Outcome};
use crate::handle::DeviceHandle;
use crate::load::{Process, ProcessList};
use crate::session::{Call, Subject};

/// NVML's value for the instance ids of a process on a whole GPU.
const NO_INSTANCE: c_uint = u32::MAX;
/// The number of samples for which a driver requests room, whether it has any or not (driver 580 on an H200).
const SAMPLE_ROOM: c_uint = 72;

/// A GPU lists the processes in all of its instances; a MIG device lists its own.
fn listed(subject: &Subject<'_>, which: ProcessList) -> Vec<nvmlProcessInfo_t> {
    let here = subject.control.processes.iter().filter(|process| {
        let on_gpu = process.kind.is_in(which) && process.gpu == subject.gpu.index;
        on_gpu && subject.mig.is_none_or(|(gi, ci)| process.is_on(subject.gpu.index, gi.id, ci.id))
    });
    here.map(|process| nvmlProcessInfo_t {
        pid: process.pid,
        usedGpuMemory: process.used_mib * 1024 * 1024,
        gpuInstanceId: process.gi.unwrap_or(NO_INSTANCE),
        computeInstanceId: process.gi.map_or(NO_INSTANCE, |_| process.ci.unwrap_or(0)),
    })
    .collect()
}

fn busy(subject: &Subject<'_>) -> Vec<nvmlProcessUtilizationSample_t> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let here = subject.control.processes.iter().filter(|process| process.gpu == subject.gpu.index);
    let sample = |process: &Process| nvmlProcessUtilizationSample_t {
        pid: process.pid,
        timeStamp: u64::try_from(now).unwrap_or(u64::MAX),
        smUtil: process.sm_util,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    };
    here.filter(|process| process.sm_util > 0).map(sample).collect()
}

fn list(
    call: &Call,
    device: DeviceHandle,
    which: ProcessList,
    count: Out<c_uint>,
    infos: OutList<nvmlProcessInfo_t>,
) -> Outcome<()> {
    let found = call.device(device, |subject| Ok(listed(subject, which)))?;
    infos.fill_counted(count, &found)
}

exports! {
    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: DeviceHandle, count: Out<c_uint>, infos: OutList<nvmlProcessInfo_t>,
    ) call => { list(call, device, ProcessList::Compute, count, infos) }

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: DeviceHandle, count: Out<c_uint>, infos: OutList<nvmlProcessInfo_t>,
    ) call => { list(call, device, ProcessList::Compute, count, infos) }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: DeviceHandle, count: Out<c_uint>, infos: OutList<nvmlProcessInfo_t>,
    ) call => { list(call, device, ProcessList::Graphics, count, infos) }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: DeviceHandle, count: Out<c_uint>, infos: OutList<nvmlProcessInfo_t>,
    ) call => { list(call, device, ProcessList::Graphics, count, infos) }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: DeviceHandle, count: Out<c_uint>, infos: OutList<nvmlProcessInfo_t>,
    ) call => { list(call, device, ProcessList::MpsClients, count, infos) }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: DeviceHandle, count: Out<c_uint>, infos: OutList<nvmlProcessInfo_t>,
    ) call => { list(call, device, ProcessList::MpsClients, count, infos) }

    // One current sample for each process that does something. A request for the room is answered as by a driver.
    fn nvmlDeviceGetProcessUtilization(
        device: DeviceHandle,
        samples: OutList<nvmlProcessUtilizationSample_t>,
        count: Out<c_uint>,
        _last_seen: c_ulonglong,
    ) call => {
        let busy = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| {
            if subject.gpu.mig.current { Err(NvmlCode::NOT_SUPPORTED) } else { Ok(busy(subject)) }
        })?;
        if samples.is_null() {
            count.put(SAMPLE_ROOM)?;
            return Err(NvmlCode::INSUFFICIENT_SIZE);
        }
        if busy.is_empty() {
            count.put(0)?;
            return Err(NvmlCode::NOT_FOUND);
        }
        samples.fill_counted(count, &busy)
    }
}
