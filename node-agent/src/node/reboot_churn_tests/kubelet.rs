//! The kubelet: it processes lists late and name by name, picks devices and allocates them later, and lists pods a
//! while after that. Its checkpoint of holders outlives its own restarts and the node's.

use super::World;
use crate::node::{Allocatable, Held, Holders, ListedDevice, NodePod, NodePods, Recorded, ShareGrant};
use kerf_core::contract::Holder;
use kerf_core::names::{DeviceId, PodKey, PodUid};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

type Lists = BTreeMap<ResourceName, BTreeMap<DeviceId, bool>>;

/// The holder of a device.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub(super) name: ResourceName,
    pub(super) key: PodKey,
    /// The share that its container got, if it is one.
    pub(super) share: Option<ShareGrant>,
    uid: PodUid,
    since: Instant,
    listed: bool,
    /// Whether the kubelet's checkpoint has it.
    recorded: bool,
    /// Whether it had the device before a reboot, and was not admitted since.
    pub(super) stale: bool,
}

impl Pod {
    /// Whether only an init container has it, so that List omits it.
    fn is_init(&self) -> bool {
        let uid = self.uid.as_str();
        uid.starts_with('u') && uid.ends_with(['3', '7'])
    }

    fn is_shown(&mut self) {
        (self.listed, self.recorded) = (true, true);
    }
}

#[derive(Default)]
pub(super) struct Kubelet {
    /// Whether the agent has registered its names since the last start of either.
    pub(super) registered: bool,
    sent: Lists,
    pub(super) taken: Lists,
    granted: BTreeMap<(ResourceName, DeviceId), Option<ShareGrant>>,
    picked: Option<(ResourceName, DeviceId, PodKey, PodUid)>,
    pub(super) pods: BTreeMap<DeviceId, Pod>,
    /// Pods that are bound to the node, by the API server.
    pub(super) bound: BTreeMap<PodUid, (PodKey, ResourceName)>,
    pub(super) gone: BTreeSet<PodUid>,
    allocatable: Option<Allocatable>,
    holders: Option<Holders>,
    strangers: u32,
    /// The checkpoint, and whether it cannot be read.
    file: Vec<Recorded>,
    pub(super) corrupt: bool,
}

impl Kubelet {
    pub(super) fn send(&mut self, lists: &BTreeMap<ResourceName, Vec<ListedDevice>>) {
        for (name, list) in lists {
            self.sent.insert(*name, list.iter().map(|d| (d.id.clone(), d.healthy)).collect());
        }
        let all = lists.iter().flat_map(|(name, list)| list.iter().map(move |d| (*name, d)));
        let granted =
            all.filter_map(|(name, d)| Some(((name, d.id.clone()), d.grant.as_ref()?.share.clone())));
        self.granted = granted.collect();
    }

    pub(super) fn sends(&self) -> impl Iterator<Item = (ResourceName, &DeviceId, bool)> {
        self.sent.iter().flat_map(|(name, list)| list.iter().map(move |(d, healthy)| (*name, d, *healthy)))
    }

    /// Whether it may allocate the device, by the lists that it has taken.
    pub(super) fn may_hand_out(&self, device: &DeviceId) -> bool {
        self.taken.values().any(|list| list.get(device) == Some(&true))
    }

    pub(super) fn take_all(&mut self) {
        if self.registered {
            self.taken.clone_from(&self.sent);
        }
    }

    /// The agent's sockets are gone, so all its devices are unhealthy.
    pub(super) fn forget_agent(&mut self) {
        self.taken.values_mut().flat_map(BTreeMap::values_mut).for_each(|healthy| *healthy = false);
        self.sent.clear();
        self.granted.clear();
        self.registered = false;
        (self.allocatable, self.holders) = (None, None);
        self.pods.values_mut().for_each(Pod::is_shown);
    }

    pub(super) fn boot(&mut self) {
        self.taken.clear();
        self.registered = false;
        self.picked = None;
        self.pods.values_mut().for_each(|pod| pod.stale = true);
    }

