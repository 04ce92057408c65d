//! The device ledger: the devices of the registered plugins, their health, and which container holds which.
//!
//! It has the rules of the kubelet's device manager as a plain value, without clock, sockets or API server.
//! It decides which container gets which devices, but must not call a plugin. The texts of
//! [`AllocationError`] are the kubelet's own (kubernetes v1.36, `pkg/kubelet/cm/devicemanager/manager.go`),
//! because users and tests read them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::pick::PickOrder;

/// Device IDs by resource name.
pub type DevicesByResource = BTreeMap<String, BTreeSet<String>>;

/// Why the device manager rejects a container. The pod's status has the text unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The name is known only because a pod still holds a device of it.
    #[error("cannot allocate unregistered device {resource}")]
    Unregistered {
        /// The resource name in the container's limits.
        resource: String,
    },
    /// The name is registered, but none of its devices is healthy. This is also the state after a kubelet
    /// restart.
    #[error("no healthy devices present; cannot allocate unhealthy devices {resource}")]
    NoneHealthy {
        /// The resource name in the container's limits.
        resource: String,
    },
    /// The container already holds devices, and one of them is no longer healthy.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
    )]
    HeldUnhealthy {
        /// The resource name in the container's limits.
        resource: String,
    },
    /// Fewer healthy devices are free than the container needs.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        resource: String,
        /// Devices still needed after those reused from init containers.
        requested: usize,
        /// Healthy devices without a holder.
        available: usize,
    },
    /// The container holds another number of devices than it requests.
    #[error(
        "pod {uid:?} container {container:?} changed request for resource {resource:?} from {held} to {asked}"
    )]
    RequestChanged {
        uid: String,
        container: String,
        resource: String,
        /// How many devices the container holds already.
        held: usize,
        asked: usize,
    },
}

/// What one container needs of one resource, before the plugin states its preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub resource: String,
    /// How many devices the container requests in all.
    pub required: usize,
    /// Devices of the pod's init containers that it reuses first.
    pub reused: BTreeSet<String>,
    /// Healthy devices without a holder, for the rest.
    pub available: BTreeSet<String>,
}

impl Choice {
    /// Devices still to be taken from `available`.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.required - self.reused.len()
    }
}

/// Devices of one resource name in the last `ListAndWatch` message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSets {
    /// Devices that may be allocated.
    pub healthy: BTreeSet<String>,
    /// Devices that count in capacity only.
    pub unhealthy: BTreeSet<String>,
}

/// A pod's holdings: container name, resource name, device IDs.
pub type PodHoldings = BTreeMap<String, DevicesByResource>;

/// The state that survives a restart of the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCheckpoint {
    /// Resource names that were registered.
    pub names: BTreeSet<String>,
    /// What each pod holds, by UID.
    pub holdings: BTreeMap<String, PodHoldings>,
}

/// The device manager's state on one node.
#[derive(Debug, Clone, Default)]
pub struct DeviceLedger {
    known: BTreeMap<String, DeviceSets>,
    taken: DevicesByResource,
    holdings: BTreeMap<String, PodHoldings>,
    order: PickOrder,
}

