//! The agent's calls to the fake GPUs, by NVML's rules.

use super::{FakeGpu, FakeGpus, State, lost};
use crate::gpu::{
    Compute, ComputeMode, ComputePart, Gpu, GpuBackend, GpuError, GpuInstance, Holders, MigMode, ModeRefusal,
    NvmlCode, Process,
};
use kerf_core::mig::{ComputeGeometry, ComputeInstance, Geometry, Instance};
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;

/// How far a switch of the MIG mode moves a GPU's minor number.
const MINORS_APART: u32 = 16;

impl State {
    /// Returns the GPU for a changing call, or the error that a test has queued.
    fn gpu(&mut self, uuid: &GpuUuid) -> Result<&mut FakeGpu, GpuError> {
        if let Some(error) = self.errors.pop_front() {
            return Err(error);
        }
        let found = self.gpus.iter_mut().find(|g| g.gpu.uuid == *uuid);
        let found = found.ok_or_else(|| GpuError::NoSuchGpu(uuid.clone()))?;
        if found.is_lost { Err(lost()) } else { Ok(found) }
    }
}

impl GpuBackend for FakeGpus {
    fn count(&mut self) -> Result<u32, GpuError> {
        Ok(self.with_state(|state| u32::try_from(state.gpus.len()).unwrap()))
    }

    fn for_one(&self, index: u32) -> Box<dyn GpuBackend> {
        Box::new(Self { only: Some(index), ..self.clone() })
    }

    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError> {
        self.wait();
        let is_ours = |gpu: &Gpu| self.only.is_none_or(|only| gpu.index == only);
        Ok(self.gpus().into_iter().filter(is_ours).collect())
    }

    fn create(
        &mut self,
        gpu: &GpuUuid,
        wanted: Instance,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError> {
        self.wait();
        self.with_state(|state| {
            let made = state.made + 1;
            let created = state.gpu(gpu)?.create(wanted, part, made)?;
            state.made = made;
            Ok(created)
        })
    }

    fn destroy(
        &mut self,
        gpu: &GpuUuid,
        instance: &GpuInstance,
        part: Option<ComputeInstance>,
    ) -> Result<(), GpuError> {
        self.with_state(|state| state.gpu(gpu)?.destroy(instance, part))
    }

    fn set_mig_mode(&mut self, gpu: &GpuUuid, on: bool, reset: bool) -> Result<(), GpuError> {
        self.with_state(|state| state.gpu(gpu)?.set_mig_mode(on, reset))
    }

    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, GpuError> {
        self.with_state(|state| Ok(state.gpu(gpu)?.gpu.compute_mode))
    }

    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), GpuError> {
        self.with_state(|state| {
            state.gpu(gpu)?.gpu.compute_mode = mode;
            Ok(())
        })
    }

    fn limit_memory(
        &mut self,
        gpu: &GpuUuid,
        cgroup: &str,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        self.with_state(|state| {
            state.gpu(gpu)?;
            let key = (gpu.clone(), cgroup.to_owned());
            match limit {
                Some(limit) => state.limits.insert(key, limit),
                None => state.limits.remove(&key),
            };
            Ok(())
        })
    }
}

fn no_room(call: &'static str) -> GpuError {
    GpuError::Call { call, code: NvmlCode::InsufficientResources }
}

impl FakeGpu {
    fn create(
        &mut self,
        wanted: Instance,
        part: Option<ComputeInstance>,
        made: u32,
    ) -> Result<GpuInstance, GpuError> {
        let table = self.table.as_ref().filter(|_| self.gpu.mig.is_on());
        let table = table.ok_or(GpuError::NoSuchProfile(wanted.profile))?;
        let there = self.gpu.instances.iter().position(|i| i.instance == wanted);
        let there = there.filter(|at| part.is_some() || self.gpu.instances[*at].compute == Compute::Missing);
        let mut created = if let Some(at) = there {
            self.gpu.instances[at].clone()
        } else {
            Geometry::from_instances(table, self.gpu.instances.iter().map(|i| i.instance))
                .and_then(|g| g.place(wanted.profile, wanted.placement.start))
                .map_err(|_| no_room("nvmlDeviceCreateGpuInstanceWithPlacement"))?;
            GpuInstance { instance: wanted, gi: made, compute: Compute::Missing, has_processes: false }
        };
        let device = DeviceId::new(format!("MIG-{made}"));
        created.compute = with_one_more(&created, part, device)?;
        self.gpu.instances.retain(|i| i.instance != wanted);
        self.gpu.instances.push(created.clone());
        Ok(created)
    }

