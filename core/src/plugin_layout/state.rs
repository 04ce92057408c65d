//! How far a node's layout is, and what is told of it: one reason and one text for each state.

use super::promise::Unfit;
use crate::names::{NodeName, PodKey};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How many pods a message names.
const NAMED: usize = 3;

/// Why a change was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// The plugin did not do it in time.
    #[error(
        "after {seconds} s the node shows {shown}; see the log of NVIDIA's device plugin on the node (its configuration must come from this ConfigMap), and raise --plugin-timeout if it needs longer"
    )]
    TimedOut {
        /// How long it had.
        seconds: u64,
        /// What the node showed.
        shown: String,
    },
    /// The MIG manager failed.
    #[error(
        "NVIDIA's MIG manager failed (nvidia.com/mig.config.state=failed) with {config}; see its log on the node, and whether its configuration has that name"
    )]
    MigManager {
        /// The configuration.
        config: String,
    },
}

/// What stands against a layout, other than the node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Conflict {
    /// The label names no layout.
    #[error(
        "label kerf.dev/layout names {label:?}, and no policy with spec.plugin is called so; there are: {known}"
    )]
    UnknownLayout {
        /// What it names.
        label: String,
        /// What there is.
        known: String,
    },
    /// An admin's configuration.
    #[error(
        "label nvidia.com/device-plugin.config is {label:?}, which is no layout of kerf's and was not set by kerf; remove the label to have layout {layout}"
    )]
    LabelByHand {
        /// The label.
        label: String,
        /// What a policy wants.
        layout: String,
    },
    /// An admin's configuration is a key of kerf's, of which no policy has the layout any more.
    #[error(
        "label nvidia.com/device-plugin.config is {label:?} and was not set by kerf, so ClusterPolicy {policy} goes on to name kerf's ConfigMap, though no policy has a layout any more: without it the plugin would offer other devices, pods or not; drain the node and remove the label"
    )]
    KeptByHand {
        /// The label.
        label: String,
        /// The `ClusterPolicy`.
        policy: String,
    },
    /// Two layouts that one cluster cannot have under GPU Operator.
    #[error(
        "layout {layout} wants mig.strategy {wanted}, layout {other} wants {others}, and GPU Operator has one strategy for the cluster; give both the same migStrategy"
    )]
    Strategies {
        /// This node's.
        layout: String,
        /// What it wants.
        wanted: String,
        /// The other, which is tried before.
        other: String,
        /// What that wants.
        others: String,
    },
    /// Another node would change.
    #[error(
        "layout {layout} needs mig.strategy {wanted} in the ClusterPolicy, which would rename the MIG devices of node {node}, that no policy is for; write a policy for it, or set mig.strategy yourself"
    )]
    Bystander {
        /// This node's layout.
        layout: String,
        /// What it wants.
        wanted: String,
        /// The other node.
        node: NodeName,
    },
    /// Another `ConfigMap`.
    #[error(
        "ClusterPolicy {policy} takes the plugin's configuration from ConfigMap {config_map}; remove spec.devicePlugin.config.name there, so that kerf can set its own, or the policies with spec.plugin"
    )]
    OtherConfigMap {
        /// The `ClusterPolicy`.
        policy: String,
        /// The `ConfigMap`.
        config_map: String,
    },
    /// The `ConfigMap` cannot be written.
    #[error(
        "the ConfigMap of NVIDIA's device plugin cannot be written: {error}; see --plugin-namespace of the extender"
    )]
    ConfigMap {
        /// Why.
        error: String,
    },
    /// The record cannot be read.
    #[error(
        "annotation kerf.dev/plugin-layout cannot be read: {error}; remove it, and set the label nvidia.com/device-plugin.config as it is to be"
    )]
    Record {
        /// Why.
        error: String,
    },
    /// There are none.
    #[error(
        "layout {layout} is for GPUs, and neither labels of GPU feature discovery nor devices of NVIDIA's plugin tell of any on this node; take the label kerf.dev/layout off it, or see why GPU feature discovery is not there"
    )]
    NoGpus {
        /// The layout.
        layout: String,
    },
    /// The GPUs cannot have it.
    #[error("no GPU of this node can have layout {layout}: {why}")]
    Unfit {
        /// The layout.
        layout: String,
        /// Why.
        why: Unfit,
    },
}

