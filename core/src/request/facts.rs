//! The facts of a pod and of its namespace that decide which policy matches the pod.

use std::collections::BTreeMap;

/// The facts of a pod that decide which policy matches it. [`PodFacts::new`] makes them for every reader of pods, so that
/// webhook, extender and `kerf policy` cannot choose different policies for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
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

impl PodFacts {
    /// The facts of a pod in `namespace` that has these `fields` and names these GPU models.
    #[must_use]
    pub fn new<'n>(
        namespace: impl Into<Namespace<'n>>,
        fields: SelectingFields,
        models: Vec<String>,
    ) -> Self {
        let Namespace { name, labels: namespace_labels } = namespace.into();
        let SelectingFields { labels, priority_class_name, service_account_name } = fields;
        Self {
            namespace: name.to_owned(),
            namespace_labels: namespace_labels.cloned(),
            labels,
            priority_class: priority_class_name.unwrap_or_default(),
            service_account: service_account_name.unwrap_or_default(),
            models,
        }
    }
}

/// The fields of a Pod by which policies select it, as a reader of Pods has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelectingFields {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.priorityClassName`; `None` if the pod names none.
    pub priority_class_name: Option<String>,
    /// `spec.serviceAccountName`; `None` if the pod names none.
    pub service_account_name: Option<String>,
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
