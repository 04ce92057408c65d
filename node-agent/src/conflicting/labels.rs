//! Detects NVIDIA's MIG manager by the Node's labels.
//!
//! The GPU Operator sets `nvidia.com/gpu.deploy.<component>=true` on every node with GPUs, whether the component is enabled
//! or not, and keeps another value that it finds (gpu-operator `controllers/state_manager.go`, `addGPUStateLabels`). So
//! `true` means "deployed here, if at all", and only `false` is certain. This has these consequences:
//!
//! - `nvidia.com/mig.config` is an order to the MIG manager, which may carry it out if `mig-manager` is not `false`.
//!   That is a conflict, though the MIG manager may be disabled. Removing the label is no remedy: on a node whose GPUs
//!   have MIG, by the label `mig.capable` or else the product, the operator sets a missing label to its default
//!   `all-disabled` (`labelGPUNodes`), and adds a missing `gpu.deploy.mig-manager=true`.
//! - `nvidia.com/mig.config.state` `pending` or `rebooting`, and a `gpu.deploy.*` of `paused-for-mig-change`, are
//!   written by an active MIG manager: a conflict by themselves. The labels that the agent itself pauses
//!   (`DEPLOY_CLIENTS`) do not count: the MIG manager is `pending` before it pauses anything, and until everything is
//!   restored.
//! - `gpu.deploy.device-plugin=true` and `nvidia.com/device-plugin.config` are no evidence of a device plugin; its
//!   sockets are.
//! - Labels of GPU feature discovery (`nvidia.com/gpu.*`, `nvidia.com/mig.capable`, …) only describe.

use super::{Other, Who};
use k8s_openapi::api::core::v1::Node;
use kerf_core::names::NodeName;
use kerf_core::nvidia_keys::{DEPLOY_CLIENTS, DEPLOY_PAUSED, DEPLOY_PREFIX, MIG_CONFIG, MIG_STATE};
use kube::Api;
use kube::api::GetParams;
use std::collections::BTreeMap;

const DEPLOY_MIG_MANAGER: &str = "nvidia.com/gpu.deploy.mig-manager";
/// The value `false` removes everything that the operator deploys from the node, including the MIG manager.
const DEPLOY_OPERANDS: &str = "nvidia.com/gpu.deploy.operands";

/// Returns the MIG manager if the Node's labels show it.
pub(super) async fn found(nodes: &Api<Node>, name: &NodeName) -> Result<Option<Other>, kube::Error> {
    // Read from the API server's cache, because a minute's delay does not matter.
    let node = nodes.get_metadata_opt_with(name.as_str(), &GetParams::any()).await?;
    let labels = node.and_then(|node| node.metadata.labels).unwrap_or_default();
    Ok(mig_manager(&labels).map(|evidence| Other::new(Who::MigManager, evidence)))
}

/// Whether the GPU Operator manages the node, and would order MIG mode off if labels showed that its GPUs have MIG.
pub(crate) fn may_order_mig(labels: &BTreeMap<String, String>) -> bool {
    let is_false = |key: &str| labels.get(key).is_some_and(|value| value == "false");
    let is_operators = |(key, value): (&String, &String)| key.starts_with(DEPLOY_PREFIX) && value != "false";
    labels.iter().any(is_operators) && !is_false(DEPLOY_MIG_MANAGER) && !is_false(DEPLOY_OPERANDS)
}

