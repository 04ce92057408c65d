//! What pods wait for: published by the extender, so that the webhook sends no more pods to a kind than it has room for.

use super::RequestDocument;
use crate::names::NodeName;
use crate::resource::ResourceName;
use crate::static_node::Devices;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// The version that this build writes and reads.
pub const DEMAND_VERSION: u32 = 1;

/// Slices by their names.
pub type Slices<N> = BTreeMap<ResourceName, N>;

/// The devices of NVIDIA's device plugin that pods hold, by node.
pub type Held = BTreeMap<NodeName, Devices>;

/// Revisions of `GpuNode` specs, by node.
pub type Revisions = BTreeMap<NodeName, u64>;

/// What pods wait for. One document for the cluster, written by the extender's leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// [`DEMAND_VERSION`].
    pub version: u32,
    /// The leader's epoch. A document of an older epoch than one that was seen is a former leader's.
    pub epoch: u64,
    /// Slices of pods that were admitted and have not been promised any, but could be: neither their namespace's quota nor
    /// scheduling gates keep them back.
    pub pending: Slices<u32>,
    /// Slices of all pods that this leader has ever seen, by the replica of the webhook that admitted them. It rises when the
    /// extender sees a pod, so whoever has admitted one knows that it is counted. Replicas that have admitted none of the last
    /// pods are left out: those that are here are those that admit.
    pub arrived: BTreeMap<String, Slices<u64>>,
    /// What pods hold of NVIDIA's device plugin, or are being bound to; absent where there are no static nodes.
    #[serde(default, skip_serializing_if = "Held::is_empty")]
    pub held: Held,
    /// The revisions of the written specs that this goes with: whom they promise something is not pending, and whom only later
    /// ones do still is. Nodes of revision 0 are left out. Absent in the document of an older extender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisions: Option<Revisions>,
}

/// Why the document cannot be read.
#[derive(Debug, Error)]
pub enum UnreadableDemand {
    /// It is no such JSON.
    #[error("failed to parse: {0}")]
    Parse(#[from] serde_json::Error),
    /// Another version wrote it.
    #[error("version {0} is not known, this program reads version {DEMAND_VERSION}")]
    Version(u32),
}

impl Demand {
    /// A replica of the webhook that has admitted none of so many pods is taken to be gone, or to be asked no more. Replicas
    /// that are asked in turn are all among far fewer.
    pub const LATELY: usize = 50;

    /// Whether so much has come that replicas which are asked are all among [`Demand::arrived`]: before it, one that is not
    /// there may be asked all the same.
    #[must_use]
    pub fn knows_replicas(&self) -> bool {
        let all = self
            .arrived
            .values()
            .flat_map(Slices::values)
            .fold(0, |all: u64, count| all.saturating_add(*count));
        all >= Self::LATELY as u64
    }

    /// The demand of a leader that has seen no pod.
    #[must_use]
    pub fn of(epoch: u64) -> Self {
        Self {
            version: DEMAND_VERSION,
            epoch,
            pending: Slices::new(),
            arrived: BTreeMap::new(),
            held: Held::new(),
            revisions: None,
        }
    }

    /// Reads the document's text.
    pub fn parse(text: &str) -> Result<Self, UnreadableDemand> {
        let demand: Self = serde_json::from_str(text)?;
        if demand.version != DEMAND_VERSION {
            return Err(UnreadableDemand::Version(demand.version));
        }
        Ok(demand)
    }

    /// The document's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

impl RequestDocument {
    /// How many slices of each name are promised to such a pod.
    #[must_use]
    pub fn slices(&self) -> Slices<u32> {
        let mut slices = Slices::new();
        for holding in &*self.holdings() {
            let count: &mut u32 = slices.entry(holding.resource).or_default();
            *count = count.saturating_add(holding.count);
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::static_node::PluginName;
    use crate::testing::request;

    #[test]
    fn demand_is_read_as_it_is_written() {
        let name: ResourceName = "nvidia.com/mig-1g.10gb.me".parse().unwrap();
        let arrived = [("r1".to_owned(), [(name, 12)].into())].into();
        let demand = Demand { pending: [(name, 3)].into(), arrived, ..Demand::of(4) };
        let mps = ResourceName::Plugin(PluginName::Gpu, Kind::Mps);
        let held = [("n1".into(), [(PluginName::Gpu, 2)].into())].into();
        let with_static = Demand { pending: [(mps, 1)].into(), held, ..Demand::of(4) };
        assert_eq!(
            with_static.to_json(),
            r#"{"arrived":{},"epoch":4,"held":{"n1":{"nvidia.com/gpu":2}},"pending":{"nvidia.com/gpu=mps":1},"version":1}"#
        );
        assert_eq!(Demand::parse(&with_static.to_json()).unwrap(), with_static);
        let with_revisions = Demand { revisions: Some([("n1".into(), 7)].into()), ..Demand::of(4) };
        assert_eq!(
            with_revisions.to_json(),
            r#"{"arrived":{},"epoch":4,"pending":{},"revisions":{"n1":7},"version":1}"#
        );
        assert_eq!(Demand::parse(&with_revisions.to_json()).unwrap(), with_revisions);
        assert_eq!(
            demand.to_json(),
            r#"{"arrived":{"r1":{"nvidia.com/mig-1g.10gb.me":12}},"epoch":4,"pending":{"nvidia.com/mig-1g.10gb.me":3},"version":1}"#
        );
        assert_eq!(Demand::parse(&demand.to_json()).unwrap(), demand);
    }

    #[test]
    fn what_another_version_wrote_is_not_believed() {
        let newer = Demand { version: 2, ..Demand::of(1) }.to_json();
        assert_eq!(
            Demand::parse(&newer).unwrap_err().to_string(),
            "version 2 is not known, this program reads version 1"
        );
        for text in ["", "{}", r#"{"version":1,"epoch":1,"pending":{"cpu":1},"arrived":{}}"#] {
            assert!(matches!(Demand::parse(text), Err(UnreadableDemand::Parse(_))), "{text}");
        }
    }

    #[test]
    fn a_pods_slices_are_counted_by_name() {
        let mut document = request("nvidia.com/mig-1g.10gb", 2);
        document.containers.extend(request("nvidia.com/mig-1g.10gb", 1).containers);
        document.containers.extend(request("nvidia.com/gpu-4gb", 1).containers);
        let slices: Vec<_> = document.slices().into_iter().map(|(name, n)| (name.to_string(), n)).collect();
        assert_eq!(slices, [("nvidia.com/mig-1g.10gb".to_owned(), 3), ("nvidia.com/gpu-4gb".to_owned(), 1)]);
    }
}
