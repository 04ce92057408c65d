//! Static nodes in the index: whether a pod fits, what is reserved for it, and how watches update them.

use super::statics::{Holds, Promised, Shower};
use super::{ClusterIndex, Unreservable};
use crate::ask::Ask;
use crate::pod::KnownPod;
use crate::usage::Entry;
use kerf_core::contract::{AssignedDevices, AssignmentDocument};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Cost, Refusal};
use kerf_core::quota::Charge;
use kerf_core::static_node::{Devices, Spot, StaticNode, devices, place, sum};

impl ClusterIndex {
    /// Makes answers wait for the Nodes and for the pods without kerf's label, which are about to be listed.
    pub fn await_statics(&mut self) {
        self.listing.machines.await_end();
        self.listing.others.await_end();
    }

    /// Starts a list of all Nodes.
    pub fn machines_listing(&mut self) {
        self.listing.machines.begin();
    }

    /// Ends a list of all Nodes: those that it did not contain are gone.
    pub fn machines_listed(&mut self) {
        self.effects.progress = true;
        if let Some(shown) = self.listing.machines.end() {
            let gone: Vec<_> = self.statics.names().filter(|name| !shown.contains(*name)).cloned().collect();
            for name in gone {
                self.show_static(name, None);
            }
            self.machines.retain(|name| shown.contains(name));
        }
    }

    /// Updates what a Node offers by NVIDIA's device plugin; `None` if the Node is gone, or offers nothing of the kind.
    pub fn show_static(&mut self, name: NodeName, node: Option<StaticNode>) {
        self.listing.machines.add(&name);
        if node.is_none() {
            self.statics.release_on(&name);
        }
        if self.statics.show(&name, node) {
            // A node that appears while devices may be stale makes a new list necessary.
            self.effects.progress |= self.statics.are_unread();
            self.static_changed(name);
        }
    }

    /// Starts a list of all pods without kerf's label.
    pub fn others_listing(&mut self) {
        self.listing.others.begin();
    }

    /// Ends that list: pods that it did not contain are gone.
    pub fn others_listed(&mut self) {
        self.effects.progress = true;
        if let Some(shown) = self.listing.others.end() {
            let changed = self.statics.retain(Shower::Others, |uid| shown.contains(uid));
            self.machines.retain_others(|uid| shown.contains(uid));
            self.statics_changed(changed);
        }
    }

    /// Updates a pod without kerf's label.
    pub fn show_other(&mut self, pod: &KnownPod) {
        self.listing.others.add(&pod.uid);
        self.machines.show_other(pod);
        self.note_holder(pod, Shower::Others);
    }

    /// Removes a pod without kerf's label: it is gone, has ended, or has the label now.
    pub fn hide_other(&mut self, uid: &PodUid) {
        self.machines.hide_other(uid);
        if let Some(name) = self.statics.leave(uid, Shower::Others) {
            self.static_changed(name);
        }
    }

    /// Counts what a pod holds of NVIDIA's device plugin.
    pub(super) fn note_holder(&mut self, pod: &KnownPod, by: Shower) {
        let changed = match &pod.node {
            Some(node) if !pod.ended => {
                let holds = Holds { devices: pod.template.devices.clone(), slices: pod.has_slices };
                self.statics.hold(&pod.uid, node, holds, by)
            }
            _ if pod.ended => self.statics.gone(&pod.uid),
            _ => Vec::new(),
        };
        self.statics_changed(changed);
    }

    pub(super) fn statics_changed(&mut self, names: impl IntoIterator<Item = NodeName>) {
        for name in names {
            self.static_changed(name);
        }
    }

    pub(super) fn static_changed(&mut self, name: NodeName) {
        if self.nodes.contains(name.as_str()) {
            return;
        }
        self.charge_static(&name);
        self.lead.unschedulable.changed(&name);
        self.effects.changed.insert(name);
    }

    /// The static node of this name, which has no GpuNode.
    pub(super) fn static_node(&self, name: &str) -> Option<&StaticNode> {
        if self.nodes.contains(name) { None } else { self.statics.node(name) }
    }

