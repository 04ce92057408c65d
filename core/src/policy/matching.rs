//! Which pods a policy is for.

use super::namespace_selector::{LabelExpression, NamespaceSelector, expressions};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// `spec.match` of a policy: a pod must be in every list that is there, and have every label. Absent, it is for all pods.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PodMatch {
    /// Namespaces. `team-*` names all that begin so.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "listed")]
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
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub priority_classes: Vec<String>,
    /// `spec.serviceAccountName`; each may end in `*`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub service_accounts: Vec<String>,
    /// GPU models (`H100-80GB`): the pod names models, and each of them is listed here.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub models: Vec<String>,
}

/// What of a pod decides which policy is for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its namespace's labels; `None` where they are not known, and then no policy that asks for them is for the pod.
    pub namespace_labels: Option<BTreeMap<String, String>>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its priority class; empty for none.
    pub priority_class: String,
    /// Its service account; empty for none.
    pub service_account: String,
    /// The GPU models that it names.
    pub models: Vec<String>,
}

/// A pod's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace<'n> {
    /// Its name.
    pub name: &'n str,
    /// Its labels, where they are known.
    pub labels: Option<&'n BTreeMap<String, String>>,
}

impl<'n> From<&'n str> for Namespace<'n> {
    /// A namespace whose labels are not known.
    fn from(name: &'n str) -> Self {
        Self { name, labels: None }
    }
}

/// The first field of a policy's `match` that keeps the policy from a pod or a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch<'p> {
    /// The namespace is not listed.
    Namespace(&'p str),
    /// A label is absent or has another value.
    Label {
        /// The label.
        key: &'p str,
        /// The value that the policy names.
        wanted: &'p str,
        /// The value that is there; `None` if it is absent.
        found: Option<&'p str>,
    },
    /// The priority class is not listed; empty for none.
    PriorityClass(&'p str),
    /// The service account is not listed; empty for none.
    ServiceAccount(&'p str),
    /// The pod names no model, so it may get any.
    NoModel,
    /// A model that the pod names is not listed.
    Model(&'p str),
    /// A label of the namespace is absent or has another value.
    NamespaceLabel {
        /// The label.
        key: &'p str,
        /// The value that the policy names.
        wanted: &'p str,
        /// The value that is there; `None` if it is absent.
        found: Option<&'p str>,
    },
    /// A part of the selector that the namespace does not meet.
    NamespaceSelector(LabelExpression),
    /// The policy asks for the namespace's labels, and they are not known.
    UnknownNamespace(&'p str),
    /// The node's name is not listed.
    NodeName(&'p str),
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
            Self::NodeName(name) => write!(f, "spec.match.names does not name {}", quoted(name)),
        }
    }
}

impl PodMatch {
    /// Whether the policy is for every pod.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the policy is for this pod.
    #[must_use]
    pub fn is_for(&self, pod: &PodFacts) -> bool {
        self.mismatch(pod).is_none()
    }

    /// The first field that keeps the policy from this pod; `None` if it is for it.
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
        if let Some(mismatch) = of_labels(&self.labels, &pod.labels) {
            return Some(mismatch);
        }
        let by_models = match (self.models.as_slice(), pod.models.as_slice()) {
            ([], _) => None,
            (_, []) => Some(Mismatch::NoModel),
            (listed, named) => named.iter().find(|model| !listed.contains(model)).map(|m| Mismatch::Model(m)),
        };
        // Last: what is not known of a namespace matters only where all else matches.
        by_models.or_else(|| self.of_namespace(pod))
    }

    /// Whether the policy asks for labels of the pod's namespace.
    #[must_use]
    pub fn reads_namespace_labels(&self) -> bool {
        !self.namespace_labels.is_empty() || self.namespace_selector.is_some()
    }

    /// What of the namespace's labels keeps the policy from this pod.
    fn of_namespace<'p>(&'p self, pod: &'p PodFacts) -> Option<Mismatch<'p>> {
        if !self.reads_namespace_labels() {
            return None;
        }
        let Some(found) = &pod.namespace_labels else {
            return Some(Mismatch::UnknownNamespace(&pod.namespace));
        };
        if let Some(Mismatch::Label { key, wanted, found }) = of_labels(&self.namespace_labels, found) {
            return Some(Mismatch::NamespaceLabel { key, wanted, found });
        }
        self.namespace_selector.as_ref()?.unmet(found).map(Mismatch::NamespaceSelector)
    }

    /// All that is asked of the namespace's labels.
    fn namespace_expressions(&self) -> Vec<LabelExpression> {
        let selector = self.namespace_selector.iter().flat_map(NamespaceSelector::expressions);
        expressions(&self.namespace_labels).chain(selector).collect()
    }

    /// Whether the policy is for every pod that `other` is for.
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

    /// Whether every namespace whose labels `other` takes is taken by this one.
    fn covers_namespaces(&self, other: &Self) -> bool {
        let narrow = other.namespace_expressions();
        self.namespace_expressions().iter().all(|wide| narrow.iter().any(|narrow| wide.follows_from(narrow)))
    }
}

/// What in `labels` keeps away somebody who has `found`.
pub(super) fn of_labels<'p>(
    labels: &'p BTreeMap<String, String>,
    found: &'p BTreeMap<String, String>,
) -> Option<Mismatch<'p>> {
    labels.iter().find_map(|(key, wanted)| {
        let found = found.get(key);
        (found != Some(wanted)).then(|| Mismatch::Label { key, wanted, found: found.map(String::as_str) })
    })
}

/// Whether whoever has the labels `narrow` has the labels `wide`.
pub(super) fn has_all(wide: &BTreeMap<String, String>, narrow: &BTreeMap<String, String>) -> bool {
    wide.iter().all(|(key, value)| narrow.get(key) == Some(value))
}

/// Whether a list of names means `name`. An empty one means all.
pub(super) fn in_list(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|listed| names(listed, name))
}

/// Whether the list `wide` means every name that `narrow` means.
pub(super) fn covers(wide: &[String], narrow: &[String]) -> bool {
    // A beginning is meant with all that follows it only by a beginning of itself.
    let means = |narrow: &String| match narrow.strip_suffix('*') {
        Some(beginning) => wide.iter().any(|w| w.strip_suffix('*').is_some_and(|w| beginning.starts_with(w))),
        None => in_list(wide, narrow),
    };
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(means)) || wide.iter().any(|w| w == "*")
}

/// Whether a name of a list, which may end in `*`, means `name`.
fn names(listed: &str, name: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => listed == name,
    }
}

/// Reads a list that must name something: an empty one would look like nobody and mean everybody.
pub(super) fn listed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let list = Vec::<String>::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(serde::de::Error::custom(
            "the list is empty; name at least one, or leave the field out for all",
        ));
    }
    Ok(list)
}

#[cfg(test)]
#[path = "matching_tests.rs"]
mod tests;
