//! The parts of a policy's `spec` that set how pods may ask and what they may have.

use crate::units::SizeGb;
use serde::{Deserialize, Serialize};

/// Which sizes may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SizeRule {
    /// The smallest; a smaller request is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gb: Option<SizeGb>,
    /// The largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gb: Option<SizeGb>,
    /// Sizes are rounded up to a multiple of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_gb: Option<SizeGb>,
}

/// What becomes of a pod whose `spec.nodeName` is set, so that no scheduler would see it.
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

/// What becomes of `NVIDIA_VISIBLE_DEVICES` and `CUDA_MPS_*` in the environment of a container that shares a GPU: with
/// them it would see more than its slice, or leave its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EnvironmentRule {
    /// The pod is refused.
    #[default]
    Refuse,
    /// They are taken out, with a warning.
    Remove,
}

/// What is asked of pods with MPS shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MpsPodRule {
    /// What becomes of a pod whose processes could command the MPS daemon, for they may be root on the node.
    pub root_containers: RootContainers,
}

/// What becomes of a pod that would get an MPS share and has neither `hostUsers: false` nor, in every container, a user other than
/// root, `allowPrivilegeEscalation: false` and no added capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RootContainers {
    /// It gets `hostUsers: false`, unless something forbids that: then it is served by the other kinds of its class, and refused if
    /// there are none.
    #[default]
    Isolate,
    /// It is refused.
    Refuse,
    /// It gets the share as it is, with a warning and an Event: it can end its neighbours' work and lift its own limits.
    Allow,
}

/// What earlier versions did with a pod whose kind of slice stayed full. It is read and ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WaitingRule {
    /// After how many seconds of waiting.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub after_seconds: Option<u32>,
    /// What was done then.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub then: Option<WaitedLong>,
}

/// What earlier versions did then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WaitedLong {
    /// They wrote an Event.
    #[serde(rename = "tell")]
    Event,
    /// They deleted the pod, so that its controller's next pod was chosen for anew.
    Recreate,
}

/// Whether pods may be moved for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PreemptionRule {
    /// Whether pods that do not say may be restarted elsewhere (`kerf.dev/movable`).
    pub movable_by_default: bool,
    /// Whether movable pods are evicted for these pods.
    pub moves_others: bool,
}

impl Default for PreemptionRule {
    fn default() -> Self {
        Self { movable_by_default: false, moves_others: true }
    }
}
