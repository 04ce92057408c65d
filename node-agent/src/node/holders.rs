//! Finds out who holds which device.
//!
//! Three sources, from the newest to the most complete:
//!
//! | source | what it has | what it lacks |
//! |---|---|---|
//! | `Allocate` | what a container is being given | which container; what an earlier process of the agent's was asked |
//! | pod-resources' List | what containers and sidecars hold, by the pod's name | ordinary init containers; after a kubelet restart, all |
//! | the kubelet's checkpoint | what every container holds, by the pod's UID | what was allocated a moment ago; that a pod has ended |
//!
//! A device is held if it is being given, if List has it, or if the checkpoint has it for a pod that the API server
//! shows and that has not ended. So a restart of the agent, of the kubelet or of the node changes nothing: the
//! checkpoint outlives all three. An allocation ends when the other two sources show it. It also ends after
//! [`SHOWN_TIMEOUT`] if no pod of the node lacks a device of its name: then the kubelet rejected the pod. No earlier
//! time is safe, because the kubelet writes its checkpoint only after all plugins have answered for a container,
//! however long that takes (`pod_resources::checkpoint`).

use super::foreign::Foreign;
use super::pods::{NodePod, NodePods};
use kerf_core::contract::Holder;
use kerf_core::names::{DeviceId, PodKey, PodUid};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the API server may take to show the agent a pod for which the kubelet allocates already.
const SHOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The first wait for the kubelet to show a change. It doubles with each poll, up to [`LONGEST_POLL_INTERVAL`].
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(5);
const LONGEST_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a pod unknown to kerf keeps what the kubelet no longer lists, unless the pod is known to have ended. A
/// restarted kubelet lists it again within seconds.
const FORGET_TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The resource name that the container requested.
    pub name: ResourceName,
    pub holder: Holder,
}

/// A device of one of kerf's names that a container has or had, by the kubelet's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recorded {
    pub uid: PodUid,
    /// The container's name; it may be an ordinary init container.
    pub container: String,
    /// The resource name that it requested.
    pub name: ResourceName,
    pub device: DeviceId,
}

/// The holders, as the kubelet lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders {
    /// When the request was sent; later events are not in it.
    pub asked: Instant,
    /// Devices of kerf's names that are held, by List.
    pub held: BTreeMap<DeviceId, Held>,
    /// What containers hold through other programs, by those programs' ids.
    pub foreign: Vec<(Foreign, Holder)>,
    /// The kubelet's checkpoint, or why it cannot be used.
    pub recorded: Result<Vec<Recorded>, String>,
}

/// What a container holds through another program.
#[derive(Debug)]
struct ForeignHeld {
    device: Foreign,
    holder: Holder,
    /// When the kubelet listed it last.
    listed: Instant,
}

/// An allocation that the other sources do not show yet.
#[derive(Debug)]
struct Allocation {
    /// The resource name that it was requested under.
    name: ResourceName,
    at: Instant,
    /// The pod that had the device before, by the checkpoint.
    before: Option<PodUid>,
}

/// Everything that is known of holders.
#[derive(Debug, Default)]
pub(crate) struct Account {
    asked: Option<Instant>,
    listed: BTreeMap<DeviceId, Held>,
    /// The last checkpoint that could be used.
    recorded: Option<Vec<Recorded>>,
    /// What live pods hold, by that checkpoint.
    owned: BTreeMap<DeviceId, (PodUid, Held)>,
    /// Why the newest checkpoint cannot be used; `None` if it can.
    unread: Option<String>,
    foreign: Vec<ForeignHeld>,
    allocated: BTreeMap<DeviceId, Allocation>,
    /// When the devices were allocated that List shows for a pod and the checkpoint does not yet.
    unrecorded: BTreeMap<DeviceId, Instant>,
    /// Devices that a pod may hold without a source that names the holder.
    occupied: BTreeMap<DeviceId, Option<Held>>,
    /// Pods that are gone or finished while the kubelet still lists their devices.
    leaving: BTreeMap<PodUid, PodKey>,
    look: Option<(Instant, Duration)>,
}

impl Account {
    /// Takes the kubelet's list of holders, along with the pods that the API server shows.
    pub(crate) fn take(&mut self, holders: Holders, pods: Option<&NodePods>) {
        let Holders { asked, held, foreign, recorded } = holders;
        self.take_foreign(asked, foreign, pods);
        (self.asked, self.listed) = (Some(asked), held);
        match recorded {
            Ok(recorded) => (self.recorded, self.unread) = (Some(recorded), None),
            // The last readable checkpoint stays in force, so that its holders do not count as free.
            Err(error) => self.unread = Some(error),
        }
        self.take_pods(pods);
        self.unrecorded
            .extend(self.allocated.iter().map(|(device, allocation)| (device.clone(), allocation.at)));
        self.forget_allocations(asked, pods);
        self.forget_unrecorded(asked);
        let (listed, owned) = (&self.listed, &self.owned);
        self.leaving.retain(|uid, key| {
            let is_its = |device| owned.get(device).is_none_or(|(of, _)| of == uid);
            listed.iter().any(|(device, held)| held.holder.key() == *key && is_its(device))
        });
    }

