//! What a pod asks of the device manager, read from its spec.
//!
//! Only limits count, as in the kubelet: extended resources cannot be overcommitted. Whether a name is known is
//! decided elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

/// A pod by namespace and name, as pod-resources names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
}

impl PodKey {
    /// A key from its two parts.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a pod as the API server gave it.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        Self::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// When in a pod's life a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerRole {
    /// Runs to its end before the next one; its devices are handed on.
    Init,
    /// An init container that stays (restartPolicy Always); its devices are its own.
    Sidecar,
    /// One of `spec.containers`.
    App,
}

/// The extended resources of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerDemand {
    /// The container's name.
    pub name: String,
    /// When it runs.
    pub role: ContainerRole,
    /// Count by resource name.
    pub limits: BTreeMap<String, usize>,
}

/// The extended resources of one pod, init containers first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDemand {
    /// The pod.
    pub key: PodKey,
    /// Its UID.
    pub uid: String,
    /// Its containers in the order in which the kubelet allocates for them.
    pub containers: Vec<ContainerDemand>,
}

impl PodDemand {
    /// Reads a pod's limits; names of the kubelet's own resources (cpu, memory and so on) are left out.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
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
        Self { key: PodKey::of(pod), uid: pod.metadata.uid.clone().unwrap_or_default(), containers }
    }

    /// What the pod needs of each name at its peak, as the scheduler and the node's fit check count it: the
    /// containers that run together, or the biggest init container with the sidecars started before it.
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

/// Whether an init container ends before the next one starts, or stays.
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

/// Whether a resource name is an extended one (kubernetes v1.36, `pkg/apis/core/v1/helper`): with a domain, which
/// is not the project's own, and not the quota form.
#[must_use]
pub fn is_extended_resource(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
