//! What a node's GPUs may be used for: the part of the admin's policy that concerns one node. The extender copies it
//! into [`GpuNodeSpec`](super::GpuNodeSpec), so that the agent reads no policy files.
//!
//! An unknown field is refused, because an admin would rely on a setting that is silently ignored.

use super::{Layout, MigRule, Shape};
use crate::kind::Kind;
use crate::names::{GpuUuid, PciBusId};
use crate::resource::ResourceName;
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most replicas under MPS (k8s-device-plugin `cmd/mps-control-daemon`: 48 from Volta on).
pub const MPS_REPLICAS_LIMIT: u32 = 48;

/// The policy of one node. The default allows every kind on every GPU and changes no GPU's mode.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodePolicy {
    /// Rules for GPUs. The first that selects a GPU holds for it; otherwise the default rule does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRule>,
    /// Idle slices that the agent cuts ahead of demand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<WarmSlices>,
    /// What the agent does with a pod that uses more GPU memory than it was given.
    #[serde(skip_serializing_if = "is_default")]
    pub over_use: OverUse,
    /// Whether the agent removes pods of this node that failed with `UnexpectedAdmissionError`.
    #[serde(skip_serializing_if = "is_default")]
    pub remove_rejected_pods: bool,
}

impl NodePolicy {
    /// Whether the policy sets nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The rule for a GPU. If it has a layout, only the layout's kind stays allowed.
    #[must_use]
    pub fn rule(&self, index: u32, uuid: &GpuUuid, pci: Option<&PciBusId>, model: &str) -> GpuRule {
        let found = self.gpus.iter().find(|rule| rule.select.names(index, uuid, pci, model));
        let mut rule = found.cloned().unwrap_or_default();
        if let Some(kind) = rule.layout.kind() {
            rule.kinds.retain(|allowed| *allowed == kind);
        }
        rule
    }
}

/// The uses of some of the node's GPUs. Deserialization fails if the layout contradicts the other fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "GpuRule"))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields, remote = "Self")]
pub struct GpuRule {
    /// The GPUs that the rule is for.
    #[serde(skip_serializing_if = "is_default")]
    pub select: GpuSelector,
    /// The kinds of slice that may be cut.
    pub kinds: Vec<Kind>,
    /// Whether the agent may switch the MIG mode to match `kinds`.
    #[serde(skip_serializing_if = "is_default")]
    pub mode_change: ModeChange,
    /// Whether pods may share GPU instances as compute instances.
    #[serde(skip_serializing_if = "is_default")]
    pub compute_instances: bool,
    /// How pods share GPU instances by time slicing.
    #[serde(skip_serializing_if = "is_default")]
    pub mig: MigRule,
    /// How MPS shares are isolated from each other.
    #[serde(skip_serializing_if = "is_default")]
    pub mps: MpsRule,
    /// The settings of time slices.
    #[serde(skip_serializing_if = "is_default")]
    pub time_slicing: TimeSlicingRule,
    /// The exact slices that each of these GPUs always has; empty for GPUs that are cut on demand.
    #[serde(skip_serializing_if = "Layout::is_empty")]
    pub layout: Layout,
}

impl GpuRule {
    /// The number of equal shares of this kind on each GPU; `None` if the policy does not fix it.
    #[must_use]
    pub fn replicas(&self, kind: Kind) -> Option<u32> {
        match kind {
            Kind::Mig | Kind::Whole => None,
            Kind::Mps => self.mps.replicas.map(u32::from),
            Kind::TimeSlicing => self.time_slicing.replicas.filter(|replicas| *replicas > 0),
        }
    }

