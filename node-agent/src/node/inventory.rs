//! The node's GPUs, as the agent observes them, and those that it expects.

use super::device_ids::{mig_device, share_slice};
use super::illness::{Ill, Illnesses};
use super::unresponsive::has_all_profiles;
use super::{Profiles, Restored, Xids, gpu_rule};
use crate::gpu::{Compute, Gpu, GpuEvent, GpuInstance, Process, Unresponsive};
use kerf_core::contract::{NodePolicy, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::mig::{ComputeInstance, Instance, MigTable, Profile};
use kerf_core::names::{DeviceId, GpuUuid};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long the agent waits for GPUs that an earlier process had. A driver that is just being loaded needs a few
/// seconds for each GPU.
pub(super) const EXPECTED_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(crate) struct Inventory {
    gpus: Vec<Gpu>,
    /// GPUs that have never answered this process, by index.
    unresponsive: Unresponsive,
    /// The GPUs that the node had when an earlier process ended, until they are seen or given up.
    expected: Profiles,
    /// When the agent gives them up.
    expected_until: Option<Instant>,
    /// All GPUs that were ever seen, also by an earlier process.
    seen: BTreeSet<GpuUuid>,
    /// The GPUs whose MIG mode was on when they were last seen.
    mig_on: BTreeSet<GpuUuid>,
    /// The GPUs that lost their MIG mode with the driver's load and do not have it back yet.
    mig_lost: BTreeSet<GpuUuid>,
    illnesses: Illnesses,
}

impl Inventory {
    pub(super) fn restore(&mut self, restored: &Restored, now: Instant) {
        self.expected.clone_from(&restored.gpus);
        self.seen.extend(restored.gpus.keys().cloned());
        self.mig_on.clone_from(&restored.mig_on);
        self.mig_lost.clone_from(&restored.mig_lost);
        self.illnesses.restore(&restored.ills, now);
    }

    /// Writes what a restart needs into the checkpoint.
    pub(super) fn save(&self, record: &mut Restored) {
        record.gpus = self.gpus.iter().map(profiles).chain(self.expected.clone()).collect();
        record.mig_on.clone_from(&self.mig_on);
        record.mig_lost.clone_from(&self.mig_lost);
        record.ills = self.illnesses.to_record();
    }

    /// Takes an observation. A GPU that does not answer keeps its known state, which has what was made since it was
    /// last seen.
    pub(super) fn observe(&mut self, mut gpus: Vec<Gpu>, policy: &NodePolicy) {
        for gpu in gpus.iter_mut().filter(|gpu| gpu.fault.is_some()) {
            if let Some(known) = self.gpu(&gpu.uuid) {
                *gpu = Gpu { fault: gpu.fault.take(), ..known.clone() };
            }
        }
        self.gpus = gpus;
        self.seen.extend(self.gpus.iter().map(|gpu| gpu.uuid.clone()));
        self.illnesses.forget_gone(&self.gpus);
        self.update_modes(policy);
    }

    /// Records which GPUs' MIG mode is on. A lost mode is dropped once it is back, or no longer useful: a later change is
    /// no loss, because somebody may switch it off on purpose.
    fn update_modes(&mut self, policy: &NodePolicy) {
        let on = self.gpus.iter().filter(|gpu| gpu.mig.is_on()).map(|gpu| gpu.uuid.clone());
        let mut mig_on: BTreeSet<GpuUuid> = on.collect();
        // A GPU that is not visible now keeps its last mode.
        mig_on.extend(self.mig_on.iter().filter(|uuid| self.gpu(uuid).is_none()).cloned());
        self.mig_on = mig_on;
        let is_lost = |gpu: &Gpu| !gpu.mig.is_on() && gpu_rule::rule(policy, gpu).kinds.contains(&Kind::Mig);
        let gpus = &self.gpus;
        let find = |uuid: &GpuUuid| gpus.iter().find(|gpu| gpu.uuid == *uuid);
        self.mig_lost.retain(|uuid| find(uuid).is_none_or(is_lost));
    }

    /// Takes which GPUs have never answered, by index.
    pub(super) fn take_unresponsive(&mut self, unresponsive: Unresponsive) {
        self.unresponsive = unresponsive;
    }

    /// Takes an error that a GPU has reported. Returns its text if it makes the GPU unhealthy.
    pub(super) fn take_trouble(&mut self, event: GpuEvent, xids: &Xids, now: Instant) -> Option<Ill> {
        let gpu = event.gpu.as_ref().and_then(|gpu| self.gpu(gpu));
        let remapping = gpu.map(|gpu| gpu.remapping);
        self.illnesses.take(event, remapping, xids, now)
    }

    /// Takes GPUs back that have been quiet for long enough. Returns them, and when the next one may be.
    pub(super) fn recover(&mut self, after: Duration, now: Instant) -> (Vec<GpuUuid>, Option<Instant>) {
        self.illnesses.recover(&self.gpus, after, now)
    }

    /// While an expected GPU has not answered in full, returns that as text, and when the agent gives it up. The wait
    /// begins with the first observation.
    pub(super) fn await_expected(&mut self, is_observed: bool, now: Instant) -> Option<(String, Instant)> {
        let is_whole = |(uuid, before): &(&GpuUuid, &BTreeSet<Profile>)| {
            self.gpu(uuid).is_some_and(|now| has_all_profiles(now, before))
        };
        let (missing, _) = self.expected.iter().find(|gpu| !is_whole(gpu))?;
        let text = format!("{missing} has not answered in full since the agent was started");
        if is_observed {
            self.expected_until.get_or_insert(now + EXPECTED_TIMEOUT);
        }
        self.expected_until.filter(|until| now < *until).map(|until| (text, until))
    }

    pub(super) fn forget_expected(&mut self) {
        self.expected.clear();
    }

    pub(super) fn expects_gpus(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Adds a GPU instance that was made, in place of those that it overlaps.
    pub(super) fn add_instance(&mut self, gpu: &GpuUuid, created: GpuInstance) {
        if let Some(gpu) = self.gpus.iter_mut().find(|g| g.uuid == *gpu) {
            gpu.instances.retain(|i| !i.instance.placement.overlaps(created.instance.placement));
            gpu.instances.push(created);
            gpu.instances.sort_by_key(|i| i.instance.placement.start);
        }
    }

    /// Removes a GPU instance that was destroyed, or only its compute instance.
    pub(super) fn remove_instance(
        &mut self,
        gpu: &GpuUuid,
        instance: Instance,
        part: Option<ComputeInstance>,
    ) {
        if let Some(gpu) = self.gpus.iter_mut().find(|g| g.uuid == *gpu) {
            match part {
                None => gpu.instances.retain(|i| i.instance != instance),
                Some(part) => {
                    let of_it = gpu.instances.iter_mut().filter(|i| i.instance == instance);
                    of_it.for_each(|i| remove_part(i, part));
                }
            }
        }
        self.illnesses.forget_gone(&self.gpus);
    }

    /// Drops the known processes of the MIG device.
    pub(super) fn drop_processes(&mut self, device: &DeviceId) {
        let Some(gpu) = self.gpus.iter_mut().find(|gpu| place(gpu, device).is_some()) else { return };
        let Some(at) = place(gpu, device) else { return };
        gpu.processes.retain(|process| !is_at(process, at));
        let processes = &gpu.processes;
        for instance in gpu.instances.iter_mut().filter(|instance| instance.gi == at.0) {
            instance.has_processes = processes.iter().any(|p| p.gi == Some(instance.gi));
        }
    }

    pub(super) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    pub(super) fn gpu(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == *uuid)
    }

    /// The GPU that has the device.
    pub(super) fn gpu_of(&self, device: &DeviceId) -> Option<&Gpu> {
        if let Some((uuid, _)) = share_slice(device) {
            return self.gpu(&uuid);
        }
        let device = mig_device(device);
        self.gpus.iter().find(|gpu| has_device(gpu, &device))
    }

    pub(super) fn find(&self, gpu: &GpuUuid, instance: Instance) -> Option<&GpuInstance> {
        self.gpu(gpu)?.instances.iter().find(|i| i.instance == instance)
    }

    /// The GPU instance of a desired slice, once it exists.
    pub(super) fn instance_for(&self, wanted: &WantedSlice) -> Option<&GpuInstance> {
        self.find(&wanted.gpu, wanted.shape.instance()?)
    }

    /// The devices of the GPU instance, or only that of its compute instance `part`.
    pub(super) fn devices_at(
        &self,
        gpu: &GpuUuid,
        instance: Instance,
        part: Option<ComputeInstance>,
    ) -> impl Iterator<Item = &DeviceId> {
        let found = self.find(gpu, instance).into_iter().flat_map(GpuInstance::devices);
        found.filter(move |(at, ..)| part.is_none() || *at == part).map(|(.., device)| device)
    }

    /// The short name of the GPU's model; empty for a GPU that is not visible.
    pub(super) fn model(&self, gpu: &GpuUuid) -> String {
        self.gpu(gpu).map(|gpu| gpu.model.clone()).unwrap_or_default()
    }

    /// The GPUs that answer now.
    pub(super) fn answering(&self) -> BTreeSet<GpuUuid> {
        self.gpus.iter().filter(|gpu| gpu.fault.is_none()).map(|gpu| gpu.uuid.clone()).collect()
    }

    pub(super) fn unresponsive(&self) -> &Unresponsive {
        &self.unresponsive
    }

    /// The GPUs that the node is known to have had, whether or not they are visible.
    pub(super) fn known_gpus(&self) -> impl Iterator<Item = &GpuUuid> {
        self.seen.iter().chain(&self.mig_on)
    }

    pub(super) fn sees_all(&self) -> bool {
        self.seen.iter().all(|uuid| self.gpu(uuid).is_some())
    }

    pub(super) fn has_lost_mig_mode(&self, gpu: &GpuUuid) -> bool {
        self.mig_lost.contains(gpu)
    }

    /// Whether processes run, or may run, on the compute instance of a MIG device.
    pub(super) fn has_processes_on(&self, device: &DeviceId) -> bool {
        let runs = |gpu: &Gpu| {
            place(gpu, device).is_some_and(|at| gpu.processes.iter().any(|process| is_at(process, at)))
        };
        self.gpus.iter().any(runs)
    }

    /// Whether the GPU that had the MIG device at the last observation does not answer.
    pub(super) fn is_on_faulty_gpu(&self, device: &DeviceId) -> bool {
        self.gpus.iter().any(|gpu| gpu.fault.is_some() && place(gpu, device).is_some())
    }

    /// Why the whole GPU must not be used for anything new.
    pub(super) fn trouble(&self, gpu: &Gpu) -> Option<String> {
        let fault = gpu.fault.as_ref().map(|fault| format!("it does not answer: {fault}"));
        let repair = || gpu.pending_repair.clone();
        fault.or_else(repair).or_else(|| self.illnesses.gpu_illness(&gpu.uuid))
    }

    /// Why no new pod may get the device.
    pub(super) fn device_trouble(&self, device: &DeviceId) -> Option<String> {
        let gpu = self.gpu_of(device)?;
        let mig = mig_device(device);
        let found = gpu.instances.iter().find(|i| i.devices().any(|(_, _, d)| *d == mig));
        let instance_illness = || self.illnesses.instance_illness(&gpu.uuid, found?.gi);
        self.trouble(gpu).or_else(instance_illness)
    }
}

fn profiles(gpu: &Gpu) -> (GpuUuid, BTreeSet<Profile>) {
    let entries = gpu.table.iter().flat_map(MigTable::entries);
    (gpu.uuid.clone(), entries.map(|entry| entry.profile).collect())
}

fn has_device(gpu: &Gpu, device: &DeviceId) -> bool {
    gpu.instances.iter().flat_map(GpuInstance::devices).any(|(.., d)| d == device)
}

/// Removes a compute instance that is gone from its GPU instance.
fn remove_part(instance: &mut GpuInstance, part: ComputeInstance) {
    if let Compute::Parts(parts) = &mut instance.compute {
        parts.retain(|p| p.instance != part);
        if parts.is_empty() {
            instance.compute = Compute::Missing;
        }
    }
}

/// The ids of a MIG device's GPU instance and compute instance.
fn place(gpu: &Gpu, device: &DeviceId) -> Option<(u32, u32)> {
    let mut places = gpu.instances.iter().flat_map(|i| i.devices().map(move |(_, ci, d)| (i.gi, ci, d)));
    places.find(|(.., known)| *known == device).map(|(gi, ci, _)| (gi, ci))
}

/// Whether the process runs there, or may.
fn is_at(process: &Process, (gi, ci): (u32, u32)) -> bool {
    process.gi == Some(gi) && process.ci.is_none_or(|of| of == ci)
}
