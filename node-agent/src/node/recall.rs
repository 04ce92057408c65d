//! What the node had before it was booted, its driver loaded anew or the agent restarted, from the agent's own record: GPU
//! instances end with the load of the driver, and so does the MIG mode of most GPUs.
//!
//! A node whose driver was loaded anew, by a boot or in the same one, gets back what its record tells, at the same places, before any resource name is registered: the
//! kubelet's own record tells it of pods that need the names.

use super::share::{self, Shares};
use super::{Ill, Node, Note};
use crate::gpu::limits;
use crate::gpu::{Compute, Gpu};
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, Shape, SliceLength, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::ledger::{Ledger, Limits, Moment, Saved};
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::nvidia_keys::DEPLOY_CLIENTS;
use kerf_core::planner::Step;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the names wait for what the record tells of.
const PATIENCE: Duration = Duration::from_mins(2);

/// The wait after the record could not be written.
pub(super) const RECORD_AGAIN: Duration = Duration::from_secs(2);

/// What the agent's record tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recalled {
    /// The ledger.
    pub ledger: Saved,
    /// The UID of the GpuNode whose spec the ledger follows, while it follows one.
    pub uid: Option<String>,
    /// The shares that existed, wanted or not, where a record tells.
    pub shares: Option<Shares>,
    /// The GPUs whose MIG mode was on when they were seen last: the next load of the driver may lack it.
    pub mig_on: BTreeSet<GpuUuid>,
    /// The GPUs whose MIG mode was lost with the driver's load, and has not come back yet.
    pub mig_lost: BTreeSet<GpuUuid>,
    /// The GPUs that kerf had put into `EXCLUSIVE_PROCESS` mode.
    pub exclusive: BTreeSet<GpuUuid>,
    /// The limits that kerf had put on the GPU memory of cgroups.
    pub limits: limits::Limits,
    /// The GPUs whose time slices kerf gave a length that is not the driver's own, at some time since the boot.
    pub lengths: BTreeSet<GpuUuid>,
    /// The Node's labels by which kerf has paused DCGM and its like, or is about to.
    pub paused: BTreeSet<String>,
    /// What GPUs had.
    pub ills: Vec<Ill>,
    /// Whether the driver was loaded anew since, at a boot or in the same one, and not all of it was made again yet.
    pub booted: bool,
}

impl Recalled {
    /// What stands in for a record that cannot be read: the slices that the GpuNode's spec wants, and the MIG modes of which its
    /// status tells. Whether the driver was loaded anew since nobody knows. If it was not, everything is still there and nothing
    /// has to be made again.
    #[must_use]
    pub fn from_gpu_node(spec: GpuNodeSpec, uid: Option<String>, status: Option<&GpuNodeStatus>) -> Self {
        let gpus = status.into_iter().flat_map(|status| &status.gpus);
        let mig_on = gpus.filter(|gpu| !gpu.profiles.is_empty()).map(|gpu| gpu.uuid.clone()).collect();
        // What is paused without a MIG manager at work was paused by an agent.
        let paused = DEPLOY_CLIENTS.map(str::to_owned).into();
        Self { ledger: spec.into(), uid, mig_on, paused, ..Self::default() }.after_reload()
    }

    /// What of it counts once the driver was loaded anew, by a boot or in the same one. Compute modes, limits and lengths end with a
    /// load: whatever is set now was set by somebody else. A GPU that is still ill says so again. Shares are the kubelet's to hand
    /// out, and it remembers to whom it did. The Node's labels stay.
    #[must_use]
    pub fn after_reload(self) -> Self {
        let Self { ledger, uid, shares, mig_on, mut mig_lost, paused, .. } = self;
        mig_lost.extend(mig_on);
        Self { ledger, uid, shares, mig_lost, paused, booted: true, ..Self::default() }
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
        self.ledger = Ledger::restore(recalled.ledger.clone(), Limits::default(), Moment::default());
        self.spec_uid.clone_from(&recalled.uid);
        self.recall_ills(&recalled.ills, now);
        self.recalled = recalled;
        // The record is newer than the status as a rule. But a share is offered while it is still being recorded, and no pod is
        // bound to it before a status tells of it: together they have all that a container may hold.
        let mut shares = self.before.as_ref().map(share::shares_of).unwrap_or_default();
        shares.extend(self.recalled.shares.take().unwrap_or_default());
        self.recalled.shares = Some(shares);
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
            uid: self.spec_uid.clone(),
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

    /// What is to be made could not be recorded; it is not made, and tried again.
    pub fn on_unrecorded(&mut self, error: &str, now: Instant) {
        tracing::error!(error, "nothing is cut that cannot be recorded");
        self.under_way.end(None);
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
            for wanted in self.ledger.desired().slices.iter().filter(is_missing) {
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

    /// Tells of GPU instances that neither the spec nor any record tells of. They are occupied.
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
