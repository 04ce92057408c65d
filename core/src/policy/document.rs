//! The policy file as admins write it, and the checked policy made of it.

use super::Lineage;
use super::document_check::problems;
use super::document_fault::PolicyError;
use super::signature::Signature;
use super::{EnvironmentRule, MpsPodRule, NodeNameRule, PodMatch, PreemptionRule, SizeRule, WaitingRule};
use crate::kind::{IsolationClass, Kind};
use crate::mig::Profile;
use crate::quota::Cap;
use crate::request::{DEFAULT_SIDECARS, Dialect, Reading};
use crate::units::SizeGb;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A policy file. Unknown fields are errors, so that a typo never weakens a policy silently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyDocument {
    /// `kerf.dev/v1alpha1`.
    #[cfg_attr(feature = "schema", schemars(schema_with = "super::schema::api_version"))]
    pub api_version: String,
    /// `GpuPolicy`.
    #[cfg_attr(feature = "schema", schemars(schema_with = "super::schema::pod_kind"))]
    pub kind: String,
    /// The metadata, with the policy's name.
    pub metadata: Metadata,
    /// The fields of the policy.
    pub spec: PolicySpec,
}

/// `metadata` of a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The policy's name in messages and records: a valid name of a Kubernetes object, unique among policies of its
    /// kind.
    pub name: String,
}

/// `spec` of a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("anyOf" = super::schema::complete())))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// The pods that the policy is for; all pods if it is absent. The first policy that matches a pod holds for it.
    #[serde(default, rename = "match", skip_serializing_if = "PodMatch::is_all")]
    pub pods: PodMatch,
    /// The policy from which this one inherits each field of `spec` that it does not write. `match`, `deny`, `extends`
    /// and `packing` are never inherited. A written field replaces all of the inherited one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<String>,
    /// The reason why these pods get no GPU. A policy with it has `match` and no other field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny: Option<String>,
    /// The class of a pod that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_isolation: Option<IsolationClass>,
    /// For each class the kinds to try, first choice first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = super::schema::class_names())))]
    pub isolation: BTreeMap<IsolationClass, Vec<Kind>>,
    /// The GPU models that the pods may have (`H100-80GB`); all if it is absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::selector::listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub models: Vec<String>,
    /// The kinds that each of these GPU models may serve. A model that is not named may serve every kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kinds_by_model: BTreeMap<String, Vec<Kind>>,
    /// The labels, with their values, that the pods' nodes must have; all nodes if it is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The tolerations that kerf adds to admitted pods, so that they may run on tainted GPU nodes.
    #[serde(default = "default_tolerations")]
    pub tolerations: Vec<Toleration>,
    /// The scheduler that kerf sets on admitted pods. If it is empty, pods keep theirs; then every scheduler of the
    /// cluster must call the extender.
    #[serde(default = "default_scheduler")]
    pub scheduler_name: String,
    /// The most slices that one container may ask for.
    #[serde(default = "default_max_count")]
    pub max_count: u32,
    /// The sizes that pods may ask for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sizes: SizeRule,
    /// The most that one pod may ask for. kerf refuses more at admission.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_per_pod: Cap,
    /// The most that all pods of a namespace under this policy may hold at a time. Further pods stay pending.
    #[serde(default, skip_serializing_if = "is_default")]
    pub quota: Cap,
    /// The dialects of other systems that kerf reads; only `mig` if it is absent.
    #[serde(default = "default_dialects", skip_serializing_if = "is_default_dialects")]
    pub dialects: BTreeSet<Dialect>,
    /// The GPU memory, in GB, to which a dialect's fractions refer; the largest GPU's if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction_of_gb: Option<SizeGb>,
    /// The names of containers that injectors add to pods. A pod's annotation without a container's name never means them.
    #[serde(default = "default_sidecars")]
    pub sidecars: Vec<String>,
    /// What kerf does with pods that have `spec.nodeName`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node_name: NodeNameRule,
    /// What kerf does with environment variables that bypass a slice.
    #[serde(default, skip_serializing_if = "is_default")]
    pub environment: EnvironmentRule,
    /// The requirements on pods with MPS shares.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mps: MpsPodRule,
    /// The runtime class of pods that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// It has no meaning any more: a pending pod takes the first kind of its class that becomes free.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingRule>,
    /// Whether pods may be evicted for others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preemption: PreemptionRule,
    /// The weights for packing.
    #[serde(default, skip_serializing_if = "Packing::is_default")]
    pub packing: Packing,
}

/// `spec.packing` of a policy file: the weights for packing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// The weight of free capacity for each MIG profile, in percent of the weight of profiles that are not listed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<Profile, u32>,
}