    /// Whether this is a static node.
    #[must_use]
    pub fn is_static(&self, name: &NodeName) -> bool {
        self.static_node(name.as_str()).is_some()
    }

    /// A static node that is open to pods, or why it is not.
    pub(super) fn open_node(&self, name: &str) -> Result<&StaticNode, Refusal> {
        let node = self.static_node(name).ok_or(Refusal::NoAgent)?;
        if self.statics.are_waiting() {
            return Err(Refusal::LeaderChanged);
        }
        if node.is_changing || self.statics.is_closed(name) {
            return Err(Refusal::LayoutChanging);
        }
        if self.statics.has_slices(name) {
            return Err(Refusal::SlicesLeft);
        }
        Ok(node)
    }

    /// Whether the node is open to new pods.
    #[must_use]
    pub fn is_open(&self, name: &NodeName) -> bool {
        self.open_node(name.as_str()).is_ok()
    }

    /// Closes a node that is about to get another layout, if no pod is on it and none is on its way. Returns whether it
    /// is closed.
    pub fn close_static(&mut self, name: &NodeName) -> bool {
        self.statics.close(name)
    }

    /// Closes a node that is already being changed, even if pods are on it.
    pub fn shut_static(&mut self, name: &NodeName) {
        self.statics.shut(name);
    }

    /// Closes all static nodes until it is known which of them a former leader has begun to change.
    pub fn await_changes(&mut self) {
        self.statics.set_unknown(true);
    }

    /// Opens the other static nodes once those that are being changed are closed.
    pub fn know_changes(&mut self) {
        self.statics.set_unknown(false);
        let all: Vec<_> = self.statics.names().cloned().collect();
        self.statics_changed(all);
    }

    /// Opens the closed nodes, except for those that are being changed.
    pub fn open_statics(&mut self, is_changing: impl Fn(&NodeName) -> bool) {
        let opened = self.statics.open(is_changing);
        self.statics_changed(opened);
    }

    /// A pod's place on a static node, beside the pods that have theirs, and beside the assumed pods if
    /// `with_expected`.
    fn spot(&self, name: &str, uid: &PodUid, ask: &Ask, with_expected: bool) -> Result<Spot, Refusal> {
        let taken = self.statics.taken(name, Some(uid));
        self.spot_beside(name, ask, &taken, with_expected)
    }

    fn spot_beside(
        &self,
        name: &str,
        ask: &Ask,
        taken: &Devices,
        with_expected: bool,
    ) -> Result<Spot, Refusal> {
        let node = self.open_node(name)?;
        let expected: Vec<Devices> = if with_expected {
            self.lead.assumed.asks_on(name).map(|ask| devices(&ask.document)).collect()
        } else {
            Vec::new()
        };
        place(node, &sum(expected.iter().chain([taken])), &ask.document)
    }

    /// A pod's place on a static node once these pods are gone.
    pub(super) fn spot_without(
        &self,
        name: &str,
        ask: &Ask,
        is_gone: impl Fn(&PodUid) -> bool,
    ) -> Result<Spot, Refusal> {
        self.spot_beside(name, ask, &self.statics.taken_without(name, is_gone), true)
    }

    /// The cost of serving a pod on a static node.
    pub(super) fn static_cost(&self, name: &str, uid: &PodUid, ask: &Ask) -> Result<Cost, Refusal> {
        let spot = self.spot(name, uid, ask, true)?;
        self.within_quota_for(ask, spot.charge)?;
        Ok(spot.cost)
    }

    /// What a pod will be charged for its place on a static node.
    pub(super) fn static_charge(&self, name: &NodeName, uid: &PodUid, ask: &Ask) -> Option<Charge> {
        self.spot(name.as_str(), uid, ask, true).ok().map(|spot| spot.charge)
    }

    /// Whether a node has room for a pod that asks NVIDIA's device plugin and not kerf: allocatable less what pods
    /// have.
    pub fn plain_fit(&self, name: &str, uid: &PodUid, asked: &Devices) -> Result<Cost, Refusal> {
        self.plain_fit_beside(name, &self.statics.taken(name, Some(uid)), asked)
    }

