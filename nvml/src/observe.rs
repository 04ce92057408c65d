//! Observes all GPUs. A GPU that does not answer keeps its last state, so that one broken GPU does not hide the others.

use crate::instances::{Site, find_by_index};
use crate::processes::{self, MIB};
use crate::repair::{self, Health};
use crate::{ComputeMode, Driver, Gpu, GpuError, GpuInstance, MigMode, NvmlBackend, NvmlCode, pci, topology};
use kerf_core::mig::catalog;
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlComputeMode;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;
use std::path::Path;

const MIG_ENABLED: u32 = 1;

#[derive(Default)]
pub(crate) struct Seen {
    gpus: BTreeMap<GpuUuid, Gpu>,
    unresponsive: BTreeMap<u32, GpuError>,
}

impl NvmlBackend {
    pub(crate) fn observe_all(&mut self) -> Result<Vec<Gpu>, GpuError> {
        let (mut found, mut faults) = (BTreeMap::new(), BTreeMap::new());
        for index in self.indexes()? {
            match self.observe_gpu(index) {
                Ok(gpu) => drop(found.insert(gpu.uuid.clone(), gpu)),
                Err(error) if error.needs_reopening() => return Err(error),
                Err(error) => drop(faults.insert(index, error)),
            }
        }
        Ok(self.seen.update(found, faults))
    }

    fn observe_gpu(&mut self, index: u32) -> Result<Gpu, GpuError> {
        let (device, uuid) = find_by_index(&self.nvml, index)?;
        let last = self.seen.gpus.get(&uuid);
        let memory = device.memory_info().map_err(GpuError::call("nvmlDeviceGetMemoryInfo_v2"))?;
        let mig = mig_mode(&device)?;
        // A GPU with MIG never loses it, so an answer that denies it is wrong.
        if mig == MigMode::Unsupported && last.is_some_and(|last| last.mig != mig) {
            return Err(GpuError::Call { call: "nvmlDeviceGetMigMode", code: NvmlCode::NotSupported });
        }
        let switched = last.is_some_and(|last| last.mig.is_on() != mig.is_on());
        if switched {
            self.tables.forget(&uuid);
        }
        let processes = optional(index, processes::on_gpu(&device))?;
        let health = optional(index, repair::read(&device))?;
        // If the health cannot be read, the last known repair stays pending, because an answer that is missing is no
        // sign of a repair.
        let known = || last.map(Health::from_gpu).unwrap_or_default();
        let Health { pending_repair, remapping } = health.unwrap_or_else(known);
        let mut gpu = Gpu {
            index,
            minor: device.minor_number().map_err(GpuError::call("nvmlDeviceGetMinorNumber"))?,
            memory: MemoryMib(memory.total / MIB),
            reserved: MemoryMib(memory.reserved.div_ceil(MIB)),
            used: MemoryMib(memory.used.div_ceil(MIB)),
            mig,
            compute_mode: compute_mode(&device)?,
            pending_repair,
            remapping,
            ..match last {
                Some(last) => Gpu { fault: None, table: None, instances: Vec::new(), ..last.clone() },
                None => read_constants(&device, &uuid, self.driver()?, &self.sys)?,
            }
        };
        gpu.model = catalog::short_name(&gpu.product, gpu.memory);
        if switched {
            // A GPU in MIG mode has no NVLinks, so the topology changes with the mode.
            gpu.topology = topology::read(&device, &self.sys);
        }
        let attributes = std::mem::take(&mut gpu.attributes);
        if mig.is_on() {
            let (nvml, tables, attributes) = (&*self.nvml, &mut self.tables, Some(attributes));
            let mut site = Site { nvml, device, gpu: &uuid, tables, attributes };
            let table = site.tables.refresh(&uuid, &site.device)?;
            gpu.instances = site.instances(&table, processes.as_deref())?;
            gpu.attributes = site.attributes.unwrap_or_default();
            let is_there = |device: &DeviceId| {
                gpu.instances.iter().flat_map(GpuInstance::devices).any(|(.., there)| there == device)
            };
            gpu.attributes.retain(|device, _| is_there(device));
            gpu.table = Some(table);
        }
        gpu.processes = processes.unwrap_or_default();
        Ok(gpu)
    }
}

