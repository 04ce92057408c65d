//! The kubelet's device manager: plugins register, containers get devices.
//!
//! Connects the pure [`DeviceLedger`] with the plugins' connections and the checkpoint file. It needs only
//! the demand of pods and which are active, and does not use the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::active::{ActivePod, ActivePods};
use super::checkpoint::Checkpoint;
use super::demand::{ContainerDemand, ContainerRole, PodDemand};
use super::grant::Grant;
use super::ledger::{AllocationError, DeviceLedger, DevicesByResource};
use super::node_resources::ResourceCount;
use super::pick::PickOrder;
use super::plugin::{Plugin, go_text};

/// How long the devices of a stopped plugin stay in capacity (kubernetes v1.36, `endpointStopGracePeriod` in
/// `pkg/kubelet/cm/devicemanager/types.go`).
const STOP_GRACE: Duration = Duration::from_mins(5);

/// Why a pod's devices could not be allocated. The text is the kubelet's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeviceError {
    /// The device manager rejected it.
    #[error(transparent)]
    Refused(#[from] AllocationError),
    /// The plugin rejected it, or there is no plugin.
    #[error("{0}")]
    Plugin(String),
}

impl From<Status> for DeviceError {
    fn from(status: Status) -> Self {
        Self::Plugin(go_text(&status))
    }
}

/// The result of allocating for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Names that no plugin has registered, so nothing was allocated for them.
    pub unknown: BTreeSet<String>,
}

/// The device manager of one node.
pub struct DeviceManager {
    folder: PathBuf,
    seed: u64,
    pods: Arc<dyn ActivePods>,
    pub(super) ledger: Mutex<DeviceLedger>,
    pub(super) plugins: Mutex<BTreeMap<String, Plugin>>,
    /// The current connection of each name. Cancelling the token closes it.
    pub(super) clients: Mutex<BTreeMap<String, CancellationToken>>,
    /// The task that follows the newest stream of each name.
    pub(super) followers: Mutex<BTreeMap<String, JoinHandle<()>>>,
    grants: Mutex<BTreeMap<String, BTreeMap<String, Grant>>>,
    delay: Mutex<Duration>,
    /// Ends the streams when the kubelet stops.
    pub(super) run: Mutex<CancellationToken>,
    /// The kubelet admits one pod at a time, even while a plugin handles `Allocate`.
    admission: tokio::sync::Mutex<()>,
    allocate_calls: AtomicU64,
    list_calls: AtomicU64,
    /// Serializes writes of the checkpoint file, so that the newest state is written last.
    writing: Mutex<()>,
}

impl DeviceManager {
    /// The device manager of `node`, restored from the checkpoint in `folder`.
    #[must_use]
    pub fn new(node: &str, folder: &Path, pods: Arc<dyn ActivePods>) -> Self {
        let manager = Self {
            folder: folder.to_path_buf(),
            seed: PickOrder::seed_of(node),
            pods,
            ledger: Mutex::default(),
            plugins: Mutex::default(),
            clients: Mutex::default(),
            followers: Mutex::default(),
            grants: Mutex::default(),
            delay: Mutex::new(Duration::ZERO),
            run: Mutex::default(),
            admission: tokio::sync::Mutex::default(),
            allocate_calls: AtomicU64::new(0),
            list_calls: AtomicU64::new(0),
            writing: Mutex::default(),
        };
        manager.restart(Instant::now());
        manager
    }

    /// Restarts from the checkpoint: the names are known, but have no devices until their plugins register.
    pub fn restart(&self, now: Instant) {
        let checkpoint = Checkpoint::read(&self.folder).unwrap_or_default();
        let names = checkpoint.ledger.names.iter().map(|name| (name.clone(), Plugin::stopped_at(now)));
        *locked(&self.plugins) = names.collect();
        locked(&self.clients).clear();
        *locked(&self.ledger) = DeviceLedger::restored(checkpoint.ledger, self.seed);
        *locked(&self.grants) = checkpoint.grants;
        *locked(&self.run) = CancellationToken::new();
    }

    /// Closes every connection to plugins, as the end of the kubelet's process does.
    pub fn go_down(&self) {
        locked(&self.run).cancel();
    }

    /// Sets the delay before a `ListAndWatch` message takes effect.
    pub fn set_delay(&self, delay: Duration) {
        *locked(&self.delay) = delay;
    }

    pub(super) fn delay(&self) -> Duration {
        *locked(&self.delay)
    }

    pub(super) fn socket(&self, endpoint: &str) -> PathBuf {
        self.folder.join(endpoint)
    }

