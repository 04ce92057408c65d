//! Lists of names and of labels that select nodes and pods.

use crate::names::NodeName;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// The labels of a node or a pod.
pub trait Labels {
    /// The value of the label with this key; `None` if there is no such label.
    fn value(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

/// `spec.match` of a policy for nodes: the list of names, if there is one, must name the node, and the node must have
/// every label.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodeMatch {
    /// Names of nodes. `gpu-a-*` means all that begin with `gpu-a-`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "listed")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub names: Vec<String>,
    /// Labels of the node, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl NodeMatch {
    /// Whether the policy is for every node.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the policy is for the node of this name with these labels.
    #[must_use]
    pub fn is_for(&self, name: &NodeName, labels: &impl Labels) -> bool {
        in_list(&self.names, name.as_str()) && has_all(&self.labels, labels)
    }

    /// Whether the policy is for every node that `other` is for.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        covers(&self.names, &other.names) && has_all(&self.labels, &other.labels)
    }
}

/// Whether everything that has the labels `narrow` also has the labels `wide`.
pub(crate) fn has_all(wide: &BTreeMap<String, String>, narrow: &impl Labels) -> bool {
    wide.iter().all(|(key, value)| narrow.value(key) == Some(value))
}

/// Whether a list of names contains `name`, directly or by a `*`. An empty list means all names.
pub(crate) fn in_list(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|listed| names(listed, name))
}

/// Whether the list `wide` contains every name that `narrow` contains.
pub(crate) fn covers(wide: &[String], narrow: &[String]) -> bool {
    // A pattern is covered only by a pattern with a shorter or equal prefix, because it means names that no list can enumerate.
    let means = |narrow: &String| match narrow.strip_suffix('*') {
        Some(beginning) => wide.iter().any(|w| w.strip_suffix('*').is_some_and(|w| beginning.starts_with(w))),
        None => in_list(wide, narrow),
    };
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(means)) || wide.iter().any(|w| w == "*")
}

/// Whether an item of a list, which may end in `*`, means `name`.
fn names(listed: &str, name: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => listed == name,
    }
}

/// Reads a list that must not be empty, because an empty list would look like no pod and mean every pod.
pub(crate) fn listed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let list = Vec::<String>::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(serde::de::Error::custom(
            "the list is empty; name at least one, or leave the field out for all",
        ));
    }
    Ok(list)
}
