//! The settings of GPU Operator's `ClusterPolicy` with which its device plugin reads kerf's `ConfigMap` and uses the
//! layouts' MIG strategy. There is one for the cluster: kerf never overwrites another setting of an admin's, it reports
//! it.

use super::SeenNode;
use super::first_seen::FirstSeen;
use super::layout::{DEFAULT_KEY, MigStrategy};
use crate::managed::is_managed;
use crate::names::NodeName;
use crate::nvidia_keys::{GPU, MIG_PREFIX};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The fields of a `ClusterPolicy` that kerf writes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorSettings {
    /// `spec.devicePlugin.config.name`, the `ConfigMap` that the plugin reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<String>,
    /// `spec.devicePlugin.config.default`, the key for nodes without a label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_key: Option<String>,
    /// `spec.mig.strategy`; GPU Operator's default is `single`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_strategy: Option<MigStrategy>,
}

impl OperatorSettings {
    /// Whether a node with this allocatable names its MIG devices as the strategy does.
    pub(super) fn are_shown(&self, allocatable: &BTreeMap<String, u64>) -> bool {
        let has = |prefix: &str| allocatable.iter().any(|(name, n)| name.starts_with(prefix) && *n > 0);
        match self.mig_strategy {
            Some(MigStrategy::Mixed) => has(MIG_PREFIX),
            Some(MigStrategy::Single | MigStrategy::None) | None => has(GPU) && !has(MIG_PREFIX),
        }
    }
}

/// What kerf changed in the `ClusterPolicy`, in an annotation of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPolicyRecord {
    /// The settings that kerf has written.
    pub set: OperatorSettings,
    /// The settings before kerf's first change.
    pub before: OperatorSettings,
    /// When it was last written, in seconds since 1970 by the clock of the leader that wrote it.
    #[serde(default)]
    pub written: u64,
    /// Set if the write renames MIG devices that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renaming: Option<Renaming>,
}

/// MIG devices that get other names. The plugin offers them under the old names until it has followed, and then once
/// more under the new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Renaming {
    /// When the strategy was written, in seconds since 1970 by the clock of the leader that wrote it.
    pub since: u64,
    /// The nodes that had MIG devices then. They get no pod before they advertise the new names.
    pub nodes: BTreeSet<NodeName>,
    /// The plugin's timeout in seconds, by the flags of the leader that wrote this, because other readers do not have
    /// those flags.
    #[serde(default = "usual_timeout")]
    pub timeout: u64,
    /// Nodes that advertised the new names already, because they had not followed the previous strategy. Their plugin
    /// may still do so.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub early: BTreeSet<NodeName>,
}

/// The default of `--plugin-timeout`, for records from before this field existed.
fn usual_timeout() -> u64 {
    180
}

/// A `ClusterPolicy` as it was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenClusterPolicy {
    /// The name of the object.
    pub name: String,
    /// The settings in its spec. An empty text counts as absent.
    pub settings: OperatorSettings,
    /// Whether GPU Operator reports `ready` in `status.state`; true if it reports nothing.
    pub is_ready: bool,
    /// What kerf changed in it; `None` if nothing.
    pub record: Option<ClusterPolicyRecord>,
}

/// The patch for a `ClusterPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPolicyWrite {
    /// The name of the object.
    pub name: String,
    /// The settings to write; `None` removes a field.
    pub settings: OperatorSettings,
    /// The record for the annotation; `None` removes it.
    pub record: Option<ClusterPolicyRecord>,
}

/// Whether the `ClusterPolicy` allows layouts to be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outlook {
    Clear,
    /// The `ClusterPolicy` must be written first.
    Write(Box<ClusterPolicyWrite>),
    /// GPU Operator is at work.
    NotReady(String),
    /// An admin has set another `ConfigMap`.
    OtherConfigMap {
        policy: String,
        config_map: String,
    },
}

impl SeenClusterPolicy {
    /// The next step so that the plugin reads `config_map`, which has these keys. `strategy` is the one that the
    /// layouts need, or `None`.
    pub(super) fn outlook(
        &self,
        config_map: &str,
        keys: &BTreeMap<String, String>,
        strategy: Option<MigStrategy>,
    ) -> Outlook {
        if let Some(other) = self.settings.config_map.as_ref().filter(|name| *name != config_map) {
            return Outlook::OtherConfigMap { policy: self.name.clone(), config_map: other.clone() };
        }
        let kept = self.settings.default_key.as_ref().filter(|key| keys.contains_key(*key));
        let settings = OperatorSettings {
            config_map: Some(config_map.to_owned()),
            default_key: Some(kept.cloned().unwrap_or_else(|| DEFAULT_KEY.to_owned())),
            mig_strategy: strategy.or(self.settings.mig_strategy),
        };
        if settings != self.settings {
            let before = self.record.as_ref().map_or(&self.settings, |record| &record.before).clone();
            let renaming = self.record.as_ref().and_then(|record| record.renaming.clone());
            let record = Some(ClusterPolicyRecord { set: settings.clone(), before, written: 0, renaming });
            let write = ClusterPolicyWrite { name: self.name.clone(), settings, record };
            return Outlook::Write(Box::new(write));
        }
        if self.is_ready { Outlook::Clear } else { Outlook::NotReady(self.name.clone()) }
    }

