//! What ordinary init containers hold. The kubelet lists neither them nor their devices, and keeps the devices that no
//! later container of the pod takes over from everybody else until the pod ends.
//!
//! A pod of which some devices are held by init containers alone is offered its own slices and no others
//! (`core::offer`). So what it holds is what it was promised and the kubelet does not list; that is known after a
//! restart too. Where a promise is missing, whatever the pod may hold counts as held ([`super::unlisted`]). And what was allocated while such a
//! pod was about to be admitted, and is neither listed nor promised to it, is held until the pod ends: the kubelet may have
//! picked it instead of the pod's own, before it had taken the newest lists.

use super::holders::Allocation;
use super::unlisted::is_of_plugin;
use super::{Held, Node};
use kerf_core::contract::{Holder, Reservation, Shape, SliceState, SliceStatus};
use kerf_core::names::{DeviceId, PodKey, PodUid, SliceId};
use kerf_core::request::Beyond;
use kerf_core::resource::ResourceName;
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A pod that is bound to the node, has not ended, and asks for kerf's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePod {
    /// Its namespace and name.
    pub key: PodKey,
    /// Whether the kubelet has taken it on, and so has allocated for all its containers.
    pub admitted: bool,
    /// The names that it asks for, and what only an init container of it holds of each.
    pub names: BTreeMap<ResourceName, Option<Beyond>>,
    /// What each slice was asked to have, by the container that asked.
    pub requested: BTreeMap<String, MemoryMib>,
}

/// Pods by UID: one made anew under the same name is another.
pub type NodePods = BTreeMap<PodUid, NodePod>;

/// What init containers hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct InitHeld {
    /// Promised to their pods.
    pub(super) own: BTreeMap<DeviceId, Held>,
    /// Not promised to their pods, and perhaps theirs.
    pub(super) doubted: BTreeMap<DeviceId, Held>,
}

impl Node {
    /// What init containers hold, by all that is known now.
    pub(super) fn init_held(&self) -> InitHeld {
        let mut held = InitHeld::default();
        for (uid, pod, name, beyond) in self.staged() {
            let own = self.own_of(uid, pod, name);
            if own.len() < beyond.count {
                let by_it = || Held { name, holder: holder(pod, &beyond.container) };
                let mut doubtful = self.doubtful(uid, name);
                let known = own.len() + doubtful.len();
                doubtful.extend(self.gpus_of_plugin((uid, pod), name, (beyond.count, known)));
                held.doubted.extend(doubtful.into_iter().map(|d| (d, by_it())));
            }
            // One that the kubelet has not taken on yet is still to be offered what it was promised.
            if pod.admitted {
                held.own.extend(own);
            }
        }
        held
    }

    /// Allocations that the kubelet does not list and that may be init containers'.
    pub(super) fn init_allocations(&self) -> impl Iterator<Item = &DeviceId> {
        let all = self.account.allocations();
        all.filter(|(device, allocation)| self.may_be_init_held(device, allocation)).map(|(device, _)| device)
    }

    /// Whether it may be an init container's: a pod's that is about to be admitted, one's that was not promised all that it
    /// holds, or one's that was about to be admitted then and was promised another device.
    fn may_be_init_held(&self, device: &DeviceId, Allocation { name, suspects, .. }: &Allocation) -> bool {
        let mut of_name = self.staged().filter(|(_, _, of, _)| of == name);
        let is_open = |(uid, pod, name, beyond): (&PodUid, &NodePod, ResourceName, &Beyond)| {
            !pod.admitted || self.own_of(uid, pod, name).len() < beyond.count
        };
        let is_suspected = suspects.iter().flatten().any(|uid| self.may_have(uid, device, *name));
        self.pods.is_none() || is_suspected || self.is_suspected(device) || of_name.any(is_open)
    }

    /// Whether an init container of the pod may have got the device instead of what the pod was promised.
    fn may_have(&self, uid: &PodUid, device: &DeviceId, name: ResourceName) -> bool {
        self.is_awaited(uid, name) && !self.promised(uid, name).any(|(own, _)| own == *device)
    }

    /// Whether an init container of a pod that was promised another device may have got this one: it was allocated then, and
    /// the kubelet does not list it.
    pub(super) fn is_suspected(&self, device: &DeviceId) -> bool {
        let mut allocations = self.account.allocations().filter(|(allocated, _)| *allocated == device);
        allocations.any(|(_, Allocation { name, suspects, .. })| {
            let is_suspect = |uid: &PodUid| suspects.as_ref().is_none_or(|s| s.contains(uid));
            let mut staged = self.staged().filter(|(uid, _, of, _)| of == name && is_suspect(uid));
            !self.account.lists(device) && staged.any(|(uid, ..)| self.may_have(uid, device, *name))
        })
    }

    /// What the status said to be held when the agent was started: by a pod of which the kubelet may not have heard yet, if it
    /// has just been started too, or by nobody that it lists, and then an init container may have it.
    pub(super) fn recall_allocations(&mut self, now: Instant) {
        let slices = self.before.iter().flat_map(|before| &before.slices);
        let held = |s: &SliceStatus| {
            Some((s.device.clone()?, Held { name: s.resource?, holder: s.holder.clone()? }))
        };
        self.account.recall_held(slices.clone().filter_map(held).collect(), now);
        let is_unlisted = |s: &&SliceStatus| s.state == SliceState::Held && s.holder.is_none();
        let unlisted = slices.filter(is_unlisted).filter_map(|s| Some((s.resource?, s.device.clone()?)));
        for (name, device) in unlisted {
            self.account.recall(name, device, now);
        }
    }

