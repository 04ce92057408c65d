//! The facts of a pod and of its namespace that decide which policy matches the pod.

use std::collections::BTreeMap;

/// The facts of a pod that decide which policy matches it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodFacts {
    /// The namespace that the pod is created in.
    pub namespace: String,
    /// The labels of its namespace. `None` if they are not known; then no policy that selects by them matches the pod.
    pub namespace_labels: Option<BTreeMap<String, String>>,
    /// The labels of the pod itself.
    pub labels: BTreeMap<String, String>,
    /// Its `spec.priorityClassName`; empty if it has none.
    pub priority_class: String,
    /// Its `spec.serviceAccountName`; empty if it has none.
    pub service_account: String,
    /// The GPU models that it names, as in `H100-80GB`.
    pub models: Vec<String>,
}

/// The namespace that a pod is created in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace<'n> {
    /// Name of the Kubernetes namespace.
    pub name: &'n str,
    /// Its labels; `None` if they are not known.
    pub labels: Option<&'n BTreeMap<String, String>>,
}

impl<'n> From<&'n str> for Namespace<'n> {
    /// A namespace whose labels are not known.
    fn from(name: &'n str) -> Self {
        Self { name, labels: None }
    }
}
