//! What was changed on a node for a layout, and what was there before: one JSON document in an annotation of the Node, so that
//! it outlives the leader, and is written in the same patch as the labels of which it tells.

use super::lag::Lag;
use super::promise::Promise;
use super::state::Failure;
use crate::nvidia_keys::{CONFIG, MIG_CONFIG};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The labels of a node by which NVIDIA's programs are told what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginLabels {
    /// `nvidia.com/device-plugin.config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// `nvidia.com/mig.config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<String>,
}

impl PluginLabels {
    /// Those of a node. An empty value counts as none.
    #[must_use]
    pub fn of(labels: &BTreeMap<String, String>) -> Self {
        let value = |key| labels.get(key).filter(|value| !value.is_empty()).cloned();
        Self { config: value(CONFIG), mig: value(MIG_CONFIG) }
    }

    /// Each label with its value; `None` where it is to be absent.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, Option<&str>); 2] {
        [(CONFIG, self.config.as_deref()), (MIG_CONFIG, self.mig.as_deref())]
    }

    /// The keys of the `ConfigMap` that these labels need.
    pub(super) fn key(&self) -> Option<&str> {
        self.config.as_deref()
    }
}

/// How far a change is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Progress {
    /// The labels are written.
    #[serde(rename_all = "camelCase")]
    Applying {
        /// Since when, in seconds since 1970 by the clock of the leader that wrote them.
        since: u64,
        /// Whether the MIG manager had failed before, so that its label says nothing of this change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        mig_had_failed: bool,
    },
    /// The node showed what the layout promises.
    Applied,
    /// The labels are those from before the change again.
    RolledBack {
        /// Why.
        why: Failure,
    },
}

/// What the extender's leader has done on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// The layout's name.
    pub layout: String,
    /// Tells its content; empty once it is removed, so that it is begun anew if it is wanted again.
    pub digest: String,
    /// Tells the node's GPUs, driver and boot: what has failed is tried again when they change.
    pub node: String,
    /// How far it is.
    pub progress: Progress,
    /// What the layout promises of this node.
    pub promise: Promise,
    /// The labels that are written.
    pub set: PluginLabels,
    /// Those before this change, to which a failure leads back.
    pub previous: PluginLabels,
    /// Those before any change of kerf's, to which the end of all layouts leads back.
    pub before: PluginLabels,
    /// NVIDIA's programs may not have followed the labels: they were led back, or the node showed already what is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<Lag>,
}

impl NodeRecord {
    /// The document.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Of strings, numbers and maps with text keys, all of which JSON has.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether the layout is being applied: nobody knows yet whether it can be.
    #[must_use]
    pub fn is_applying(&self) -> bool {
        matches!(self.progress, Progress::Applying { .. })
    }

    /// Whether the node may show devices that are about to go: no pod may come to it.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.is_applying() || self.lag.is_some()
    }

    /// Since when its labels are written, as far as it matters still.
    pub(super) fn since(&self) -> Option<u64> {
        match self.progress {
            Progress::Applying { since, .. } => Some(since),
            Progress::Applied | Progress::RolledBack { .. } => self.lag.as_ref().map(|lag| lag.since),
        }
    }

    /// Whether the layout was taken off, and only the plugin has to follow.
    pub(super) fn is_removed(&self) -> bool {
        self.digest.is_empty()
    }

    /// Reads the document.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_is_written_and_by_a_newer_kerf_too() {
        let record = NodeRecord {
            layout: "a".to_owned(),
            digest: "d".to_owned(),
            node: "n".to_owned(),
            progress: Progress::Applying { since: 7, mig_had_failed: false },
            promise: Promise::Counts([("nvidia.com/gpu".to_owned(), 4)].into()),
            set: PluginLabels { config: Some("a".to_owned()), mig: None },
            previous: PluginLabels::default(),
            before: PluginLabels::default(),
            lag: None,
        };
        insta::assert_snapshot!(record.to_json());
        let failed =
            Progress::RolledBack { why: Failure::TimedOut { seconds: 180, shown: "nothing".to_owned() } };
        for progress in [record.progress.clone(), Progress::Applied, failed] {
            let record = NodeRecord { progress, ..record.clone() };
            assert_eq!(NodeRecord::from_json(&record.to_json()).unwrap(), record);
        }
        let lag = Lag { since: 7, shown: [("nvidia.com/gpu".to_owned(), 4)].into(), cuts: true };
        let lagging = NodeRecord { progress: Progress::Applied, lag: Some(lag), ..record.clone() };
        assert_eq!(NodeRecord::from_json(&lagging.to_json()).unwrap(), lagging);
        assert!(lagging.is_changing() && !lagging.is_applying());
        let newer = record.to_json().replacen('{', r#"{"more":1,"#, 1);
        assert_eq!(NodeRecord::from_json(&newer).unwrap(), record);
    }

    #[test]
    fn an_empty_label_is_none() {
        let labels = [(CONFIG.to_owned(), String::new()), (MIG_CONFIG.to_owned(), "all-disabled".to_owned())];
        let labels = PluginLabels::of(&labels.into());
        assert_eq!(labels, PluginLabels { config: None, mig: Some("all-disabled".to_owned()) });
    }
}