    /// Restores the settings from before all layouts; `None` if kerf changed nothing.
    pub(super) fn undo(&self) -> Option<ClusterPolicyWrite> {
        let ClusterPolicyRecord { set, before, .. } = self.record.as_ref()?;
        // kerf restores a setting only if it still has kerf's value: a later one is an admin's and stays.
        let back = |now: &OperatorSettings| if now == set { before.clone() } else { now.clone() };
        Some(ClusterPolicyWrite { name: self.name.clone(), settings: back(&self.settings), record: None })
    }

    /// Whether the write is so recent that GPU Operator may not have started: until then its `ready` is about the
    /// previous settings.
    pub(super) fn is_new(&self, ages: &FirstSeen, delay: u64) -> bool {
        self.record.as_ref().is_some_and(|record| ages.age_of_cluster_policy(record) < delay)
    }

    /// Those of these nodes that must get no pod, because their MIG devices are being renamed.
    #[must_use]
    pub fn renamed(&self, nodes: &BTreeMap<NodeName, SeenNode>, ages: &FirstSeen) -> BTreeSet<NodeName> {
        let age = |renaming: &Renaming| ages.age_of_renaming(renaming);
        let is_renamed = |(name, node): &(&NodeName, &SeenNode)| {
            !is_managed(&node.labels) && self.is_renaming(name, &node.allocatable, age)
        };
        nodes.iter().filter(is_renamed).map(|(name, _)| name.clone()).collect()
    }

    /// Whether a node with this allocatable still advertises MIG devices, or none, as before the strategy that is
    /// written now. GPU Operator applies a strategy to one node after the other. After the timeout, while it reports
    /// `ready`, kerf stops waiting for the rest. `age` returns how many seconds the strategy has been written, as far
    /// as the caller has seen.
    #[must_use]
    pub fn is_renaming(
        &self,
        name: &NodeName,
        allocatable: &BTreeMap<String, u64>,
        age: impl FnOnce(&Renaming) -> u64,
    ) -> bool {
        let renaming = self.record.as_ref().and_then(|record| record.renaming.as_ref());
        let Some(renaming) = renaming.filter(|renaming| renaming.nodes.contains(name)) else { return false };
        let is_awaited = !self.is_ready || age(renaming) < renaming.timeout;
        let has_followed = !renaming.early.contains(name) && self.settings.are_shown(allocatable);
        is_awaited && !has_followed
    }

    pub(super) fn changes_strategy(&self, settings: &OperatorSettings) -> bool {
        settings.mig_strategy != self.settings.mig_strategy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(map: Option<&str>, key: Option<&str>, mig_strategy: Option<MigStrategy>) -> OperatorSettings {
        OperatorSettings {
            config_map: map.map(str::to_owned),
            default_key: key.map(str::to_owned),
            mig_strategy,
        }
    }

    fn seen(settings: OperatorSettings) -> SeenClusterPolicy {
        SeenClusterPolicy { name: "cluster-policy".to_owned(), settings, is_ready: true, record: None }
    }

    fn keys() -> BTreeMap<String, String> {
        [("default".to_owned(), String::new()), ("a".to_owned(), String::new())].into()
    }

    #[test]
    fn an_untouched_policy_gets_the_config_map_and_is_restored_later() {
        let (single, mixed) = (Some(MigStrategy::Single), Some(MigStrategy::Mixed));
        let found = seen(settings(None, None, single));
        let Outlook::Write(write) = found.outlook("kerf", &keys(), mixed) else {
            panic!("nothing is written")
        };
        assert_eq!(write.settings, settings(Some("kerf"), Some("default"), mixed));
        let written = SeenClusterPolicy { settings: write.settings, record: write.record, ..found.clone() };
        assert_eq!(written.outlook("kerf", &keys(), mixed), Outlook::Clear);
        assert_eq!(
            written.outlook("kerf", &keys(), None),
            Outlook::Clear,
            "the last layout with MIG is gone"
        );
        let undone = written.undo().unwrap();
        assert_eq!((undone.settings, undone.record), (found.settings, None));
    }

    #[test]
    fn an_admins_settings_stay() {
        let other = seen(settings(Some("theirs"), Some("any"), None));
        let expected =
            Outlook::OtherConfigMap { policy: "cluster-policy".to_owned(), config_map: "theirs".to_owned() };
        assert_eq!(other.outlook("kerf", &keys(), None), expected);
        let own_default = seen(settings(Some("kerf"), Some("a"), None));
        assert_eq!(own_default.outlook("kerf", &keys(), None), Outlook::Clear);
        assert_eq!(own_default.undo(), None);
    }

    #[test]
    fn a_later_change_by_an_admin_is_not_undone() {
        let set = settings(Some("kerf"), Some("default"), None);
        let record =
            Some(ClusterPolicyRecord { set, before: settings(None, None, None), written: 0, renaming: None });
        let changed = SeenClusterPolicy { record, ..seen(settings(Some("kerf"), Some("a"), None)) };
        assert_eq!(changed.undo().unwrap().settings, changed.settings);
    }

    #[test]
    fn a_busy_operator_delays_the_layout() {
        let busy =
            SeenClusterPolicy { is_ready: false, ..seen(settings(Some("kerf"), Some("default"), None)) };
        assert_eq!(busy.outlook("kerf", &keys(), None), Outlook::NotReady("cluster-policy".to_owned()));
    }
}