    /// Allocates a pod's devices, container by container. After a failure the earlier containers keep theirs
    /// until the pod is inactive and its devices are collected.
    pub async fn admit(&self, demand: &PodDemand) -> Result<Allocated, DeviceError> {
        self.readmit(demand, &BTreeSet::new()).await
    }

    /// Allocates for a pod that ran before the kubelet started. Running containers already have their
    /// devices.
    pub async fn readmit(
        &self,
        demand: &PodDemand,
        running: &BTreeSet<String>,
    ) -> Result<Allocated, DeviceError> {
        let _one_at_a_time = self.admission.lock().await;
        let mut allocated = Allocated::default();
        let mut reusable = DevicesByResource::new();
        for container in &demand.containers {
            let mut is_changed = false;
            for (resource, count) in &container.limits {
                if !locked(&self.ledger).knows(resource) {
                    allocated.unknown.insert(resource.clone());
                    continue;
                }
                if running.contains(&container.name) {
                    continue;
                }
                self.collect_garbage();
                let offered = reusable.get(resource).cloned().unwrap_or_default();
                is_changed |= self.allocate(&demand.uid, &container.name, resource, *count, &offered).await?;
            }
            // The kubelet, too, writes its checkpoint once for all names of a container, before the next container.
            if is_changed {
                self.write_checkpoint();
            }
            self.hand_on(&demand.uid, container, &mut reusable);
        }
        Ok(allocated)
    }

    /// Allocates one resource of a container. Returns whether it got devices.
    async fn allocate(
        &self,
        uid: &str,
        container: &str,
        resource: &str,
        count: usize,
        reusable: &BTreeSet<String>,
    ) -> Result<bool, DeviceError> {
        let choice = locked(&self.ledger).choose(uid, container, resource, count, reusable)?;
        let Some(choice) = choice else { return Ok(false) };
        let plugin = locked(&self.plugins).get(resource).cloned();
        let plugin =
            plugin.ok_or_else(|| DeviceError::Plugin(format!("unknown Device Plugin {resource}")))?;
        let preferred = if choice.needed() > 0 { plugin.preferred(&choice).await } else { Ok(Vec::new()) };
        let preferred = preferred.map_err(DeviceError::Plugin)?;
        let ids = locked(&self.ledger).take(&choice, &preferred);
        self.allocate_calls.fetch_add(1, Ordering::Relaxed);
        let answer = plugin.allocate(ids.iter().cloned().collect()).await;
        // The devices were taken before the call; a failure releases them.
        let answer = answer.inspect_err(|_| locked(&self.ledger).undo())?;
        locked(&self.ledger).record(uid, container, resource, ids);
        let mut grants = locked(&self.grants);
        grants.entry(uid.to_owned()).or_default().entry(container.to_owned()).or_default().add(answer);
        Ok(true)
    }

    /// Devices of init containers can be reused; those of sidecars and app containers are removed from the
    /// pool.
    fn hand_on(&self, uid: &str, container: &ContainerDemand, reusable: &mut DevicesByResource) {
        let ledger = locked(&self.ledger);
        let held = ledger.holdings().get(uid).and_then(|pod| pod.get(&container.name));
        for (resource, ids) in held.into_iter().flatten() {
            let pool = reusable.entry(resource.clone()).or_default();
            match container.role {
                ContainerRole::Init => pool.extend(ids.iter().cloned()),
                ContainerRole::Sidecar | ContainerRole::App => pool.retain(|id| !ids.contains(id)),
            }
        }
    }

    /// Frees the devices of inactive pods. The active pods are read under the ledger's lock, so that a pod
    /// that is being admitted cannot look inactive.
    pub(super) fn collect_garbage(&self) {
        if !self.pods.are_known() {
            return;
        }
        let mut ledger = locked(&self.ledger);
        let active: BTreeSet<String> = self.pods.active().into_iter().map(|pod| pod.uid).collect();
        ledger.collect_garbage(&active);
        locked(&self.grants).retain(|uid, _| ledger.holdings().contains_key(uid));
    }

    pub(super) fn write_checkpoint(&self) {
        let _one_at_a_time = locked(&self.writing);
        let ledger = locked(&self.ledger).checkpoint();
        let grants = locked(&self.grants).clone();
        if let Err(error) = (Checkpoint { ledger, grants }).write(&self.folder) {
            tracing::warn!(%error, "the stand-in kubelet could not write its checkpoint");
        }
    }

