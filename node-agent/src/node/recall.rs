//! What the node had before it was booted, its driver loaded anew or the agent restarted, from the agent's own record: GPU
//! instances end with the load of the driver, and so does the MIG mode of most GPUs.
//!
//! A node whose driver was loaded anew, by a boot or in the same one, gets back what its record tells, at the same places, before any resource name is registered: the
//! kubelet's own record tells it of pods that need the names.

use super::share::Shares;
use super::takeover::TakeOver;
use super::{Ill, Node, Note};
use crate::gpu::limits;
use crate::gpu::{Compute, Gpu};
use crate::others::Who;
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

/// How long the names wait for what the record tells of.
const PATIENCE: Duration = Duration::from_mins(2);

/// The wait after the record could not be written.
pub(super) const RECORD_AGAIN: Duration = Duration::from_secs(2);

/// GPUs, and the MIG profiles that each offers.
pub type Profiles = BTreeMap<GpuUuid, BTreeSet<Profile>>;

/// What the agent's record tells.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "each tells of something else")]
pub struct Recalled {
    /// The ledger.
    pub ledger: Saved,
    /// Whether the agent kept the ledger, and followed no GpuNode's spec.
    #[serde(skip_serializing_if = "Not::not")]
    pub is_own: bool,
    /// The UID of the GpuNode whose spec was followed, where the ledger is not the agent's own.
    pub uid: Option<String>,
    /// Whether there is a record that cannot be read.
    #[serde(skip)]
    pub is_lost: bool,
    /// The GPUs that there were, with the MIG profiles that they had.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: Profiles,
    /// The MIG devices that are to go, with their slices' names: else they would be somebody else's after a restart.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub made: BTreeMap<DeviceId, SliceId>,
    /// Whether NVIDIA's device plugin was here.
    #[serde(skip_serializing_if = "Not::not")]
    pub plugin: bool,
    /// The shares that existed, wanted or not: nobody else tells of one that only an init container holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// The GPUs whose MIG mode was on when they were seen last: the next load of the driver may lack it.
    #[serde(rename = "mig")]
    pub mig_on: BTreeSet<GpuUuid>,
    /// The GPUs whose MIG mode was lost with the driver's load, and has not come back yet. The record has it beside the rest.
    #[serde(skip)]
    pub mig_lost: BTreeSet<GpuUuid>,
    /// The GPUs that kerf had put into `EXCLUSIVE_PROCESS` mode.
    pub exclusive: BTreeSet<GpuUuid>,
    /// The limits that kerf had put on the GPU memory of cgroups.
    #[serde(with = "limits::by_gpu")]
    pub limits: limits::Limits,
    /// The GPUs whose time slices kerf gave a length that is not the driver's own, at some time since the boot.
    pub lengths: BTreeSet<GpuUuid>,
    /// The Node's labels by which kerf has paused DCGM and its like, or is about to.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub paused: BTreeSet<String>,
    /// What GPUs had.
    pub ills: Vec<Ill>,
    /// Whether the driver was loaded anew since, at a boot or in the same one, and not all of it was made again yet.
    #[serde(rename = "recovering")]
    pub booted: bool,
}

impl Recalled {
    /// What stands in for a record that cannot be read. What is paused without a MIG manager at work was paused by an agent.
    #[must_use]
    pub fn lost() -> Self {
        Self { is_lost: true, paused: DEPLOY_CLIENTS.map(str::to_owned).into(), ..Self::default() }
    }

    /// What of it counts once the driver was loaded anew, by a boot or in the same one. Compute modes, limits and lengths end with a
    /// load: whatever is set now was set by somebody else. A GPU that is still ill says so again. Shares are the kubelet's to hand
    /// out, and it remembers to whom it did. The Node's labels stay.
    #[must_use]
    pub fn after_reload(self) -> Self {
        let Self { ledger, is_own, uid, gpus, plugin, shares, mig_on, mut mig_lost, paused, .. } = self;
        mig_lost.extend(mig_on);
        let recalled = Self { ledger, is_own, uid, gpus, plugin, ..Self::default() };
        Self { shares, mig_lost, paused, booted: true, ..recalled }
    }
}

