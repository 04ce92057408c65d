//! Static nodes, which NVIDIA's device plugin serves. They have no agent, so everything about them comes from the Node
//! object: the labels of GPU feature discovery, and the allocatable.

mod affinity;
mod labels;
mod offer;
mod place;
mod requested;

pub use affinity::label_expressions;
pub use offer::{StaticOffer, admits};
pub use place::{Devices, Spot, devices, is_conceivable, place, suits, sum};
pub use requested::requested_devices;

use crate::kind::Kind;
use crate::managed::is_managed;
use crate::mig::catalog;
use crate::plugin_layout::NodeRecord;
use crate::resource::PluginName;
use crate::units::SizeGb;
use std::collections::BTreeMap;

/// The devices of a static node, as its Node object describes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StaticNode {
    /// The short name of its GPU model (`A100-80GB`); empty if the labels do not say it.
    pub model: String,
    /// Its offers, in ascending order of names.
    pub offers: Vec<StaticOffer>,
    /// Names for which labels and capacity disagree; their devices count as time slices.
    pub doubts: Vec<Doubt>,
    /// The allocatable devices by name, including names that are not offered because their kind is unknown.
    pub devices: Devices,
    /// Whether a layout of NVIDIA's device plugin is being changed there: the offers may be the former ones, so no pod
    /// may come.
    pub is_changing: bool,
}

/// A resource name whose devices on a node differ in number from the node's labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// The name of the plugin's devices.
    pub name: PluginName,
    /// The number of devices that exist, unhealthy ones included.
    pub there: u32,
    /// The number of devices by the labels.
    pub reported: u32,
}

impl StaticNode {
    /// Reads the offers of a Node from its labels, capacity and allocatable, each as the API server has it. `None` for
    /// a managed node, and for one without resources of NVIDIA's device plugin.
    ///
    /// `record` is the annotation [`keys::PLUGIN_LAYOUT`], in which the extender's leader records its changes of the
    /// layout.
    ///
    /// The kubelet counts an unhealthy device in capacity and not in allocatable. Therefore the labels are compared
    /// with capacity, and allocatable is what can be given.
    #[must_use]
    pub fn read<'m>(
        labels: &BTreeMap<String, String>,
        record: Option<&str>,
        capacity: impl IntoIterator<Item = (&'m str, &'m str)>,
        allocatable: impl IntoIterator<Item = (&'m str, &'m str)>,
    ) -> Option<Self> {
        if is_managed(labels) {
            return None;
        }
        let (capacity, allocatable) = (counts(capacity), counts(allocatable));
        let offer = |(name, count): (&PluginName, &u32)| {
            let capacity = capacity.get(name).copied().unwrap_or(0).max(*count);
            labels::offer(labels, *name, capacity, *count)
        };
        // A name without a healthy device stays, because pods wait for its devices.
        let all: Devices = capacity.keys().chain(allocatable.keys()).map(|name| (*name, 0)).collect();
        let devices: Devices =
            all.keys().map(|name| (*name, allocatable.get(name).copied().unwrap_or(0))).collect();
        let some = capacity.values().chain(allocatable.values()).any(|count| *count > 0);
        let (offers, doubts): (Vec<_>, Vec<_>) = devices.iter().filter_map(offer).unzip();
        let doubts = doubts.into_iter().flatten().collect();
        let record = record.and_then(|text| NodeRecord::from_json(text).ok());
        let is_changing = record.is_some_and(|record| record.is_changing());
        some.then(|| Self { model: labels::model(labels), offers, doubts, devices, is_changing })
    }

    /// The size of one of its GPUs; `None` if it is unknown.
    #[must_use]
    pub fn gpu_size(&self) -> Option<SizeGb> {
        let whole = self.offers.iter().find(|offer| offer.kind == Kind::Whole).and_then(|offer| offer.size);
        whole.or_else(|| catalog::by_name(&self.model).map(|model| model.memory.nominal()))
    }

    /// The offer under a name, if there is one.
    #[must_use]
    pub fn offer(&self, name: PluginName) -> Option<&StaticOffer> {
        self.offers.iter().find(|offer| offer.name == name)
    }
}

/// The amounts of resources that belong to NVIDIA's device plugin.
fn counts<'m>(amounts: impl IntoIterator<Item = (&'m str, &'m str)>) -> Devices {
    let count = |(name, amount): (&str, &str)| {
        let count = crate::quantity::parse_count(amount)?;
        Some((name.parse().ok()?, u32::try_from(count).unwrap_or(u32::MAX)))
    };
    amounts.into_iter().filter_map(count).collect()
}

#[cfg(test)]
mod tests;
