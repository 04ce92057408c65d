//! Restores the node from the agent's checkpoint after a boot, a reload of the driver or a restart of the agent. GPU
//! instances end with the load of the driver, and so does the MIG mode of most GPUs.
//!
//! After a reload of the driver, at a boot or within one, the recorded slices are made again at the same places before
//! any resource name is registered, because the kubelet's own checkpoint has pods that need these names.

use super::share::Shares;
use super::takeover::TakeOver;
use super::{Ill, Node, NodeEvent};
use crate::conflicting::Who;
use crate::gpu::limits;
use crate::gpu::{Compute, Gpu};
use kerf_core::contract::{Shape, SliceLength, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::ledger::{Ledger, Moment, Saved};
use kerf_core::mig::{MigTable, Profile};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::nvidia_keys::DEPLOY_CLIENTS;
use kerf_core::planner::Step;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Not;
use std::time::{Duration, Instant};

/// How long the registration of names waits for recorded slices.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The wait after a failed write of the checkpoint.
pub(super) const RECORD_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// GPUs, and the MIG profiles that each offers.
pub type Profiles = BTreeMap<GpuUuid, BTreeSet<Profile>>;

/// The content of the checkpoint, as the node restores it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "each tells of something else")]
pub struct Restored {
    pub ledger: Saved,
    /// Whether the agent kept the ledger itself, and did not follow a GpuNode's spec.
    #[serde(skip_serializing_if = "Not::not")]
    pub is_own: bool,
    /// The UID of the GpuNode whose spec was followed; `None` if the ledger is the agent's own.
    pub uid: Option<String>,
    /// Whether there is a checkpoint that cannot be read.
    #[serde(skip)]
    pub is_lost: bool,
    /// The GPUs that the node had, with their MIG profiles.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: Profiles,
    /// MIG devices that are to be destroyed, with their slices' names: without these they would count as unknown after
    /// a restart.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub made: BTreeMap<DeviceId, SliceId>,
    /// Whether NVIDIA's device plugin was here.
    #[serde(skip_serializing_if = "Not::not")]
    pub plugin: bool,
    /// The shares that existed, wanted or not: no other source shows a share that only an init container holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// The GPUs whose MIG mode was on when they were last seen: the next load of the driver may lack it.
    #[serde(rename = "mig")]
    pub mig_on: BTreeSet<GpuUuid>,
    /// The GPUs that lost their MIG mode with the driver's load and do not have it back yet. The file stores this
    /// apart.
    #[serde(skip)]
    pub mig_lost: BTreeSet<GpuUuid>,
    /// The GPUs that kerf had put into `EXCLUSIVE_PROCESS` mode.
    pub exclusive: BTreeSet<GpuUuid>,
    /// The limits that kerf had set on the GPU memory of cgroups.
    #[serde(with = "limits::by_gpu")]
    pub limits: limits::Limits,
    /// The GPUs whose time slices have had another length than the driver's default since the boot.
    pub lengths: BTreeSet<GpuUuid>,
    /// The Node's labels by which kerf has paused DCGM and similar programs, or is about to.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub paused: BTreeSet<String>,
    pub ills: Vec<Ill>,
    /// Whether the driver was reloaded since, at a boot or within one, and not everything was made again yet.
    #[serde(rename = "recovering")]
    pub booted: bool,
}

impl Restored {
    /// Replaces a checkpoint that cannot be read. Labels that are paused while no MIG manager works were paused by an
    /// agent.
    #[must_use]
    pub fn lost() -> Self {
        Self { is_lost: true, paused: DEPLOY_CLIENTS.map(str::to_owned).into(), ..Self::default() }
    }

    /// Whether NVIDIA's device plugin was here; `None` if the checkpoint was lost.
    #[must_use]
    pub fn plugin_was_here(&self) -> Option<bool> {
        (!self.is_lost).then_some(self.plugin)
    }

    /// Keeps what still counts after the driver was reloaded, at a boot or within one. Compute modes, limits and
    /// lengths end with a load, so what is set now was set by others. A GPU that is still ill reports it again. Shares
    /// stay, because the kubelet remembers to which pods it has allocated them. The Node's labels stay too.
    #[must_use]
    pub fn after_reload(self) -> Self {
        let Self { ledger, is_own, uid, gpus, plugin, shares, mig_on, mut mig_lost, paused, .. } = self;
        mig_lost.extend(mig_on);
        let restored = Self { ledger, is_own, uid, gpus, plugin, ..Self::default() };
        Self { shares, mig_lost, paused, booted: true, ..restored }
    }
}

impl Node {
    /// Takes the checkpoint of an earlier process.
    pub fn restore(&mut self, restored: Restored, now: Instant) {
        if restored.booted {
            tracing::info!(
                slices = restored.ledger.desired.slices.len(),
                "the driver was loaded anew: its slices are made again"
            );
            self.recovering = Some(now + TIMEOUT);
        }
        self.housekeeping.started = Some(now);
        if !restored.is_own {
            self.takeover = TakeOver::Awaited;
        }
        self.ledger = Ledger::restore(restored.ledger.clone(), self.settings.limits, Moment::default());
        // Any of the pods may be bound by now, because the checkpoint does not have the marks of Bindings.
        let reserved = self.ledger.desired().slices.iter().filter_map(|slice| slice.reservation.as_ref());
        self.bindings.take_status(reserved.map(|reservation| (&reservation.uid, true)));
        self.recall_ills(&restored.ills, now);
        self.awaited.clone_from(&restored.gpus);
        self.had.extend(restored.gpus.keys().cloned());
        self.origins.clone_from(&restored.made);
        self.restored = restored;
    }

    /// Notes which GPUs' MIG mode is on. A lost mode is dropped once it is back, or no longer useful: a later change is
    /// no loss, because somebody may switch it off on purpose.
    pub(super) fn note_modes(&mut self) {
        let on = self.gpus.iter().filter(|gpu| gpu.mig.is_on()).map(|gpu| gpu.uuid.clone());
        let mut seen_on: BTreeSet<GpuUuid> = on.collect();
        // A GPU that is not visible now keeps its last mode.
        seen_on.extend(self.restored.mig_on.iter().filter(|uuid| self.gpu(uuid).is_none()).cloned());
        self.restored.mig_on = seen_on;
        let mut lost = std::mem::take(&mut self.restored.mig_lost);
        lost.retain(|uuid| {
            let is_lost = |gpu: &Gpu| !gpu.mig.is_on() && self.rule(gpu).kinds.contains(&Kind::Mig);
            self.gpu(uuid).is_none_or(is_lost)
        });
        self.restored.mig_lost = lost;
    }

    /// Notes whose time slices have another length than the driver's default. An agent that leaves the node resets
    /// them.
    pub(super) fn note_lengths(&mut self, wanted: &BTreeMap<GpuUuid, SliceLength>) {
        let changed = wanted.iter().filter(|(_, length)| **length != SliceLength::Default);
        self.restored.lengths.extend(changed.map(|(gpu, _)| gpu.clone()));
    }

    /// What has to be recorded before anything is cut.
    pub(super) fn to_record(&self) -> Restored {
        let exclusive = self.wanted_daemons().into_iter().filter(|(_, d)| d.exclusive).map(|(gpu, _)| gpu);
        let kept = self.restored.exclusive.iter().filter(|gpu| self.daemons.contains_key(*gpu)).cloned();
        Restored {
            ledger: self.ledger.saved(),
            is_own: self.takeover == TakeOver::Done,
            uid: self.restored.uid.clone(),
            is_lost: false,
            gpus: self.profiles(),
            made: self.made_devices(),
            plugin: self.others.as_ref().map_or(self.restored.plugin, |others| {
                others.iter().any(|other| other.contains(&Who::DevicePlugin.to_string()))
            }),
            shares: Some(self.shares_to_record()),
            mig_on: self.restored.mig_on.clone(),
            mig_lost: self.restored.mig_lost.clone(),
            exclusive: exclusive.chain(kept).collect(),
            limits: self.wanted_limits(),
            lengths: self.restored.lengths.clone(),
            paused: self.restored.paused.clone(),
            ills: self.ills(),
            booted: self.is_recovering(),
        }
    }

    /// The visible GPUs, with those that the agent waits for.
    fn profiles(&self) -> Profiles {
        let profiles = |gpu: &Gpu| {
            let entries = gpu.table.iter().flat_map(MigTable::entries);
            (gpu.uuid.clone(), entries.map(|entry| entry.profile).collect())
        };
        self.gpus.iter().map(profiles).chain(self.awaited.clone()).collect()
    }

    /// MIG devices that the agent made for slices that are no longer desired. They exist, or existed at the start on a
    /// GPU that is not visible. Desired slices are known by their places, so a cut changes nothing here and costs no
    /// write.
    fn made_devices(&self) -> BTreeMap<DeviceId, SliceId> {
        let instances: BTreeSet<&DeviceId> = self
            .gpus
            .iter()
            .flat_map(|gpu| &gpu.instances)
            .flat_map(|instance| instance.devices().map(|(.., device)| device))
            .collect();
        let sees_all = self.health.nvml.is_well() && self.had.iter().all(|uuid| self.gpu(uuid).is_some());
        let may_be = |device: &DeviceId| !sees_all && self.restored.made.contains_key(device);
        let desired = self.desired().iter().filter_map(|slice| Some((self.mig_device_of(slice)?, &slice.id)));
        let desired: BTreeSet<_> = desired.collect();
        let made = self.origins.iter().filter(|(device, _)| instances.contains(device) || may_be(device));
        let made = made.filter(|(device, id)| !desired.contains(&((*device).clone(), *id)));
        made.map(|(device, id)| (device.clone(), id.clone())).collect()
    }

    /// Handles a failed write of the checkpoint, for the step on `gpu` or for a setting: it was not made, and is tried
    /// again.
    pub fn on_unrecorded(&mut self, gpu: Option<&GpuUuid>, error: &str, now: Instant) {
        tracing::error!(error, "nothing is cut that cannot be recorded");
        match gpu {
            Some(gpu) => self.under_way.end(gpu, None),
            None => self.under_way.forget_begun(),
        }
        self.unrecorded = Some((error.to_owned(), now + RECORD_RETRY_INTERVAL));
    }

    /// Whether the names still wait for slices that are being made again.
    pub(super) fn is_recovering(&self) -> bool {
        self.recovering.is_some()
    }

    /// Selects the steps that a recovery may run: they make what the checkpoint lists, and nothing else.
    pub(super) fn recovery_steps(steps: Vec<Step>) -> Vec<Step> {
        let restores = |step: &Step| matches!(step, Step::Switch { mig: true, .. } | Step::Create { .. });
        steps.into_iter().filter(restores).collect()
    }

    /// Extends the recovery's timeout while nothing can be made yet.
    pub(super) fn extend_recovery(&mut self, now: Instant) {
        self.recovering = self.recovering.map(|until| until.max(now + TIMEOUT));
    }

    /// Ends the recovery once no step is left to try, or after its timeout.
    pub(super) fn note_recovery(&mut self, steps: &[Step], now: Instant) {
        let Some(until) = self.recovering else { return };
        let has_seen = self.health.nvml.is_well();
        let open = steps.iter().any(|step| !self.retries.is_final(&super::decide::task(step)));
        // Names must not wait forever, because pods that need them cannot start before.
        if now >= until || has_seen && !open {
            let is_missing =
                |w: &&WantedSlice| matches!(w.shape, Shape::Mig { .. }) && self.device_of(w).is_none();
            let mut missing = 0_usize;
            for wanted in self.desired().iter().filter(is_missing) {
                let (id, gpu) = (&wanted.id, &wanted.gpu);
                tracing::error!(slice = %id, %gpu, shape = %wanted.shape, "a recorded slice was not made again");
                missing += 1;
            }
            if missing == 0 {
                tracing::info!("the recorded slices are there; names are registered now");
            } else {
                tracing::warn!(missing, "names are registered without the slices that were not made again");
            }
            self.recovering = None;
        }
    }

    /// Reports GPU instances that no record lists. They count as occupied.
    pub(super) fn tell_adopted(&mut self) {
        let known = |device: &DeviceId| self.origins.contains_key(device);
        let found: Vec<NodeEvent> = self
            .gpus
            .iter()
            .flat_map(|gpu| &gpu.instances)
            .filter(|instance| instance.compute != Compute::Missing)
            .flat_map(|instance| instance.devices().map(|(.., device)| device.clone()))
            .filter(|device| !known(device))
            .map(|device| NodeEvent::Adopted { device })
            .collect();
        self.tell_lasting(found, |note| matches!(note, NodeEvent::Adopted { .. }));
    }
}
