//! What a node's GPUs may be used for: the part of the admin's policy that concerns one node. The extender copies it into
//! [`GpuNodeSpec`](super::GpuNodeSpec); the agent reads no policy files.
//!
//! A field that is not known is refused: a setting that is silently ignored is one that an admin believes in.

use crate::kind::Kind;
use crate::names::GpuUuid;
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};

/// The policy of one node. Its default allows every kind on every GPU and changes no GPU's mode.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodePolicy {
    /// Rules for GPUs: the first that names a GPU holds for it, and the default rule if none does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRule>,
    /// Idle slices that are kept ready, cut ahead of demand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<WarmSlices>,
    /// What is done with a pod that uses more GPU memory than it was given.
    #[serde(skip_serializing_if = "is_default")]
    pub over_use: OverUse,
    /// Whether pods of this node that failed with `UnexpectedAdmissionError` are removed.
    #[serde(skip_serializing_if = "is_default")]
    pub remove_rejected_pods: bool,
}

impl NodePolicy {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The rule for a GPU.
    #[must_use]
    pub fn rule(&self, index: u32, uuid: &GpuUuid, model: &str) -> GpuRule {
        self.gpus.iter().find(|rule| rule.select.names(index, uuid, model)).cloned().unwrap_or_default()
    }
}

/// What some of the node's GPUs may be used for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GpuRule {
    /// The GPUs.
    #[serde(skip_serializing_if = "is_default")]
    pub select: GpuSelector,
    /// The kinds of slice that may be cut.
    pub kinds: Vec<Kind>,
    /// Whether the agent may switch the MIG mode so that it goes with `kinds`.
    #[serde(skip_serializing_if = "is_default")]
    pub mode_change: ModeChange,
    /// Whether GPU instances may be shared out as compute instances.
    #[serde(skip_serializing_if = "is_default")]
    pub compute_instances: bool,
    /// How MPS shares are fenced.
    #[serde(skip_serializing_if = "is_default")]
    pub mps: MpsRule,
    /// How time slices are made.
    #[serde(skip_serializing_if = "is_default")]
    pub time_slicing: TimeSlicingRule,
}

impl Default for GpuRule {
    fn default() -> Self {
        Self {
            select: GpuSelector::default(),
            kinds: Kind::ALL.to_vec(),
            mode_change: ModeChange::default(),
            compute_instances: false,
            mps: MpsRule::default(),
            time_slicing: TimeSlicingRule::default(),
        }
    }
}

/// Which GPUs: one that is named in each list that is not empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GpuSelector {
    /// NVML indexes.
    pub indexes: Vec<u32>,
    /// UUIDs.
    pub uuids: Vec<GpuUuid>,
    /// Short model names, such as `H100-80GB`.
    pub models: Vec<String>,
}

impl GpuSelector {
    fn names(&self, index: u32, uuid: &GpuUuid, model: &str) -> bool {
        (self.indexes.is_empty() || self.indexes.contains(&index))
            && (self.uuids.is_empty() || self.uuids.contains(uuid))
            && (self.models.is_empty() || self.models.iter().any(|m| m == model))
    }
}

/// Whether the agent may switch a GPU's MIG mode. It does so on an empty GPU only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeChange {
    /// Never: the mode stays as the admin set it.
    #[default]
    Never,
    /// Where it takes no reset of the GPU (Hopper and later).
    WithoutReset,
    /// Also where the change is pending until the GPU is reset (Ampere).
    WithReset,
}

/// How MPS shares of a GPU are fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MpsRule {
    /// Shares of one size only, so that the server's own limit is each client's wall, which no client can move.
    pub strict: bool,
    /// `EXCLUSIVE_PROCESS` while shares are served, so that a process that goes past the MPS server gets nothing.
    pub exclusive: bool,
}

/// How time slices of a GPU are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TimeSlicingRule {
    /// A fixed number of equal replicas, asked for as `nvidia.com/gpu.shared`, instead of slices by size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// How long a process runs before the next one's turn.
    #[serde(skip_serializing_if = "is_default")]
    pub length: SliceLength,
    /// Whether the driver limits the memory of each pod's cgroup, where it can (R615 and later; experimental).
    #[serde(skip_serializing_if = "is_default")]
    pub memory_limits: bool,
}

/// The time slice's length, in the words of `nvidia-smi compute-policy --set-timeslice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SliceLength {
    /// The driver's own.
    #[default]
    Default,
    /// Short.
    Short,
    /// Medium.
    Medium,
    /// Long.
    Long,
}

/// Idle slices that are kept ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WarmSlices {
    /// The resource name that they can be given under.
    pub resource: ResourceName,
    /// How many are idle at least, as long as there is room.
    pub count: u32,
}

/// What is done with a pod whose processes hold more GPU memory than it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverUse {
    /// An Event names it.
    #[default]
    Report,
    /// An Event names it, and it is evicted.
    Evict,
}

fn is_default<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NodePolicy, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn the_first_rule_that_names_a_gpu_holds_and_without_one_all_is_allowed() {
        let policy = read(
            r#"{"gpus": [{"select": {"indexes": [0]}, "kinds": ["mig"], "modeChange": "without-reset"},
                         {"select": {"models": ["T4-16GB"]}, "kinds": ["mps"], "mps": {"strict": true}}]}"#,
        )
        .unwrap();
        let uuid = GpuUuid::new("GPU-1");
        assert_eq!(policy.rule(0, &uuid, "T4-16GB").kinds, [Kind::Mig]);
        assert!(policy.rule(1, &uuid, "T4-16GB").mps.strict);
        assert_eq!(policy.rule(1, &uuid, "L4-24GB"), GpuRule::default());
    }

    #[test]
    fn a_setting_that_is_not_known_is_refused_by_name() {
        for (text, word) in [
            (r#"{"gpu": []}"#, "gpu"),
            (r#"{"gpus": [{"kinds": ["mig"], "reset": true}]}"#, "reset"),
            (r#"{"gpus": [{"kinds": ["vgpu"]}]}"#, "vgpu"),
            (r#"{"overUse": "kill"}"#, "kill"),
            (r#"{"warm": [{"resource": "nvidia.com/cpu", "count": 1}]}"#, "nvidia.com/cpu"),
        ] {
            assert!(read(text).unwrap_err().to_string().contains(word), "{text}");
        }
    }

    #[test]
    fn what_says_nothing_is_written_as_nothing() {
        assert_eq!(serde_json::json!(NodePolicy::default()), serde_json::json!({}));
    }
}