    /// Takes the live pods. Before the API server has listed them, all pods of the checkpoint count as alive.
    pub(crate) fn take_pods(&mut self, pods: Option<&NodePods>) {
        let mut owned = BTreeMap::new();
        for Recorded { uid, container, name, device } in self.recorded.iter().flatten() {
            let pod = pods.map(|pods| pods.get(uid));
            // The checkpoint keeps entries of pods that have ended, so only those of live pods count.
            if pod == Some(None) {
                continue;
            }
            // The kubelet hands the devices of ordinary init containers on to later containers, so those take
            // precedence.
            let is_handed_on = pod.flatten().is_some_and(|pod| pod.inits.contains(container));
            if is_handed_on && owned.contains_key(device) {
                continue;
            }
            let key = pod.flatten().map_or_else(|| PodKey::new("", uid.as_str()), |pod| pod.key.clone());
            let holder = Holder { namespace: key.namespace, pod: key.name, container: container.clone() };
            owned.insert(device.clone(), (uid.clone(), Held { name: *name, holder }));
        }
        self.owned = owned;
    }

    fn take_foreign(&mut self, asked: Instant, listed: Vec<(Foreign, Holder)>, pods: Option<&NodePods>) {
        let keys = self.listed.values().map(|held| held.holder.key());
        let reported: BTreeSet<PodKey> = keys.chain(listed.iter().map(|(_, holder)| holder.key())).collect();
        let admitted =
            |key: &PodKey| pods.is_none_or(|pods| pods.values().any(|pod| pod.admitted && pod.key == *key));
        let leaving = &self.leaving;
        self.foreign.retain(|held| {
            let pod = held.holder.key();
            let is_over = reported.contains(&pod) || leaving.values().any(|key| *key == pod);
            !is_over && (admitted(&pod) || asked < held.listed + FORGET_TIMEOUT)
        });
        let listed = listed.into_iter().map(|(device, holder)| ForeignHeld { device, holder, listed: asked });
        self.foreign.extend(listed);
    }

    /// Drops allocations that the other sources show, and those of pods that were rejected.
    fn forget_allocations(&mut self, asked: Instant, pods: Option<&NodePods>) {
        let mut allocated = std::mem::take(&mut self.allocated);
        allocated.retain(|device, Allocation { name, at, before }| {
            let owner = self.owned.get(device).map(|(uid, _)| uid);
            let is_shown = self.listed.contains_key(device) || owner.is_some() && owner != before.as_ref();
            let lacks = |(uid, pod): (&PodUid, &NodePod)| {
                pod.names.get(name).is_some_and(|count| self.count(uid, pod, *name) < *count)
            };
            let is_refused = asked >= *at + SHOWN_TIMEOUT && pods.is_some_and(|pods| !pods.iter().any(lacks));
            // A list that was requested before the allocation cannot show it.
            asked <= *at || !is_shown && !is_refused
        });
        self.allocated = allocated;
    }

    /// Drops allocations that the checkpoint shows. It never does for a pod that was deleted by force.
    fn forget_unrecorded(&mut self, asked: Instant) {
        let (listed, owned) = (&self.listed, &self.owned);
        self.unrecorded.retain(|device, at| {
            let is_its =
                |held: &Held| owned.get(device).is_some_and(|(_, of)| of.holder.key() == held.holder.key());
            listed.get(device).is_some_and(|held| !is_its(held)) && asked < *at + FORGET_TIMEOUT
        });
    }

    /// How many devices of the name the pod holds, by List and checkpoint.
    fn count(&self, uid: &PodUid, pod: &NodePod, name: ResourceName) -> usize {
        let owned = self.owned.iter().filter(|(_, (of, held))| of == uid && held.name == name);
        let listed = self.listed.iter().filter(|(_, held)| held.name == name && held.holder.key() == pod.key);
        owned.map(|(device, _)| device).chain(listed.map(|(device, _)| device)).collect::<BTreeSet<_>>().len()
    }

    /// Records that a container is being given these devices.
    pub(crate) fn allocated(&mut self, name: ResourceName, devices: Vec<DeviceId>, now: Instant) {
        for device in devices {
            // The checkpoint may still list the previous pod; only another owner shows that it has this allocation.
            let before = self.owned.get(&device).map(|(uid, _)| uid.clone());
            self.allocated.insert(device, Allocation { name, at: now, before });
        }
        self.look_soon(now);
    }

    /// Records that a pod of this node is gone or finished.
    pub(crate) fn left(&mut self, pod: PodKey, uid: PodUid, now: Instant) {
        let listed = self.devices().map(|(_, held)| &held.holder);
        let has_something = listed.chain(self.foreign().map(|(_, holder)| holder)).any(|h| h.key() == pod);
        if has_something || !self.allocated.is_empty() {
            self.leaving.insert(uid, pod);
            self.look_soon(now);
        }
    }

