//! What is not touched, desired or not: everything on GPUs that may be the unresponsive ones, and on those whose shares
//! are unknown.

use super::WantedDaemon;
use super::device_ids::share_gpu;
use super::facts::Facts;
use kerf_core::contract::{Reservation, WantedSlice};
use kerf_core::names::{DeviceId, GpuUuid};
use std::collections::{BTreeMap, BTreeSet};

/// The reason that slices on an unresponsive GPU show.
pub(super) const TEXT: &str = "its GPU has not answered since the agent was started";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spared {
    /// GPUs whose MPS daemons and limits stay.
    pub gpus: BTreeSet<GpuUuid>,
    /// Devices whose files stay, so that containers can open them.
    pub devices: BTreeSet<DeviceId>,
}

impl Facts {
    /// Returns what must not be touched. A GPU with a known MPS share has its daemon anyway.
    pub(super) fn spared(&self, daemons: &BTreeMap<GpuUuid, WantedDaemon>) -> Spared {
        let mut spared = self.on_unresponsive_gpus();
        let unknown = self.pod_shares().gpus_with_unknown().filter(|gpu| !daemons.contains_key(*gpu));
        spared.gpus.extend(unknown.cloned());
        spared
    }

    /// What pods may hold on GPUs that do not answer. Empty once all GPUs that NVML counts have answered, because no
    /// other GPU is on the node.
    fn on_unresponsive_gpus(&self) -> Spared {
        if self.inventory.unresponsive().is_empty() {
            return Spared::default();
        }
        let listed: BTreeSet<&DeviceId> =
            self.account.devices().map(|(device, _)| device).chain(self.slices.devices()).collect();
        let wanted = self.reservations.desired().iter().map(|wanted| &wanted.gpu);
        let known = self.inventory.known_gpus().chain(wanted).cloned();
        let known = known.chain(listed.iter().filter_map(|device| share_gpu(device)));
        let gpus: BTreeSet<GpuUuid> = known.filter(|uuid| self.inventory.gpu(uuid).is_none()).collect();
        let is_on_them = |device: &DeviceId| match share_gpu(device) {
            Some(gpu) => gpus.contains(&gpu),
            None => self.inventory.gpu_of(device).is_none(),
        };
        let all = listed.into_iter().chain(self.slices.origins().keys());
        let devices = all.filter(|device| is_on_them(device)).cloned().collect();
        Spared { gpus, devices }
    }

    /// Whether a pod may hold this slice of an unresponsive GPU. Unbound pods are placed elsewhere.
    pub(super) fn is_spared(&self, wanted: &WantedSlice) -> bool {
        let may_be_bound = |reservation: &Reservation| self.pods.may_be_bound(&reservation.uid);
        let is_missing = self.inventory.gpu(&wanted.gpu).is_none();
        let is_unresponsive = is_missing && !self.inventory.unresponsive().is_empty();
        is_unresponsive && wanted.reservation.as_ref().is_none_or(may_be_bound)
    }
}