    /// The same once these pods are gone.
    pub(super) fn plain_fit_without(
        &self,
        name: &str,
        asked: &Devices,
        is_gone: impl Fn(&PodUid) -> bool,
    ) -> Result<Cost, Refusal> {
        self.plain_fit_beside(name, &self.statics.taken_without(name, is_gone), asked)
    }

    fn plain_fit_beside(&self, name: &str, taken: &Devices, asked: &Devices) -> Result<Cost, Refusal> {
        if self.nodes.contains(name) {
            return Err(Refusal::NotAdmitted);
        }
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

    /// Reserves a static node's devices for a pod that is about to be bound, and returns its assignment. A pod that
    /// already has the reservation keeps it, as long as the node has that many devices. `ask` is the request that the
    /// caller has read from the API server, if it did.
    pub fn reserve_static(
        &mut self,
        uid: &PodUid,
        key: &PodKey,
        name: &NodeName,
        ask: Option<Ask>,
    ) -> Result<AssignmentDocument, Unreservable> {
        if self.place_of(uid).is_some_and(|place| place != name) {
            return Err(Refusal::ReservedElsewhere.into());
        }
        let promised = self.statics.promised(uid).and_then(|promised| promised.ask.clone());
        let (ask, _) = self.ask_of(uid, ask, promised)?;
        let spot = self.spot(name.as_str(), uid, &ask, false)?;
        if self.statics.promised(uid).is_none() {
            self.may_hold(&ask, spot.charge)?;
        }
        let devices = self.assigned(name, &ask);
        let promised =
            Promised { node: name.clone(), key: key.clone(), devices: spot.devices, ask: Some(ask) };
        self.statics.promise(uid, promised);
        self.static_changed(name.clone());
        Ok(AssignmentDocument { version: 1, slices: Vec::new(), devices, passed: Vec::new() })
    }

    /// The same for a pod that asks NVIDIA's device plugin and not kerf, and gets no assignment.
    pub fn reserve_plain(&mut self, pod: &KnownPod, name: &NodeName) -> Result<(), Refusal> {
        self.plain_fit(name.as_str(), &pod.uid, &pod.template.devices)?;
        let devices = (*pod.template.devices).clone();
        self.statics
            .promise(&pod.uid, Promised { node: name.clone(), key: pod.key.clone(), devices, ask: None });
        self.static_changed(name.clone());
        Ok(())
    }

    fn assigned(&self, name: &NodeName, ask: &Ask) -> Vec<AssignedDevices> {
        let node = self.static_node(name.as_str());
        let given = |container: &kerf_core::contract::ContainerRequest| {
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

    /// Releases a pod's reservation on a static node. Returns whether there was one.
    pub(super) fn release_static(&mut self, uid: &PodUid) -> bool {
        let released = self.statics.release(uid);
        let was_there = released.is_some();
        self.statics_changed(released);
        was_there
    }

    /// What pods with kerf's label hold or have reserved of a static node, each with its charge.
    pub(super) fn static_entries(&self, name: &NodeName) -> Vec<Entry> {
        let Some(node) = self.static_node(name.as_str()) else { return Vec::new() };
        let of_devices = |devices: &Devices| {
            let each = |(name, count): (&_, &u32)| {
                let size = node.offer(*name).and_then(|offer| offer.size).map_or(0, |size| size.0);
                Charge { memory_gb: u64::from(size) * u64::from(*count), slices: u64::from(*count) }
            };
            devices.iter().map(each).sum::<Charge>()
        };
        let held = self.statics.holders_on(name.as_str()).filter_map(|(uid, devices)| {
            let pod = self.pods.get(uid).filter(|pod| pod.template.request.is_some())?;
            let under = self.quotas.under_of(Some(pod));
            Some(Entry { namespace: pod.key.namespace.clone(), under, charge: of_devices(devices) })
        });
        let promised = self.statics.promises().filter(|(_, promised)| promised.node == *name);
        let promised = promised.filter_map(|(_, promised)| {
            let under = self.quotas.under_ask(promised.ask.as_ref()?);
            let namespace = promised.key.namespace.clone();
            Some(Entry { namespace, under, charge: of_devices(&promised.devices) })
        });
        held.chain(promised).collect()
    }
}
