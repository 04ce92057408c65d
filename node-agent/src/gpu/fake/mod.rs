//! GPUs in memory, for unit tests of the users of [`GpuBackend`](super::GpuBackend). This file has what a test does to
//! them; `backend` has what the agent does.

mod backend;
#[cfg(test)]
mod tests;

use super::{ComputeMode, Driver, Gpu, GpuError, MigMode, NvmlCode, Process, RowRemapping};
use kerf_core::mig::{MigTable, catalog};
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// CUDA compute capabilities by the first letters of the model's name.
const CAPABILITIES: [(&str, (u32, u32)); 10] = [
    ("A100", (8, 0)),
    ("A30", (8, 0)),
    ("A10G", (8, 6)),
    ("L4", (8, 9)),
    ("T4", (7, 5)),
    ("H", (9, 0)),
    ("GH", (9, 0)),
    ("B", (10, 0)),
    ("GB", (10, 0)),
    ("RTX", (12, 0)),
];

/// The first process id that [`FakeGpus::set_processes`] uses.
const SOMEBODY: u32 = 4711;

/// GPUs that a test and the agent's code share.
#[derive(Clone, Default)]
pub(crate) struct FakeGpus {
    state: Arc<Mutex<State>>,
    /// The index of the only GPU that this handle sees; `None` for all.
    only: Option<u32>,
}

#[derive(Default)]
struct State {
    gpus: Vec<FakeGpu>,
    made: u32,
    errors: VecDeque<GpuError>,
    limits: BTreeMap<(GpuUuid, String), MemoryMib>,
    /// Indexes of GPUs whose calls hang.
    hanging: BTreeSet<u32>,
    panicking: BTreeSet<u32>,
}

struct FakeGpu {
    /// The GPU without the parts that are computed for each observation.
    gpu: Gpu,
    /// The MIG table while MIG mode is on; `None` without MIG.
    table: Option<MigTable>,
    /// Memory in use by no listed process.
    other: MemoryMib,
    is_lost: bool,
}

pub(crate) fn uuid(index: u32) -> GpuUuid {
    GpuUuid::new(format!("GPU-{index}"))
}

impl FakeGpus {
    /// GPUs of these catalog models, with MIG mode on where the model has it.
    pub(crate) fn new(models: &[&str]) -> Self {
        let gpus = models.iter().zip(0..).map(|(name, index)| FakeGpu::new(name, index));
        Self { state: Arc::new(Mutex::new(State { gpus: gpus.collect(), ..State::default() })), only: None }
    }

    /// The same GPUs with MIG mode off.
    pub(crate) fn uncut(models: &[&str]) -> Self {
        let gpus = Self::new(models);
        gpus.with_state(|state| {
            for gpu in state.gpus.iter_mut().filter(|g| g.table.is_some()) {
                gpu.gpu.mig = MigMode::Settled(false);
            }
        });
        gpus
    }

    /// Makes the next changing call fail.
    pub(crate) fn fail_next(&self, error: GpuError) {
        self.with_state(|state| state.errors.push_back(error));
    }

    pub(crate) fn gpus(&self) -> Vec<Gpu> {
        self.with_state(|state| state.gpus.iter().map(FakeGpu::seen).collect())
    }

    /// Starts or ends a process on the MIG device with this id.
    pub(crate) fn set_processes(&self, device: &DeviceId, running: bool) {
        let gpus = self.gpus();
        let found = gpus.iter().find_map(|gpu| Some((gpu.index, place(gpu, device)?)));
        let Some((index, (gi, ci))) = found else { return };
        let pid = SOMEBODY + gi * 8 + ci;
        self.end_process(pid);
        if running {
            self.start_process(index, Some(device), pid, Some(MemoryMib(1)));
        }
    }

    /// Starts a process on a GPU or on one of its MIG devices.
    pub(crate) fn start_process(
        &self,
        index: u32,
        device: Option<&DeviceId>,
        pid: u32,
        memory: Option<MemoryMib>,
    ) {
        self.with_gpu(index, |gpu| {
            let place = device.and_then(|device| place(&gpu.gpu, device));
            let (gi, ci) = (place.map(|(gi, _)| gi), place.map(|(_, ci)| ci));
            gpu.gpu.processes.push(Process { pid, memory, gi, ci });
        });
    }

    pub(crate) fn end_process(&self, pid: u32) {
        self.with_state(|state| state.gpus.iter_mut().for_each(|g| g.gpu.processes.retain(|p| p.pid != pid)));
    }

    /// Uses memory of a GPU without a listed process.
    pub(crate) fn use_memory(&self, index: u32, memory: MemoryMib) {
        self.with_gpu(index, |gpu| gpu.other = memory);
    }

