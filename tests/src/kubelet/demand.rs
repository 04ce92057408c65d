//! Reads a pod's demand for devices from its spec.
//!
//! Only limits count, as in the kubelet, because extended resources cannot be overcommitted. Other code
//! decides whether a name is known.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

/// A pod by namespace and name, as pod-resources identifies it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
}

impl PodKey {
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a pod object.
    #[must_use]
    pub fn from_pod(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        Self::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// When a container runs in a pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerRole {
    /// Runs to its end before the next one starts; its devices can be reused.
    Init,
    /// An init container that keeps running (restartPolicy Always) and its devices with it.
    Sidecar,
    /// One of `spec.containers`, which run together.
    App,
}

/// The extended resources of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerDemand {
    pub name: String,
    pub role: ContainerRole,
    /// How many devices, by resource name.
    pub limits: BTreeMap<String, usize>,
}

/// The extended resources of one pod, init containers first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDemand {
    pub key: PodKey,
    pub uid: String,
    /// Its containers in the order in which the kubelet allocates for them.
    pub containers: Vec<ContainerDemand>,
}

impl PodDemand {
    /// Reads a pod's limits without the kubelet's own resources (cpu, memory and so on).
    #[must_use]
    pub fn from_pod(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
        let app = spec.map(|spec| &spec.containers).into_iter().flatten();
        let containers = init
            .map(|container| (container, init_role(container)))
            .chain(app.map(|container| (container, ContainerRole::App)))
            .map(|(container, role)| ContainerDemand {
                name: container.name.clone(),
                role,
                limits: extended_limits(container),
            })
            .collect();
        Self { key: PodKey::from_pod(pod), uid: pod.metadata.uid.clone().unwrap_or_default(), containers }
    }

    /// The pod's peak demand for each name, as the scheduler and the node's fit check count it: the
    /// containers that run together, or the largest init container with the sidecars that were started before
    /// it.
    #[must_use]
    pub fn peak(&self) -> BTreeMap<String, usize> {
        let mut together: BTreeMap<String, usize> = BTreeMap::new();
        let mut peak: BTreeMap<String, usize> = BTreeMap::new();
        for container in &self.containers {
            for (resource, count) in &container.limits {
                let running = together.entry(resource.clone()).or_default();
                let wanted = *running + count;
                if container.role != ContainerRole::Init {
                    *running = wanted;
                }
                let highest = peak.entry(resource.clone()).or_default();
                *highest = wanted.max(*highest);
            }
        }
        peak
    }
}

/// Whether an init container ends before the next one starts, or keeps running.
pub(super) fn init_role(container: &Container) -> ContainerRole {
    match container.restart_policy.as_deref() {
        Some("Always") => ContainerRole::Sidecar,
        _ => ContainerRole::Init,
    }
}

fn extended_limits(container: &Container) -> BTreeMap<String, usize> {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits
        .into_iter()
        .flatten()
        .filter(|(name, _)| is_extended_resource(name))
        .filter_map(|(name, quantity)| Some((name.clone(), quantity.0.parse().ok()?)))
        .collect()
}

/// Whether a resource name is an extended one (kubernetes v1.36, `pkg/apis/core/v1/helper`): it has a domain
/// outside of kubernetes.io, and is not in the quota form.
#[must_use]
pub fn is_extended_resource(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
