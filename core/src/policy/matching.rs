//! Decides which pods a policy matches.

use super::namespace_selector::{LabelExpression, NamespaceSelector, expressions};
use crate::request::PodFacts;
use crate::selector::{covers, has_all, in_list};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// `spec.match` of a policy: each list must name the pod, and the pod must have every label. If it is absent, the
/// policy is for all pods.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PodMatch {
    /// Namespaces. `team-*` means all that begin with `team-`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::selector::listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub namespaces: Vec<String>,
    /// Labels of the pod's namespace, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_labels: BTreeMap<String, String>,
    /// A label selector that the pod's namespace must meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<NamespaceSelector>,
    /// Labels of the pod, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `spec.priorityClassName`; each may end in `*`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::selector::listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub priority_classes: Vec<String>,
    /// `spec.serviceAccountName`; each may end in `*`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::selector::listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub service_accounts: Vec<String>,
    /// GPU models (`H100-80GB`). The pod must name models, and the list must have each of them.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::selector::listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub models: Vec<String>,
}

/// The first condition of a policy's `match` that a pod does not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch<'p> {
    /// `namespaces` does not list the pod's namespace.
    Namespace(&'p str),
    /// A label of the pod is absent or has another value.
    Label {
        /// Key of the label in the policy.
        key: &'p str,
        /// The value that the policy requires.
        wanted: &'p str,
        /// The value that was found; `None` if the label is absent.
        found: Option<&'p str>,
    },
    /// `priorityClasses` does not list the pod's; empty if it has none.
    PriorityClass(&'p str),
    /// `serviceAccounts` does not list the pod's; empty if it has none.
    ServiceAccount(&'p str),
    /// The pod names no model, so it may get a model that `models` does not list.
    NoModel,
    /// The pod names a model that `models` does not list.
    Model(&'p str),
    /// A label of the namespace is absent or has another value.
    NamespaceLabel {
        /// Key of the label in the policy.
        key: &'p str,
        /// The value that the policy requires.
        wanted: &'p str,
        /// The value that was found; `None` if the label is absent.
        found: Option<&'p str>,
    },
    /// A part of `namespaceSelector` that the namespace does not meet.
    NamespaceSelector(LabelExpression),
    /// The policy selects by the namespace's labels, and these are not known.
    UnknownNamespace(&'p str),
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| if text.is_empty() { "none".to_owned() } else { format!("{text:?}") };
        match self {
            Self::Namespace(name) => write!(f, "spec.match.namespaces does not name {}", quoted(name)),
            Self::Label { key, wanted, found } => {
                let found =
                    found.map_or("the label is absent".to_owned(), |found| format!("it is {found:?}"));
                write!(f, "spec.match.labels[{key}] is {wanted:?}, and {found}")
            }
            Self::PriorityClass(name) => {
                write!(f, "spec.match.priorityClasses does not name the pod's, {}", quoted(name))
            }
            Self::ServiceAccount(name) => {
                write!(f, "spec.match.serviceAccounts does not name the pod's, {}", quoted(name))
            }
            Self::NoModel => {
                f.write_str("spec.match.models is for pods that name GPU models, and the pod names none")
            }
            Self::Model(model) => write!(f, "spec.match.models does not name {model:?}, which the pod names"),
            Self::NamespaceLabel { key, wanted, found } => {
                let found =
                    found.map_or("the label is absent".to_owned(), |found| format!("it is {found:?}"));
                write!(f, "spec.match.namespaceLabels[{key}] is {wanted:?}, and {found}")
            }
            Self::NamespaceSelector(unmet) => {
                write!(f, "the namespace does not meet {unmet} of spec.match.namespaceSelector")
            }
            Self::UnknownNamespace(name) => {
                write!(
                    f,
                    "spec.match selects namespaces by label, and the labels of namespace {name} are not known"
                )
            }
        }
    }
}

impl PodMatch {
    /// Whether the policy matches every pod.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the policy matches this pod.
    #[must_use]
    pub fn is_for(&self, pod: &PodFacts) -> bool {
        self.mismatch(pod).is_none()
    }

    /// The first condition that this pod does not meet; `None` if the policy matches it.
    #[must_use]
    pub fn mismatch<'p>(&'p self, pod: &'p PodFacts) -> Option<Mismatch<'p>> {
        if !in_list(&self.namespaces, &pod.namespace) {
            return Some(Mismatch::Namespace(&pod.namespace));
        }
        if !in_list(&self.priority_classes, &pod.priority_class) {
            return Some(Mismatch::PriorityClass(&pod.priority_class));
        }
        if !in_list(&self.service_accounts, &pod.service_account) {
            return Some(Mismatch::ServiceAccount(&pod.service_account));
        }
        if let Some(mismatch) = label_mismatch(&self.labels, &pod.labels) {
            return Some(mismatch);
        }
        let by_models = match (self.models.as_slice(), pod.models.as_slice()) {
            ([], _) => None,
            (_, []) => Some(Mismatch::NoModel),
            (listed, named) => named.iter().find(|model| !listed.contains(model)).map(|m| Mismatch::Model(m)),
        };
        // Namespace labels come last, because unknown labels matter only if everything else matches.
        by_models.or_else(|| self.namespace_mismatch(pod))
    }

    /// Whether the policy selects by labels of the pod's namespace.
    #[must_use]
    pub fn reads_namespace_labels(&self) -> bool {
        !self.namespace_labels.is_empty() || self.namespace_selector.is_some()
    }

    /// The first condition on namespace labels that this pod does not meet.
    fn namespace_mismatch<'p>(&'p self, pod: &'p PodFacts) -> Option<Mismatch<'p>> {
        if !self.reads_namespace_labels() {
            return None;
        }
        let Some(found) = &pod.namespace_labels else {
            return Some(Mismatch::UnknownNamespace(&pod.namespace));
        };
        if let Some(Mismatch::Label { key, wanted, found }) = label_mismatch(&self.namespace_labels, found) {
            return Some(Mismatch::NamespaceLabel { key, wanted, found });
        }
        self.namespace_selector.as_ref()?.unmet(found).map(Mismatch::NamespaceSelector)
    }

    /// All conditions on namespace labels, as expressions.
    fn namespace_expressions(&self) -> Vec<LabelExpression> {
        let selector = self.namespace_selector.iter().flat_map(NamespaceSelector::expressions);
        expressions(&self.namespace_labels).chain(selector).collect()
    }

    /// Whether the policy matches every pod that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        covers(&self.namespaces, &other.namespaces)
            && covers(&self.priority_classes, &other.priority_classes)
            && covers(&self.service_accounts, &other.service_accounts)
            && has_all(&self.labels, &other.labels)
            && self.covers_namespaces(other)
            && (self.models.is_empty()
                || !other.models.is_empty() && other.models.iter().all(|model| self.models.contains(model)))
    }

    /// Whether the policy's conditions on namespace labels hold for every namespace that `other` selects.
    fn covers_namespaces(&self, other: &Self) -> bool {
        let narrow = other.namespace_expressions();
        self.namespace_expressions().iter().all(|wide| narrow.iter().any(|narrow| wide.follows_from(narrow)))
    }
}

/// The first of the required `labels` that `found` does not have.
fn label_mismatch<'p>(
    labels: &'p BTreeMap<String, String>,
    found: &'p BTreeMap<String, String>,
) -> Option<Mismatch<'p>> {
    labels.iter().find_map(|(key, wanted)| {
        let found = found.get(key);
        (found != Some(wanted)).then(|| Mismatch::Label { key, wanted, found: found.map(String::as_str) })
    })
}

#[cfg(test)]
#[path = "matching_tests.rs"]
mod tests;