    /// One of the equal shares of this kind on a GPU with this memory. Its size is rounded down to whole GB; its part
    /// of the compute is rounded down to whole percent only. `None` if the rule has no equal shares, or they would have
    /// less than 1 GB.
    #[must_use]
    pub fn replica(&self, kind: Kind, memory: MemoryMib) -> Option<Shape> {
        let part = memory.0 / 1024 / u64::from(self.replicas(kind)?);
        let size_gb = u32::try_from(part).ok().filter(|gb| *gb > 0).map(SizeGb)?;
        match Shape::share(kind, size_gb)? {
            Shape::Mps { size_gb, .. } => {
                Some(Shape::Mps { size_gb, compute: self.mps.replicas.and_then(MpsReplicas::compute) })
            }
            shape => Some(shape),
        }
    }
}

// With `remote = "Self"` serde derives functions and no impls, so that `deserialize` below can check the whole rule.
impl Serialize for GpuRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for GpuRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rule = Self::deserialize(deserializer)?;
        rule.layout.check(&rule).map_err(serde::de::Error::custom)?;
        if rule.mps.replicas.is_some() && !is_default(&rule.mps.memory_percent) {
            return Err(serde::de::Error::custom(
                "mps.memoryPercent is set beside mps.replicas, which divide the memory once; remove one of them",
            ));
        }
        Ok(rule)
    }
}

impl Default for GpuRule {
    fn default() -> Self {
        Self {
            select: GpuSelector::default(),
            kinds: Kind::ALL.to_vec(),
            mode_change: ModeChange::default(),
            compute_instances: false,
            mig: MigRule::default(),
            mps: MpsRule::default(),
            time_slicing: TimeSlicingRule::default(),
            layout: Layout::default(),
        }
    }
}

/// Selects the GPUs that each list names. An empty list names all GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GpuSelector {
    /// NVML indexes. Policies must not name GPUs by them, because they shift when a GPU is lost or a machine boots.
    /// Extenders of earlier versions still write them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub indexes: Vec<u32>,
    /// UUIDs (`GPU-…`).
    pub uuids: Vec<GpuUuid>,
    /// Addresses on the PCI bus, such as `0000:65:00.0`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pci_bus_ids: Vec<PciBusId>,
    /// Short model names, such as `H100-80GB`.
    pub models: Vec<String>,
}

impl GpuSelector {
    fn names(&self, index: u32, uuid: &GpuUuid, pci: Option<&PciBusId>, model: &str) -> bool {
        let is_at = |pci: &PciBusId| self.pci_bus_ids.contains(pci);
        (self.indexes.is_empty() || self.indexes.contains(&index))
            && (self.uuids.is_empty() || self.uuids.contains(uuid))
            && (self.pci_bus_ids.is_empty() || pci.is_some_and(is_at))
            && (self.models.is_empty() || self.models.iter().any(|m| m == model))
    }
}

/// Whether the agent may switch a GPU's MIG mode. It does so on an empty GPU only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ModeChange {
    /// Never: the mode stays as the admin set it.
    #[default]
    Never,
    /// If the change needs no reset of the GPU (Hopper and later).
    WithoutReset,
    /// Also if the change is pending until the GPU is reset (Ampere).
    WithReset,
}

/// How the MPS shares of a GPU are isolated from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MpsRule {
    /// All shares of a GPU have one size. Then the MPS server's own limit holds for each client, and no client can
    /// raise it.
    pub strict: bool,
    /// The agent sets `EXCLUSIVE_PROCESS` while shares are served, so that a process that bypasses the MPS server gets
    /// nothing. Without it such a process can use all of the GPU. On by default; `false` if the mode must not be set.
    pub exclusive: bool,
    /// The limit for the sum of the shares.
    #[serde(skip_serializing_if = "is_default")]
    pub memory_percent: MpsMemory,
    /// The part of the GPU's compute that each share may use.
    #[serde(skip_serializing_if = "is_default")]
    pub compute_limit: ComputeLimit,
    /// A fixed number of equal shares instead of shares by size. Pods that ask for `nvidia.com/gpu` get them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<MpsReplicas>,
}

impl Default for MpsRule {
    fn default() -> Self {
        Self {
            strict: false,
            exclusive: true,
            memory_percent: MpsMemory::default(),
            compute_limit: ComputeLimit::default(),
            replicas: None,
        }
    }
}

