//! Static nodes: do their labels and their devices agree, and is their layout in force? It reads them with the code by
//! which the webhook and the extender decide, so that it judges them alike.

use super::{Finding, Observed};
use crate::check::observed::{label, name_of};
use k8s_openapi::api::core::v1::Node;
use kerf_core::keys;
use kerf_core::nvidia_keys::{COUNT, GPU, MEMORY, PRODUCT, is_plugin_resource};
use kerf_core::quantity::parse_count;
use kerf_core::static_node::{Doubt, StaticNode};
use kerf_runtime::machine::static_node_of;

const DISCOVERY: &str = "run GPU feature discovery on the node (the GPU Operator's gpu-feature-discovery, or gfd.enabled=true of the device plugin's chart), and look at its log";
const PLUGIN: &str = "look at the log of NVIDIA's device plugin on the node";

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut good = Vec::new();
    for node in seen.unmanaged().into_iter().filter(|node| is_served(node)) {
        let of_node: Vec<Finding> =
            labels(node).into_iter().chain(devices(node)).chain(layout(node)).collect();
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

fn offered(node: &Node) -> impl Iterator<Item = (&str, u64)> {
    let allocatable = node.status.iter().flat_map(|status| status.allocatable.iter().flatten());
    allocatable
        .filter(|(name, _)| is_plugin_resource(name))
        .map(|(name, amount)| (name.as_str(), parse_count(&amount.0).unwrap_or(0)))
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

fn devices(node: &Node) -> Vec<Finding> {
    let name = name_of(node);
    // A node without devices is no static node, so only its labels can show a problem.
    let Some(fixed) = static_node_of(node) else { return none(node).into_iter().collect() };
    let doubts = fixed.doubts.iter().map(|doubt| {
        Finding::warning(
            format!(
                "{name}: {} of {} are there, and by its labels there are {}; so {}",
                doubt.there,
                doubt.name,
                doubt.reported,
                taken_for(&fixed, doubt)
            ),
            format!("the plugin was configured anew a moment ago, or GPUs are not seen: {PLUGIN}"),
        )
    });
    let capacity = node.status.iter().flat_map(|status| status.capacity.iter().flatten());
    let sick = capacity.filter_map(|(resource, amount)| {
        let (there, well) = (parse_count(&amount.0)?, amount_of(node, resource));
        let what = format!("{name}: {well} of {there} {resource} are allocatable");
        (is_plugin_resource(resource) && well < there)
            .then(|| Finding::warning(what, format!("the others are sick: {PLUGIN}")))
    });
    doubts.chain(sick).collect()
}

fn amount_of(node: &Node, resource: &str) -> u64 {
    offered(node).find(|(name, _)| *name == resource).map_or(0, |(_, amount)| amount)
}

fn taken_for(fixed: &StaticNode, doubt: &Doubt) -> String {
    let offer = fixed.offer(doubt.name);
    let size = offer.and_then(|offer| offer.size).map(|size| format!(" of {size}")).unwrap_or_default();
    let kind = offer.map(|offer| offer.kind.to_string()).unwrap_or_default();
    format!("a device is taken for {kind}{size}")
}

fn none(node: &Node) -> Option<Finding> {
    let reported = label(node, COUNT).filter(|count| *count != "0")?;
    Some(Finding::warning(
        format!("{}: no {GPU} is there, and by its labels there are {reported}", name_of(node)),
        PLUGIN,
    ))
}

fn condition(node: &Node) -> Option<&k8s_openapi::api::core::v1::NodeCondition> {
    let mut conditions = node.status.as_ref()?.conditions.as_ref()?.iter();
    conditions.find(|condition| condition.type_ == keys::LAYOUT_CONDITION)
}

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