    fn destroy(&mut self, instance: &GpuInstance, part: Option<ComputeInstance>) -> Result<(), GpuError> {
        let Some(at) = self.gpu.instances.iter().position(|i| i.gi == instance.gi) else { return Ok(()) };
        let found = &mut self.gpu.instances[at];
        let doomed: Vec<u32> = found
            .devices()
            .filter(|(place, ..)| part.is_none() || *place == part)
            .map(|(_, ci, _)| ci)
            .collect();
        let on_it = |p: &&Process| p.gi == Some(instance.gi) && p.ci.is_none_or(|ci| doomed.contains(&ci));
        let holders: Vec<&Process> = self.gpu.processes.iter().filter(on_it).collect();
        if !holders.is_empty() {
            return Err(GpuError::Busy(Holders::from_processes(holders)));
        }
        match (part, &mut found.compute) {
            (None, _) => drop(self.gpu.instances.remove(at)),
            (Some(_), Compute::Parts(parts)) => {
                parts.retain(|part| !doomed.contains(&part.ci));
                if parts.is_empty() {
                    found.compute = Compute::Missing;
                }
            }
            (Some(_), Compute::Missing | Compute::Full { .. } | Compute::Foreign) => {}
        }
        Ok(())
    }

    fn set_mig_mode(&mut self, on: bool, reset: bool) -> Result<(), GpuError> {
        let (gpu, refuse) = (&mut self.gpu, |refusal| Err(GpuError::MigMode(refusal)));
        match gpu.mig {
            MigMode::Unsupported => return refuse(ModeRefusal::Unsupported),
            MigMode::Settled(now) | MigMode::Pending(now) if now == on => {
                gpu.mig = MigMode::Settled(on);
                return Ok(());
            }
            MigMode::Settled(_) | MigMode::Pending(_) => {}
        }
        if !gpu.processes.is_empty() {
            return Err(GpuError::Busy(Holders::from_processes(&gpu.processes)));
        }
        if gpu.compute_mode != ComputeMode::Default {
            return refuse(ModeRefusal::ComputeMode(gpu.index));
        }
        if !gpu.instances.is_empty() {
            return refuse(ModeRefusal::Instances(gpu.instances.len()));
        }
        match (gpu.capability.0, reset) {
            (8, false) => return refuse(ModeRefusal::NeedsReset(gpu.index)),
            (8, true) => gpu.mig = MigMode::Pending(!on),
            _ => {
                gpu.mig = MigMode::Settled(on);
                gpu.minor += MINORS_APART;
            }
        }
        Ok(())
    }
}

/// The compute instances of `of` with one more: at `part`, or one of full size.
fn with_one_more(
    of: &GpuInstance,
    part: Option<ComputeInstance>,
    device: DeviceId,
) -> Result<Compute, GpuError> {
    let Some(instance) = part else { return Ok(Compute::Full { ci: 0, device }) };
    let refused = || no_room("nvmlGpuInstanceCreateComputeInstanceWithPlacement");
    let mut parts = match &of.compute {
        Compute::Missing => Vec::new(),
        Compute::Parts(parts) => parts.clone(),
        Compute::Full { .. } | Compute::Foreign => return Err(refused()),
    };
    ComputeGeometry::from_instances(of.instance.profile, parts.iter().map(|p| p.instance).chain([instance]))
        .map_err(|_| refused())?;
    let ci = (0..8).find(|ci| parts.iter().all(|p| p.ci != *ci)).unwrap_or(0);
    parts.push(ComputePart { instance, ci, device });
    parts.sort_by_key(|p| p.instance);
    Ok(Compute::Parts(parts))
}