impl Node {
    /// Takes the record of an earlier process.
    pub fn recall(&mut self, recalled: Recalled, now: Instant) {
        if recalled.booted {
            tracing::info!(
                slices = recalled.ledger.desired.slices.len(),
                "the driver was loaded anew: its slices are made again"
            );
            self.recovering = Some(now + PATIENCE);
        }
        self.housekeeping.started = Some(now);
        if !recalled.is_own {
            self.takeover = TakeOver::Awaited;
        }
        self.ledger = Ledger::restore(recalled.ledger.clone(), self.settings.limits, Moment::default());
        // Any of them may be bound by now: a mark is not on the disk.
        let reserved = self.ledger.desired().slices.iter().filter_map(|slice| slice.reservation.as_ref());
        self.bindings.take_status(reserved.map(|reservation| (&reservation.uid, true)));
        self.recall_ills(&recalled.ills, now);
        self.awaited.clone_from(&recalled.gpus);
        self.had.extend(recalled.gpus.keys().cloned());
        self.origins.clone_from(&recalled.made);
        self.recalled = recalled;
    }

    /// Notes which GPUs' MIG mode is on. Of the lost ones forgets those whose has come back, or is of no use any more: what becomes
    /// of it from now on is no loss, and somebody may switch it off.
    pub(super) fn note_modes(&mut self) {
        let on = self.gpus.iter().filter(|gpu| gpu.mig.is_on()).map(|gpu| gpu.uuid.clone());
        let mut seen_on: BTreeSet<GpuUuid> = on.collect();
        // One that is not there now says nothing.
        seen_on.extend(self.recalled.mig_on.iter().filter(|uuid| self.gpu(uuid).is_none()).cloned());
        self.recalled.mig_on = seen_on;
        let mut lost = std::mem::take(&mut self.recalled.mig_lost);
        lost.retain(|uuid| {
            let is_lost = |gpu: &Gpu| !gpu.mig.is_on() && self.rule(gpu).kinds.contains(&Kind::Mig);
            self.gpu(uuid).is_none_or(is_lost)
        });
        self.recalled.mig_lost = lost;
    }

    /// Notes whose time slices have another length than the driver's own. What was set is put back by who leaves the node.
    pub(super) fn note_lengths(&mut self, wanted: &BTreeMap<GpuUuid, SliceLength>) {
        let changed = wanted.iter().filter(|(_, length)| **length != SliceLength::Default);
        self.recalled.lengths.extend(changed.map(|(gpu, _)| gpu.clone()));
    }

    /// What has to be recorded before anything is cut.
    pub(super) fn to_record(&self) -> Recalled {
        let exclusive = self.wanted_daemons().into_iter().filter(|(_, d)| d.exclusive).map(|(gpu, _)| gpu);
        let kept = self.recalled.exclusive.iter().filter(|gpu| self.daemons.contains_key(*gpu)).cloned();
        Recalled {
            ledger: self.ledger.saved(),
            is_own: self.takeover == TakeOver::Done,
            uid: self.recalled.uid.clone(),
            is_lost: false,
            gpus: self.profiles(),
            made: self.made_devices(),
            plugin: self.others.as_ref().map_or(self.recalled.plugin, |others| {
                others.iter().any(|other| other.contains(&Who::DevicePlugin.to_string()))
            }),
            shares: Some(self.shares_to_record()),
            mig_on: self.recalled.mig_on.clone(),
            mig_lost: self.recalled.mig_lost.clone(),
            exclusive: exclusive.chain(kept).collect(),
            limits: self.wanted_limits(),
            lengths: self.recalled.lengths.clone(),
            paused: self.recalled.paused.clone(),
            ills: self.ills(),
            booted: self.is_recovering(),
        }
    }