/// The evidence for a MIG manager.
fn mig_manager(labels: &BTreeMap<String, String>) -> Option<String> {
    let value = |key: &str| labels.get(key).map(String::as_str).filter(|value| !value.is_empty());
    if let Some(state @ ("pending" | "rebooting")) = value(MIG_STATE) {
        return Some(format!("the node's label {MIG_STATE} is {state}"));
    }
    let is_paused_by_it = |(key, value): &(&String, &String)| {
        key.starts_with(DEPLOY_PREFIX) && *value == DEPLOY_PAUSED && !DEPLOY_CLIENTS.contains(&key.as_str())
    };
    if let Some((key, _)) = labels.iter().find(is_paused_by_it) {
        return Some(format!("the node's label {key} is {DEPLOY_PAUSED}"));
    }
    let config = value(MIG_CONFIG)?;
    let deployed = value(DEPLOY_MIG_MANAGER);
    let may_act = match deployed {
        Some(deployed) => deployed != "false",
        // If other means than the GPU Operator have deployed it, it is here if it has reported a state.
        None => value(MIG_STATE).is_some(),
    };
    may_act.then(|| format!("the node's label {MIG_CONFIG} is {config}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(labels: &[&str]) -> BTreeMap<String, String> {
        let pairs = labels.iter().filter_map(|label| label.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn the_operator_orders_mig_off_unless_its_mig_manager_is_disabled() {
        let (driver, plugin) =
            ("nvidia.com/gpu.deploy.driver=true", "nvidia.com/gpu.deploy.device-plugin=false");
        let cases: [(&[&str], bool); 6] = [
            (&["nvidia.com/gpu.present=true"], false),
            (&[plugin], false),
            (&[plugin, driver], true),
            (&[plugin, driver, "nvidia.com/gpu.deploy.mig-manager=true"], true),
            (&[plugin, driver, "nvidia.com/gpu.deploy.mig-manager=false"], false),
            (&[plugin, driver, "nvidia.com/gpu.deploy.operands=false"], false),
        ];
        for (labels, expected) in cases {
            assert_eq!(may_order_mig(&map(labels)), expected, "{labels:?}");
        }
    }

    #[test]
    fn a_mig_manager_counts_only_if_it_may_act() {
        let deployed = "nvidia.com/gpu.deploy.mig-manager=true";
        let cases: [(&[&str], Option<&str>); 15] = [
            (&[], None),
            (&[deployed], None),
            (&[deployed, "nvidia.com/mig.config="], None),
            (&[deployed, "nvidia.com/mig.config=all-disabled"], Some("mig.config is all-disabled")),
            (
                &[
                    "nvidia.com/gpu.deploy.mig-manager=false",
                    "nvidia.com/mig.config=all-1g.10gb",
                    "nvidia.com/mig.config.state=success",
                ],
                None,
            ),
            (&["nvidia.com/mig.config=all-1g.10gb"], None),
            (
                &["nvidia.com/mig.config=all-1g.10gb", "nvidia.com/mig.config.state=success"],
                Some("mig.config is all-1g.10gb"),
            ),
            (&["nvidia.com/mig.config.state=success", deployed], None),
            (&["nvidia.com/mig.config.state=pending"], Some("state is pending")),
            (&["nvidia.com/mig.config.state=rebooting"], Some("state is rebooting")),
            (
                &["nvidia.com/gpu.deploy.device-plugin=paused-for-mig-change"],
                Some("deploy.device-plugin is paused"),
            ),
            // The agent's own pause, and a pause of the same labels by the MIG manager.
            (&["nvidia.com/gpu.deploy.dcgm=paused-for-mig-change"], None),
            (
                &["nvidia.com/gpu.deploy.dcgm=paused-for-mig-change", "nvidia.com/mig.config.state=pending"],
                Some("state is pending"),
            ),
            (&["nvidia.com/gpu.deploy.device-plugin=true", "nvidia.com/device-plugin.config=t4"], None),
            (
                &[
                    "nvidia.com/mig.capable=true",
                    "nvidia.com/gpu.product=NVIDIA-H100",
                    "nvidia.com/mig.strategy=mixed",
                ],
                None,
            ),
        ];
        for (labels, expected) in cases {
            match (mig_manager(&map(labels)), expected) {
                (Some(evidence), Some(expected)) => {
                    assert!(evidence.contains(expected), "{labels:?}: {evidence}");
                }
                (found, expected) => assert_eq!(found.as_deref(), expected, "{labels:?}"),
            }
        }
    }
}
