//! The agent of a history: its view of kubelet and pods, and the lists that it sends to the kubelet.

use super::{Devices, Life, NAMES, Pod, Slice, Stage};
use crate::contract::Reservation;
use crate::names::{DeviceId, PodUid, SliceId};
use crate::offer::{Bindings, ExistingSlice, MissingSlice, offer};
use std::collections::{BTreeMap, BTreeSet};

/// A device that a container was given, and that the kubelet has not listed since.
#[derive(Debug)]
struct Allocation {
    name: usize,
    at: u64,
    before: Option<PodUid>,
}

#[derive(Debug, Default)]
pub(super) struct Agent {
    clock: u64,
    /// The healthy devices of the last lists, and how long they have been healthy.
    pub(super) sent: Devices,
    since: BTreeMap<DeviceId, u64>,
    /// The kubelet's last acknowledged list, with the time of the request.
    seen: Option<(u64, Devices)>,
    allocated: BTreeMap<DeviceId, Allocation>,
    /// The kubelet's list, and its checkpoint without pods that the API server does not show.
    listed: BTreeMap<DeviceId, (PodUid, usize)>,
    recorded: BTreeMap<DeviceId, (PodUid, usize)>,
    /// Reserved slices that their pods have got. A pod that no longer holds its slice has ended.
    kept: BTreeMap<SliceId, PodUid>,
    /// Bound pods, and whether they are admitted.
    pods: BTreeMap<PodUid, bool>,
    pub(super) bindings: Bindings,
    ungranted: Devices,
    /// The slices that the status reports as ready, with their pods.
    pub(super) ready: BTreeMap<SliceId, PodUid>,
}

impl Agent {
    fn owned(&self, device: &DeviceId) -> Option<&(PodUid, usize)> {
        self.recorded.get(device).filter(|(uid, _)| self.pods.contains_key(uid))
    }

    /// The pod that has the device, as far as the agent has seen, and the name in its request.
    pub(super) fn holder(&self, device: &DeviceId) -> Option<(PodUid, usize)> {
        self.listed.get(device).or_else(|| self.owned(device)).cloned()
    }

    /// The name under which any pod has the device.
    pub(super) fn held_as(&self, device: &DeviceId) -> Option<usize> {
        let allocated = self.allocated.get(device).map(|allocation| allocation.name);
        allocated.or_else(|| self.holder(device).map(|(_, name)| name))
    }

    /// Whether the kubelet has given the device for good to the pod that has reserved it.
    pub(super) fn is_settled(&self, slice: &Slice) -> bool {
        let device = &slice.device;
        let is_admitted = |(uid, _): &(PodUid, usize)| self.pods.get(uid) == Some(&true);
        let is_shown = self.listed.contains_key(device) || self.owned(device).is_some_and(is_admitted);
        !self.allocated.contains_key(device) && is_shown && !self.is_anothers(slice)
    }

    /// Whether another pod than the one that has reserved the device holds it.
    fn is_anothers(&self, slice: &Slice) -> bool {
        let holder = self.holder(&slice.device);
        slice.pod().is_some_and(|uid| holder.is_some_and(|(holder, _)| holder != *uid))
    }

    /// Whether its pod has ever got it.
    fn is_kept(&self, slice: &Slice) -> bool {
        slice.pod().is_some_and(|uid| self.kept.get(&slice.id) == Some(uid))
    }

    pub(super) fn knows(&self, device: &DeviceId) -> bool {
        self.held_as(device).is_some() || self.sent.iter().any(|sent| sent.contains(device))
    }

    pub(super) fn grants(&self, name: usize, device: &DeviceId) -> bool {
        !self.ungranted[name].contains(device)
    }

    /// Records that a container is being given the device.
    pub(super) fn allocate(&mut self, name: usize, device: &DeviceId) {
        let before = self.owned(device).map(|(uid, _)| uid.clone());
        self.allocated.insert(device.clone(), Allocation { name, at: self.clock, before });
    }

    fn is_acknowledged(&self, name: usize, device: &DeviceId) -> bool {
        let since = self.since.get(device).filter(|_| self.sent[name].contains(device));
        let seen = since.zip(self.seen.as_ref());
        seen.is_some_and(|(since, (asked, seen))| asked >= since && seen[name].contains(device))
    }

    fn existing(&self, slice: &Slice) -> ExistingSlice {
        let held_as = self.held_as(&slice.device).map(|name| NAMES[name]);
        let has_ended = |of: &Reservation| held_as.is_none() && self.kept.get(&slice.id) == Some(&of.uid);
        ExistingSlice {
            id: slice.id.clone(),
            device: slice.device.clone(),
            shape: slice.ware.shape(),
            model: slice.ware.model().to_owned(),
            held_as,
            settled: self.is_settled(slice) || self.is_kept(slice),
            served: slice.served,
            reservation: slice.reservation.clone().filter(|of| !has_ended(of)),
        }
    }

    fn update(&mut self, slices: &[Slice]) {
        self.clock += 1;
        let reserved = slices.iter().filter_map(Slice::pod);
        self.bindings.take_pods(reserved, |uid| self.pods.contains_key(uid));
        self.note_kept(slices);
        let existing: Vec<_> = slices.iter().filter(|s| s.made).map(|slice| self.existing(slice)).collect();
        let is_missing = |slice: &&Slice| !slice.made && !self.is_kept(slice);
        let missing: Vec<_> = slices.iter().filter(is_missing).filter_map(missing).collect();
        let offered = offer(&existing, &missing, &self.bindings);
        self.ungranted = NAMES.map(|name| offered.ungranted.get(&name).cloned().unwrap_or_default());
        self.sent = NAMES.map(|name| offered.healthy.get(&name).cloned().unwrap_or_default());
        let healthy: BTreeSet<DeviceId> = self.sent.iter().flatten().cloned().collect();
        self.since.retain(|device, _| healthy.contains(device));
        for device in healthy {
            self.since.entry(device).or_insert(self.clock);
        }
    }

