//! The nodes that NVIDIA's device plugin serves: whether what GPU feature discovery says of them agrees with what is offered, and
//! how their layout stands.

use super::{Finding, Observed};
use crate::check::observed::{label, name_of};
use k8s_openapi::api::core::v1::Node;
use kerf_core::keys;

/// The plugin's name for a GPU, or whatever it makes of one.
const GPU: &str = "nvidia.com/gpu";
const PRODUCT: &str = "nvidia.com/gpu.product";
const MEMORY: &str = "nvidia.com/gpu.memory";
const COUNT: &str = "nvidia.com/gpu.count";
const REPLICAS: &str = "nvidia.com/gpu.replicas";
const STRATEGY: &str = "nvidia.com/mig.strategy";

const DISCOVERY: &str = "run GPU feature discovery on the node (the GPU Operator's gpu-feature-discovery, or gfd.enabled=true of the device plugin's chart), and look at its log";

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let nodes = seen.unmanaged().into_iter().filter(|node| is_served(node));
    let mut findings = Vec::new();
    let mut good = Vec::new();
    for node in nodes {
        let of_node: Vec<Finding> =
            [labels(node), agreement(node), layout(node)].into_iter().flatten().collect();
        if of_node.is_empty() {
            good.push(name_of(node));
        }
        findings.extend(of_node);
    }
    if !good.is_empty() {
        findings.insert(0, Finding::fine(format!("{}: labels and devices agree", good.join(", "))));
    }
    findings
}

/// The plugin's resources of a node.
fn offered(node: &Node) -> impl Iterator<Item = (&str, &str)> {
    let allocatable = node.status.iter().flat_map(|status| status.allocatable.iter().flatten());
    allocatable
        .filter(|(name, _)| name.starts_with("nvidia.com/gpu") || name.starts_with("nvidia.com/mig-"))
        .map(|(name, amount)| (name.as_str(), amount.0.as_str()))
}

fn is_served(node: &Node) -> bool {
    offered(node).next().is_some() || condition(node).is_some()
}

fn labels(node: &Node) -> Option<Finding> {
    let missing: Vec<&str> =
        [PRODUCT, MEMORY, COUNT].into_iter().filter(|key| label(node, key).is_none()).collect();
    (!missing.is_empty()).then(|| {
        Finding::warning(
            format!(
                "{}: labels are missing: {}; so its GPUs serve only pods that ask by name",
                name_of(node),
                missing.join(", ")
            ),
            DISCOVERY,
        )
    })
}

/// Whether as many devices are offered as the labels say. Where MIG instances have names of their own, `nvidia.com/gpu` counts
/// the GPUs without them only.
fn agreement(node: &Node) -> Option<Finding> {
    if label(node, STRATEGY) == Some("mixed") {
        return None;
    }
    let number = |key| label(node, key).and_then(|value| value.parse::<u64>().ok());
    let wanted = number(COUNT)? * number(REPLICAS).unwrap_or(1).max(1);
    let is_gpus = |name: &str| name == GPU || name == format!("{GPU}.shared");
    let (name, found) =
        offered(node).find(|(name, amount)| is_gpus(name) && *amount != "0").unwrap_or((GPU, "0"));
    let found: u64 = found.parse().ok()?;
    (found != wanted).then(|| {
        Finding::warning(
            format!("{}: {found} of {name} are allocatable, and by its labels there are {wanted}", name_of(node)),
            "GPUs may be sick, or the plugin was configured anew a moment ago: look at the log of NVIDIA's device plugin on the node",
        )
    })
}

fn condition(node: &Node) -> Option<&k8s_openapi::api::core::v1::NodeCondition> {
    let mut conditions = node.status.as_ref()?.conditions.as_ref()?.iter();
    conditions.find(|condition| condition.type_ == keys::LAYOUT_CONDITION)
}

/// How the layout stands that a policy gives the node.
fn layout(node: &Node) -> Option<Finding> {
    let found = condition(node)?;
    if found.status == "True" {
        return None;
    }
    let name = name_of(node);
    let reason = found.reason.as_deref().unwrap_or("no reason");
    let what = format!(
        "{name}: its layout is not in force ({reason}): {}",
        found.message.as_deref().unwrap_or("no message")
    );
    let remedy = format!("as the message says; kubectl describe node {name} shows the Events");
    Some(if found.status == "False" {
        Finding::failure(what, remedy)
    } else {
        Finding::warning(what, remedy)
    })
}
