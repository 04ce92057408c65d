//! What the agent knows of its node, and what follows from it: the plan, the offer, the status. No I/O and no clock:
//! events come in with the time, a [`Decision`] comes out.

mod advertise;
mod decide;
mod health;
mod holders;
mod init;
mod names;
mod retry;
mod share;
mod status;
mod view;

#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod init_tests;
#[cfg(test)]
mod tests;

pub use advertise::{Allocatable, DevicesByName};
pub use decide::{Decision, Grant, ListedDevice, ShareGrant};
pub use holders::{Held, Holders};
pub use init::{NodePod, NodePods};
pub(crate) use status::unserved;

use crate::gpu::{Gpu, GpuError, GpuInstance};
use advertise::Advertised;
use health::{Health, Neighbour};
use holders::Account;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::mig::Instance;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::resource::ResourceName;
use retry::Retries;
use share::Share;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A step that may have to be tried again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Create(SliceId),
    Destroy(GpuUuid, Instance),
}

/// Why a wanted slice cannot be reached by any legal step.
#[derive(Debug, Clone)]
struct Obstruction {
    text: String,
    /// It has been so for too long.
    is_final: bool,
}

/// The agent's knowledge of its node.
#[derive(Debug, Default)]
pub struct Node {
    spec: GpuNodeSpec,
    /// The object that the spec was read from, so that a GpuNode made anew may begin with a lower epoch.
    spec_uid: Option<String>,
    gpus: Vec<Gpu>,
    shares: BTreeMap<SliceId, Share>,
    /// The names that specs have given to MIG devices, to tell a slice on its way out from one that nobody asked for.
    origins: BTreeMap<DeviceId, SliceId>,
    account: Account,
    /// Bound pods that ask for kerf's names; `None` until the API server has listed them.
    pods: Option<NodePods>,
    /// Reserved slices that their pods have got.
    kept: BTreeMap<SliceId, PodUid>,
    advertised: Advertised,
    retries: Retries<Task>,
    obstacles: BTreeMap<SliceId, Obstruction>,
    health: Health,
    /// What the status said before the agent started, until the agent knows better.
    before: Option<GpuNodeStatus>,
}

impl Node {
    /// A node of which the agent knows what it wrote into the status before it was restarted.
    #[must_use]
    pub fn remembering(status: Option<&GpuNodeStatus>) -> Self {
        let slices = status.into_iter().flat_map(|status| &status.slices);
        let origins = slices.filter_map(|s| Some((s.device.clone()?, s.id.clone()?)));
        Self { origins: origins.collect(), before: status.cloned(), ..Self::default() }
    }

    /// Takes a spec, unless a leader wrote it whose time is over.
    pub fn on_spec(&mut self, uid: Option<String>, spec: Result<GpuNodeSpec, String>) {
        let spec = match spec {
            Ok(spec) => spec,
            Err(error) => {
                tracing::error!(%error, "the GpuNode's spec cannot be read; the last one stays in force");
                self.health.spec = Neighbour::Ill(format!("the spec cannot be read: {error}"));
                return;
            }
        };
        if uid == self.spec_uid && spec.epoch < self.spec.epoch {
            tracing::warn!(
                epoch = spec.epoch,
                seen = self.spec.epoch,
                "ignored a spec of a leader whose time is over"
            );
            return;
        }
        self.health.spec = Neighbour::Well;
        self.spec_uid = uid;
        self.spec = spec;
        let wanted = |id: &SliceId| self.spec.slices.iter().any(|w| w.id == *id);
        self.retries.retain(|task| match task {
            Task::Create(id) => wanted(id),
            Task::Destroy(..) => true,
        });
    }

    /// Takes what NVML shows.
    pub fn on_observed(&mut self, observed: Result<Vec<Gpu>, GpuError>) {
        match observed {
            Ok(gpus) => {
                self.gpus = gpus;
                self.health.nvml = Neighbour::Well;
                self.advertised.serve(&names::resource_names(&self.gpus));
            }
            Err(error) => self.health.nvml = Neighbour::Ill(error.to_string()),
        }
    }

    /// Takes the kubelet's account of holders.
    pub fn on_holders(&mut self, holders: Result<Holders, String>) {
        match holders {
            Ok(holders) => {
                let left: Vec<_> = self
                    .account
                    .devices()
                    .map(|(d, _)| d)
                    .filter(|d| !holders.held.contains_key(*d))
                    .cloned()
                    .collect();
                self.account.take(holders);
                let mut hidden = self.account.allocated_names();
                hidden.retain(|name| self.may_be_init_held(*name));
                self.account.forget_allocations(|name| hidden.contains(&name));
                self.health.pod_resources = Neighbour::Well;
                self.forget_processes(&left);
            }
            Err(error) => self.health.pod_resources = Neighbour::Ill(error),
        }
    }

