//! Static nodes: what NVIDIA's device plugin offers there, what pods hold of it, and which nodes are closed.
//!
//! The index asks all of that here, and only for nodes without a GpuNode: a node that has one is managed, whatever its
//! labels say.

mod closed;
mod devices;
mod holders;
mod reserving;
mod updates;

pub use devices::PodWatch;

use crate::assumed::AssumedPods;
use crate::leader::Former;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use closed::ClosedNodes;
use devices::{HeldDevices, Holds, StaticReservation};
use hashbrown::HashMap;
use kerf_core::contract::{AssignedDevices, ContainerRequest};
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::{Cost, Refusal};
use kerf_core::quota::Charge;
use kerf_core::static_node::{self, Devices, Spot, StaticNode, sum};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct StaticNodes {
    /// What each Node offers, by its labels and allocatable.
    offers: HashMap<NodeName, StaticNode>,
    devices: HeldDevices,
    closed: ClosedNodes,
}

impl StaticNodes {
    pub(super) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.offers.keys()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.offers.contains_key(name)
    }

    /// Updates what a Node offers; `None` if the Node is gone, or offers nothing of the kind. Returns whether it has
    /// changed.
    pub(super) fn show(&mut self, name: &NodeName, offers: Option<StaticNode>) -> bool {
        if offers.is_none() {
            self.devices.release_on(name);
        }
        if self.offers.get(name) == offers.as_ref() {
            return false;
        }
        match offers {
            Some(offers) => drop(self.offers.insert(name.clone(), offers)),
            None => drop(self.offers.remove(name)),
        }
        true
    }

    /// A node that is open to pods, or why it is not.
    fn open_node(&self, name: &str) -> Result<&StaticNode, Refusal> {
        let node = self.offers.get(name).ok_or(Refusal::NoAgent)?;
        self.closed.check(name, node.is_changing)?;
        if self.devices.has_slices(name) { Err(Refusal::SlicesLeft) } else { Ok(node) }
    }

    /// Whether the node takes new pods.
    pub(super) fn check_open(&self, name: &str) -> Result<(), Refusal> {
        self.open_node(name).map(drop)
    }

    /// A pod's place on a node, beside the pods that have theirs and the assumed pods.
    pub(super) fn place(
        &self,
        name: &str,
        uid: &PodUid,
        ask: &Ask,
        assumed: &AssumedPods,
    ) -> Result<Spot, Refusal> {
        self.place_beside(name, ask, &self.devices.taken(name, Some(uid)), Some(assumed))
    }

    /// A pod's place on a node, beside the pods that have theirs. Assumed pods do not count, because it is reserved.
    pub(super) fn place_to_reserve(&self, name: &str, uid: &PodUid, ask: &Ask) -> Result<Spot, Refusal> {
        self.place_beside(name, ask, &self.devices.taken(name, Some(uid)), None)
    }

    /// A pod's place on a node once these pods are gone.
    pub(super) fn place_without(
        &self,
        name: &str,
        ask: &Ask,
        assumed: &AssumedPods,
        is_gone: impl Fn(&PodUid) -> bool,
    ) -> Result<Spot, Refusal> {
        self.place_beside(name, ask, &self.devices.taken_without(name, is_gone), Some(assumed))
    }

    fn place_beside(
        &self,
        name: &str,
        ask: &Ask,
        taken: &Devices,
        assumed: Option<&AssumedPods>,
    ) -> Result<Spot, Refusal> {
        let node = self.open_node(name)?;
        let assumed = assumed.into_iter().flat_map(|assumed| assumed.asks_on(name));
        let assumed: Vec<Devices> = assumed.map(|ask| static_node::devices(&ask.document)).collect();
        static_node::place(node, &sum(assumed.iter().chain([taken])), &ask.document)
    }

    /// Whether a node has these devices for a pod that asks NVIDIA's device plugin and not kerf: allocatable less what
    /// pods have.
    pub(super) fn fit(&self, name: &str, uid: &PodUid, asked: &Devices) -> Result<Cost, Refusal> {
        self.fit_beside(name, &self.devices.taken(name, Some(uid)), asked)
    }

    /// The same once these pods are gone.
    pub(super) fn fit_without(
        &self,
        name: &str,
        asked: &Devices,
        is_gone: impl Fn(&PodUid) -> bool,
    ) -> Result<Cost, Refusal> {
        self.fit_beside(name, &self.devices.taken_without(name, is_gone), asked)
    }

    fn fit_beside(&self, name: &str, taken: &Devices, asked: &Devices) -> Result<Cost, Refusal> {
        let node = self.open_node(name)?;
        let mut free = 0;
        for (device, count) in asked {
            let all = node.devices.get(device).copied().ok_or(Refusal::NeverFits)?;
            let left = all.saturating_sub(taken.get(device).copied().unwrap_or(0));
            if *count > left {
                return Err(if *count > all { Refusal::CountNeverFits } else { Refusal::NoRoom });
            }
            free += i64::from(left - count);
        }
        Ok(Cost(free))
    }

    /// The devices that a pod gets on a node.
    pub(super) fn assigned(&self, name: &str, ask: &Ask) -> Vec<AssignedDevices> {
        let node = self.offers.get(name);
        let given = |container: &ContainerRequest| {
            let offer = container.resource.plugin_name().and_then(|name| node?.offer(name));
            AssignedDevices {
                container: container.name.clone(),
                resource: container.resource,
                count: container.count,
                size_gb: offer.and_then(|offer| offer.size).unwrap_or(container.size_gb),
            }
        };
        ask.document.containers.iter().map(given).collect()
    }

    /// What these devices of a node are charged; `None` if there is no such node.
    pub(super) fn charge(&self, name: &str, devices: &Devices) -> Option<Charge> {
        let node = self.offers.get(name)?;
        let each = |(name, count): (&_, &u32)| {
            let size = node.offer(*name).and_then(|offer| offer.size).map_or(0, |size| size.0);
            Charge { memory_gb: u64::from(size) * u64::from(*count), slices: u64::from(*count) }
        };
        Some(devices.iter().map(each).sum())
    }

    /// Counts what a pod holds of NVIDIA's device plugin, as a watch shows it. Returns the nodes at which something
    /// changed.
    pub(super) fn hold(&mut self, pod: &KnownPod, by: PodWatch) -> Vec<NodeName> {
        match &pod.node {
            Some(node) if !pod.ended => {
                let holds = Holds { devices: pod.template.devices.clone(), slices: pod.has_slices };
                self.devices.hold(&pod.uid, node, holds, by)
            }
            _ if pod.ended => self.devices.gone(&pod.uid),
            _ => Vec::new(),
        }
    }

    /// Records that a watch no longer shows a pod.
    pub(super) fn leave(&mut self, uid: &PodUid, by: PodWatch) -> Option<NodeName> {
        self.devices.leave(uid, by)
    }

    /// Records that a pod lost kerf's label and lives on.
    pub(super) fn hand_over(&mut self, uid: &PodUid) {
        self.devices.hand_over(uid);
    }

    pub(super) fn gone(&mut self, uid: &PodUid) -> Vec<NodeName> {
        self.devices.gone(uid)
    }

    /// Ends a watch's list: pods that it did not contain are gone.
    pub(super) fn retain(&mut self, by: PodWatch, is_shown: impl Fn(&PodUid) -> bool) -> Vec<NodeName> {
        self.devices.retain(by, is_shown)
    }

    /// The pods that hold something of a node, static or not.
    pub(super) fn holders_on(&self, node: &str) -> impl Iterator<Item = (&PodUid, &Devices)> {
        self.devices.holders_on(node)
    }

    pub(super) fn reserve(&mut self, uid: &PodUid, reserved: StaticReservation) {
        self.devices.reserve(uid, reserved);
    }

    pub(super) fn reservation(&self, uid: &PodUid) -> Option<&StaticReservation> {
        self.devices.reservation(uid)
    }

    pub(super) fn reservations(&self) -> impl Iterator<Item = (&PodUid, &StaticReservation)> {
        self.devices.reservations()
    }

    /// Releases a reservation, and returns its node.
    pub(super) fn release(&mut self, uid: &PodUid) -> Option<NodeName> {
        self.devices.release(uid)
    }

    /// Releases the reservations on a node that has a GpuNode now.
    pub(super) fn release_on(&mut self, node: &NodeName) {
        self.devices.release_on(node);
    }

    /// Closes a node that is about to get another layout, if no pod is on it and none is on its way. Returns whether it
    /// is closed.
    pub fn close(&mut self, node: &NodeName) -> bool {
        let is_free = !self.closed.wait_for_predecessor() && self.devices.are_none_on(node);
        if is_free {
            self.closed.close(node);
        }
        is_free
    }

    /// Closes a node that is already being changed, even if pods are on it.
    pub fn close_at_once(&mut self, node: &NodeName) {
        self.closed.close(node);
    }

    /// Opens the closed nodes, except for these. Returns the opened ones.
    pub(super) fn open(&mut self, stays_closed: impl Fn(&NodeName) -> bool) -> Vec<NodeName> {
        self.closed.open(stays_closed)
    }

    /// Closes all static nodes until it is known which of them a former leader has begun to change.
    pub fn await_changes(&mut self) {
        self.closed.set_changes_unknown(true);
    }

    /// Opens the other static nodes once those that are being changed are closed.
    pub(super) fn know_changes(&mut self) {
        self.closed.set_changes_unknown(false);
    }

    /// Sets whether what pods hold may be older than this term.
    pub(super) fn set_unread(&mut self, are_unread: bool) {
        self.closed.set_unread(are_unread);
    }

    pub(super) fn are_unread(&self) -> bool {
        self.closed.are_unread()
    }

    /// Records how the former leader ended, and since when it has sent nothing. Called before requests are answered.
    pub fn succeed(&mut self, former: Former, since: Instant) {
        self.closed.succeed(former, since);
    }

    /// No record shows a former leader, so a missing Lease was never made.
    pub(super) fn no_leader_before(&mut self) {
        self.closed.no_leader_before();
    }

    /// Opens the nodes once no Binding of the former leader can be made any longer. Returns whether it did.
    pub(super) fn reopen(&mut self, now: Instant, request_limit: Duration) -> bool {
        self.closed.reopen(now, request_limit)
    }

    /// Whether a former leader's Bindings may be under way.
    pub(super) fn may_have_bindings_of_predecessor(&self) -> bool {
        self.closed.may_have_bindings_of_predecessor()
    }

    /// Drops what only a leader has: reservations, pods that no watch shows, and which nodes are closed. Returns the
    /// nodes at which something changed.
    pub(super) fn end_term<'p>(&mut self, strays: impl Iterator<Item = &'p PodUid>) -> Vec<NodeName> {
        self.closed = ClosedNodes::default();
        let mut changed = self.devices.end_term();
        changed.extend(strays.filter_map(|uid| self.devices.leave(uid, PodWatch::Labelled)));
        changed
    }
}

#[cfg(test)]
impl StaticNodes {
    pub fn taken(&self, node: &str) -> Devices {
        self.devices.taken(node, None)
    }
}
