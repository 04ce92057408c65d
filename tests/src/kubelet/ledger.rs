//! Which devices the kubelet knows, which are healthy, and which container holds which.
//!
//! The rules of the kubelet's device manager as a plain value: no clock, no sockets, no API server. It decides
//! who gets what; it must not talk to a plugin. The texts of [`AllocationError`] are the kubelet's own
//! (kubernetes v1.36, `pkg/kubelet/cm/devicemanager/manager.go`), because users and tests read them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::pick::PickOrder;

/// Device IDs by resource name.
pub type DevicesByResource = BTreeMap<String, BTreeSet<String>>;

/// Why the device manager refuses a container. The text goes into the pod's status as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The name is known only because some pod still holds a device of it.
    #[error("cannot allocate unregistered device {resource}")]
    Unregistered {
        /// The resource name asked for.
        resource: String,
    },
    /// The name is registered, and none of its devices is healthy: also the state after a kubelet restart.
    #[error("no healthy devices present; cannot allocate unhealthy devices {resource}")]
    NoneHealthy {
        /// The resource name asked for.
        resource: String,
    },
    /// The container already holds devices, and one of them is not healthy any more.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
    )]
    HeldUnhealthy {
        /// The resource name asked for.
        resource: String,
    },
    /// Fewer healthy devices are free than the container needs.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        /// The resource name asked for.
        resource: String,
        /// Devices still needed after those reused from init containers.
        requested: usize,
        /// Healthy devices that nobody holds.
        available: usize,
    },
    /// The container holds another number of devices than it asks for.
    #[error(
        "pod {uid:?} container {container:?} changed request for resource {resource:?} from {held} to {asked}"
    )]
    RequestChanged {
        /// The pod's UID.
        uid: String,
        /// The container's name.
        container: String,
        /// The resource name asked for.
        resource: String,
        /// Devices it holds.
        held: usize,
        /// Devices it asks for.
        asked: usize,
    },
}

/// What one container needs of one resource, before the plugin was asked for its preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The resource name.
    pub resource: String,
    /// How many devices the container asks for in all.
    pub required: usize,
    /// Devices of the pod's init containers that it takes over; they come first.
    pub reused: BTreeSet<String>,
    /// Healthy devices that nobody holds, to take the rest from.
    pub available: BTreeSet<String>,
}

impl Choice {
    /// Devices still to be taken from `available`.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.required - self.reused.len()
    }
}

/// Devices of one resource name as the last `ListAndWatch` message gave them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSets {
    /// Devices that may be allocated.
    pub healthy: BTreeSet<String>,
    /// Devices that count in capacity only.
    pub unhealthy: BTreeSet<String>,
}

/// What a pod's containers hold: container name, resource name, device IDs.
pub type PodHoldings = BTreeMap<String, DevicesByResource>;

/// What survives a restart of the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCheckpoint {
    /// Resource names that were registered.
    pub names: BTreeSet<String>,
    /// Holdings by pod UID.
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
    /// An empty ledger. `seed` fixes the order in which devices are picked when a plugin has no preference.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { order: PickOrder::new(seed), ..Self::default() }
    }

    /// The ledger as a restarted kubelet has it: names known, no devices until their plugins come back.
    #[must_use]
    pub fn restored(checkpoint: LedgerCheckpoint, seed: u64) -> Self {
        let known = checkpoint.names.into_iter().map(|name| (name, DeviceSets::default())).collect();
        let mut ledger = Self { known, holdings: checkpoint.holdings, ..Self::new(seed) };
        ledger.undo();
        ledger
    }

    /// What [`DeviceLedger::restored`] needs.
    #[must_use]
    pub fn checkpoint(&self) -> LedgerCheckpoint {
        LedgerCheckpoint { names: self.known.keys().cloned().collect(), holdings: self.holdings.clone() }
    }

    /// Puts a `ListAndWatch` message into effect: the list replaces the former one, an empty list too makes the
    /// name known.
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

    /// The plugin of this name is gone: its devices count but cannot be allocated.
    pub fn mark_unhealthy(&mut self, resource: &str) {
        if let Some(sets) = self.known.get_mut(resource) {
            sets.unhealthy.append(&mut sets.healthy);
        }
    }

    /// The plugin of this name has been gone for so long that the name is forgotten.
    pub fn forget(&mut self, resource: &str) {
        self.known.remove(resource);
    }

    /// Whether a container's limit of this name is the device manager's business. A name that is not is
    /// **skipped**, and the pod starts without a device.
    #[must_use]
    pub fn knows(&self, resource: &str) -> bool {
        self.known.contains_key(resource) || self.taken.contains_key(resource)
    }

    /// Every known name with its devices.
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

    /// What a container of an incoming pod may get of one resource; `None` if it already holds what it asks for.
    ///
    /// Which of the reusable devices it takes over is up to a Go map's order, as with all picks.
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
    /// any. They are in use from now on, by nobody yet: [`DeviceLedger::record`] or [`DeviceLedger::undo`] follows.
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

    /// Writes down that a container holds these devices.
    pub fn record(&mut self, uid: &str, container: &str, resource: &str, ids: BTreeSet<String>) {
        let pod = self.holdings.entry(uid.to_owned()).or_default();
        pod.entry(container.to_owned()).or_default().insert(resource.to_owned(), ids);
    }

    /// Goes back to what is written down: the plugin refused, or a pod went.
    pub fn undo(&mut self) {
        self.taken.clear();
        for (resource, ids) in self.holdings.values().flat_map(BTreeMap::values).flatten() {
            self.taken.entry(resource.clone()).or_default().extend(ids.iter().cloned());
        }
    }

    /// How many devices of each name somebody holds.
    #[must_use]
    pub fn taken(&self) -> BTreeMap<String, usize> {
        self.taken.iter().map(|(resource, ids)| (resource.clone(), ids.len())).collect()
    }

    /// What the containers of every pod hold, by pod UID, inactive pods included until they are collected.
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
