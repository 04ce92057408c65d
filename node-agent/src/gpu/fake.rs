//! GPUs in memory, for unit tests of what uses a [`GpuBackend`].

use super::{Compute, Gpu, GpuBackend, GpuError, GpuInstance};
use kerf_core::mig::{Geometry, Instance, catalog};
use kerf_core::names::{DeviceId, GpuUuid};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// GPUs that a test and the agent's code share.
#[derive(Clone, Default)]
pub(crate) struct FakeGpus(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    gpus: Vec<Gpu>,
    made: u32,
    errors: VecDeque<GpuError>,
}

/// The UUID of the fake GPU at `index`.
pub(crate) fn uuid(index: u32) -> GpuUuid {
    GpuUuid::new(format!("GPU-{index}"))
}

impl FakeGpus {
    /// GPUs of these catalog models, with MIG mode on where the model has it.
    pub(crate) fn new(models: &[&str]) -> Self {
        let gpus = models.iter().zip(0..).map(|(name, index)| {
            let model = catalog::by_name(name).unwrap();
            Gpu {
                uuid: uuid(index),
                index,
                product: format!("NVIDIA {}", model.products[0]),
                memory: model.memory,
                table: model.mig_table(),
                instances: Vec::new(),
            }
        });
        Self(Arc::new(Mutex::new(State { gpus: gpus.collect(), ..State::default() })))
    }

    /// Makes the next call that changes something fail.
    pub(crate) fn fail_next(&self, error: GpuError) {
        self.with(|state| state.errors.push_back(error));
    }

    /// Looks at the GPUs.
    pub(crate) fn gpus(&self) -> Vec<Gpu> {
        self.with(|state| state.gpus.clone())
    }

    /// Starts or ends a process on the instance with this device id.
    pub(crate) fn set_processes(&self, device: &DeviceId, running: bool) {
        self.with(|state| {
            let instances = state.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances);
            instances.filter(|i| i.device() == Some(device)).for_each(|i| i.has_processes = running);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn gpu(&mut self, uuid: &GpuUuid) -> Result<&mut Gpu, GpuError> {
        self.gpus.iter_mut().find(|g| g.uuid == *uuid).ok_or_else(|| GpuError::NoSuchGpu(uuid.clone()))
    }

    fn fail(&mut self) -> Result<(), GpuError> {
        self.errors.pop_front().map_or(Ok(()), Err)
    }
}

impl GpuBackend for FakeGpus {
    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError> {
        Ok(self.gpus())
    }

    fn create(&mut self, gpu: &GpuUuid, wanted: Instance) -> Result<GpuInstance, GpuError> {
        self.with(|state| {
            state.fail()?;
            state.made += 1;
            let made = state.made;
            let gpu = state.gpu(gpu)?;
            let table = gpu.table.clone().ok_or(GpuError::NoSuchProfile(wanted.profile))?;
            let there = gpu.instances.iter().map(|i| i.instance);
            Geometry::of(&table, there)
                .and_then(|g| g.place(wanted.profile, wanted.placement.start))
                .map_err(|_| GpuError::Call {
                    call: "nvmlDeviceCreateGpuInstanceWithPlacement",
                    code: super::NvmlCode::InsufficientResources,
                })?;
            let device = DeviceId::new(format!("MIG-{made}"));
            let created = GpuInstance {
                instance: wanted,
                gi: made,
                compute: Compute::Full { device },
                has_processes: false,
            };
            gpu.instances.push(created.clone());
            Ok(created)
        })
    }

    fn destroy(&mut self, gpu: &GpuUuid, instance: &GpuInstance) -> Result<(), GpuError> {
        self.with(|state| {
            state.fail()?;
            let gpu = state.gpu(gpu)?;
            if gpu.instances.iter().any(|i| i.gi == instance.gi && i.has_processes) {
                return Err(GpuError::Busy);
            }
            gpu.instances.retain(|i| i.gi != instance.gi);
            Ok(())
        })
    }
}