impl MpsRule {
    /// Whether all shares of a GPU have one size, by `strict` or as equal parts.
    #[must_use]
    pub fn is_one_size(self) -> bool {
        self.strict || self.replicas.is_some()
    }

    /// Whether each share is limited to its part of the compute, which is then guaranteed to it.
    #[must_use]
    pub fn limits_compute(self) -> bool {
        self.compute_limit == ComputeLimit::Share
    }
}

/// The part of a GPU's compute that an MPS share may use. Its memory is always limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ComputeLimit {
    /// Its own part: the part that the pod asks for, otherwise the same part as of the memory. A share cannot use
    /// compute that other shares leave idle.
    #[default]
    Share,
    /// All compute that the other shares leave. The GPU does more work, but a busy neighbour slows a share down. No
    /// share has guaranteed compute, so pods that ask for some are served by other GPUs.
    None,
}

/// The limit for the sum of a GPU's MPS shares, in percent of its memory and of its compute: 100 to 400.
///
/// Each share keeps its own limit. Over 100, a pod may run out of memory before it reaches its limit, because other
/// pods have reached theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minimum" = 100, "maximum" = 400)))]
#[serde(try_from = "u16", into = "u16")]
pub struct MpsMemory(u16);

impl MpsMemory {
    /// The sum that the shares may reach, in percent of the GPU.
    #[must_use]
    pub fn percent(self) -> u64 {
        u64::from(self.0)
    }

    /// The sum that the shares may reach on a GPU with this memory.
    #[must_use]
    pub fn limit_for(self, memory: MemoryMib) -> MemoryMib {
        MemoryMib(memory.0.saturating_mul(self.percent()) / 100)
    }
}

impl Default for MpsMemory {
    fn default() -> Self {
        Self(100)
    }
}

impl TryFrom<u16> for MpsMemory {
    type Error = String;

    fn try_from(percent: u16) -> Result<Self, String> {
        let refused = || format!("memoryPercent is {percent}; write 100 to 400");
        (100..=400).contains(&percent).then_some(Self(percent)).ok_or_else(refused)
    }
}

impl From<MpsMemory> for u16 {
    fn from(memory: MpsMemory) -> Self {
        memory.0
    }
}

/// The number of equal MPS shares of a GPU: 2 to 48, because a daemon has at most 48 clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minimum" = 2, "maximum" = MPS_REPLICAS_LIMIT)))]
#[serde(try_from = "u32", into = "u32")]
pub struct MpsReplicas(u8);

impl MpsReplicas {
    /// The part of the GPU's compute that each share has, rounded down to whole percent.
    #[must_use]
    pub fn compute(self) -> Option<ComputePercent> {
        ComputePercent::new(100 / self.0)
    }
}

impl TryFrom<u32> for MpsReplicas {
    type Error = String;

    fn try_from(replicas: u32) -> Result<Self, String> {
        let refused = || format!("mps.replicas is {replicas}; write 2 to {MPS_REPLICAS_LIMIT}");
        let legal = (2..=MPS_REPLICAS_LIMIT).contains(&replicas);
        u8::try_from(replicas).ok().filter(|_| legal).map(Self).ok_or_else(refused)
    }
}

impl From<MpsReplicas> for u32 {
    fn from(replicas: MpsReplicas) -> Self {
        replicas.0.into()
    }
}

/// The settings of a GPU's time slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TimeSlicingRule {
    /// A fixed number of equal replicas instead of slices by size. Pods ask for them as `nvidia.com/gpu.shared`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// The time for which a process runs before the next one.
    #[serde(skip_serializing_if = "is_default")]
    pub length: SliceLength,
    /// Whether the driver limits the memory of each pod's cgroup, where it can (R615 and later; experimental).
    #[serde(skip_serializing_if = "is_default")]
    pub memory_limits: bool,
}

