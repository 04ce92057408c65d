//! What tests read of the node, and what they do to it besides its events.

use super::daemons::MpsService;
use super::health::Neighbour;
use super::{Node, Report, Restored, WantedDaemon, acceptance, decide, desired_changed, gfd};
use crate::gpu::{Gpu, GpuError, Unresponsive};
use kerf_core::contract::WantedSlice;
use kerf_core::gfd_labels::GfdLabels;
use kerf_core::ledger::Ledger;
use kerf_core::names::GpuUuid;
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

impl Node {
    /// Makes the ledger desire these slices. Any of their pods may be bound by now.
    pub(super) fn set_desired(&mut self, slices: Vec<WantedSlice>, now: Instant) {
        self.facts.reservations.set_desired(slices, now);
        desired_changed(&self.facts, &mut self.steps, &mut self.advertised);
    }

    /// Takes an observation of the GPUs that answer.
    pub(super) fn on_gpus(&mut self, gpus: Result<Vec<Gpu>, GpuError>) {
        let unresponsive = self.facts.inventory.unresponsive().clone();
        self.on_observed(gpus.map(|gpus| (gpus, unresponsive)));
    }

    pub(super) fn on_unresponsive(&mut self, unresponsive: Unresponsive) {
        self.facts.inventory.take_unresponsive(unresponsive);
    }

    pub(super) fn desired(&self) -> &[WantedSlice] {
        self.facts.reservations.desired()
    }

    pub(super) fn ledger(&self) -> &Ledger {
        self.facts.reservations.ledger()
    }

    pub(super) fn closed(&self) -> Option<String> {
        acceptance::trouble(&self.facts, &self.health, &self.conflicts)
    }

    pub(super) fn resource_names(&self) -> BTreeSet<ResourceName> {
        self.facts.resource_names()
    }

    pub(super) fn report(&self) -> Report {
        Report::new(&self.facts, &self.health, &self.conflicts, &self.status(&BTreeSet::new()))
    }

    pub(super) fn computed_gfd_labels(&self) -> GfdLabels {
        gfd::gfd_labels(self.facts.rules(), &self.facts.slices)
    }

    pub(super) fn wanted_daemons(&self) -> BTreeMap<GpuUuid, WantedDaemon> {
        MpsService::new(&self.mps, self.facts.gpu_use(), &self.conflicts).wanted()
    }

    pub(super) fn to_record(&self) -> Restored {
        let is_observed = self.health.is_well(Neighbour::Nvml);
        let daemons = self.wanted_daemons();
        let Self { facts, mps, conflicts, recovery, pausing, .. } = self;
        decide::record(is_observed, facts, (mps, &daemons), conflicts, recovery, pausing)
    }
}
