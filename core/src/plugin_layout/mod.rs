//! Layouts of nodes that NVIDIA's device plugin serves: what each promises of a node, and what has to be written so that a
//! node has it. The plugin takes its configuration from a `ConfigMap` by a node's label (`nvidia.com/device-plugin.config`);
//! with GPU Operator a `ClusterPolicy` names that `ConfigMap`.
//!
//! | module | what it decides |
//! |---|---|
//! | `layout` | what a layout is, and the plugin's configuration for it |
//! | `gpus` | which GPUs a node has, by the labels of GPU feature discovery |
//! | `promise` | what a layout makes of them, or why they cannot have it |
//! | `config_map` | what the `ConfigMap` holds |
//! | `cluster_policy` | what GPU Operator's `ClusterPolicy` has to say |
//! | `cluster` | what the nodes' layouts mean for it |
//! | `choice` | which layout a node is to have |
//! | `ages` | how long what was written has been there |
//! | `lag` | whether NVIDIA's programs have followed labels that are written |
//! | `record` | what was changed on a node, and what was there before |
//! | `node` | what is due on a node |
//! | `way_back` | how labels are led back |
//! | `state` | how far it is, and what is told of it |
//! | `decide` | all of it together |

mod ages;
mod choice;
mod cluster;
mod cluster_policy;
mod config_map;
mod decide;
mod digest;
mod gpus;
mod lag;
mod layout;
mod node;
mod promise;
mod record;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod walk_tests;
mod way_back;

pub use ages::Ages;
pub use cluster_policy::{
    ClusterPolicyRecord, ClusterPolicyWrite, OperatorSettings, Renaming, SeenClusterPolicy,
};
pub use decide::{ConfigMapWrite, Decision, Seen, SeenConfigMap, decide};
pub use gpus::NodeGpus;
pub use lag::Lag;
pub use layout::{
    DEFAULT_KEY, LONGEST_LAYOUT_NAME, MOST_MPS_REPLICAS, MOST_TIME_SLICES, MigStrategy, PluginLayout, Sharing,
};
pub use node::{Holders, NodeDecision, NodeWrite, SeenNode, Told};
pub use promise::{Promise, Unfit, cuts};
pub use record::{NodeRecord, PluginLabels, Progress};
pub use state::{Condition, LayoutState, Standing};
