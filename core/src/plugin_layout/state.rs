//! The states of a node's layout, each with one reason and one message for the Node's condition.

use super::expected_allocatable::Unfit;
use crate::contract::ConditionStatus;
use crate::names::{NodeName, PodKey};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A message lists at most this many pods.
const LISTED_PODS_LIMIT: usize = 3;

/// Why kerf rolled a layout back.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// The plugin did not advertise the devices in time.
    #[error(
        "after {seconds} s the node shows {shown}; see the log of NVIDIA's device plugin on the node (its configuration must come from this ConfigMap), and raise --plugin-timeout if it needs longer"
    )]
    TimedOut {
        /// The timeout that has passed, in seconds.
        seconds: u64,
        /// The devices that the node advertised.
        shown: String,
    },
    /// NVIDIA's MIG manager reported a failure.
    #[error(
        "NVIDIA's MIG manager failed (nvidia.com/mig.config.state=failed) with {config}; see its log on the node, and whether its configuration has that name"
    )]
    MigManager {
        /// The value of label `nvidia.com/mig.config`.
        config: String,
    },
}

/// Why a layout cannot be applied; an admin has to act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Conflict {
    /// The label `kerf.dev/layout` names no layout.
    #[error(
        "label kerf.dev/layout names {label:?}, and no policy with spec.plugin is called so; there are: {known}"
    )]
    UnknownLayout {
        /// The value of the label.
        label: String,
        /// The names of all layouts, separated by commas.
        known: String,
    },
    /// An admin selected a configuration that is not kerf's.
    #[error(
        "label nvidia.com/device-plugin.config is {label:?}, which is no layout of kerf's and was not set by kerf; remove the label to have layout {layout}"
    )]
    LabelByHand {
        /// The value of label `nvidia.com/device-plugin.config`.
        label: String,
        /// The layout that a policy gives the node.
        layout: String,
    },
    /// An admin selected a key of kerf's `ConfigMap` whose layout is in no policy any longer.
    #[error(
        "label nvidia.com/device-plugin.config is {label:?} and was not set by kerf, so ClusterPolicy {policy} goes on to name kerf's ConfigMap, though no policy has a layout any more: without it the plugin would offer other devices, pods or not; drain the node and remove the label"
    )]
    KeptByHand {
        /// The value of label `nvidia.com/device-plugin.config`.
        label: String,
        /// The name of the `ClusterPolicy`.
        policy: String,
    },
    /// Two layouts need different MIG strategies, and GPU Operator has one for the cluster.
    #[error(
        "layout {layout} needs mig.strategy {wanted}, layout {other} needs {others}, and GPU Operator has one strategy for the cluster; give both the same migStrategy"
    )]
    Strategies {
        /// The name of this node's layout.
        layout: String,
        /// The strategy that this layout needs.
        wanted: String,
        /// The name of the other layout, which comes first.
        other: String,
        /// The strategy that the other layout needs.
        others: String,
    },
    /// Another strategy would rename the MIG devices of a node that no policy covers.
    #[error(
        "layout {layout} needs mig.strategy {wanted} in the ClusterPolicy, which would rename the MIG devices of node {node}, that no policy is for; write a policy for it, or set mig.strategy yourself"
    )]
    Bystander {
        /// The name of this node's layout.
        layout: String,
        /// The strategy that this layout needs.
        wanted: String,
        /// The node that would change too.
        node: NodeName,
    },
    /// An admin's `ClusterPolicy` names a `ConfigMap` that is not kerf's.
    #[error(
        "ClusterPolicy {policy} takes the plugin's configuration from ConfigMap {config_map}; remove spec.devicePlugin.config.name there, so that kerf can set its own, or the policies with spec.plugin"
    )]
    OtherConfigMap {
        /// The name of the `ClusterPolicy`.
        policy: String,
        /// The name of the `ConfigMap` that it contains.
        config_map: String,
    },
    /// The API server rejected the `ConfigMap`.
    #[error(
        "the ConfigMap of NVIDIA's device plugin cannot be written: {error}; see --plugin-namespace of the extender"
    )]
    ConfigMap {
        /// The error of the API server.
        error: String,
    },
    /// The annotation with the record does not parse.
    #[error(
        "annotation kerf.dev/plugin-layout cannot be read: {error}; remove it, and set the label nvidia.com/device-plugin.config as it is to be"
    )]
    Record {
        /// The error of the JSON parser.
        error: String,
    },
    /// A label asks for a layout on a node without GPUs.
    #[error(
        "layout {layout} is for GPUs, and this node has neither labels of GPU feature discovery nor devices of NVIDIA's plugin; remove the label kerf.dev/layout from it, or find out why GPU feature discovery is not there"
    )]
    NoGpus {
        /// The name of the layout.
        layout: String,
    },
    /// The node's GPUs cannot have the layout.
    #[error("no GPU of this node can have layout {layout}: {why}")]
    Unfit {
        /// The name of the layout.
        layout: String,
        /// The property of the GPUs that rules it out.
        why: Unfit,
    },
}

