//! The policy file as admins write it, and the checked policy made of it.

use crate::kind::{IsolationClass, Kind};
use crate::mig::Profile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// A policy file. Unknown fields are errors, so that a typo never weakens a policy silently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyDocument {
    /// `kerf.dev/v1alpha1`.
    pub api_version: String,
    /// `GpuPolicy`.
    pub kind: String,
    /// Its name.
    pub metadata: Metadata,
    /// The policy.
    pub spec: PolicySpec,
}

/// `metadata` of a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The policy's name, for messages.
    pub name: String,
}

/// `spec` of a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// The class of a pod that names none.
    pub default_isolation: IsolationClass,
    /// For each class the kinds to try, first choice first.
    pub isolation: BTreeMap<IsolationClass, Vec<Kind>>,
    /// Added to admitted pods, so that they may run on tainted GPU nodes.
    #[serde(default = "default_tolerations")]
    pub tolerations: Vec<Toleration>,
    /// The scheduler that admitted pods are given to.
    #[serde(default = "default_scheduler")]
    pub scheduler_name: String,
    /// The most slices that one container may ask for.
    #[serde(default = "default_max_count")]
    pub max_count: u32,
    /// How places are valued.
    #[serde(default, skip_serializing_if = "Packing::is_default")]
    pub packing: Packing,
}

/// `spec.packing` of a policy file: how places are valued.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// How much room for a MIG profile counts, in percent of what it counts for those that are not named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<Profile, u32>,
}

impl Packing {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn default_scheduler() -> String {
    "kerf-scheduler".to_owned()
}

fn default_max_count() -> u32 {
    16
}

/// The taint that GPU Operator's documentation and the clouds put on GPU nodes.
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

/// A checked policy: each class has at least one kind, and none that isolates less than the class promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    name: String,
    spec: PolicySpec,
}

/// Why a policy document is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// Another version.
    #[error("apiVersion: {0:?} is not known; this program reads kerf.dev/v1alpha1")]
    Version(String),
    /// Another kind.
    #[error("kind: {0:?} is not known; write GpuPolicy")]
    Kind(String),
    /// A class falls below its promise.
    #[error("spec.isolation.{class}: a slice of kind {kind} isolates less than {class} promises; remove it")]
    TooWeak {
        /// The class.
        class: IsolationClass,
        /// The kind.
        kind: Kind,
    },
    /// A class has no kind.
    #[error("spec.isolation.{0}: no kind is listed; list at least one, or leave the class out to forbid it")]
    Empty(IsolationClass),
    /// The default class is not allowed.
    #[error("spec.defaultIsolation: {0} has no entry in spec.isolation; add one")]
    Default(IsolationClass),
    /// No count is allowed.
    #[error("spec.maxCount: 0 would forbid every request; write 1 or more")]
    MaxCount,
    /// A weight that is none.
    #[error("spec.packing.weights.{0}: {1} percent is out of bounds; write 1 to 10000")]
    Weight(Profile, u32),
}

impl TryFrom<PolicyDocument> for Policy {
    type Error = PolicyError;

    fn try_from(document: PolicyDocument) -> Result<Self, PolicyError> {
        let PolicyDocument { api_version, kind, metadata, spec } = document;
        if api_version != format!("{}/{}", crate::keys::GROUP, crate::keys::VERSION) {
            return Err(PolicyError::Version(api_version));
        }
        if kind != "GpuPolicy" {
            return Err(PolicyError::Kind(kind));
        }
        for (class, kinds) in &spec.isolation {
            if kinds.is_empty() {
                return Err(PolicyError::Empty(*class));
            }
            if let Some(kind) = kinds.iter().find(|kind| !class.is_served_by(**kind)) {
                return Err(PolicyError::TooWeak { class: *class, kind: *kind });
            }
        }
        if !spec.isolation.contains_key(&spec.default_isolation) {
            return Err(PolicyError::Default(spec.default_isolation));
        }
        if spec.max_count == 0 {
            return Err(PolicyError::MaxCount);
        }
        let weights = spec.packing.weights.iter();
        if let Some((profile, weight)) = weights.into_iter().find(|(_, w)| !(1..=10_000).contains(*w)) {
            return Err(PolicyError::Weight(*profile, *weight));
        }
        Ok(Self { name: metadata.name, spec })
    }
}

impl Policy {
    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The class of a pod that names none.
    #[must_use]
    pub fn default_isolation(&self) -> IsolationClass {
        self.spec.default_isolation
    }

    /// The kinds that may serve `class`, first choice first; `None` if the class is forbidden.
    #[must_use]
    pub fn kinds(&self, class: IsolationClass) -> Option<&[Kind]> {
        self.spec.isolation.get(&class).map(Vec::as_slice)
    }

    /// The tolerations that admitted pods get.
    #[must_use]
    pub fn tolerations(&self) -> &[Toleration] {
        &self.spec.tolerations
    }

    /// The scheduler that admitted pods are given to.
    #[must_use]
    pub fn scheduler_name(&self) -> &str {
        &self.spec.scheduler_name
    }

    /// The most slices that one container may ask for.
    #[must_use]
    pub fn max_count(&self) -> u32 {
        self.spec.max_count
    }

    /// How much room for a profile counts, in percent of what it counts for those that are not named.
    #[must_use]
    pub fn weights(&self) -> &BTreeMap<Profile, u32> {
        &self.spec.packing.weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy(spec: Value) -> Result<Policy, PolicyError> {
        let document = json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"}, "spec": spec});
        serde_json::from_value::<PolicyDocument>(document).unwrap().try_into()
    }

    #[test]
    fn a_class_never_falls_below_its_promise() {
        assert_eq!(
            policy(json!({"defaultIsolation": "memory", "isolation": {"memory": ["mig", "time-slicing"]}})),
            Err(PolicyError::TooWeak { class: IsolationClass::Memory, kind: Kind::TimeSlicing })
        );
    }

    #[test]
    fn the_default_class_must_be_allowed() {
        assert_eq!(
            policy(json!({"defaultIsolation": "none", "isolation": {"memory": ["mig"]}})),
            Err(PolicyError::Default(IsolationClass::None))
        );
    }

    #[test]
    fn a_typo_is_an_error_that_names_it() {
        let error = serde_json::from_value::<PolicySpec>(json!({"defaultIsolaton": "none", "isolation": {}}))
            .unwrap_err();
        assert!(error.to_string().contains("unknown field `defaultIsolaton`"), "{error}");
    }
}