impl Packing {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn is_default<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}

fn default_scheduler() -> String {
    "kerf-scheduler".to_owned()
}

fn default_sidecars() -> Vec<String> {
    DEFAULT_SIDECARS.map(str::to_owned).to_vec()
}

fn default_dialects() -> BTreeSet<Dialect> {
    BTreeSet::from([Dialect::Mig])
}

fn is_default_dialects(dialects: &BTreeSet<Dialect>) -> bool {
    *dialects == default_dialects()
}

fn default_max_count() -> u32 {
    16
}

/// Tolerates the taint that the GPU Operator's documentation and the clouds put on GPU nodes.
fn default_tolerations() -> Vec<Toleration> {
    vec![Toleration {
        key: Some("nvidia.com/gpu".to_owned()),
        operator: Some("Exists".to_owned()),
        value: None,
        effect: Some("NoSchedule".to_owned()),
    }]
}

/// A toleration as in a Pod's spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `Exists` or `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The taint's value, for `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The taint's effect; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// A checked policy. Each class has at least one kind, and no kind isolates less than the class requires. A policy with
/// `deny` has no class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The signature of `spec.match`, computed once because kerf compares it with every pod.
    signature: Signature,
    name: String,
    spec: PolicySpec,
    lineage: Lineage,
}

impl PolicyDocument {
    /// All mistakes of the document, in the order of its fields; empty if it makes a policy.
    #[must_use]
    pub fn problems(&self) -> Vec<PolicyError> {
        problems(self)
    }
}

impl TryFrom<PolicyDocument> for Policy {
    type Error = PolicyError;

    /// Fails with the first of the document's problems.
    fn try_from(document: PolicyDocument) -> Result<Self, PolicyError> {
        if let Some(error) = document.problems().into_iter().next() {
            return Err(error);
        }
        Ok(Self::from_document(document, Lineage::default()))
    }
}

impl PolicySpec {
    /// The way to read a pod under this policy, in a cluster whose largest GPU has the size `largest`.
    #[must_use]
    pub fn reading(&self, largest: Option<SizeGb>) -> Reading<'_> {
        let fraction_of = self.fraction_of_gb.or(largest);
        Reading { dialects: &self.dialects, fraction_of, sidecars: Some(&self.sidecars) }
    }
}

impl Policy {
    /// Makes a policy of a document that has no problems.
    pub(super) fn from_document(document: PolicyDocument, lineage: Lineage) -> Self {
        let (name, spec) = (document.metadata.name, document.spec);
        Self { signature: Signature::from_match(&spec.pods), name, spec, lineage }
    }

    /// The policy's `metadata.name`, which messages and request documents carry.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policies that it extends, and the policy that each field comes from.
    #[must_use]
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The reason why its pods may have no GPU; `None` if they may.
    #[must_use]
    pub fn deny(&self) -> Option<&str> {
        self.spec.deny.as_deref()
    }

    /// The class of a pod that names none. It means nothing for a policy that denies, because that serves no class.
    #[must_use]
    pub fn default_isolation(&self) -> IsolationClass {
        self.spec.default_isolation.unwrap_or(IsolationClass::Hardware)
    }

    /// The kinds that may serve `class`, first choice first; `None` if the class is forbidden.
    #[must_use]
    pub fn kinds(&self, class: IsolationClass) -> Option<&[Kind]> {
        self.spec.isolation.get(&class).map(Vec::as_slice)
    }

    /// The same policy without one kind. A class that only this kind serves becomes forbidden.
    #[must_use]
    pub(crate) fn without(&self, kind: Kind) -> Self {
        let mut policy = self.clone();
        policy.spec.isolation.retain(|_, kinds| {
            kinds.retain(|served| *served != kind);
            !kinds.is_empty()
        });
        policy
    }

    /// The tolerations that the webhook adds to admitted pods.
    #[must_use]
    pub fn tolerations(&self) -> &[Toleration] {
        &self.spec.tolerations
    }

    /// The scheduler that the webhook sets on admitted pods; empty if pods keep theirs.
    #[must_use]
    pub fn scheduler_name(&self) -> &str {
        &self.spec.scheduler_name
    }

    /// The most slices that one container may ask for.
    #[must_use]
    pub fn max_count(&self) -> u32 {
        self.spec.max_count
    }

    /// The policy's fields, with those that it inherits.
    #[must_use]
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    pub(super) fn signature(&self) -> Signature {
        self.signature
    }

    /// The weight of free capacity for each MIG profile, in percent of the weight of profiles that are not listed.
    #[must_use]
    pub fn weights(&self) -> &BTreeMap<Profile, u32> {
        &self.spec.packing.weights
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
