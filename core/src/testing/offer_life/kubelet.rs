//! The kubelet of a history: its device manager, which hands out any healthy free device, container by container and
//! pod by pod (kubernetes `pkg/kubelet/cm/devicemanager/manager.go`).

use super::{Container, Devices, Draw, Life, Pod, Stage};
use crate::names::{DeviceId, PodUid};
use std::collections::{BTreeMap, BTreeSet};

/// The containers that have a device. An init container stays among them after it has handed the device on.
#[derive(Debug, Clone)]
struct Given {
    pod: PodUid,
    containers: BTreeSet<usize>,
    name: usize,
}

/// The admission of a pod that has begun.
#[derive(Debug)]
struct Admission {
    pod: PodUid,
    /// The index of the next container.
    next: usize,
    /// Devices that init containers hand on.
    reusable: Devices,
}

#[derive(Debug, Default)]
pub(super) struct Kubelet {
    /// The healthy devices of the lists that the kubelet has taken.
    pub(super) taken: Devices,
    given: BTreeMap<DeviceId, Given>,
    admission: Option<Admission>,
}

enum Rejection {
    /// The agent grants the device to no pod.
    Ungranted,
    Other,
}

type Account = BTreeMap<DeviceId, (PodUid, usize)>;

impl Kubelet {
    pub(super) fn has(&self, device: &DeviceId) -> bool {
        self.given.contains_key(device)
    }

    pub(super) fn knows(&self, device: &DeviceId) -> bool {
        self.has(device) || self.taken.iter().any(|taken| taken.contains(device))
    }

    pub(super) fn is_admitting(&self, uid: &PodUid) -> bool {
        self.admission.as_ref().is_some_and(|admission| admission.pod == *uid)
            || self.given.values().any(|given| given.pod == *uid)
    }

    /// The devices of a pod, with their names.
    pub(super) fn held<'k>(&'k self, uid: &'k PodUid) -> impl Iterator<Item = (usize, &'k DeviceId)> {
        self.given
            .iter()
            .filter(move |(_, given)| given.pod == *uid)
            .map(|(device, given)| (given.name, device))
    }

    /// Frees the devices of a pod that has ended.
    pub(super) fn free(&mut self, uid: &PodUid) {
        self.given.retain(|_, given| given.pod != *uid);
        self.admission.take_if(|admission| admission.pod == *uid);
    }

    pub(super) fn restart(&mut self) {
        self.taken = Devices::default();
        self.admission = None;
    }

    /// The content of List, which lacks init containers, and of the checkpoint.
    pub(super) fn account(&self, pods: &[Pod]) -> (Account, Account) {
        let is_init = |given: &Given| {
            let pod = pods.iter().find(|pod| pod.uid == given.pod);
            pod.is_some_and(|pod| given.containers.iter().all(|at| pod.containers[*at].is_init))
        };
        let of = |(device, given): (&DeviceId, &Given)| (device.clone(), (given.pod.clone(), given.name));
        let listed = self.given.iter().filter(|(_, given)| !is_init(given)).map(of).collect();
        (listed, self.given.iter().map(of).collect())
    }
}

impl Life {
    /// The kubelet takes the newest list of one name or of both, and may acknowledge it at once.
    pub(super) fn take_list(&mut self, draw: &mut Draw) {
        let which = draw.below(4);
        for name in (0..2).filter(|name| which > 1 || *name == which) {
            self.kubelet.taken[name].clone_from(&self.agent.sent[name]);
        }
        if draw.one_in(2) {
            self.acknowledge();
        }
    }

