//! Computes what a status tick writes into the node's capacity and allocatable.
//!
//! The function is pure. The kubelet **sets** the names that its device manager owns, and keeps every other
//! key of capacity. It recomputes the allocatable of foreign extended resources from capacity, and deletes
//! allocatable keys that capacity lacks (kubernetes v1.36, `pkg/kubelet/nodestatus/setters.go`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};

use super::demand::is_extended_resource;

/// The device counts of one name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceCount {
    /// Healthy and unhealthy devices together.
    pub capacity: usize,
    pub allocatable: usize,
}

/// A resource list as in the API.
pub type ResourceList = BTreeMap<String, Quantity>;

/// The merge patch for the status subresource; `None` if the status is up to date.
#[must_use]
pub fn node_patch(
    capacity: &ResourceList,
    allocatable: &ResourceList,
    owned: &BTreeMap<String, ResourceCount>,
) -> Option<Value> {
    let mut new_capacity = capacity.clone();
    let mut new_allocatable = allocatable.clone();
    for (name, quantity) in capacity.iter().filter(|(name, _)| is_extended_resource(name)) {
        new_allocatable.insert(name.clone(), quantity.clone());
    }
    for (name, count) in owned {
        new_capacity.insert(name.clone(), Quantity(count.capacity.to_string()));
        new_allocatable.insert(name.clone(), Quantity(count.allocatable.to_string()));
    }
    new_allocatable.retain(|name, _| new_capacity.contains_key(name));
    let changes = [changes(capacity, &new_capacity), changes(allocatable, &new_allocatable)];
    let [capacity, allocatable] = changes;
    if capacity.is_empty() && allocatable.is_empty() {
        return None;
    }
    Some(json!({"status": {"capacity": capacity, "allocatable": allocatable}}))
}

fn changes(old: &ResourceList, new: &ResourceList) -> Map<String, Value> {
    let set = new.iter().filter(|(name, quantity)| old.get(*name) != Some(quantity));
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    set.map(|(name, quantity)| (name.clone(), Value::String(quantity.0.clone())))
        .chain(gone.map(|name| (name.clone(), Value::Null)))
        .collect()
}