    pub(super) fn stale(&self) -> Option<&DeviceId> {
        self.pods.iter().find(|(_, pod)| pod.stale).map(|(device, _)| device)
    }
}

impl World {
    pub(super) fn take_lists(&mut self, choice: usize) {
        let kubelet = &mut self.kubelet;
        let changed: Vec<_> =
            kubelet.sent.iter().filter(|(name, list)| kubelet.taken.get(*name) != Some(list)).collect();
        if let Some((name, list)) = changed.get(choice % changed.len().max(1)).filter(|_| kubelet.registered)
        {
            kubelet.taken.insert(**name, (*list).clone());
        }
    }

    /// The kubelet picks a device for a bound pod that requests its name, or for a pod that bypassed kerf.
    pub(super) fn pick(&mut self, choice: usize) {
        self.bind();
        let kubelet = &mut self.kubelet;
        let free = kubelet.taken.iter().flat_map(|(name, list)| list.iter().map(move |d| (*name, d)));
        let free: Vec<_> = free
            .filter(|(_, (device, healthy))| **healthy && !kubelet.pods.contains_key(*device))
            .map(|(name, (device, _))| (name, device.clone()))
            .collect();
        let Some((name, device)) = free.get(choice % free.len().max(1)).cloned() else { return };
        let has = |key: &PodKey| kubelet.pods.values().any(|pod| pod.key == *key);
        let mut waiting = kubelet.bound.iter().filter(|(_, (key, asked))| *asked == name && !has(key));
        let pod = waiting.next().map(|(uid, (key, _))| (key.clone(), uid.clone()));
        if pod.is_none() && !choice.is_multiple_of(4) {
            return;
        }
        kubelet.strangers += 1;
        let stranger = format!("x{}", kubelet.strangers);
        let (key, uid) = pod.unwrap_or_else(|| (PodKey::new("ns", &stranger), PodUid::new(stranger)));
        kubelet.picked = Some((name, device, key, uid));
    }

    /// The kubelet allocates what it has picked, however long ago. A rejected pod has failed.
    pub(super) fn allocate(&mut self) {
        let Some((name, device, key, uid)) = self.kubelet.picked.take() else { return };
        let taken = self.kubelet.pods.contains_key(&device);
        let granted = self.kubelet.granted.get(&(name, device.clone())).cloned();
        let Some(share) = granted.filter(|_| !taken) else { return self.bury(&key, &uid) };
        self.tally.allocations += 1;
        self.node.on_allocated(name, vec![device.clone()], self.now);
        self.gpus.set_processes(&device, true);
        let pod =
            Pod { name, key, share, uid, since: self.now, listed: false, recorded: false, stale: false };
        self.kubelet.pods.insert(device, pod);
    }

    fn bury(&mut self, key: &PodKey, uid: &PodUid) {
        self.kubelet.bound.remove(uid);
        self.node.on_pod_left(key.clone(), uid.clone(), self.now);
        self.kubelet.gone.insert(uid.clone());
        self.report_pods();
    }

    /// Rejects the bound pods that got nothing.
    pub(super) fn refuse_waiting(&mut self) {
        self.kubelet.picked = None;
        let has = |key: &PodKey| self.kubelet.pods.values().any(|pod| pod.key == *key);
        let waiting = self.kubelet.bound.iter().filter(|(_, (key, _))| !has(key));
        let waiting: Vec<_> = waiting.map(|(uid, (key, _))| (uid.clone(), key.clone())).collect();
        for (uid, key) in waiting {
            self.bury(&key, &uid);
        }
    }

    pub(super) fn end_pod(&mut self, choice: usize) {
        let devices: Vec<_> = self.kubelet.pods.keys().cloned().collect();
        let Some(device) = devices.get(choice % devices.len().max(1)) else { return };
        self.gpus.set_processes(device, false);
        if let Some(pod) = self.kubelet.pods.remove(device) {
            self.bury(&pod.key, &pod.uid);
        }
    }