    /// Processes of a holder end with it; whether one is left is looked at once more before anything is destroyed.
    fn forget_processes(&mut self, left: &[DeviceId]) {
        let instances = self.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances);
        instances
            .filter(|i| i.device().is_some_and(|d| left.contains(d)))
            .for_each(|i| i.has_processes = false);
    }

    /// Shares that containers hold exist, whatever the spec says and whether or not the agent was restarted.
    fn adopt_shares(&mut self) {
        for (device, held) in self.account.devices() {
            let Some((gpu, id)) = share::slice_of(device) else { continue };
            let wanted = self.spec.slices.iter().find(|w| w.id == id).map(|w| w.shape);
            let Some(shape) = wanted.or_else(|| share::shape_of(held.name)) else { continue };
            self.shares.entry(id).or_insert(Share { gpu, shape });
        }
    }

    /// Takes what the kubelet may hand out.
    pub fn on_allocatable(&mut self, allocatable: Allocatable) {
        self.advertised.saw(allocatable);
    }

    /// A container is being given these devices.
    pub fn on_allocated(&mut self, name: ResourceName, devices: Vec<DeviceId>, now: Instant) {
        self.account.allocated(name, devices, now);
    }

    /// Takes the bound pods that ask for kerf's names.
    pub fn on_pods(&mut self, pods: NodePods) {
        self.pods = Some(pods);
        self.health.pods = Neighbour::Well;
    }

    /// A pod of this node is gone or finished.
    pub fn on_pod_left(&mut self, pod: PodKey, now: Instant) {
        self.account.left(pod, now);
    }

    /// All names are registered with the kubelet, or not.
    pub fn on_registration(&mut self, result: Result<(), String>) {
        self.advertised.forget_acknowledgements();
        // A kubelet that has lost its checkpoint allocates anew.
        self.kept.clear();
        self.health.registration = match result {
            Ok(()) => Neighbour::Well,
            Err(error) => Neighbour::Ill(error),
        };
    }

    /// Takes the outcome of a create.
    pub fn on_created(
        &mut self,
        gpu: &GpuUuid,
        id: &SliceId,
        result: Result<GpuInstance, GpuError>,
        now: Instant,
    ) {
        match result {
            Ok(created) => {
                self.retries.succeeded(&Task::Create(id.clone()));
                if let Some(gpu) = self.gpus.iter_mut().find(|g| g.uuid == *gpu) {
                    gpu.instances.retain(|i| !i.instance.placement.overlaps(created.instance.placement));
                    gpu.instances.push(created);
                    gpu.instances.sort_by_key(|i| i.instance.placement.start);
                }
            }
            Err(error) => self.retries.failed(Task::Create(id.clone()), error, now),
        }
    }

    /// Takes the outcome of a destroy.
    pub fn on_destroyed(
        &mut self,
        gpu: &GpuUuid,
        instance: Instance,
        result: Result<(), GpuError>,
        now: Instant,
    ) {
        let task = Task::Destroy(gpu.clone(), instance);
        match result {
            Ok(()) => {
                self.retries.succeeded(&task);
                if let Some(gpu) = self.gpus.iter_mut().find(|g| g.uuid == *gpu) {
                    gpu.instances.retain(|i| i.instance != instance);
                }
            }
            Err(error) => self.retries.failed(task, error, now),
        }
    }

    /// The names that must be registered; empty until NVML has been read.
    #[must_use]
    pub fn resource_names(&self) -> BTreeSet<ResourceName> {
        names::resource_names(&self.gpus)
    }

    /// The node labels that the agent owns; `None` for one that must not be there.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, Option<String>> {
        names::labels(&self.gpus)
    }

    /// The GPU instance that a step is about.
    #[must_use]
    pub fn find(&self, gpu: &GpuUuid, instance: Instance) -> Option<&GpuInstance> {
        self.gpu(gpu)?.instances.iter().find(|i| i.instance == instance)
    }

    /// What is well, for `/readyz`: NVML, the kubelet, the spec.
    #[must_use]
    pub fn readiness(&self) -> [(&'static str, bool); 3] {
        let kubelet = self.health.registration.is_well() && self.health.pod_resources.is_well();
        [("nvml", self.health.nvml.is_well()), ("kubelet", kubelet), ("spec", self.health.spec.is_well())]
    }
}
