//! Calls about memory errors: counters, remapped rows, retired pages.
//!
//! The codes are those of an H200 under driver 580. With MIG mode on, a GPU has no volatile counters, and a MIG device
//! has only the counter of uncorrected errors outside DRAM (NVML's manual).

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlEccErrorCounts_t;

use super::pointer::{Out, OutList};
use crate::code::{NvmlCode, Outcome};
use crate::ecc::EccMemory;
use crate::handle::DeviceHandle;
use crate::happening::{EccKind, EccLocation};
use crate::session::Subject;

/// Values of `nvmlMemoryLocation_t`: device memory, and caches with registers. Drivers no longer use the other five.
const DRAM: c_uint = 2;
const SRAM: c_uint = 7;
const LOCATIONS: c_uint = 8;

/// The size of a retired page in bytes.
const PAGE: c_ulonglong = 0x1_0000;

/// The values of `nvmlEccCounterType_t`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counter {
    Volatile,
    Aggregate,
}

/// Parses `nvmlMemoryErrorType_t` and `nvmlEccCounterType_t`.
fn which(kind: c_uint, counter: c_uint) -> Outcome<(EccKind, Counter)> {
    let kind = match kind {
        0 => EccKind::Corrected,
        1 => EccKind::Uncorrected,
        _ => return Err(NvmlCode::INVALID_ARGUMENT),
    };
    match counter {
        0 => Ok((kind, Counter::Volatile)),
        1 => Ok((kind, Counter::Aggregate)),
        _ => Err(NvmlCode::INVALID_ARGUMENT),
    }
}

/// The counts of a GPU.
fn of_gpu(subject: &Subject<'_>, counter: Counter) -> Outcome<EccMemory> {
    match counter {
        Counter::Volatile if subject.gpu.mig.current => Err(NvmlCode::NOT_SUPPORTED),
        Counter::Volatile => Ok(subject.gpu.ecc.volatile),
        Counter::Aggregate => Ok(subject.gpu.ecc.aggregate),
    }
}

/// The one count that a MIG device has; `None` for a GPU.
fn of_mig_device(subject: &Subject<'_>, kind: EccKind, counter: Counter) -> Option<Outcome<u64>> {
    let (instance, _) = subject.mig?;
    let known = kind == EccKind::Uncorrected && counter == Counter::Volatile;
    Some(if known { Ok(instance.sram_uncorrected) } else { Err(NvmlCode::NOT_SUPPORTED) })
}

fn total(subject: &Subject<'_>, kind: EccKind, counter: Counter) -> Outcome<u64> {
    of_mig_device(subject, kind, counter).unwrap_or_else(|| Ok(of_gpu(subject, counter)?.total(kind)))
}

fn errors_at(subject: &Subject<'_>, kind: EccKind, counter: Counter, location: c_uint) -> Outcome<u64> {
    let location = match location {
        DRAM => EccLocation::Dram,
        SRAM => EccLocation::Sram,
        0..LOCATIONS => return Err(NvmlCode::NOT_SUPPORTED),
        _ => return Err(NvmlCode::INVALID_ARGUMENT),
    };
    match of_mig_device(subject, kind, counter) {
        Some(_) if location == EccLocation::Dram => Err(NvmlCode::NOT_SUPPORTED),
        Some(count) => count,
        None => Ok(of_gpu(subject, counter)?.counts(location).count(kind)),
    }
}

/// The addresses of the pages that were retired for a cause: several single bit errors, which the mock never has, or a
/// double bit error.
fn retired(subject: &Subject<'_>, cause: c_uint) -> Outcome<Vec<c_ulonglong>> {
    match cause {
        0 | 1 if !subject.gpu.model.retires_pages() => Err(NvmlCode::NOT_SUPPORTED),
        0 => Ok(Vec::new()),
        1 => Ok((0..subject.gpu.ecc.replaced()).map(|page| page * PAGE).collect()),
        _ => Err(NvmlCode::INVALID_ARGUMENT),
    }
}

exports! {
    fn nvmlDeviceGetEccMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) call => {
        let on = call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(1))?;
        current.put(on)?;
        pending.put(on)
    }

    fn nvmlDeviceGetTotalEccErrors(
        device: DeviceHandle,
        kind: c_uint,
        counter: c_uint,
        errors: Out<c_ulonglong>,
    ) call => {
        let (kind, counter) = which(kind, counter)?;
        errors.put(call.device(device, |subject| total(subject, kind, counter))?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device: DeviceHandle,
        kind: c_uint,
        counter: c_uint,
        location: c_uint,
        errors: Out<c_ulonglong>,
    ) call => {
        let (kind, counter) = which(kind, counter)?;
        errors.put(call.device(device, |subject| errors_at(subject, kind, counter, location))?)
    }

    // This call is from before SRAM had its own count.
    fn nvmlDeviceGetDetailedEccErrors(
        device: DeviceHandle,
        kind: c_uint,
        counter: c_uint,
        counts: Out<nvmlEccErrorCounts_t>,
    ) call => {
        let (kind, counter) = which(kind, counter)?;
        let memory = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| of_gpu(subject, counter))?;
        counts.put(nvmlEccErrorCounts_t {
            l1Cache: 0,
            l2Cache: 0,
            deviceMemory: memory.dram.count(kind),
            registerFile: 0,
        })
    }

    fn nvmlDeviceGetRetiredPages(
        device: DeviceHandle,
        cause: c_uint,
        count: Out<c_uint>,
        addresses: OutList<c_ulonglong>,
    ) call => {
        let pages = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| retired(subject, cause))?;
        addresses.fill_counted(count, &pages)
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(device: DeviceHandle, pending: Out<c_uint>) call => {
        pending.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| {
            retired(subject, 1).map(|_| subject.gpu.ecc.remap_pending.into())
        })?)
    }

    fn nvmlDeviceGetRemappedRows(
        device: DeviceHandle,
        correctable: Out<c_uint>,
        uncorrectable: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>,
    ) call => {
        let (rows, waits) = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| {
            if subject.gpu.model.retires_pages() {
                return Err(NvmlCode::NOT_SUPPORTED);
            }
            let rows = u32::try_from(subject.gpu.ecc.replaced()).unwrap_or(u32::MAX);
            Ok((rows, subject.gpu.ecc.remap_pending))
        })?;
        correctable.put(0)?;
        uncorrectable.put(rows)?;
        pending.put(waits.into())?;
        failed.put(0)
    }
}