impl DeviceLedger {
    /// An empty ledger. `seed` fixes the order in which devices are picked if a plugin has no preference.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { order: PickOrder::new(seed), ..Self::default() }
    }

    /// The ledger of a restarted kubelet: the names are known, but have no devices until their plugins
    /// register.
    #[must_use]
    pub fn restored(checkpoint: LedgerCheckpoint, seed: u64) -> Self {
        let known = checkpoint.names.into_iter().map(|name| (name, DeviceSets::default())).collect();
        let mut ledger = Self { known, holdings: checkpoint.holdings, ..Self::new(seed) };
        ledger.undo();
        ledger
    }

    #[must_use]
    pub fn checkpoint(&self) -> LedgerCheckpoint {
        LedgerCheckpoint { names: self.known.keys().cloned().collect(), holdings: self.holdings.clone() }
    }

    /// Applies a `ListAndWatch` message: its list replaces the former one. An empty list makes the name known
    /// too.
    pub fn set_devices(&mut self, resource: &str, devices: impl IntoIterator<Item = (String, bool)>) {
        let mut sets = DeviceSets::default();
        for (id, healthy) in devices {
            if healthy {
                sets.healthy.insert(id)
            } else {
                sets.unhealthy.insert(id)
            };
        }
        self.known.insert(resource.to_owned(), sets);
    }

    /// The plugin of this name stopped: its devices count in capacity, but cannot be allocated.
    pub fn mark_unhealthy(&mut self, resource: &str) {
        if let Some(sets) = self.known.get_mut(resource) {
            sets.unhealthy.append(&mut sets.healthy);
        }
    }

    /// Forgets a name whose plugin stopped long ago.
    pub fn forget(&mut self, resource: &str) {
        self.known.remove(resource);
    }

    /// Whether the device manager handles a container's limit of this name. It **skips** an unknown name, and
    /// the pod starts without a device.
    #[must_use]
    pub fn knows(&self, resource: &str) -> bool {
        self.known.contains_key(resource) || self.taken.contains_key(resource)
    }

    #[must_use]
    pub fn known(&self) -> &BTreeMap<String, DeviceSets> {
        &self.known
    }

    /// Frees the devices of every pod that is not in `active`.
    pub fn collect_garbage(&mut self, active: &BTreeSet<String>) {
        let before = self.holdings.len();
        self.holdings.retain(|uid, _| active.contains(uid));
        if self.holdings.len() != before {
            self.undo();
        }
    }

    /// The devices that a container of an incoming pod may get of one resource; `None` if it already holds
    /// what it requests.
    ///
    /// A random order chooses among reusable devices, because the kubelet iterates a Go map.
    pub fn choose(
        &mut self,
        uid: &str,
        container: &str,
        resource: &str,
        required: usize,
        reusable: &BTreeSet<String>,
    ) -> Result<Option<Choice>, AllocationError> {
        let reusable = if reusable.is_empty() { Vec::new() } else { self.order.shuffled(reusable) };
        let held = self.held(uid, container, resource);
        if let Some(held) = held.filter(|held| held.len() != required) {
            return Err(AllocationError::RequestChanged {
                uid: uid.to_owned(),
                container: container.to_owned(),
                resource: resource.to_owned(),
                held: held.len(),
                asked: required,
            });
        }
        let healthy = self.allocatable(resource, held)?;
        if held.is_some() || required == 0 {
            return Ok(None);
        }
        let reused: BTreeSet<String> = reusable.into_iter().take(required).collect();
        let available: BTreeSet<String> = match self.taken.get(resource) {
            Some(taken) => healthy.difference(taken).cloned().collect(),
            None => healthy.clone(),
        };
        let needed = required - reused.len();
        if available.len() < needed {
            let resource = resource.to_owned();
            return Err(AllocationError::Unavailable {
                resource,
                requested: needed,
                available: available.len(),
            });
        }
        Ok(Some(Choice { resource: resource.to_owned(), required, reused, available }))
    }

    /// Takes the devices of a choice: reused ones, then the plugin's preferred ones among the available, then
    /// any. They are in use now without a holder, so [`DeviceLedger::record`] or [`DeviceLedger::undo`] must
    /// follow.
    pub fn take(&mut self, choice: &Choice, preferred: &[String]) -> BTreeSet<String> {
        let mut ids = choice.reused.clone();
        let preferred = preferred.iter().filter(|id| choice.available.contains(*id)).cloned();
        let rest = self.order.shuffled(&choice.available);
        for id in preferred.chain(rest) {
            if ids.len() == choice.required {
                break;
            }
            ids.insert(id);
        }
        self.taken.entry(choice.resource.clone()).or_default().extend(ids.iter().cloned());
        ids
    }

    /// Records that a container holds these devices.
    pub fn record(&mut self, uid: &str, container: &str, resource: &str, ids: BTreeSet<String>) {
        let pod = self.holdings.entry(uid.to_owned()).or_default();
        pod.entry(container.to_owned()).or_default().insert(resource.to_owned(), ids);
    }

    /// Reverts to the recorded holdings, after a plugin's error or a pod's end.
    pub fn undo(&mut self) {
        self.taken.clear();
        for (resource, ids) in self.holdings.values().flat_map(BTreeMap::values).flatten() {
            self.taken.entry(resource.clone()).or_default().extend(ids.iter().cloned());
        }
    }

    /// How many devices of each name are in use.
    #[must_use]
    pub fn taken(&self) -> BTreeMap<String, usize> {
        self.taken.iter().map(|(resource, ids)| (resource.clone(), ids.len())).collect()
    }

    /// The holdings of every pod by UID, including inactive pods until they are collected.
    #[must_use]
    pub fn holdings(&self) -> &BTreeMap<String, PodHoldings> {
        &self.holdings
    }

    fn held(&self, uid: &str, container: &str, resource: &str) -> Option<&BTreeSet<String>> {
        self.holdings.get(uid)?.get(container)?.get(resource)
    }

    fn allocatable(
        &self,
        resource: &str,
        held: Option<&BTreeSet<String>>,
    ) -> Result<&BTreeSet<String>, AllocationError> {
        let resource_name = || resource.to_owned();
        let Some(sets) = self.known.get(resource) else {
            return Err(AllocationError::Unregistered { resource: resource_name() });
        };
        if sets.healthy.is_empty() {
            return Err(AllocationError::NoneHealthy { resource: resource_name() });
        }
        if held.is_some_and(|held| !held.is_subset(&sets.healthy)) {
            return Err(AllocationError::HeldUnhealthy { resource: resource_name() });
        }
        Ok(&sets.healthy)
    }
}