/// The time slice's length, in the words of `nvidia-smi compute-policy --set-timeslice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SliceLength {
    /// The driver's default length.
    #[default]
    Default,
    /// A short time slice.
    Short,
    /// A time slice of medium length.
    Medium,
    /// A long time slice.
    Long,
}

/// Idle slices that the agent cuts ahead of demand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WarmSlices {
    /// The resource name under which pods can get them.
    #[serde(deserialize_with = "crate::resource::plain")]
    pub resource: ResourceName,
    /// The least number of idle slices, as long as there is room.
    pub count: u32,
}

/// What the agent does with a pod whose processes hold more GPU memory than it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OverUse {
    /// The agent writes an Event.
    #[default]
    Report,
    /// The agent writes an Event and evicts the pod.
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
    fn the_first_rule_that_selects_a_gpu_holds_and_the_default_allows_all() {
        let policy = read(
            r#"{"gpus": [{"select": {"indexes": [0]}, "kinds": ["mig"], "modeChange": "without-reset"},
                         {"select": {"pciBusIds": ["00000000:1B:00.0"]}, "kinds": ["whole"]},
                         {"select": {"uuids": ["GPU-2"]}, "kinds": ["time-slicing"]},
                         {"select": {"models": ["T4-16GB"]}, "kinds": ["mps"], "mps": {"strict": true}}]}"#,
        )
        .unwrap();
        let (uuid, pci) = (GpuUuid::new("GPU-1"), "0000:1b:00.0".parse().unwrap());
        assert_eq!(policy.rule(0, &uuid, None, "T4-16GB").kinds, [Kind::Mig]);
        assert_eq!(policy.rule(1, &uuid, Some(&pci), "T4-16GB").kinds, [Kind::Whole]);
        assert_eq!(policy.rule(1, &GpuUuid::new("GPU-2"), None, "T4-16GB").kinds, [Kind::TimeSlicing]);
        let mps = policy.rule(1, &uuid, None, "T4-16GB").mps;
        assert!(mps.strict && mps.exclusive, "exclusive mode is off only where somebody says so");
        assert_eq!(policy.rule(1, &uuid, None, "L4-24GB"), GpuRule::default());
    }

    #[test]
    fn an_unknown_setting_is_refused_by_name() {
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
    fn memory_percent_is_100_to_400() {
        let rule =
            |percent: u32| read(&format!(r#"{{"gpus": [{{"mps": {{"memoryPercent": {percent}}}}}]}}"#));
        for percent in [99, 401, 70_000] {
            assert!(rule(percent).is_err(), "{percent}");
        }
        for (percent, memory) in [(100, 1000), (150, 1500), (400, 4000)] {
            let policy = rule(percent).unwrap();
            assert_eq!(policy.gpus[0].mps.memory_percent.limit_for(MemoryMib(1000)), MemoryMib(memory));
            assert_eq!(serde_json::from_value::<NodePolicy>(serde_json::json!(policy)).unwrap(), policy);
        }
        assert_eq!(MpsRule::default().memory_percent.limit_for(MemoryMib(1000)), MemoryMib(1000));
    }

    #[test]
    fn a_layout_is_read_as_it_is_written() {
        let policy = read(
            r#"{"gpus": [{"layout": [{"resource": "nvidia.com/mig-3g.40gb", "count": 1},
                                     {"resource": "nvidia.com/mig-1g.10gb", "count": 4}]}]}"#,
        )
        .unwrap();
        let layout = &policy.gpus[0].layout;
        assert_eq!(layout.to_string(), "1 x nvidia.com/mig-3g.40gb, 4 x nvidia.com/mig-1g.10gb");
        assert_eq!(layout.kind(), Some(Kind::Mig));
        assert_eq!(serde_json::from_value::<NodePolicy>(serde_json::json!(policy)).unwrap(), policy);
    }

    #[test]
    fn an_illegal_layout_is_refused_with_a_remedy() {
        let texts = [
            r#"{"layout": [{"resource": "nvidia.com/gpu-4gb", "count": 0}]}"#,
            r#"{"layout": [{"resource": "nvidia.com/gpu", "count": 2}]}"#,
            r#"{"layout": [{"resource": "nvidia.com/gpu-4gb", "count": 1}, {"resource": "nvidia.com/gpu-4gb", "count": 2}]}"#,
            r#"{"layout": [{"resource": "nvidia.com/gpu-4gb", "count": 1}, {"resource": "nvidia.com/mig-1g.10gb", "count": 2}]}"#,
            r#"{"layout": [{"resource": "nvidia.com/mig-1c.3g.40gb", "count": 1}]}"#,
            r#"{"kinds": ["mps"], "layout": [{"resource": "nvidia.com/mig-1g.10gb", "count": 1}]}"#,
            r#"{"timeSlicing": {"replicas": 2}, "layout": [{"resource": "nvidia.com/gpu-4gb.shared", "count": 1}]}"#,
            r#"{"layout": [{"resource": "nvidia.com/gpu.shared", "count": 1}]}"#,
            r#"{"timeSlicing": {"replicas": 2}, "layout": [{"resource": "nvidia.com/gpu.shared", "count": 3}]}"#,
            r#"{"mps": {"replicas": 2}, "layout": [{"resource": "nvidia.com/gpu-4gb", "count": 1}]}"#,
            r#"{"layout": [{"resource": "nvidia.com/gpu.mps", "count": 1}]}"#,
            r#"{"mps": {"replicas": 2}, "layout": [{"resource": "nvidia.com/gpu.mps", "count": 3}]}"#,
            r#"{"layout": [{"resource": "nvidia.com/mig-1g.10gb.shared", "count": 1}]}"#,
            r#"{"mig": {"timeSlicing": 2}, "layout": [{"resource": "nvidia.com/mig-1g.10gb", "count": 1}]}"#,
            r#"{"mps": {"strict": true}, "layout": [{"resource": "nvidia.com/gpu-4gb", "count": 1}, {"resource": "nvidia.com/gpu-2gb", "count": 1}]}"#,
        ];
        let refusal = |text| serde_json::from_str::<GpuRule>(text).unwrap_err().to_string();
        let refusals: Vec<_> = texts.iter().map(|text| refusal(text)).collect();
        insta::assert_snapshot!(refusals.join("\n"));
    }

    #[test]
    fn a_gpu_has_2_to_48_equal_mps_shares() {
        for replicas in [0, 1, 49, 300] {
            let text = format!(r#"{{"gpus": [{{"mps": {{"replicas": {replicas}}}}}]}}"#);
            let refusal = read(&text).unwrap_err().to_string();
            assert!(refusal.contains(&format!("mps.replicas is {replicas}; write 2 to 48")), "{refusal}");
        }
        let policy = read(r#"{"gpus": [{"mps": {"replicas": 3}}]}"#).unwrap();
        assert_eq!(serde_json::from_value::<NodePolicy>(serde_json::json!(policy)).unwrap(), policy);
        let (rule, t4) = (&policy.gpus[0], MemoryMib(15_360));
        assert_eq!(rule.replica(Kind::TimeSlicing, t4), None);
        let third = Shape::Mps { size_gb: SizeGb(5), compute: ComputePercent::new(33) };
        assert_eq!(rule.replica(Kind::Mps, t4), Some(third));
        assert!(rule.mps.is_one_size() && !rule.mps.strict);
        let refusal = read(r#"{"gpus": [{"mps": {"replicas": 3, "memoryPercent": 150}}]}"#).unwrap_err();
        assert!(refusal.to_string().contains("mps.memoryPercent is set beside mps.replicas"), "{refusal}");
    }

    #[test]
    fn the_default_policy_is_written_as_an_empty_object() {
        assert_eq!(serde_json::json!(NodePolicy::default()), serde_json::json!({}));
    }
}