    /// Whether the pod is known to have left, while the kubelet may still list its devices.
    pub(super) fn is_leaving(&self, pod: &PodKey) -> bool {
        self.leaving.values().any(|key| key == pod)
    }

    fn look_soon(&mut self, now: Instant) {
        self.look = Some((now + FIRST_POLL_INTERVAL, FIRST_POLL_INTERVAL));
    }

    /// Whether the kubelet should be asked now; otherwise when.
    pub(crate) fn look(&mut self, now: Instant) -> (bool, Option<Instant>) {
        let is_complete = self.allocated.is_empty() && self.unrecorded.is_empty() && self.unread.is_none();
        if is_complete && self.leaving.is_empty() {
            self.look = None;
            return (false, None);
        }
        let (due, wait) = *self.look.get_or_insert((now, FIRST_POLL_INTERVAL));
        if due > now {
            return (false, Some(due));
        }
        let wait = (wait * 2).min(LONGEST_POLL_INTERVAL);
        self.look = Some((now + wait, wait));
        (true, Some(now + wait))
    }

    /// Sets the devices that a pod may hold without a source that names the holder.
    pub(super) fn occupy(&mut self, occupied: BTreeMap<DeviceId, Option<Held>>) {
        self.occupied = occupied;
    }

    /// Whether the kubelet has ever listed the holders.
    pub(crate) fn is_known(&self) -> bool {
        self.asked.is_some()
    }

    /// When the newest list was requested.
    pub(crate) fn asked(&self) -> Option<Instant> {
        self.asked
    }

    /// Why the kubelet's checkpoint cannot be used; `None` if it can.
    pub(super) fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// Whether it is unknown what init containers held before the agent started.
    pub(super) fn is_blind(&self) -> bool {
        self.unread.is_some() && self.recorded.is_none()
    }

    /// The device's holder, if known.
    pub(crate) fn holder(&self, device: &DeviceId) -> Option<&Held> {
        self.listed.get(device).or_else(|| self.owned.get(device).map(|(_, held)| held))
    }

    /// The live pod that has the device by the kubelet's checkpoint.
    pub(super) fn owner(&self, device: &DeviceId) -> Option<&PodUid> {
        self.owned.get(device).map(|(uid, _)| uid)
    }

    /// The device's holder, or a pod that may be its holder.
    pub(crate) fn possible_holder(&self, device: &DeviceId) -> Option<&Held> {
        self.holder(device).or_else(|| self.occupied.get(device)?.as_ref())
    }

    /// The name under which the device is held, or was just allocated.
    pub(crate) fn held_as(&self, device: &DeviceId) -> Option<ResourceName> {
        let allocated = self.allocated.get(device).map(|allocation| allocation.name);
        allocated.or_else(|| self.holder(device).map(|held| held.name))
    }

    /// Whether the kubelet keeps the device for a container: List has it, which lacks ordinary init containers, or the
    /// checkpoint has it for an admitted pod. A device of a new allocation does not count, because the kubelet may hand
    /// it on or give it to another pod.
    pub(super) fn is_settled(&self, device: &DeviceId, is_admitted: impl Fn(&PodUid) -> bool) -> bool {
        let is_shown = || self.listed.contains_key(device) || self.owner(device).is_some_and(is_admitted);
        !self.allocated.contains_key(device) && is_shown()
    }

    /// Whether a pod may hold the device though no source says so. Then no other pod gets it.
    pub(crate) fn is_doubted(&self, device: &DeviceId) -> bool {
        self.occupied.contains_key(device) && self.held_as(device).is_none()
    }

    /// Whether the device is held, or may be.
    pub(crate) fn is_held(&self, device: &DeviceId) -> bool {
        self.held_as(device).is_some() || self.is_doubted(device)
    }

    /// What containers hold through other programs, by List.
    pub(super) fn foreign(&self) -> impl Iterator<Item = (&Foreign, &Holder)> {
        self.foreign.iter().map(|held| (&held.device, &held.holder))
    }

    /// What live pods, with their init containers, hold through other programs by the kubelet's checkpoint.
    pub(super) fn foreign_owned(&self) -> impl Iterator<Item = (Foreign, &Holder)> {
        self.owned.iter().filter_map(|(device, (_, held))| {
            Some((Foreign::from_plugin_device(&held.name.to_string(), device.as_str())?, &held.holder))
        })
    }

    /// All devices with a known holder.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&DeviceId, &Held)> {
        let owned = self.owned.iter().filter(|(device, _)| !self.listed.contains_key(*device));
        self.listed.iter().chain(owned.map(|(device, (_, held))| (device, held)))
    }
}

#[cfg(test)]
#[path = "holders_tests.rs"]
mod tests;