    fn note_kept(&mut self, slices: &[Slice]) {
        let kept = slices.iter().filter_map(|slice| {
            let uid = slice.pod()?;
            let is_kept =
                self.kept.get(&slice.id) == Some(uid) || self.is_settled(slice) && self.bindings.may_be(uid);
            is_kept.then(|| (slice.id.clone(), uid.clone()))
        });
        self.kept = kept.collect();
    }

    /// Whether the status reports all reserved slices of the pod as ready.
    pub(super) fn is_ready(&self, pod: &Pod, slices: &[Slice]) -> bool {
        let mut own = slices.iter().filter(|slice| slice.pod() == Some(&pod.uid));
        own.all(|slice| self.ready.get(&slice.id) == Some(&pod.uid))
    }

    fn ready(&self, slices: &[Slice]) -> BTreeMap<SliceId, PodUid> {
        let ready = slices.iter().filter(|slice| slice.made).filter_map(|slice| {
            let reservation = slice.reservation.as_ref()?;
            let is_ready = !self.bindings.is_over(&reservation.uid)
                && self.holder(&slice.device).is_none()
                && self.is_acknowledged(name_of(reservation), &slice.device);
            is_ready.then(|| (slice.id.clone(), reservation.uid.clone()))
        });
        ready.collect()
    }
}

fn missing(slice: &Slice) -> Option<MissingSlice> {
    let reservation = slice.reservation.clone()?;
    Some(MissingSlice { shape: slice.ware.shape(), model: slice.ware.model().to_owned(), reservation })
}

pub(super) fn name_of(reservation: &Reservation) -> usize {
    usize::from(reservation.resource != NAMES[0])
}

impl Life {
    /// The agent computes the lists and the status.
    pub(super) fn decide(&mut self) {
        self.agent.update(&self.slices);
        self.agent.ready = self.agent.ready(&self.slices);
        self.note_ready();
        let (slices, agent) = (&self.slices, &self.agent);
        for pod in self.pods.iter_mut().filter(|pod| pod.stage == Stage::Pending) {
            pod.was_ready |= agent.is_ready(pod, slices);
        }
    }

    fn note_ready(&mut self) {
        let is_ready = |slice: &Slice, uid| self.agent.ready.get(&slice.id) == Some(uid);
        let ready =
            self.slices.iter().filter_map(|slice| Some((slice.pod()?, is_ready(slice, slice.pod()?))));
        self.agent.bindings.take_status(ready);
    }

    /// The kubelet reports the devices that it may hand out.
    pub(super) fn acknowledge(&mut self) {
        self.agent.seen = Some((self.agent.clock, self.kubelet.taken.clone()));
    }

    /// The agent's watch of pods catches up.
    pub(super) fn report_pods(&mut self) {
        let bound = self.pods.iter().filter(|pod| matches!(pod.stage, Stage::Bound | Stage::Running));
        self.agent.pods = bound.map(|pod| (pod.uid.clone(), pod.stage == Stage::Running)).collect();
    }

    /// The agent reads the kubelet's List and checkpoint. With `late`, Allocate is so long ago that the kubelet must
    /// have refused what neither shows.
    pub(super) fn report_holders(&mut self, late: bool) {
        let agent = &mut self.agent;
        (agent.listed, agent.recorded) = self.kubelet.account(&self.pods);
        let lacks =
            self.pods.iter().any(|pod| pod.stage == Stage::Bound && agent.pods.contains_key(&pod.uid));
        let mut allocated = std::mem::take(&mut agent.allocated);
        allocated.retain(|device, allocation| {
            let owner = agent.owned(device).map(|(uid, _)| uid);
            let is_shown =
                agent.listed.contains_key(device) || owner.is_some() && owner != allocation.before.as_ref();
            agent.clock <= allocation.at || (!is_shown && (!late || lacks))
        });
        agent.allocated = allocated;
    }

    /// The agent's process restarts. It has its last status, the API server's pods and the kubelet's account.
    pub(super) fn restart_agent(&mut self) {
        let ready = std::mem::take(&mut self.agent.ready);
        self.agent = Agent { clock: self.agent.clock, ready, ..Agent::default() };
        self.note_ready();
        self.kubelet.taken = Devices::default();
        self.report_pods();
        self.report_holders(false);
        // No Binding is on its way for longer than an agent takes to start.
        for pod in self.pods.iter_mut().filter(|pod| pod.stage == Stage::Pending) {
            pod.was_ready = self.agent.is_ready(pod, &self.slices);
        }
        self.decide();
    }

    /// The kubelet's process restarts. It has its checkpoint and no list.
    pub(super) fn restart_kubelet(&mut self) {
        self.kubelet.restart();
        self.agent.seen = None;
        self.report_pods();
        // A kubelet that has lost its checkpoint would allocate again for living pods.
        let pods = &self.agent.pods;
        self.agent.kept.retain(|_, uid| !pods.contains_key(uid));
    }
}
