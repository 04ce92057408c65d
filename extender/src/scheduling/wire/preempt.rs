//! Request and answer of `preempt`: nodes, with the pods that would be evicted there, by UID only.

use super::WirePod;
use crate::scheduling::filter::Candidate;
use kerf_core::names::PodUid;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The body of `preempt` requests.
#[derive(Debug, Deserialize)]
pub struct PreemptArgs<'a> {
    #[serde(rename = "Pod", borrow)]
    pod: WirePod<'a>,
    /// Absent if the scheduler is not configured as `nodeCacheCapable`: it then sends whole Pods under another key.
    #[serde(rename = "NodeNameToMetaVictims", default)]
    victims: Option<BTreeMap<String, MetaVictims>>,
}

/// The pods that would be evicted on one node. The answer returns them unchanged, because the scheduler has tested
/// exactly these.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    #[serde(default)]
    pods: Option<Vec<MetaPod>>,
    #[serde(rename = "NumPDBViolations", default)]
    violations: i64,
}

#[derive(Debug, Deserialize, Serialize)]
struct MetaPod {
    #[serde(rename = "UID")]
    uid: PodUid,
}

impl MetaVictims {
    fn uids(&self) -> BTreeSet<PodUid> {
        self.pods.iter().flatten().map(|pod| pod.uid.clone()).collect()
    }
}

impl PreemptArgs<'_> {
    /// The pod with its request, as the filter needs it.
    #[must_use]
    pub fn candidate(&self) -> Candidate {
        self.pod.candidate()
    }

    /// Whether the pod asks for nothing that kerf serves.
    #[must_use]
    pub fn asks_for_nothing(&self) -> bool {
        self.pod.asks_for_nothing()
    }

    /// The nodes, each with the pods that would be evicted there; `None` if the scheduler sends whole Pods.
    #[must_use]
    pub fn nodes(&self) -> Option<Vec<(&str, BTreeSet<PodUid>)>> {
        let victims = self.victims.as_ref()?;
        Some(victims.iter().map(|(node, victims)| (node.as_str(), victims.uids())).collect())
    }

    /// The answer that keeps these nodes, or all, for the scheduler to choose from.
    #[must_use]
    pub fn leave(&self, kept: Option<&[&str]>) -> PreemptResult<'_> {
        let is_kept = |node: &str| kept.is_none_or(|kept| kept.contains(&node));
        let victims = self.victims.iter().flatten().filter(|(node, _)| is_kept(node.as_str()));
        PreemptResult { victims: victims.map(|(node, victims)| (node.as_str(), victims)).collect() }
    }
}

/// The answer to `preempt`. It has no field for an error, so the HTTP status carries one.
#[derive(Debug, Serialize)]
pub struct PreemptResult<'a> {
    #[serde(rename = "NodeNameToMetaVictims")]
    victims: BTreeMap<&'a str, &'a MetaVictims>,
}
