//! What GPU Operator's `ClusterPolicy` has to say so that its device plugin reads kerf's `ConfigMap`, and offers MIG devices as
//! the layouts want. It is one for the cluster: what an admin has set otherwise stays, and is told.

use super::SeenNode;
use super::layout::{DEFAULT_KEY, MigStrategy};
use crate::managed::is_managed;
use crate::names::NodeName;
use crate::nvidia_keys::{GPU, MIG_PREFIX};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The fields of a `ClusterPolicy` that are written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorSettings {
    /// `spec.devicePlugin.config.name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<String>,
    /// `spec.devicePlugin.config.default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_key: Option<String>,
    /// `spec.mig.strategy`. Its default is `single`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_strategy: Option<MigStrategy>,
}

impl OperatorSettings {
    /// Whether a node that has this for pods shows MIG devices as the strategy names them.
    pub(super) fn are_shown(&self, allocatable: &BTreeMap<String, u64>) -> bool {
        let has = |prefix: &str| allocatable.iter().any(|(name, n)| name.starts_with(prefix) && *n > 0);
        match self.mig_strategy {
            Some(MigStrategy::Mixed) => has(MIG_PREFIX),
            Some(MigStrategy::Single | MigStrategy::None) | None => has(GPU) && !has(MIG_PREFIX),
        }
    }
}

/// What was changed in a `ClusterPolicy`, in an annotation of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPolicyRecord {
    /// What is written.
    pub set: OperatorSettings,
    /// What was there before.
    pub before: OperatorSettings,
    /// When it was written last, in seconds since 1970.
    #[serde(default)]
    pub written: u64,
    /// What another strategy does to MIG devices that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renaming: Option<Renaming>,
}

/// MIG devices get other names: until then they are given out under the old ones, and after it once more under the new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Renaming {
    /// Since when the strategy is written, in seconds since 1970.
    pub since: u64,
    /// The nodes that had MIG devices then. No pod may come to them before they show the others.
    pub nodes: BTreeSet<NodeName>,
    /// How long the plugin has, by the settings of the leader that wrote it: who else reads this does not know them.
    #[serde(default = "usual_timeout")]
    pub timeout: u64,
    /// Those that showed the other names already, since they had not followed the strategy before: their plugin may do so yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub early: BTreeSet<NodeName>,
}

/// That of a record from before it was written down: the default of `--plugin-timeout`.
fn usual_timeout() -> u64 {
    180
}

/// A `ClusterPolicy` as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenClusterPolicy {
    /// Its name.
    pub name: String,
    /// Its settings. An empty text counts as none.
    pub settings: OperatorSettings,
    /// Whether GPU Operator says that all is as the policy wants (`status.state`); true if it says nothing.
    pub is_ready: bool,
    /// What was changed.
    pub record: Option<ClusterPolicyRecord>,
}

/// What is to be written into a `ClusterPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPolicyWrite {
    /// Its name.
    pub name: String,
    /// What it has to say; `None` removes the field.
    pub settings: OperatorSettings,
    /// What was changed; `None` removes it.
    pub record: Option<ClusterPolicyRecord>,
}

/// Whether layouts can be applied, as far as the `ClusterPolicy` has to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Nothing is in the way.
    Clear,
    /// It has to be written first.
    Write(Box<ClusterPolicyWrite>),
    /// GPU Operator is at work.
    NotReady(String),
    /// It names another `ConfigMap`.
    OtherConfigMap {
        /// The `ClusterPolicy`.
        policy: String,
        /// The other one.
        config_map: String,
    },
}

impl SeenClusterPolicy {
    /// What is due so that the plugin reads `config_map`, which has these keys. `strategy` is what the layouts want, if they
    /// want any.
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

    /// What leads back to what was there before any layout; `None` if nothing was changed.
    pub(super) fn undo(&self) -> Option<ClusterPolicyWrite> {
        let ClusterPolicyRecord { set, before, .. } = self.record.as_ref()?;
        // What an admin has written since then stays.
        let back = |now: &OperatorSettings| if now == set { before.clone() } else { now.clone() };
        Some(ClusterPolicyWrite { name: self.name.clone(), settings: back(&self.settings), record: None })
    }

    /// Whether it was written so lately that GPU Operator may not have begun: until then its `ready` is of what was before.
    pub(super) fn is_new(&self, now: u64, delay: u64) -> bool {
        self.record.as_ref().is_some_and(|record| now.saturating_sub(record.written) < delay)
    }

    /// The nodes among these to which no pod may come, because their MIG devices are getting other names.
    #[must_use]
    pub fn renamed(&self, nodes: &BTreeMap<NodeName, SeenNode>, now: u64) -> BTreeSet<NodeName> {
        let is_renamed = |(name, node): &(&NodeName, &SeenNode)| {
            !is_managed(&node.labels) && self.is_renaming(name, &node.allocatable, now)
        };
        nodes.iter().filter(is_renamed).map(|(name, _)| name.clone()).collect()
    }

    /// Whether a node that has this for pods still shows MIG devices, or none, as before the strategy that is written now. GPU
    /// Operator brings it to one node after the other; what it has not brought in time while it says that all is well does not
    /// come.
    #[must_use]
    pub fn is_renaming(&self, name: &NodeName, allocatable: &BTreeMap<String, u64>, now: u64) -> bool {
        let renaming = self.record.as_ref().and_then(|record| record.renaming.as_ref());
        let Some(renaming) = renaming.filter(|renaming| renaming.nodes.contains(name)) else { return false };
        let is_awaited = !self.is_ready || now.saturating_sub(renaming.since) < renaming.timeout;
        let has_followed = !renaming.early.contains(name) && self.settings.are_shown(allocatable);
        is_awaited && !has_followed
    }

    /// Whether writing `settings` changes how MIG devices are offered.
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
    fn an_untouched_policy_is_told_the_config_map_and_led_back() {
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
    fn what_an_admin_changed_afterwards_is_not_undone() {
        let set = settings(Some("kerf"), Some("default"), None);
        let record =
            Some(ClusterPolicyRecord { set, before: settings(None, None, None), written: 0, renaming: None });
        let changed = SeenClusterPolicy { record, ..seen(settings(Some("kerf"), Some("a"), None)) };
        assert_eq!(changed.undo().unwrap().settings, changed.settings);
    }

    #[test]
    fn an_operator_at_work_is_waited_for() {
        let busy =
            SeenClusterPolicy { is_ready: false, ..seen(settings(Some("kerf"), Some("default"), None)) };
        assert_eq!(busy.outlook("kerf", &keys(), None), Outlook::NotReady("cluster-policy".to_owned()));
    }
}