/// What has to come first.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Preparation {
    /// The `ConfigMap`.
    #[error("the ConfigMap is written, and the kubelet brings it to the plugin within --plugin-config-delay")]
    ConfigMap,
    /// The `ClusterPolicy`.
    #[error("the ClusterPolicy is being written")]
    ClusterPolicy,
    /// GPU Operator has not begun.
    #[error("ClusterPolicy {0} is written, and GPU Operator begins with it within --plugin-config-delay")]
    Rollout(String),
    /// GPU Operator.
    #[error(
        "ClusterPolicy {0} is notReady: GPU Operator is at work, or some part of it fails; see kubectl get pods in its namespace"
    )]
    Operator(String),
}

/// Pods for which a change waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pods(pub Vec<PodKey>);

impl std::fmt::Display for Pods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named: Vec<_> = self.0.iter().take(NAMED).map(ToString::to_string).collect();
        f.write_str(&named.join(", "))?;
        let more = self.0.len().saturating_sub(NAMED);
        if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

/// How far a node's layout is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutState {
    /// It is there.
    #[error("layout {layout} is in force: {promise}")]
    InForce {
        /// The layout.
        layout: String,
        /// What the node shows.
        promise: String,
    },
    /// It was there, and the node shows something else now.
    #[error(
        "layout {layout} promises {promise}, and the node shows {shown}; see the log of NVIDIA's device plugin on the node"
    )]
    Short {
        /// The layout.
        layout: String,
        /// What it promises.
        promise: String,
        /// What there is.
        shown: String,
    },
    /// Something comes first.
    #[error("layout {layout} is not applied yet: {what}")]
    Preparing {
        /// The layout.
        layout: String,
        /// What.
        what: Preparation,
    },
    /// Pods hold devices.
    #[error("layout {layout} waits for pods to end that hold GPUs of this node: {pods}")]
    WaitsForPods {
        /// The layout.
        layout: String,
        /// The pods.
        pods: Pods,
    },
    /// Pods hold MIG devices, which would get other names.
    #[error(
        "layout {layout} needs another mig.strategy in the ClusterPolicy, which waits for pods to end that hold MIG devices, on other nodes too: {pods}"
    )]
    WaitsForStrategy {
        /// The layout.
        layout: String,
        /// The pods.
        pods: Pods,
    },
    /// Written, and not there yet.
    #[error("layout {layout} is written, and the node is to show {promise}; it shows {shown}")]
    Applying {
        /// The layout.
        layout: String,
        /// What it promises.
        promise: String,
        /// What there is.
        shown: String,
    },
    /// Failed, and to be taken back when pods have ended.
    #[error(
        "layout {layout} failed: {why}. It is taken back when pods have ended that hold GPUs of this node: {pods}"
    )]
    RollbackWaits {
        /// The layout.
        layout: String,
        /// Why.
        why: Failure,
        /// The pods.
        pods: Pods,
    },
    /// Failed and taken back.
    #[error(
        "layout {layout} failed and was taken back to {back}: {why}. It is tried again when the policy or the node changes"
    )]
    RolledBack {
        /// The layout.
        layout: String,
        /// Why.
        why: Failure,
        /// What is there instead.
        back: String,
    },
    /// No layout is wanted any more, and pods hold devices.
    #[error(
        "layout {layout} is wanted no more, and is removed when pods have ended that hold GPUs of this node: {pods}"
    )]
    RemovalWaits {
        /// The layout.
        layout: String,
        /// The pods.
        pods: Pods,
    },
    /// No layout is wanted of any node any more, and pods hold MIG devices, which would get other names.
    #[error(
        "no layout is wanted any more, and mig.strategy in the ClusterPolicy goes back to {strategy} when pods have ended that hold MIG devices of this node, among others: {pods}"
    )]
    UndoWaits {
        /// What it goes back to.
        strategy: String,
        /// The pods.
        pods: Pods,
    },
    /// The labels are those from before, and the plugin has not followed.
    #[error(
        "layout {layout} is wanted no more: its labels are removed, and the plugin is to follow; the node shows {shown}"
    )]
    Removing {
        /// The layout.
        layout: String,
        /// What there is.
        shown: String,
    },
    /// A node without a layout is closed because its MIG devices are getting other names.
    #[error(
        "mig.strategy in ClusterPolicy {policy} was changed, and GPU Operator is to bring it to this node, to which no pod comes until then; it shows {shown}. If the ClusterPolicy stays notReady, see kubectl get pods in GPU Operator's namespace"
    )]
    Renaming {
        /// The `ClusterPolicy`.
        policy: String,
        /// What there is.
        shown: String,
    },
    /// The labels are led back, and the MIG manager does not end.
    #[error(
        "the labels of layout {layout} were taken back, and after {seconds} s NVIDIA's MIG manager is still at work (nvidia.com/mig.config.state={state}). It may cut the GPUs at any moment, so no pod comes to the node before it ends; see the log of its pod on the node (label app=nvidia-mig-manager), or, if none is there any more, remove the label nvidia.com/mig.config.state"
    )]
    MigManagerStuck {
        /// The layout.
        layout: String,
        /// How long it had.
        seconds: u64,
        /// What its label says.
        state: String,
    },
    /// Nothing is changed.
    #[error("{0}")]
    Conflict(Conflict),
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The layout is in force.
    True,
    /// It is not, and somebody has to do something.
    False,
    /// It is on its way.
    Unknown,
}