/// A step that comes before a change of the node's labels.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Preparation {
    /// The `ConfigMap` is written first, and the kubelets need time to deliver it.
    #[error("the ConfigMap is written, and the kubelet brings it to the plugin within --plugin-config-delay")]
    ConfigMap,
    /// The `ClusterPolicy` is written before the nodes.
    #[error("the ClusterPolicy is being written")]
    ClusterPolicy,
    /// GPU Operator may not have started on the `ClusterPolicy` of this name.
    #[error("ClusterPolicy {0} is written, and GPU Operator begins with it within --plugin-config-delay")]
    Rollout(String),
    /// GPU Operator reports the `ClusterPolicy` of this name as not ready.
    #[error(
        "ClusterPolicy {0} is notReady: GPU Operator is at work, or some part of it fails; see kubectl get pods in its namespace"
    )]
    Operator(String),
}

/// Pods that block a change; empty while they are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pods(pub Vec<PodKey>);

impl std::fmt::Display for Pods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named: Vec<_> = self.0.iter().take(LISTED_PODS_LIMIT).map(ToString::to_string).collect();
        f.write_str(&named.join(", "))?;
        let more = self.0.len().saturating_sub(LISTED_PODS_LIMIT);
        if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

/// The state of a node's layout; its text becomes the message of the Node's condition.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutState {
    /// The node advertises the layout's devices.
    #[error("layout {layout} is in force: {expected}")]
    InForce {
        /// The name of the layout.
        layout: String,
        /// The devices that the node advertises.
        expected: String,
    },
    /// The layout was in force, and the node now advertises other devices.
    #[error(
        "layout {layout} should yield {expected}, and the node shows {shown}; see the log of NVIDIA's device plugin on the node"
    )]
    Short {
        /// The name of the layout.
        layout: String,
        /// The devices that the layout should yield.
        expected: String,
        /// The devices that the node advertises.
        shown: String,
    },
    /// Something must be prepared before the labels are written.
    #[error("layout {layout} is not applied yet: {what}")]
    Preparing {
        /// The name of the layout.
        layout: String,
        /// The step that comes first.
        what: Preparation,
    },
    /// Pods hold GPUs of this node, so kerf does not change it.
    #[error("layout {layout} waits for pods to end that hold GPUs of this node: {pods}")]
    WaitsForPods {
        /// The name of the layout.
        layout: String,
        /// The pods that hold GPUs.
        pods: Pods,
    },
    /// Pods hold MIG devices that another strategy would rename, on other nodes too.
    #[error(
        "layout {layout} needs another mig.strategy in the ClusterPolicy, which waits for pods to end that hold MIG devices, on other nodes too: {pods}"
    )]
    WaitsForStrategy {
        /// The name of the layout.
        layout: String,
        /// The pods that hold MIG devices.
        pods: Pods,
    },
    /// The labels are written, and the devices are not there yet.
    #[error("layout {layout} is written, and the node should show {expected}; it shows {shown}")]
    Applying {
        /// The name of the layout.
        layout: String,
        /// The devices that the layout should yield.
        expected: String,
        /// The devices that the node advertises.
        shown: String,
    },
    /// The layout failed; the rollback starts when the pods have ended.
    #[error(
        "layout {layout} failed: {why}. It is taken back when pods have ended that hold GPUs of this node: {pods}"
    )]
    RollbackWaits {
        /// The name of the layout.
        layout: String,
        /// The cause of the failure.
        why: Failure,
        /// The pods that hold GPUs.
        pods: Pods,
    },
    /// The layout failed and was rolled back.
    #[error(
        "layout {layout} failed and was taken back to {back}: {why}. It is tried again when the policy or the node changes"
    )]
    RolledBack {
        /// The name of the layout.
        layout: String,
        /// The cause of the failure.
        why: Failure,
        /// The plugin configuration that is in force instead.
        back: String,
    },
    /// No policy gives the node the layout any longer, and pods still hold devices.
    #[error(
        "no policy gives this node layout {layout} any longer; kerf removes it when the pods have ended that hold GPUs of this node: {pods}"
    )]
    RemovalWaits {
        /// The name of the layout.
        layout: String,
        /// The pods that hold GPUs.
        pods: Pods,
    },
    /// No node has a layout any longer, and pods hold MIG devices that the former strategy would rename.
    #[error(
        "no layout is wanted any more, and mig.strategy in the ClusterPolicy goes back to {strategy} when pods have ended that hold MIG devices of this node, among others: {pods}"
    )]
    UndoWaits {
        /// The strategy from before all layouts.
        strategy: String,
        /// The pods that hold MIG devices.
        pods: Pods,
    },
    /// The labels from before kerf are written, and the plugin has not followed.
    #[error(
        "no policy gives this node layout {layout} any longer; kerf has removed its labels, and the plugin has yet to follow; the node shows {shown}"
    )]
    Removing {
        /// The name of the layout.
        layout: String,
        /// The devices that the node advertises.
        shown: String,
    },
    /// A node without a layout gets no pods while its MIG devices are renamed.
    #[error(
        "mig.strategy in ClusterPolicy {policy} was changed, and GPU Operator is to bring it to this node, to which no pod comes until then; it shows {shown}. If the ClusterPolicy stays notReady, see kubectl get pods in GPU Operator's namespace"
    )]
    Renaming {
        /// The name of the `ClusterPolicy`.
        policy: String,
        /// The devices that the node advertises.
        shown: String,
    },
    /// The labels are rolled back, and the MIG manager does not finish.
    #[error(
        "the labels of layout {layout} were taken back, and after {seconds} s NVIDIA's MIG manager is still at work (nvidia.com/mig.config.state={state}). It may cut the GPUs at any moment, so no pod comes to the node before it ends; see the log of its pod on the node (label app=nvidia-mig-manager), or, if none is there any more, remove the label nvidia.com/mig.config.state"
    )]
    MigManagerStuck {
        /// The name of the layout.
        layout: String,
        /// The timeout that has passed, in seconds.
        seconds: u64,
        /// The value of label `nvidia.com/mig.config.state`.
        state: String,
    },
    /// A conflict that an admin has to solve; kerf changes nothing.
    #[error("{0}")]
    Conflict(Conflict),
}

