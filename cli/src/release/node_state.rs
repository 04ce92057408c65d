//! The state of a node for `kerf release`, and what the admin must do once it is given back. Pure.

use kerf_core::managed::is_managed;
use kerf_core::{keys, nvidia_keys};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeState {
    Managed,
    Leaving,
    Released,
    NotManaged,
}

impl NodeState {
    pub(super) fn from_labels(labels: &BTreeMap<String, String>, has_gpu_node: bool, has_pods: bool) -> Self {
        match labels.get(keys::MANAGED).map(String::as_str) {
            Some("false") if has_gpu_node || has_pods => Self::Leaving,
            Some("false") => Self::Released,
            // A node counts without the label, because the chart's `managedNodes` may select such nodes. Their agents
            // have created a GpuNode.
            _ if is_managed(labels) || has_gpu_node || has_pods => Self::Managed,
            _ => Self::NotManaged,
        }
    }
}

pub(super) fn nvidias_return(node: &str, labels: &BTreeMap<String, String>) -> Option<String> {
    let away =
        [nvidia_keys::DEPLOY_DEVICE_PLUGIN, nvidia_keys::DEPLOY_MIG_MANAGER, nvidia_keys::DEPLOY_DRA_DRIVER];
    let away = away.into_iter().filter(|key| labels.get(*key).is_some_and(|value| value == "false"));
    let removed: Vec<String> = away.map(|key| format!("{key}-")).collect();
    (!removed.is_empty()).then(|| format!("kubectl label node {node} {}", removed.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: (&str, &str) = ("nvidia.com/gpu.present", "true");
    const NO_PLUGIN: (&str, &str) = ("nvidia.com/gpu.deploy.device-plugin", "false");
    const NO_MIG_MANAGER: (&str, &str) = ("nvidia.com/gpu.deploy.mig-manager", "false");

    fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_node_is_managed_by_its_labels_or_by_kerfs_objects() {
        let (own, not) = (("kerf.dev/managed", "true"), ("kerf.dev/managed", "false"));
        for (of, has_gpu_node, has_pods, node_state) in [
            (&[own][..], false, false, NodeState::Managed),
            (&[PRESENT, NO_PLUGIN], false, false, NodeState::Managed),
            (&[PRESENT], true, false, NodeState::Managed),
            (&[PRESENT], false, true, NodeState::Managed),
            (&[PRESENT], false, false, NodeState::NotManaged),
            (&[], false, false, NodeState::NotManaged),
            (&[not], true, false, NodeState::Leaving),
            (&[not], false, true, NodeState::Leaving),
            (&[not, PRESENT, NO_PLUGIN], false, false, NodeState::Released),
        ] {
            assert_eq!(NodeState::from_labels(&labels(of), has_gpu_node, has_pods), node_state, "{of:?}");
        }
    }

    #[test]
    fn the_command_removes_only_labels_that_stop_nvidias_programs() {
        let none = &[PRESENT, ("nvidia.com/gpu.deploy.mig-manager", "true")][..];
        for (of, command) in [
            (none, None),
            (&[NO_PLUGIN], Some("kubectl label node n1 nvidia.com/gpu.deploy.device-plugin-")),
            (
                &[("nvidia.com/gpu.deploy.dra-driver", "false")],
                Some("kubectl label node n1 nvidia.com/gpu.deploy.dra-driver-"),
            ),
            (
                &[NO_MIG_MANAGER, NO_PLUGIN],
                Some(
                    "kubectl label node n1 nvidia.com/gpu.deploy.device-plugin- nvidia.com/gpu.deploy.mig-manager-",
                ),
            ),
        ] {
            assert_eq!(nvidias_return("n1", &labels(of)).as_deref(), command, "{of:?}");
        }
    }
}