impl Standing {
    /// As a condition has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The condition of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// The text.
    pub message: String,
}

impl LayoutState {
    /// The reason, a closed list.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InForce { .. } => "InForce",
            Self::Short { .. } => "DevicesMissing",
            Self::Preparing { .. } => "Preparing",
            Self::WaitsForPods { .. } | Self::WaitsForStrategy { .. } => "WaitsForPods",
            Self::Applying { .. } => "Applying",
            Self::RollbackWaits { .. } => "RollbackWaits",
            Self::RolledBack { .. } => "RolledBack",
            Self::RemovalWaits { .. } | Self::UndoWaits { .. } => "RemovalWaits",
            Self::Removing { .. } | Self::Renaming { .. } => "Removing",
            Self::MigManagerStuck { .. } => "MigManagerStuck",
            Self::Conflict(conflict) => conflict.reason(),
        }
    }

    /// Whether the layout is in force.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self {
            Self::InForce { .. } => Standing::True,
            Self::Preparing { .. }
            | Self::WaitsForPods { .. }
            | Self::WaitsForStrategy { .. }
            | Self::Applying { .. }
            | Self::RemovalWaits { .. }
            | Self::UndoWaits { .. }
            | Self::Removing { .. }
            | Self::Renaming { .. } => Standing::Unknown,
            Self::Short { .. }
            | Self::RollbackWaits { .. }
            | Self::RolledBack { .. }
            | Self::MigManagerStuck { .. }
            | Self::Conflict(_) => Standing::False,
        }
    }

    /// As the condition of a Node.
    #[must_use]
    pub fn condition(&self) -> Condition {
        Condition {
            status: self.standing().as_str().to_owned(),
            reason: self.reason().to_owned(),
            message: self.to_string(),
        }
    }
}

impl Conflict {
    fn reason(&self) -> &'static str {
        match self {
            Self::UnknownLayout { .. } => "UnknownLayout",
            Self::LabelByHand { .. } | Self::KeptByHand { .. } => "LabelByHand",
            Self::Strategies { .. } | Self::Bystander { .. } => "StrategyConflict",
            Self::OtherConfigMap { .. } => "OtherConfigMap",
            Self::ConfigMap { .. } => "ConfigMapRefused",
            Self::Record { .. } => "RecordUnreadable",
            Self::Unfit { .. } | Self::NoGpus { .. } => "UnfitGpus",
        }
    }
}