    /// The GPUs that there are, with those that are waited for.
    fn profiles(&self) -> Profiles {
        let profiles = |gpu: &Gpu| {
            let entries = gpu.table.iter().flat_map(MigTable::entries);
            (gpu.uuid.clone(), entries.map(|entry| entry.profile).collect())
        };
        self.gpus.iter().map(profiles).chain(self.awaited.clone()).collect()
    }

    /// The MIG devices that the agent has made for slices that are not desired any more, and that are there, or were at its start and may
    /// be on a GPU that is not seen. What is desired is known by its place: a cut changes nothing here, and costs no write.
    fn made_devices(&self) -> BTreeMap<DeviceId, SliceId> {
        let instances: BTreeSet<&DeviceId> = self
            .gpus
            .iter()
            .flat_map(|gpu| &gpu.instances)
            .flat_map(|instance| instance.devices().map(|(.., device)| device))
            .collect();
        let sees_all = self.health.nvml.is_well() && self.had.iter().all(|uuid| self.gpu(uuid).is_some());
        let may_be = |device: &DeviceId| !sees_all && self.recalled.made.contains_key(device);
        let desired = self.desired().iter().filter_map(|slice| Some((self.mig_device_of(slice)?, &slice.id)));
        let desired: BTreeSet<_> = desired.collect();
        let made = self.origins.iter().filter(|(device, _)| instances.contains(device) || may_be(device));
        let made = made.filter(|(device, id)| !desired.contains(&((*device).clone(), *id)));
        made.map(|(device, id)| (device.clone(), id.clone())).collect()
    }

    /// What is to be made, on `gpu` if it is a step, could not be recorded; it is not made, and tried again.
    pub fn on_unrecorded(&mut self, gpu: Option<&GpuUuid>, error: &str, now: Instant) {
        tracing::error!(error, "nothing is cut that cannot be recorded");
        match gpu {
            Some(gpu) => self.under_way.end(gpu, None),
            None => self.under_way.forget_begun(),
        }
        self.unrecorded = Some((error.to_owned(), now + RECORD_AGAIN));
    }

    /// Whether the names still wait for slices that are made anew.
    pub(super) fn is_recovering(&self) -> bool {
        self.recovering.is_some()
    }

    /// While the node recovers what the record tells may be made, and nothing else.
    pub(super) fn recovery_steps(steps: Vec<Step>) -> Vec<Step> {
        let restores = |step: &Step| matches!(step, Step::Switch { mig: true, .. } | Step::Create { .. });
        steps.into_iter().filter(restores).collect()
    }

    /// Nothing can be made yet: the names' patience begins when something can.
    pub(super) fn extend_recovery(&mut self, now: Instant) {
        self.recovering = self.recovering.map(|until| until.max(now + PATIENCE));
    }

    /// Ends the recovery once no step is left that could be taken, or when it takes too long.
    pub(super) fn note_recovery(&mut self, steps: &[Step], now: Instant) {
        let Some(until) = self.recovering else { return };
        let has_seen = self.health.nvml.is_well();
        let open = steps.iter().any(|step| !self.retries.is_final(&super::decide::task(step)));
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

    /// Tells of GPU instances of which no record tells. They are occupied.
    pub(super) fn tell_adopted(&mut self) {
        let known = |device: &DeviceId| self.origins.contains_key(device);
        let found: Vec<Note> = self
            .gpus
            .iter()
            .flat_map(|gpu| &gpu.instances)
            .filter(|instance| instance.compute != Compute::Missing)
            .flat_map(|instance| instance.devices().map(|(.., device)| device.clone()))
            .filter(|device| !known(device))
            .map(|device| Note::Adopted { device })
            .collect();
        self.tell_lasting(found, |note| matches!(note, Note::Adopted { .. }));
    }
}
