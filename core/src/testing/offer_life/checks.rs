//! The conditions that a history must fulfil, checked by the numbers of wares.

use super::agent::name_of;
use super::{Life, NAMES, Pod, Slice, Stage};
use crate::names::{DeviceId, PodUid};
use std::collections::{BTreeMap, BTreeSet};

impl Life {
    /// Checks that a pod that was just admitted holds what it has reserved: exactly those slices if it must be alone,
    /// otherwise slices that are worth the same.
    pub(super) fn judge(&mut self, pod: usize) {
        let pod = &self.pods[pod];
        let held: Vec<(usize, &Slice)> = self
            .kubelet
            .held(&pod.uid)
            .filter_map(|(name, device)| Some((name, self.slice(device)?)))
            .collect();
        let mut wares: Vec<_> = held.iter().map(|(name, slice)| (*name, slice.ware.number)).collect();
        wares.sort_unstable();
        let is_own = held.iter().all(|(_, slice)| slice.pod() == Some(&pod.uid));
        self.outcome.admitted += 1;
        self.outcome.otherwise += usize::from(wares != pod.wares || pod.alone && !is_own);
    }

    fn slice(&self, device: &DeviceId) -> Option<&Slice> {
        self.slices.iter().find(|slice| slice.device == *device)
    }

    fn slices_of<'l>(&'l self, pod: &'l Pod) -> impl Iterator<Item = &'l Slice> {
        self.slices.iter().filter(|slice| slice.pod() == Some(&pod.uid))
    }

    fn is_listed(&self, slice: &Slice) -> bool {
        self.agent.sent.iter().any(|sent| sent.contains(&slice.device))
    }

    fn is_held(&self, slice: &Slice) -> bool {
        self.agent.held_as(&slice.device).is_some()
    }

    fn is_complete(&self, pod: &Pod) -> bool {
        self.slices_of(pod).all(|slice| slice.made && (slice.served || self.is_held(slice)))
    }

    /// Checks the conditions after each decision.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_names()?;
        self.check_bound()?;
        self.check_incomplete()?;
        self.check_progress()?;
        self.check_pods()
    }

    /// Checks the conditions that hold at any time.
    pub(super) fn check_pods(&self) -> Result<(), String> {
        if self.outcome.otherwise > 0 {
            Err("a pod holds otherwise than reserved".to_owned())
        } else {
            Ok(())
        }
    }

    /// Free devices of a name must be worth the same or of one pod, and none may be idle.
    fn check_names(&self) -> Result<(), String> {
        for (name, sent) in self.agent.sent.iter().enumerate() {
            let slices = sent.iter().filter_map(|device| self.slice(device));
            let free: Vec<&Slice> = slices.filter(|slice| !self.is_held(slice)).collect();
            let wares: BTreeSet<usize> = free.iter().map(|slice| slice.ware.number).collect();
            let pods: BTreeSet<Option<&PodUid>> = free.iter().map(|slice| slice.pod()).collect();
            if wares.len() > 1 && pods.len() > 1 {
                return Err(format!("under {} wares {wares:?} of pods {pods:?} are free", NAMES[name]));
            }
            if pods.contains(&None) {
                return Err(format!("something idle is listed under {}", NAMES[name]));
            }
        }
        Ok(())
    }

    /// The kubelet must have as many free devices of each ware as bound pods lack, unless one does not exist.
    fn check_bound(&self) -> Result<(), String> {
        let mut lacking: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| pod.stage == Stage::Bound) {
            for ware in &pod.wares {
                *lacking.entry(*ware).or_default() += 1;
            }
            let held = self.kubelet.held(&pod.uid);
            for (name, slice) in held.filter_map(|(name, device)| Some((name, self.slice(device)?))) {
                let lacking = lacking.entry((name, slice.ware.number)).or_default();
                *lacking = lacking.saturating_sub(1);
            }
        }
        for ((name, ware), lacking) in lacking {
            let of_name = |slice: &&Slice| slice.reservation.as_ref().is_some_and(|r| name_of(r) == name);
            let mut reserved = self.slices.iter().filter(of_name).filter(|slice| slice.ware.number == ware);
            let is_free = |slice: &&Slice| {
                self.agent.sent[name].contains(&slice.device) && !self.kubelet.has(&slice.device)
            };
            let free = self.slices.iter().filter(is_free).filter(|slice| slice.ware.number == ware).count();
            if reserved.all(|slice| slice.made && slice.served) && free < lacking {
                return Err(format!("bound pods lack {lacking} of ware {ware}, {free} are listed"));
            }
        }
        Ok(())
    }

    /// No device may be listed for a pod whose slices are still being made and that cannot be bound.
    fn check_incomplete(&self) -> Result<(), String> {
        for pod in self.pods.iter().filter(|pod| pod.stage == Stage::Pending && !pod.was_ready) {
            let is_held = self.slices_of(pod).any(|slice| self.is_held(slice));
            if !is_held && !self.is_complete(pod) && self.slices_of(pod).any(|slice| self.is_listed(slice)) {
                return Err(format!("pod {} is listed and not complete", pod.uid));
            }
        }
        Ok(())
    }

    /// A complete pod must be listed, or blocked by a pod that may be bound, is being admitted, or is listed itself. No
    /// pod may wait for a pod whose slices are still being made, or for a pod that waits.
    fn check_progress(&self) -> Result<(), String> {
        let complete = self.pods.iter().filter(|pod| pod.stage == Stage::Pending && self.is_complete(pod));
        for pod in complete.filter(|pod| !self.slices_of(pod).any(|slice| self.is_held(slice))) {
            let names: BTreeSet<usize> = pod.wares.iter().map(|(name, _)| *name).collect();
            let mut others = self.slices.iter().filter(|slice| slice.pod() != Some(&pod.uid));
            let stands_in_the_way = |slice: &Slice| {
                let is_open = slice.pod().is_some_and(|uid| self.agent.bindings.may_be(uid));
                let held_as = self.agent.held_as(&slice.device);
                let is_being_given = held_as.is_some() && !self.agent.is_settled(slice);
                names.contains(&held_as.unwrap_or(slice.name))
                    && (is_open || is_being_given || held_as.is_none() && self.is_listed(slice))
            };
            if !self.slices_of(pod).all(|slice| self.is_listed(slice)) && !others.any(stands_in_the_way) {
                return Err(format!(
                    "pod {} is complete and not listed, and none stands in its way",
                    pod.uid
                ));
            }
        }
        Ok(())
    }
}
