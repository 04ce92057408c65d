//! What ordinary init containers hold. The kubelet lists neither them nor their devices, and keeps the devices that no
//! later container of the pod takes over from everybody else until the pod ends.
//!
//! A pod of which some devices are held by init containers alone is offered its own slices and no others
//! (`core::offer`). So what it holds is what it was promised and the kubelet does not list; that is known after a
//! restart too. Where a promise is missing, whatever the pod may hold counts as held.

use super::{Held, Node};
use kerf_core::contract::{Holder, Shape};
use kerf_core::names::{DeviceId, PodKey, PodUid, SliceId};
use kerf_core::request::Beyond;
use kerf_core::resource::ResourceName;
use std::collections::BTreeMap;

/// A pod that is bound to the node, has not ended, and asks for kerf's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePod {
    /// Its namespace and name.
    pub key: PodKey,
    /// Whether the kubelet has taken it on, and so has allocated for all its containers.
    pub admitted: bool,
    /// The names that it asks for, and what only an init container of it holds of each.
    pub names: BTreeMap<ResourceName, Option<Beyond>>,
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
                held.doubted.extend(self.doubtful(uid, name).into_iter().map(|d| (d, by_it())));
            }
            // One that the kubelet has not taken on yet is still to be offered what it was promised.
            if pod.admitted {
                held.own.extend(own);
            }
        }
        held
    }

    /// Whether an allocation of this name that the kubelet does not list may be an init container's: a pod's that is about
    /// to be admitted, or one's that was not promised all that it holds.
    pub(super) fn may_be_init_held(&self, name: ResourceName) -> bool {
        let of_name = self.staged().filter(|(_, _, of, _)| *of == name);
        let is_open = |(uid, pod, name, beyond): (&PodUid, &NodePod, ResourceName, &Beyond)| {
            !pod.admitted || self.own_of(uid, pod, name).len() < beyond.count
        };
        self.pods.is_none() || of_name.into_iter().any(is_open)
    }

    /// Pods with what only their init containers hold.
    fn staged(&self) -> impl Iterator<Item = (&PodUid, &NodePod, ResourceName, &Beyond)> {
        self.pods.iter().flatten().flat_map(|(uid, pod)| {
            pod.names.iter().filter_map(move |(name, beyond)| Some((uid, pod, *name, beyond.as_ref()?)))
        })
    }

    /// Slices that are promised to the pod under this name, exist, and are not listed by the kubelet.
    fn own_of(&self, uid: &PodUid, pod: &NodePod, name: ResourceName) -> BTreeMap<DeviceId, Held> {
        let promised = self.spec.slices.iter().filter_map(|wanted| {
            let reservation = wanted.reservation.as_ref().filter(|r| r.uid == *uid && r.resource == name)?;
            let device = self.device_of(wanted).filter(|device| !self.account.lists(device))?;
            Some((device, Held { name, holder: holder(pod, &reservation.container) }))
        });
        promised.collect()
    }

    /// Devices that the pod may hold under this name without their being promised to it: all that can be. What was
    /// allocated under the name lately says nothing, for it may be another pod's.
    fn doubtful(&self, uid: &PodUid, name: ResourceName) -> Vec<DeviceId> {
        let others = self.spec.slices.iter().filter(|w| w.reservation.as_ref().is_none_or(|r| r.uid != *uid));
        let others = others.filter_map(|wanted| Some((self.device_of(wanted)?, wanted.shape)));
        let unwanted = self.unwanted().into_iter().map(|(_, shape, device, _)| (device, shape));
        let may_be = |(device, shape): &(DeviceId, Shape)| {
            let fits = shape.keeps(name) || self.account.allocated_as(device) == Some(name);
            fits && !self.account.lists(device)
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