    /// The kubelet allocates for the next container of the pod that it admits, or starts with a bound pod.
    pub(super) fn allocate(&mut self, draw: &mut Draw) {
        if self.kubelet.admission.is_none() {
            let Some(pod) = draw.choose(self.pods.iter().filter(|pod| pod.stage == Stage::Bound)) else {
                return;
            };
            let pod = pod.uid.clone();
            self.kubelet.admission = Some(Admission { pod, next: 0, reusable: Devices::default() });
        }
        let Some(mut admission) = self.kubelet.admission.take() else { return };
        let Some(pod) = self.pods.iter().position(|pod| pod.uid == admission.pod) else { return };
        let container = self.pods[pod].containers[admission.next].clone();
        if let Err(rejection) = self.allocate_for(&mut admission, &container, draw) {
            return self.reject(pod, &rejection);
        }
        admission.next += 1;
        if admission.next < self.pods[pod].containers.len() {
            self.kubelet.admission = Some(admission);
        } else if draw.one_in(16) {
            // Another resource manager lacks what the pod needs.
            self.reject(pod, &Rejection::Other);
        } else {
            self.pods[pod].stage = Stage::Running;
            self.judge(pod);
        }
    }

    fn reject(&mut self, pod: usize, rejection: &Rejection) {
        self.pods[pod].stage = Stage::Over;
        let uid = self.pods[pod].uid.clone();
        self.kubelet.free(&uid);
        match rejection {
            Rejection::Ungranted => self.outcome.refused += 1,
            Rejection::Other => self.outcome.rejected += 1,
        }
    }

    fn allocate_for(
        &mut self,
        admission: &mut Admission,
        container: &Container,
        draw: &mut Draw,
    ) -> Result<(), Rejection> {
        for (name, wanted) in container.wants.into_iter().enumerate() {
            let of_container = |given: &Given| {
                given.pod == admission.pod && given.containers.contains(&admission.next) && given.name == name
            };
            // After a restart the checkpoint contains earlier allocations.
            let had = self.kubelet.given.iter().filter(|(_, given)| of_container(given));
            let mut devices: BTreeSet<DeviceId> = had.map(|(device, _)| device.clone()).collect();
            if devices.len() < wanted {
                devices = self.pick(&admission.reusable[name], name, wanted, draw).ok_or(Rejection::Other)?;
                self.ask(name, &devices, draw.one_in(3))?;
            }
            let reusable = &mut admission.reusable[name];
            if container.is_init {
                reusable.extend(devices.iter().cloned());
            } else {
                reusable.retain(|device| !devices.contains(device));
            }
            for device in devices {
                let new = || Given { pod: admission.pod.clone(), containers: BTreeSet::new(), name };
                let given = self.kubelet.given.entry(device).or_insert_with(new);
                given.containers.insert(admission.next);
            }
        }
        Ok(())
    }

    /// Takes handed-on devices first, then any that are healthy and free; `None` if they do not suffice.
    fn pick(
        &self,
        reusable: &BTreeSet<DeviceId>,
        name: usize,
        wanted: usize,
        draw: &mut Draw,
    ) -> Option<BTreeSet<DeviceId>> {
        let mut picked = BTreeSet::new();
        while picked.len() < wanted {
            let handed_on = draw.choose(reusable.iter().filter(|device| !picked.contains(*device)));
            let taken = self.kubelet.taken[name].iter();
            let free = taken.filter(|device| !self.kubelet.has(device) && !picked.contains(*device));
            let device = handed_on.or_else(|| draw.choose(free))?.clone();
            picked.insert(device);
        }
        Some(picked)
    }

    /// The kubelet calls Allocate for a container's devices. The agent decides again afterwards, unless it is late.
    fn ask(&mut self, name: usize, devices: &BTreeSet<DeviceId>, late: bool) -> Result<(), Rejection> {
        let is_there =
            |device: &DeviceId| self.slices.iter().any(|slice| slice.made && slice.device == *device);
        if !devices.iter().all(is_there) {
            return Err(Rejection::Other);
        }
        if !devices.iter().all(|device| self.agent.grants(name, device)) {
            return Err(Rejection::Ungranted);
        }
        for device in devices {
            self.agent.allocate(name, device);
        }
        if !late {
            self.decide();
        }
        Ok(())
    }
}
