//! Static nodes: those that NVIDIA's device plugin serves. No agent of kerf's is there, so all that is known of one is its
//! Node object: the labels of GPU feature discovery, and what it has for pods.

mod labels;
mod name;
mod offer;
mod place;

pub use name::PluginName;
pub use offer::{StaticOffer, admits};
pub use place::{Devices, Spot, devices, is_conceivable, place, suits, sum};

use crate::kind::Kind;
use crate::managed::is_managed;
use crate::mig::catalog;
use crate::plugin_layout::NodeRecord;
use crate::units::SizeGb;
use std::collections::BTreeMap;

/// A static node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StaticNode {
    /// The short name of its GPUs' model (`A100-80GB`); empty where its labels do not say it.
    pub model: String,
    /// What it offers, by ascending name.
    pub offers: Vec<StaticOffer>,
    /// The names of what it offers of which labels and capacity tell otherwise; what is there is taken for time slices.
    pub doubts: Vec<Doubt>,
    /// All that it has for pods, by name: also what it does not offer, because nobody knows what that is.
    pub devices: Devices,
    /// NVIDIA's device plugin is given another layout there: what is offered may be that from before, and no pod may come.
    pub is_changing: bool,
}

/// A name of which a node has more or fewer devices than its labels tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// The name.
    pub name: PluginName,
    /// How many devices there are, sick ones included.
    pub there: u32,
    /// How many there are by the labels.
    pub told: u32,
}

impl StaticNode {
    /// Reads what a Node offers by its labels, its capacity and its allocatable, each as the API server has it; `None` for one
    /// that is kerf's, or has nothing of NVIDIA's device plugin.
    ///
    /// `record` is its annotation [`keys::PLUGIN_LAYOUT`], by which the extender's leader says what it changes there.
    ///
    /// The kubelet counts a sick device in the capacity and not in allocatable, so the labels are compared with the former and
    /// the latter is what there is.
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
        // A name of which no device is well now is the node's all the same: its pods wait for it.
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

    /// The size of one of its GPUs, as far as it is known.
    #[must_use]
    pub fn gpu_size(&self) -> Option<SizeGb> {
        let whole = self.offers.iter().find(|offer| offer.kind == Kind::Whole).and_then(|offer| offer.size);
        whole.or_else(|| catalog::by_name(&self.model).map(|model| model.memory.nominal()))
    }

    /// What it offers under a name.
    #[must_use]
    pub fn offer(&self, name: PluginName) -> Option<&StaticOffer> {
        self.offers.iter().find(|offer| offer.name == name)
    }
}

/// The amounts that are of names of NVIDIA's device plugin.
fn counts<'m>(amounts: impl IntoIterator<Item = (&'m str, &'m str)>) -> Devices {
    let count = |(name, amount): (&str, &str)| {
        let count = crate::quantity::parse_count(amount)?;
        Some((name.parse().ok()?, u32::try_from(count).unwrap_or(u32::MAX)))
    };
    amounts.into_iter().filter_map(count).collect()
}

#[cfg(test)]
mod tests;