    /// The pods that what is allocated under this name now may be an init container's of: those that are about to be
    /// admitted and lack something yet. The kubelet may hear of a pod before the agent does, so a promise that can be kept
    /// is enough.
    pub(super) fn suspects(&self, name: ResourceName) -> BTreeSet<PodUid> {
        let of_name = self.staged().filter(|(_, pod, of, _)| *of == name && !pod.admitted);
        let is_open = |uid: &PodUid, beyond: &Beyond| {
            self.promised(uid, name).count() < beyond.count
                || self.promised(uid, name).any(|(device, _)| !self.account.is_held(&device))
        };
        let bound = of_name.filter(|(uid, _, _, beyond)| is_open(uid, beyond)).map(|(uid, ..)| uid);
        let unknown = self.spec.slices.iter().filter_map(|wanted| {
            let promise = wanted.reservation.as_ref().filter(|r| r.alone && r.resource == name)?;
            let device = self.device_of(wanted).filter(|device| !self.account.is_held(device))?;
            let is_bound = self.pods.as_ref().is_some_and(|pods| pods.contains_key(&promise.uid));
            (!is_bound && self.advertised.is_acknowledged(name, &device)).then_some(&promise.uid)
        });
        bound.chain(unknown).cloned().collect()
    }

    /// Whether an init container of the pod holds something of this name that the kubelet does not list, or may soon.
    fn is_awaited(&self, uid: &PodUid, name: ResourceName) -> bool {
        match self.pods.as_ref().and_then(|pods| pods.get(uid)) {
            Some(pod) => pod.names.get(&name).is_some_and(Option::is_some),
            None => self.promised(uid, name).next().is_some(),
        }
    }

    /// Pods with what only their init containers hold.
    pub(super) fn staged(&self) -> impl Iterator<Item = (&PodUid, &NodePod, ResourceName, &Beyond)> + Clone {
        self.pods.iter().flatten().flat_map(|(uid, pod)| {
            pod.names.iter().filter_map(move |(name, beyond)| Some((uid, pod, *name, beyond.as_ref()?)))
        })
    }

    /// Slices that exist and are promised to the pod under this name.
    fn promised(&self, uid: &PodUid, name: ResourceName) -> impl Iterator<Item = (DeviceId, &Reservation)> {
        self.spec.slices.iter().filter_map(move |wanted| {
            let reservation = wanted.reservation.as_ref().filter(|r| r.uid == *uid && r.resource == name)?;
            Some((self.device_of(wanted)?, reservation))
        })
    }

    /// Those of them that are not listed by the kubelet.
    fn own_of(&self, uid: &PodUid, pod: &NodePod, name: ResourceName) -> BTreeMap<DeviceId, Held> {
        let unlisted = self.promised(uid, name).filter(|(device, _)| !self.account.lists(device));
        unlisted.map(|(device, r)| (device, Held { name, holder: holder(pod, &r.container) })).collect()
    }

    /// Devices that the pod may hold under this name without their being promised to it under this name: all that can be.
    /// What was allocated under the name lately says nothing, for it may be another pod's.
    fn doubtful(&self, uid: &PodUid, name: ResourceName) -> Vec<DeviceId> {
        let is_own = |r: &Reservation| r.uid == *uid && r.resource == name;
        let others = self.spec.slices.iter().filter(|w| !w.reservation.as_ref().is_some_and(is_own));
        let others = others.filter_map(|wanted| Some((self.device_of(wanted)?, wanted.shape)));
        let unwanted = self.unwanted().into_iter().map(|(_, shape, device, _)| (device, shape));
        let may_be = |(device, shape): &(DeviceId, Shape)| {
            let fits = shape.keeps(name) || self.account.allocated_as(device) == Some(name);
            fits && !self.account.lists(device) && !is_of_plugin(device) && !self.is_excluded(uid, device)
        };
        others.chain(unwanted).filter(may_be).map(|(device, _)| device).collect()
    }

    /// Notes which promises were kept: their pods have got the slices. When they hold them no more they have ended, and
    /// what was promised is nobody else's obstacle while the leader has not taken the promise back yet.
    pub(super) fn note_kept_promises(&mut self) {
        let mut kept: BTreeMap<SliceId, PodUid> = BTreeMap::new();
        for wanted in &self.spec.slices {
            let Some(reservation) = &wanted.reservation else { continue };
            let bound = self.pods.as_ref().is_some_and(|pods| pods.contains_key(&reservation.uid));
            let held = self.device_of(wanted).and_then(|device| self.account.holder(&device).cloned());
            let by_its_pod = |h: Held| h.name == reservation.resource && h.holder.key() == reservation.key();
            let before = self.kept.get(&wanted.id) == Some(&reservation.uid);
            if before || bound && held.is_some_and(by_its_pod) {
                kept.insert(wanted.id.clone(), reservation.uid.clone());
            }
        }
        self.kept = kept;
    }
}

fn holder(pod: &NodePod, container: &str) -> Holder {
    let PodKey { namespace, name } = pod.key.clone();
    Holder { namespace, pod: name, container: container.to_owned() }
}