    /// Makes a GPU fall off the bus, or return.
    pub(crate) fn set_lost(&self, index: u32, lost: bool) {
        self.with_gpu(index, |gpu| gpu.is_lost = lost);
    }

    /// Makes the thread of a GPU panic in its next call.
    pub(crate) fn set_panicking(&self, index: u32) {
        self.with_state(|state| state.panicking.insert(index));
    }

    /// Makes calls to a GPU hang from now on, or return.
    pub(crate) fn set_hanging(&self, index: u32, hangs: bool) {
        self.with_state(
            |state| if hangs { state.hanging.insert(index) } else { state.hanging.remove(&index) },
        );
    }

    pub(crate) fn set_remapping(&self, index: u32, remapping: RowRemapping) {
        self.with_gpu(index, |gpu| gpu.gpu.remapping = remapping);
    }

    /// Returns once the GPU does not hang.
    fn wait(&self) {
        let panics = self.only.is_some_and(|index| self.with_state(|state| state.panicking.contains(&index)));
        assert!(!panics, "a fault of the agent's");
        while self.only.is_some_and(|index| self.with_state(|state| state.hanging.contains(&index))) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Sets the repair for which a GPU needs a reset.
    pub(crate) fn set_pending_repair(&self, index: u32, what: Option<&str>) {
        self.with_gpu(index, |gpu| gpu.gpu.pending_repair = what.map(str::to_owned));
    }

    pub(crate) fn limits(&self) -> BTreeMap<(GpuUuid, String), MemoryMib> {
        self.with_state(|state| state.limits.clone())
    }

    /// Reboots the node: slices, processes and settings are gone. Hopper and later lose MIG mode; Ampere applies the
    /// pending one.
    pub(crate) fn reboot(&self) {
        self.with_state(|state| {
            state.limits.clear();
            state.gpus.iter_mut().for_each(FakeGpu::reboot);
        });
    }

    fn with_gpu(&self, index: u32, act: impl FnOnce(&mut FakeGpu)) {
        self.with_state(|state| act(state.gpus.iter_mut().find(|g| g.gpu.index == index).unwrap()));
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The ids of a MIG device's GPU instance and compute instance.
fn place(gpu: &Gpu, device: &DeviceId) -> Option<(u32, u32)> {
    gpu.instances
        .iter()
        .find_map(|i| i.devices().find_map(|(_, ci, known)| (known == device).then_some((i.gi, ci))))
}

impl FakeGpu {
    fn new(name: &str, index: u32) -> Self {
        let model = catalog::by_name(name).unwrap();
        let table = model.mig_table();
        let (_, capability) = CAPABILITIES.iter().find(|(start, _)| name.starts_with(start)).unwrap();
        let gpu = Gpu {
            index,
            minor: index,
            product: format!("NVIDIA {}", model.products[0]),
            model: model.name.to_owned(),
            pci_bus_id: Some(format!("0000:{index:02x}:00.0").parse().unwrap()),
            memory: model.memory,
            reserved: MemoryMib(512),
            capability: *capability,
            driver: Driver { version: "580.159.04".to_owned(), cuda: (13, 0) },
            mig: if table.is_some() { MigMode::Settled(true) } else { MigMode::Unsupported },
            ..Gpu::empty(uuid(index))
        };
        Self { gpu, table, other: MemoryMib(0), is_lost: false }
    }

    /// What an observation shows. A lost fake GPU shows its last state, because its state continues to exist here.
    fn seen(&self) -> Gpu {
        let mut gpu = self.gpu.clone();
        let listed = gpu.processes.iter().filter_map(|p| p.memory).map(|memory| memory.0).sum::<u64>();
        gpu.used = MemoryMib(self.other.0 + listed);
        gpu.table = self.table.clone().filter(|_| gpu.mig.is_on());
        for instance in &mut gpu.instances {
            instance.has_processes = gpu.processes.iter().any(|p| p.gi == Some(instance.gi));
        }
        gpu.fault = self.is_lost.then(lost);
        gpu
    }

    fn reboot(&mut self) {
        self.gpu.instances.clear();
        self.gpu.processes.clear();
        self.gpu.compute_mode = ComputeMode::Default;
        self.gpu.pending_repair = None;
        self.gpu.mig = match self.gpu.mig {
            MigMode::Unsupported => MigMode::Unsupported,
            _ if self.gpu.capability.0 >= 9 => MigMode::Settled(false),
            MigMode::Settled(on) => MigMode::Settled(on),
            MigMode::Pending(on) => MigMode::Settled(!on),
        };
    }
}

fn lost() -> GpuError {
    GpuError::Call { call: "nvmlDeviceGetHandleByIndex_v2", code: NvmlCode::GpuIsLost }
}
