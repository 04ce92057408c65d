//! Layouts of nodes that NVIDIA's device plugin serves: the devices that each layout should yield, and the writes that
//! apply it. The plugin reads its configuration from a `ConfigMap`; a label of the node
//! (`nvidia.com/device-plugin.config`) selects the key. Under GPU Operator a `ClusterPolicy` names that `ConfigMap`.
//!
//! | module | what it decides |
//! |---|---|
//! | `layout` | what a layout is, and the plugin's configuration for it |
//! | `gpus` | which GPUs a node has, by the labels of GPU feature discovery |
//! | `expected_allocatable` | the allocatable that a layout should yield on these GPUs, or why they are unfit |
//! | `config_map` | the content of the `ConfigMap` |
//! | `cluster_policy` | the settings of GPU Operator's `ClusterPolicy` |
//! | `cluster` | how the layouts of all nodes decide the `ClusterPolicy` |
//! | `choice` | which layout a node gets |
//! | `first_seen` | how long each write has been visible to this leader |
//! | `propagation` | whether NVIDIA's programs have followed the labels |
//! | `record` | what kerf changed on a node, and the state before |
//! | `node` | the next write on one node |
//! | `rollback` | rollback of labels |
//! | `state` | the state of a node's layout: reason and message of its condition |
//! | `decide` | all of it together |

mod choice;
mod cluster;
mod cluster_policy;
mod config_map;
mod decide;
mod digest;
mod expected_allocatable;
mod first_seen;
mod gpus;
mod layout;
mod node;
mod propagation;
mod record;
mod rollback;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod walk_tests;

pub use choice::LayoutPolicy;
pub use cluster_policy::{
    ClusterPolicyRecord, ClusterPolicyWrite, OperatorSettings, Renaming, SeenClusterPolicy,
};
pub use decide::{ConfigMapWrite, Decision, Seen, SeenConfigMap, decide};
pub use expected_allocatable::{ExpectedAllocatable, Unfit, cuts};
pub use first_seen::FirstSeen;
pub use gpus::NodeGpus;
pub use layout::{
    DEFAULT_KEY, LAYOUT_NAME_LENGTH_LIMIT, MigStrategy, PluginLayout, Sharing, TIME_SLICES_LIMIT,
};
pub use node::{Holders, LayoutEvent, NodeDecision, NodeWrite, SeenNode};
pub use propagation::Propagation;
pub use record::{NodeRecord, PluginLabels, Progress};
pub use state::{Condition, LayoutState};
