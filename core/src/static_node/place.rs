//! Decides whether a static node has room for a whole pod, and the cost. A pod gets all its devices or none.

use super::{StaticNode, admits};
use crate::contract::{ContainerRequest, RequestDocument};
use crate::kind::Kind;
use crate::packing::{Cost, Refusal};
use crate::quota::Charge;
use crate::request::GpuSelection;
use crate::resource::PluginName;
use std::collections::BTreeMap;

/// The number of devices of each name.
pub type Devices = BTreeMap<PluginName, u32>;

/// The sum of all these devices, by name.
#[must_use]
pub fn sum<'d>(all: impl IntoIterator<Item = &'d Devices>) -> Devices {
    let mut sum = Devices::new();
    for (name, count) in all.into_iter().flatten() {
        let total = sum.entry(*name).or_default();
        *total = count.saturating_add(*total);
    }
    sum
}

/// Added to the cost of every place on a static node, so that it costs less than any place on a managed node (costs
/// there are some millions). It is taken first, because an existing slice can serve in no other form, while free room
/// could be cut in others.
const BELOW_ALL_CUTS: i64 = i64::MIN / 4;

/// The cost of each GB that a device has beyond the request, in free devices of its name. It exceeds the number of
/// devices of any node, so that less waste always wins over a fuller node.
const WASTED_GB: i64 = 1 << 20;

/// The place of a pod on a static node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The devices that the pod takes.
    pub devices: Devices,
    /// The charge of the pod to its namespace's quota.
    pub charge: Charge,
    /// First the memory that the place wastes, then the devices that it leaves free, so that nodes are filled one by
    /// one.
    pub cost: Cost,
}

/// The devices of NVIDIA's device plugin that a pod with this document takes on any node.
#[must_use]
pub fn devices(request: &RequestDocument) -> Devices {
    let mut devices = Devices::new();
    for holding in &*request.holdings() {
        if let Some(name) = holding.resource.plugin_name() {
            let count = devices.entry(name).or_default();
            *count = holding.count.saturating_add(*count);
        }
    }
    devices
}

/// Whether any static node could serve a pod with this document. The present nodes do not count, because devices
/// disappear while their plugin or kubelet restarts, and nodes may come later than pods.
#[must_use]
pub fn is_conceivable(request: &RequestDocument) -> bool {
    let is_conceivable = |container: &ContainerRequest| {
        container.resource.plugin_name().is_some()
            && container.only_kind().is_some_and(|kind| {
                let is_replica = matches!(kind, Kind::Mps | Kind::TimeSlicing);
                request.isolation.is_served_by(kind) && (container.count == 1 || !is_replica)
            })
    };
    let GpuSelection { uuids, not_uuids, .. } = &request.gpus;
    uuids.is_empty() && not_uuids.is_empty() && request.containers.iter().all(is_conceivable)
}

/// Whether `node` offers what the pod asks for, whatever number of devices it has at the moment.
pub fn suits(node: &StaticNode, request: &RequestDocument) -> Result<(), Refusal> {
    let serves = |gpus: &GpuSelection| {
        if !admits(gpus, &node.model) {
            return Err(Refusal::NotSelected);
        }
        request.containers.iter().try_for_each(|container| {
            let offer = container.resource.plugin_name().and_then(|name| node.offer(name));
            offer.ok_or(Refusal::NeverFits)?.serves(container, request.isolation)
        })
    };
    // The pod's selection comes second, so that a node which fits no pod like this is not refused for its model.
    serves(&GpuSelection::default())?;
    serves(&request.gpus)
}

/// The place of a pod on `node`, where other pods have `taken` these devices.
pub fn place(node: &StaticNode, taken: &Devices, request: &RequestDocument) -> Result<Spot, Refusal> {
    suits(node, request)?;
    let devices = devices(request);
    let mut free = 0;
    for (name, count) in &devices {
        let all = node.offer(*name).map_or(0, |offer| offer.count);
        let left = all.saturating_sub(taken.get(name).copied().unwrap_or(0));
        if *count > left {
            return Err(if *count > all { Refusal::CountNeverFits } else { Refusal::NoRoom });
        }
        free += i64::from(left - count);
    }
    let (mut wasted, mut charge) = (0, Charge::default());
    for holding in &*request.holdings() {
        let offer = holding.resource.plugin_name().and_then(|name| node.offer(name));
        let size = offer.and_then(|offer| offer.size).unwrap_or(holding.size_gb);
        let count = u64::from(holding.count);
        charge = charge.plus(Charge { memory_gb: u64::from(size.0) * count, slices: count });
        wasted += i64::from(size.0.saturating_sub(holding.size_gb.0)) * i64::from(holding.count);
    }
    let cost = wasted.saturating_mul(WASTED_GB).saturating_add(free).saturating_add(BELOW_ALL_CUTS);
    Ok(Spot { devices, charge, cost: Cost(cost) })
}
