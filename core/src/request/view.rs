//! The parts of a Pod that a request is read from.

use super::{AffinityView, Namespace, PodFacts, Role, SelectingFields};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A pod as the request parser sees it. It deserialises from a Pod's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct PodView {
    /// The pod's annotations and labels.
    #[serde(default)]
    pub metadata: MetadataView,
    /// The pod's containers and what it says about its node.
    #[serde(default)]
    pub spec: SpecView,
}

impl PodView {
    /// The facts that decide which policy matches the pod; `models` are the GPU models that it names.
    #[must_use]
    pub fn facts<'n>(&self, namespace: impl Into<Namespace<'n>>, models: &[String]) -> PodFacts {
        let fields = SelectingFields {
            labels: self.metadata.labels.clone(),
            priority_class_name: self.spec.priority_class_name.clone(),
            service_account_name: self.spec.service_account_name.clone(),
        };
        PodFacts::new(namespace, fields, models.to_vec())
    }
}

/// The part of a Pod's `metadata` that kerf reads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct MetadataView {
    /// The pod's annotations; empty if absent or null.
    #[serde(default, deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
    /// The pod's labels; empty if absent or null.
    #[serde(default, deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
}

/// The part of a Pod's `spec` that kerf reads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecView {
    /// The app containers, in the pod's order.
    #[serde(default, deserialize_with = "null_is_default")]
    pub containers: Vec<ContainerView>,
    /// The init containers and sidecars, in the pod's order.
    #[serde(default, deserialize_with = "null_is_default")]
    pub init_containers: Vec<ContainerView>,
    /// `spec.nodeName`, which is set if a pod bypasses the scheduler.
    #[serde(default)]
    pub node_name: Option<String>,
    /// `spec.nodeSelector`: node labels with their values.
    #[serde(default, deserialize_with = "null_is_default")]
    pub node_selector: BTreeMap<String, String>,
    /// `spec.affinity`; `None` if the pod has none.
    #[serde(default)]
    pub affinity: Option<AffinityView>,
    /// `spec.priorityClassName`; `None` if the pod names none.
    #[serde(default)]
    pub priority_class_name: Option<String>,
    /// `spec.serviceAccountName`; `None` if the pod names none.
    #[serde(default)]
    pub service_account_name: Option<String>,
}

impl SpecView {
    /// All containers in the order in which the kubelet gives them devices: init containers and sidecars, then app
    /// containers.
    pub fn in_order(&self) -> impl Iterator<Item = (&ContainerView, Role)> {
        let inits = self.init_containers.iter().map(|c| (c, Role::before_apps(c.restart_policy.as_deref())));
        inits.chain(self.containers.iter().map(|c| (c, Role::App)))
    }

    /// The app containers that no injector added. If injectors added all of them, it returns all, because one of them
    /// must be meant.
    pub(super) fn own_containers(&self, is_sidecar: impl Fn(&str) -> bool) -> Vec<&ContainerView> {
        let own: Vec<_> = self.containers.iter().filter(|container| !is_sidecar(&container.name)).collect();
        if own.is_empty() { self.containers.iter().collect() } else { own }
    }
}

/// One container of a pod, of any role.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// Name of the container; empty if absent.
    #[serde(default)]
    pub name: String,
    /// Its limits and requests for resources.
    #[serde(default, deserialize_with = "null_is_default")]
    pub resources: ResourcesView,
    /// The part of its security context that kerf reads.
    #[serde(default, deserialize_with = "null_is_default")]
    pub security_context: SecurityView,
    /// `restartPolicy`, which only init containers have.
    #[serde(default)]
    pub restart_policy: Option<String>,
}

/// `resources` of a container: names and quantities as the API server sends them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ResourcesView {
    /// The limits, by resource name; empty if absent or null.
    #[serde(default, deserialize_with = "quantities")]
    pub limits: BTreeMap<String, String>,
    /// The requests, by resource name; empty if absent or null.
    #[serde(default, deserialize_with = "quantities")]
    pub requests: BTreeMap<String, String>,
}

/// The part of a container's `securityContext` that kerf reads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct SecurityView {
    /// Whether the container is privileged; `None` if it does not say.
    #[serde(default)]
    pub privileged: Option<bool>,
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads quantities, which are strings or, as users write them, bare numbers.
fn quantities<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let values: Option<BTreeMap<String, serde_json::Value>> = Option::deserialize(deserializer)?;
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(values.unwrap_or_default().into_iter().map(|(name, value)| (name, text(value))).collect())
}
