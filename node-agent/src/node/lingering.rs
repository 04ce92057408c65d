//! Processes that outlive their pod: one that is deleted by force is gone at once from the API server and from the kubelet's
//! account, and its processes are killed afterwards. Until a look shows none, nobody else gets what they run on.

use super::Node;
use crate::gpu::GpuInstance;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, PodKey, SliceId};
use std::collections::BTreeSet;

/// What people are told.
pub(super) const TEXT: &str = "processes of an earlier holder still run on it";

impl Node {
    /// A pod was deleted while its containers ran.
    pub fn on_pod_cut_off(&mut self, pod: PodKey) {
        self.cut_off.insert(pod);
    }

    /// What is held now, and by a pod that was cut off.
    pub(super) fn listed_devices(&self) -> Vec<(DeviceId, bool)> {
        let devices = self.account.devices();
        devices.map(|(device, held)| (device.clone(), self.cut_off.contains(&held.holder.key()))).collect()
    }

    /// Processes of a holder end with it; whether one is left is looked at once more before anything is destroyed. Those of a
    /// pod that was cut off are taken to run until a look shows none.
    pub(super) fn forget_processes(&mut self, left: &[(DeviceId, bool)]) {
        for instance in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
            let mut of_left = left.iter().filter(|(left, _)| instance.devices().any(|(.., d)| d == left));
            if let Some((_, first)) = of_left.next() {
                instance.has_processes = *first || of_left.any(|(_, cut_off)| *cut_off);
            }
        }
        let account = &self.account;
        self.cut_off.retain(|pod| account.devices().any(|(_, held)| held.holder.key() == *pod));
    }

    /// Whether nobody has the slice, and processes run on it.
    pub(super) fn is_lingered_on(&self, wanted: &WantedSlice) -> bool {
        let has = |i: &GpuInstance| i.has_processes && !i.devices().any(|(.., d)| self.account.is_held(d));
        self.instance_of(wanted).is_some_and(has)
    }

    /// Those of the wanted slices.
    pub(super) fn lingering(&self) -> BTreeSet<SliceId> {
        let wanted = self.spec.slices.iter().filter(|wanted| self.is_lingered_on(wanted));
        wanted.map(|wanted| wanted.id.clone()).collect()
    }

    /// Whether a look may show soon that none is left. Later they are looked for as often as everything.
    pub(super) fn has_lingering(&self) -> bool {
        let is_new = |id: &SliceId| self.unserved.get(id).is_some_and(|why| !why.is_final);
        self.lingering().iter().any(is_new)
    }
}
