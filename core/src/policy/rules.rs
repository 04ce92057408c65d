//! The parts of a policy's `spec` that set how pods may ask for GPUs, and the slices that they may have.

use crate::units::SizeGb;
use serde::{Deserialize, Serialize};

/// The sizes that pods may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SizeRule {
    /// The smallest size. kerf refuses smaller requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gb: Option<SizeGb>,
    /// The largest size. kerf refuses larger requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gb: Option<SizeGb>,
    /// kerf rounds sizes up to a multiple of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_gb: Option<SizeGb>,
}

/// What kerf does with a pod whose `spec.nodeName` is set, so that it would bypass the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeNameRule {
    /// The pod is refused.
    #[default]
    Refuse,
    /// The name becomes required node affinity, and the pod is scheduled like any other.
    Affinity,
}

/// What kerf does with `NVIDIA_VISIBLE_DEVICES` and `CUDA_MPS_*` in the environment of a container that shares a GPU.
/// With them the container could see more than its slice, or exceed its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EnvironmentRule {
    /// The pod is refused.
    #[default]
    Refuse,
    /// kerf removes the variables and warns the user.
    Remove,
}

/// The requirements on pods with MPS shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MpsPodRule {
    /// What kerf does with a pod whose processes could command the MPS daemon, because they may be root on the node.
    pub root_containers: RootContainers,
}

/// What kerf does with a pod that would get an MPS share and whose processes may be root on the node. They cannot be if
/// the pod has `hostUsers: false`, or if every container has a user other than root, `allowPrivilegeEscalation: false`
/// and no added capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RootContainers {
    /// The pod gets `hostUsers: false`. If something forbids that, the other kinds of its class serve it; without such
    /// a kind the pod is refused.
    #[default]
    Isolate,
    /// The pod is refused.
    Refuse,
    /// The pod gets the share as it is, with a warning and an Event: it can end its neighbours' work and lift its own
    /// limits.
    Allow,
}

/// What earlier versions did with a pod whose kind of slice stayed full. kerf reads and ignores it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WaitingRule {
    /// The number of seconds for which the pod was pending.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub after_seconds: Option<u32>,
    /// What earlier versions did after that time.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub then: Option<WaitedLong>,
}

/// What earlier versions did with such a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WaitedLong {
    /// They wrote an Event.
    #[serde(rename = "tell")]
    Event,
    /// They deleted the pod, so that kerf chose again for its controller's next pod.
    Recreate,
}

/// Whether pods may be evicted for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PreemptionRule {
    /// Whether pods without the annotation `kerf.dev/movable` may be evicted, to restart elsewhere.
    pub movable_by_default: bool,
    /// Whether kerf evicts movable pods for these pods.
    pub moves_others: bool,
}

impl Default for PreemptionRule {
    fn default() -> Self {
        Self { movable_by_default: false, moves_others: true }
    }
}
