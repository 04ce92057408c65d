//! The nodes with GPUs, before kerf is installed.

use super::{Finding, Observed, Seen, unknown};
use crate::check::observed::{label, name_of};
use k8s_openapi::api::core::v1::Node;
use kerf_core::{keys, nvidia_keys};

const LABELS: [&str; 3] = [
    nvidia_keys::PRESENT,
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
];

pub fn judge(seen: &Observed) -> Vec<Finding> {
    if let Seen::Unknown(why) = &seen.nodes {
        return vec![unknown("the Nodes", why)];
    }
    let managed: Vec<&str> = seen.managed().into_iter().map(name_of).collect();
    let unmanaged: Vec<&str> =
        seen.unmanaged().into_iter().filter(|node| has_gpus(node)).map(name_of).collect();
    let key = keys::MANAGED;
    if managed.is_empty() && unmanaged.is_empty() {
        return vec![Finding::warning(
            "no node shows an NVIDIA GPU",
            format!(
                "install NVIDIA's driver on the nodes (with GPU Operator or without it); when kerf is installed: kerf manage NAME, or kubectl label node NAME {key}=true"
            ),
        )];
    }
    let mut findings = Vec::new();
    if !managed.is_empty() {
        findings.push(Finding::fine(format!("kerf's agents will serve {}", managed.join(", "))));
    }
    if !unmanaged.is_empty() {
        findings.push(Finding::fine(format!(
            "nodes with GPUs that stay as they are: {}; when kerf is installed, kerf manage NAME hands one over",
            unmanaged.join(", ")
        )));
    }
    findings
}

fn has_gpus(node: &Node) -> bool {
    let labelled = LABELS.iter().any(|key| label(node, key) == Some("true"));
    let allocatable = node.status.iter().flat_map(|status| status.allocatable.iter().flatten());
    labelled
        || allocatable
            .into_iter()
            .any(|(name, amount)| name.starts_with(nvidia_keys::PREFIX) && amount.0 != "0")
}
