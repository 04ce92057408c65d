//! Calls about the memory of GPUs and MIG devices.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

use super::pointer::{Out, Versioned, version_word};
use crate::code::{NvmlCode, Outcome};
use crate::handle::DeviceHandle;
use crate::session::Subject;

const MIB: u64 = 1024 * 1024;

/// Amounts of memory in MiB.
struct Memory {
    total: u64,
    reserved: u64,
    used: u64,
}

impl Memory {
    fn free(&self) -> u64 {
        self.total.saturating_sub(self.reserved + self.used)
    }
}

/// A GPU counts what its processes use. A MIG device has the memory of its GPU instance and counts the processes in
/// that, because the compute instances of one GPU instance share the memory.
fn memory(subject: &Subject<'_>) -> Outcome<Memory> {
    let on_gpu = subject.control.processes.iter().filter(|process| process.gpu == subject.gpu.index);
    let Some((instance, _)) = subject.mig else {
        let facts = subject.gpu.model.facts();
        let used = on_gpu.map(|process| process.used_mib).sum();
        return Ok(Memory { total: facts.total_mib, reserved: facts.reserved_mib, used });
    };
    let profile = subject.gpu.profile_of(instance).ok_or(NvmlCode::UNKNOWN)?;
    let used = on_gpu.filter(|process| process.gi == Some(instance.id)).map(|process| process.used_mib).sum();
    Ok(Memory { total: profile.memory_mib, reserved: 0, used })
}

exports! {
    // In the first version the reserved memory counts as used.
    fn nvmlDeviceGetMemoryInfo(device: DeviceHandle, info: Out<nvmlMemory_t>) call => {
        let memory = call.device(device, memory)?;
        info.put(nvmlMemory_t {
            total: memory.total * MIB,
            free: memory.free() * MIB,
            used: (memory.total - memory.free()) * MIB,
        })
    }

    // On driver 580 a wrong version returns that the function is not found.
    fn nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, info: Versioned) call => {
        let version = info.version()?;
        if version != version_word::<nvmlMemory_v2_t>(2) {
            return Err(NvmlCode::FUNCTION_NOT_FOUND);
        }
        let memory = call.device(device, memory)?;
        info.put(nvmlMemory_v2_t {
            version,
            total: memory.total * MIB,
            reserved: memory.reserved * MIB,
            free: memory.free() * MIB,
            used: memory.used * MIB,
        })
    }

    // The window over all memory that large BAR1 provides, rounded up to a power of two.
    fn nvmlDeviceGetBAR1MemoryInfo(device: DeviceHandle, info: Out<nvmlBAR1Memory_t>) call => {
        let mib = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| Ok(subject.gpu.model.total_mib()))?;
        let total = mib.next_power_of_two() * MIB;
        info.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - MIB, bar1Used: MIB })
    }
}