/// A condition as the Node's status carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`, as Kubernetes spells them.
    pub status: String,
    /// One word in `UpperCamelCase` from a closed list.
    pub reason: String,
    /// A sentence for people: the state, and the remedy if there is one.
    pub message: String,
}

impl LayoutState {
    /// The condition's reason, from a closed list that the documentation has.
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

    /// The condition's status: `False` if an admin has to act, and `Unknown` while kerf applies or removes the layout.
    #[must_use]
    pub fn status(&self) -> ConditionStatus {
        match self {
            Self::InForce { .. } => ConditionStatus::True,
            Self::Preparing { .. }
            | Self::WaitsForPods { .. }
            | Self::WaitsForStrategy { .. }
            | Self::Applying { .. }
            | Self::RemovalWaits { .. }
            | Self::UndoWaits { .. }
            | Self::Removing { .. }
            | Self::Renaming { .. } => ConditionStatus::Unknown,
            Self::Short { .. }
            | Self::RollbackWaits { .. }
            | Self::RolledBack { .. }
            | Self::MigManagerStuck { .. }
            | Self::Conflict(_) => ConditionStatus::False,
        }
    }

    /// The state as a condition of the Node.
    #[must_use]
    pub fn condition(&self) -> Condition {
        Condition {
            status: self.status().as_str().to_owned(),
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
