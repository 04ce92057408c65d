//! What kerf changed on a node for a layout, and the state before. The record is one JSON document in an annotation of
//! the Node: so it outlives the leader, and one patch writes it together with the labels that it describes.

use super::expected_allocatable::ExpectedAllocatable;
use super::propagation::Propagation;
use super::state::Failure;
use crate::nvidia_keys::{CONFIG, MIG_CONFIG};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The labels of a node that configure NVIDIA's programs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginLabels {
    /// `nvidia.com/device-plugin.config`, the plugin's key in the `ConfigMap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// `nvidia.com/mig.config`, the MIG manager's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<String>,
}

impl PluginLabels {
    /// Reads them from a node's labels. An empty value counts as absent.
    #[must_use]
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Self {
        let value = |key| labels.get(key).filter(|value| !value.is_empty()).cloned();
        Self { config: value(CONFIG), mig: value(MIG_CONFIG) }
    }

    /// Each label with its value; `None` if the label must be absent.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, Option<&str>); 2] {
        [(CONFIG, self.config.as_deref()), (MIG_CONFIG, self.mig.as_deref())]
    }

    /// The key of the `ConfigMap` that these labels select.
    pub(super) fn key(&self) -> Option<&str> {
        self.config.as_deref()
    }
}

/// The progress of a node's change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Progress {
    /// The labels are written, and the node does not advertise the devices yet.
    #[serde(rename_all = "camelCase")]
    Applying {
        /// When they were written, in seconds since 1970 by the clock of the leader that wrote them.
        since: u64,
        /// Whether the MIG manager had already failed before, so that its label says nothing about this change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        mig_had_failed: bool,
    },
    /// The node has advertised the layout's devices.
    Applied,
    /// The labels from before the change are written again.
    RolledBack {
        /// The failure that caused the rollback.
        why: Failure,
    },
}

/// What the extender's leader has done on a node for a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// The layout's name, which is its policy's.
    pub layout: String,
    /// Fingerprint of the layout's content. Empty after a removal, so that a layout that is selected again starts from
    /// the beginning.
    pub digest: String,
    /// Fingerprint of the node's GPUs, driver and boot: kerf retries a failed layout when it changes.
    pub node: String,
    /// The progress of the change.
    pub progress: Progress,
    /// The allocatable that the layout should yield on this node.
    // Nodes have records of former versions with this key.
    #[serde(rename = "promise")]
    pub expected: ExpectedAllocatable,
    /// The labels that kerf has written.
    pub set: PluginLabels,
    /// The labels before this change; a failure restores them.
    pub previous: PluginLabels,
    /// The labels before kerf's first change; the end of all layouts restores them.
    pub before: PluginLabels,
    /// Set if NVIDIA's programs may not have followed: after a rollback, or if the node advertised the expected devices
    /// before the change.
    #[serde(rename = "lag", default, skip_serializing_if = "Option::is_none")]
    pub propagation: Option<Propagation>,
}

impl NodeRecord {
    /// The JSON text of the annotation.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Serialization cannot fail: the record has only strings, numbers and maps with text keys.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether the labels are written and the outcome is open.
    #[must_use]
    pub fn is_applying(&self) -> bool {
        matches!(self.progress, Progress::Applying { .. })
    }

    /// Whether the node may advertise devices that will disappear. Then it must get no pod.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.is_applying() || self.propagation.is_some()
    }

    /// When its labels were written; `None` once that does not matter any longer.
    pub(super) fn since(&self) -> Option<u64> {
        match self.progress {
            Progress::Applying { since, .. } => Some(since),
            Progress::Applied | Progress::RolledBack { .. } => {
                self.propagation.as_ref().map(|propagation| propagation.since)
            }
        }
    }

    /// Whether the layout is removed, and only the plugin has to follow.
    pub(super) fn is_removed(&self) -> bool {
        self.digest.is_empty()
    }

    /// Parses the JSON text of the annotation; unknown fields are ignored.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_is_written_and_ignores_unknown_fields() {
        let record = NodeRecord {
            layout: "a".to_owned(),
            digest: "d".to_owned(),
            node: "n".to_owned(),
            progress: Progress::Applying { since: 7, mig_had_failed: false },
            expected: ExpectedAllocatable::Counts([("nvidia.com/gpu".to_owned(), 4)].into()),
            set: PluginLabels { config: Some("a".to_owned()), mig: None },
            previous: PluginLabels::default(),
            before: PluginLabels::default(),
            propagation: None,
        };
        insta::assert_snapshot!(record.to_json());
        let failed =
            Progress::RolledBack { why: Failure::TimedOut { seconds: 180, shown: "nothing".to_owned() } };
        for progress in [record.progress.clone(), Progress::Applied, failed] {
            let record = NodeRecord { progress, ..record.clone() };
            assert_eq!(NodeRecord::from_json(&record.to_json()).unwrap(), record);
        }
        let propagation =
            Propagation { since: 7, shown: [("nvidia.com/gpu".to_owned(), 4)].into(), cuts: true };
        let lagging =
            NodeRecord { progress: Progress::Applied, propagation: Some(propagation), ..record.clone() };
        assert_eq!(NodeRecord::from_json(&lagging.to_json()).unwrap(), lagging);
        assert!(lagging.is_changing() && !lagging.is_applying());
        let newer = record.to_json().replacen('{', r#"{"more":1,"#, 1);
        assert_eq!(NodeRecord::from_json(&newer).unwrap(), record);
    }

    #[test]
    fn an_empty_label_is_none() {
        let labels = [(CONFIG.to_owned(), String::new()), (MIG_CONFIG.to_owned(), "all-disabled".to_owned())];
        let labels = PluginLabels::from_labels(&labels.into());
        assert_eq!(labels, PluginLabels { config: None, mig: Some("all-disabled".to_owned()) });
    }
}
