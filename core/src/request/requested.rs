//! The requests of a pod's containers, for readers of many pods.
//!
//! A watch of all pods and kube-scheduler's calls bring thousands of pods, and few of them ask for GPUs. So a container
//! has only two fields here; [`ContainerView`](super::ContainerView) has those that a pod's request is read from.

use super::Role;
use crate::quantity::parse_count;
use crate::{keys, nvidia_keys};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A container's restart policy and requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestingContainer {
    #[serde(default)]
    restart_policy: Option<String>,
    #[serde(default)]
    resources: Option<Requests>,
}

/// The requests alone, because the API server copies limits into them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct Requests {
    #[serde(default)]
    requests: Option<BTreeMap<String, String>>,
}

impl RequestingContainer {
    /// The resource names that the container requests, each with its amount.
    pub fn requests(&self) -> impl Iterator<Item = (&str, &str)> {
        self.listed().into_iter().flatten().map(|(name, amount)| (name.as_str(), amount.as_str()))
    }

    /// The amount that the container requests of one resource; `None` if it does not request it.
    #[must_use]
    pub fn request(&self, name: &str) -> Option<&str> {
        self.listed()?.get(name).map(String::as_str)
    }

    fn listed(&self) -> Option<&BTreeMap<String, String>> {
        self.resources.as_ref()?.requests.as_ref()
    }
}

/// The requests of all containers of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodRequests<'p> {
    /// The init containers and sidecars, in the pod's order.
    pub init_containers: &'p [RequestingContainer],
    /// The app containers, in the pod's order.
    pub containers: &'p [RequestingContainer],
}

impl<'p> PodRequests<'p> {
    /// All containers in the order in which they start: init containers and sidecars, then app containers.
    pub fn in_order(self) -> impl Iterator<Item = (&'p RequestingContainer, Role)> {
        let inits = self.init_containers.iter().map(|c| (c, Role::before_apps(c.restart_policy.as_deref())));
        inits.chain(self.containers.iter().map(|c| (c, Role::App)))
    }

    /// The requests of all containers: the resource name and the amount.
    pub fn amounts(self) -> impl Iterator<Item = (&'p str, &'p str)> {
        self.in_order().flat_map(|(container, _)| container.requests())
    }

    /// Whether no container requests a resource with a name of NVIDIA's or a neutral one. An amount of 0 counts as no
    /// request, but it is enough for kube-scheduler to ask an extender about the pod (`pkg/scheduler/extender.go`,
    /// `hasManagedResources`). Neutral names count, because a pod with one and without a request document would
    /// otherwise pass the filter and start without a GPU.
    #[must_use]
    pub fn asks_for_nothing(self) -> bool {
        let is_managed =
            |name: &str| name.starts_with(nvidia_keys::PREFIX) || name.starts_with(keys::SIZE_PREFIX);
        self.amounts().all(|(name, amount)| !is_managed(name) || parse_count(amount) == Some(0))
    }

    /// Whether a container requests a neutral name, which only managed nodes have.
    #[must_use]
    pub fn asks_by_neutral_name(self) -> bool {
        self.amounts()
            .any(|(name, amount)| name.starts_with(keys::SIZE_PREFIX) && parse_count(amount) != Some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn containers(list: &Value) -> Vec<RequestingContainer> {
        serde_json::from_value(list.clone()).unwrap()
    }

    #[test]
    fn a_neutral_name_is_a_request_and_an_amount_of_0_is_none() {
        for (name, amount, nothing) in [
            ("nvidia.com/gpu", "0", true),
            ("nvidia.com/gpu-10gb", "0", true),
            ("cpu", "2", true),
            ("example.com/fpga", "1", true),
            ("nvidia.com/gpu", "1", false),
            ("nvidia.com/gpu-10gb", "1", false),
            ("nvidia.com/gpu", "none", false),
            ("kerf.dev/gpu-10gb", "1", false),
            ("kerf.dev/gpu-13gb", "1", false),
            ("kerf.dev/gpu-10gb", "0", true),
        ] {
            let list = containers(&json!([{"name": "c", "resources": {"requests": {name: amount}}}]));
            let apps = PodRequests { init_containers: &[], containers: &list };
            let inits = PodRequests { init_containers: &list, containers: &[] };
            assert_eq!(
                (apps.asks_for_nothing(), inits.asks_for_nothing()),
                (nothing, nothing),
                "{name}: {amount}"
            );
            let is_neutral = !nothing && name.starts_with("kerf.dev/");
            assert_eq!(apps.asks_by_neutral_name(), is_neutral, "{name}: {amount}");
        }
    }

    #[test]
    fn a_container_without_requests_is_read() {
        for container in [json!({}), json!({"resources": null}), json!({"resources": {"requests": null}})] {
            let list = containers(&json!([container]));
            assert_eq!((list[0].requests().count(), list[0].request("cpu")), (0, None), "{container}");
        }
    }
}