    /// The counts in the node's status of the names that the device manager owns. A name whose plugin stopped
    /// five minutes ago is reported as zero once, then forgotten.
    pub fn node_counts(&self, now: Instant) -> BTreeMap<String, ResourceCount> {
        let mut ledger = locked(&self.ledger);
        let mut plugins = locked(&self.plugins);
        let expired = |plugin: &Plugin| plugin.stopped.is_some_and(|since| now - since > STOP_GRACE);
        let forgotten: Vec<String> =
            plugins.iter().filter(|(_, plugin)| expired(plugin)).map(|(name, _)| name.clone()).collect();
        for name in &forgotten {
            plugins.remove(name);
            ledger.forget(name);
        }
        let counts = ledger.known().iter().map(|(name, sets)| {
            let allocatable = sets.healthy.len();
            (name.clone(), ResourceCount { capacity: allocatable + sets.unhealthy.len(), allocatable })
        });
        counts.chain(forgotten.iter().map(|name| (name.clone(), ResourceCount::default()))).collect()
    }

    /// Runs before each start of a container: calls `PreStartContainer` of plugins that asked for it, and
    /// allocates names that were unknown at admission (kubernetes v1.36, `GetDeviceRunContainerOptions` in
    /// `pkg/kubelet/cm/devicemanager/manager.go`). It does not check the health of devices that the container
    /// holds.
    pub async fn before_start(&self, demand: &PodDemand, container: &str) -> Result<(), DeviceError> {
        let held = self.held(&demand.uid, container);
        for (resource, ids) in &held {
            let plugin = locked(&self.plugins).get(resource).cloned();
            if let Some(plugin) = plugin {
                plugin.pre_start(ids.iter().cloned().collect()).await?;
            }
        }
        let asked = demand.containers.iter().filter(|asked| asked.name == container);
        for (resource, count) in asked.flat_map(|asked| &asked.limits) {
            if !held.contains_key(resource) && locked(&self.ledger).knows(resource) {
                let _one_at_a_time = self.admission.lock().await;
                self.collect_garbage();
                if self.allocate(&demand.uid, container, resource, *count, &BTreeSet::new()).await? {
                    self.write_checkpoint();
                }
            }
        }
        Ok(())
    }

    #[must_use]
    pub fn held(&self, uid: &str, container: &str) -> DevicesByResource {
        let ledger = locked(&self.ledger);
        ledger.holdings().get(uid).and_then(|pod| pod.get(container)).cloned().unwrap_or_default()
    }

    /// The devices of all containers of a pod together.
    #[must_use]
    pub fn held_by_pod(&self, uid: &str) -> DevicesByResource {
        let ledger = locked(&self.ledger);
        let containers = ledger.holdings().get(uid).into_iter().flat_map(BTreeMap::values);
        let mut held = DevicesByResource::new();
        for (resource, ids) in containers.flatten() {
            held.entry(resource.clone()).or_default().extend(ids.iter().cloned());
        }
        held
    }

    /// How many devices of each name are taken; empty if this pod holds none.
    pub(super) fn taken_beside(&self, uid: &str) -> BTreeMap<String, usize> {
        let ledger = locked(&self.ledger);
        if ledger.holdings().contains_key(uid) { ledger.taken() } else { BTreeMap::new() }
    }

    /// The answer of `Allocate` for a container; `None` without devices.
    #[must_use]
    pub fn grant(&self, uid: &str, container: &str) -> Option<Grant> {
        locked(&self.grants).get(uid)?.get(container).cloned()
    }

    /// Every healthy device by resource name, as `GetAllocatableResources` reports them.
    #[must_use]
    pub fn healthy(&self) -> DevicesByResource {
        let ledger = locked(&self.ledger);
        ledger.known().iter().map(|(name, sets)| (name.clone(), sets.healthy.clone())).collect()
    }

    /// The pods for an answer of pod-resources' `List`.
    pub(super) fn list(&self) -> Vec<ActivePod> {
        self.collect_garbage();
        let pods = self.pods.active();
        self.list_calls.fetch_add(1, Ordering::Relaxed);
        pods
    }

    /// How often `List` of pod-resources was called.
    #[must_use]
    pub fn list_calls(&self) -> u64 {
        self.list_calls.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn active_pods(&self) -> Vec<ActivePod> {
        self.pods.active()
    }

    /// How often `Allocate` of plugins was called.
    #[must_use]
    pub fn allocate_calls(&self) -> u64 {
        self.allocate_calls.load(Ordering::Relaxed)
    }
}

/// Ignores poisoning, because no critical section here leaves its data half written.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