/// Turns a failed optional call into `None`, so that it does not fail the observation. It does fail if the GPU is gone
/// or NVML must be reopened.
fn optional<T>(index: u32, answer: Result<T, GpuError>) -> Result<Option<T>, GpuError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.needs_reopening() || error.code() == NvmlCode::GpuIsLost => Err(error),
        Err(error) => {
            tracing::warn!(index, %error, "the GPU did not answer every query; unknown values count as the worst");
            Ok(None)
        }
    }
}

/// Reads the fields that never change on a GPU, so that later observations need not. The others stay empty.
fn read_constants(device: &Device<'_>, uuid: &GpuUuid, driver: Driver, sys: &Path) -> Result<Gpu, GpuError> {
    let capability =
        device.cuda_compute_capability().map_err(GpuError::call("nvmlDeviceGetCudaComputeCapability"))?;
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let bus_id = device.pci_info().ok().map(|pci| pci.bus_id);
    Ok(Gpu {
        product: device.name().map_err(GpuError::call("nvmlDeviceGetName"))?,
        pci_bus_id: bus_id.as_deref().and_then(|bus_id| bus_id.parse().ok()),
        capability: (number(capability.major), number(capability.minor)),
        driver,
        topology: topology::read(device, sys),
        pci_class: bus_id.as_ref().and_then(|bus_id| pci::class(sys, bus_id)),
        ..Gpu::empty(uuid.clone())
    })
}

pub(crate) fn mig_mode(device: &Device<'_>) -> Result<MigMode, GpuError> {
    match device.mig_mode() {
        Ok(mode) => {
            let (now, then) = (mode.current == MIG_ENABLED, mode.pending == MIG_ENABLED);
            Ok(if now == then { MigMode::Settled(now) } else { MigMode::Pending(now) })
        }
        Err(NvmlError::NotSupported) => Ok(MigMode::Unsupported),
        Err(error) => Err(GpuError::call("nvmlDeviceGetMigMode")(error)),
    }
}

pub(crate) fn compute_mode(device: &Device<'_>) -> Result<ComputeMode, GpuError> {
    match device.compute_mode() {
        Ok(NvmlComputeMode::Default) | Err(NvmlError::NotSupported) => Ok(ComputeMode::Default),
        Ok(NvmlComputeMode::ExclusiveProcess) => Ok(ComputeMode::ExclusiveProcess),
        Ok(NvmlComputeMode::ExclusiveThread | NvmlComputeMode::Prohibited) => Ok(ComputeMode::Other),
        Err(error) => Err(GpuError::call("nvmlDeviceGetComputeMode")(error)),
    }
}

impl Seen {
    pub(crate) fn unresponsive(&self) -> &BTreeMap<u32, GpuError> {
        &self.unresponsive
    }

    /// All GPUs that were ever seen, by index: those in `found` with their new state, the others with their last state
    /// and a fault.
    fn update(&mut self, mut found: BTreeMap<GpuUuid, Gpu>, mut faults: BTreeMap<u32, GpuError>) -> Vec<Gpu> {
        for (uuid, last) in &self.gpus {
            if let Some(gpu) = found.get(uuid) {
                if let Some(fault) = &last.fault {
                    tracing::info!(gpu = %uuid, index = gpu.index, %fault, "the GPU answers again");
                }
                continue;
            }
            // Another GPU may have its index by now. Then this one is no longer on the node.
            let fault = faults.remove(&last.index).unwrap_or_else(|| GpuError::NoSuchGpu(uuid.clone()));
            if last.fault.as_ref() != Some(&fault) {
                tracing::warn!(gpu = %uuid, index = last.index, %fault, "the GPU does not answer; its last state counts");
            }
            found.insert(uuid.clone(), Gpu { fault: Some(fault), ..last.clone() });
        }
        for (index, error) in &faults {
            if !self.unresponsive.contains_key(index) {
                tracing::error!(index, %error, "a GPU never answered; it is left out");
            }
        }
        self.unresponsive = faults;
        self.gpus = found;
        let mut all: Vec<Gpu> = self.gpus.values().cloned().collect();
        all.sort_by_key(|gpu| gpu.index);
        all
    }
}