    /// After a reboot the kubelet admits a pod again if its devices exist and are healthy; otherwise the pod has
    /// failed.
    pub(super) fn readmit(&mut self, choice: usize) {
        let stale: Vec<_> =
            self.kubelet.pods.iter().filter(|(_, p)| p.stale).map(|(d, p)| (d.clone(), p.name)).collect();
        let Some((device, name)) = stale.get(choice % stale.len().max(1)) else { return };
        if self.kubelet.taken.get(name).is_some_and(|list| list.get(device) == Some(&true)) {
            self.kubelet.pods.entry(device.clone()).and_modify(|pod| pod.stale = false);
        } else if let Some(pod) = self.kubelet.pods.remove(device) {
            self.bury(&pod.key, &pod.uid);
        }
    }

    pub(super) fn restart_kubelet(&mut self, choice: usize) {
        if choice.is_multiple_of(4) {
            self.kubelet.taken.clear();
            self.kubelet.picked = None;
            self.kubelet.pods.values_mut().for_each(Pod::is_shown);
            self.kubelet.registered = false;
            self.node.on_registration(Err("the kubelet was restarted".into()));
        }
        self.node.on_registration(Ok(self.node.resource_names()));
        self.kubelet.registered = true;
    }

    /// Sends the API server's view of pods.
    pub(super) fn report_pods(&mut self) {
        let pods = self.kubelet.bound.iter().map(|(uid, (key, name))| {
            let pod = NodePod {
                key: key.clone(),
                admitted: true,
                names: BTreeMap::from([(*name, 1)]),
                inits: BTreeSet::from(["load".to_owned()]),
                requested: BTreeMap::new(),
                assigned: Vec::new(),
            };
            (uid.clone(), pod)
        });
        self.node.on_pods(pods.collect::<NodePods>());
    }

    pub(super) fn ask(&mut self) {
        let (kubelet, now) = (&mut self.kubelet, self.now);
        for pod in kubelet.pods.values_mut() {
            pod.listed |= now > pod.since + Duration::from_millis(500);
            pod.recorded |= pod.listed;
        }
        let healthy = kubelet.taken.iter().map(|(name, list)| {
            (*name, list.iter().filter(|(_, healthy)| **healthy).map(|(device, _)| device.clone()).collect())
        });
        kubelet.allocatable = Some(Allocatable { asked: now, healthy: healthy.collect() });
        let held =
            kubelet.pods.iter().filter(|(_, pod)| pod.listed && !pod.is_init()).map(|(device, pod)| {
                let (namespace, name) = (pod.key.namespace.clone(), pod.key.name.clone());
                (
                    device.clone(),
                    Held {
                        name: pod.name,
                        holder: Holder { namespace, pod: name, container: "main".into() },
                    },
                )
            });
        let recorded = kubelet.pods.iter().filter(|(_, pod)| pod.recorded);
        let recorded: Vec<_> = recorded
            .map(|(device, pod)| Recorded {
                uid: pod.uid.clone(),
                container: if pod.is_init() { "load" } else { "main" }.to_owned(),
                name: pod.name,
                device: device.clone(),
            })
            .collect();
        // What ended pods had stays there until another pod gets it.
        kubelet.file.retain(|old| recorded.iter().all(|new| new.device != old.device));
        kubelet.file.extend(recorded);
        let recorded = if kubelet.corrupt { Err("corrupt".to_owned()) } else { Ok(kubelet.file.clone()) };
        kubelet.holders = Some(Holders { asked: now, held: held.collect(), foreign: Vec::new(), recorded });
    }

    pub(super) fn answer(&mut self) {
        if let Some(allocatable) = self.kubelet.allocatable.take() {
            self.node.on_allocatable(allocatable);
        } else if let Some(holders) = self.kubelet.holders.take() {
            self.node.on_holders(Ok(holders));
        }
    }
}
