//! What each node has for a pod now, by the code that the extender decides with. Pure.

use crate::plugin_nodes::PluginNode;
use kerf_core::contract::RequestDocument;
use kerf_core::inventory::NodeInventory;
use kerf_core::packing::{Fleet, Refusal, Terms, fit};
use kerf_core::static_node::place;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::plugin_pod::PluginPod;
use std::collections::BTreeMap;
use std::fmt;

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It has room: for slices of these shapes, or for devices of NVIDIA's plugin.
    Room(String),
    /// It has none, and why.
    Refused(Refusal),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room(shapes) => write!(f, "has room: {shapes}"),
            Self::Refused(refusal) => write!(f, "{refusal}"),
        }
    }
}

/// The answers, each with the nodes that give it: those that kerf serves, and those that NVIDIA's device plugin does.
pub fn by_node(
    nodes: &[GpuNode],
    static_nodes: &BTreeMap<String, PluginNode>,
    document: &RequestDocument,
) -> BTreeMap<Answer, Vec<String>> {
    let read: Vec<(String, Result<NodeInventory, Refusal>)> =
        nodes.iter().map(|node| (node.name().to_string(), inventory(node))).collect();
    let mut fleet = Fleet::new(Terms::default());
    let all = read.iter().filter_map(|(_, inventory)| inventory.as_ref().ok());
    for gpu in all.flat_map(|inventory| &inventory.gpus) {
        gpu.join(&mut fleet, None);
    }
    let mut answers: BTreeMap<Answer, Vec<String>> = BTreeMap::new();
    let managed = read.into_iter().map(|(name, inventory)| {
        let found = inventory.and_then(|inventory| fit(&inventory, document, &fleet));
        let shapes = found.map(|fit| {
            let shapes = fit.slices.iter().map(|slice| format!("{} on {}", slice.shape, slice.gpu));
            shapes.collect::<Vec<_>>()
        });
        (name, shapes)
    });
    let fixed = static_nodes.iter().map(|(name, node)| (name.clone(), devices(node, document)));
    for (name, found) in managed.chain(fixed) {
        let answer = found.map_or_else(Answer::Refused, |places| Answer::Room(places.join(", ")));
        answers.entry(answer).or_default().push(name);
    }
    answers
}

/// The devices of a static node that the pod would take.
fn devices(it: &PluginNode, document: &RequestDocument) -> Result<Vec<String>, Refusal> {
    if it.node.is_changing {
        return Err(Refusal::LayoutChanging);
    }
    if it.pods.iter().any(PluginPod::has_slices) {
        return Err(Refusal::SlicesLeft);
    }
    let spot = place(&it.node, &it.taken(), document)?;
    Ok(spot.devices.iter().map(|(name, count)| format!("{count} {name}")).collect())
}

/// A node's GPUs as the extender sees them.
fn inventory(node: &GpuNode) -> Result<NodeInventory, Refusal> {
    let spec = node.read_spec().map_err(|_| Refusal::UnreadableSpec)?;
    let status = node.read_status().map_err(|_| Refusal::UnreadableStatus)?.unwrap_or_default();
    if !status.is_ready() {
        return Err(Refusal::AgentNotReady);
    }
    Ok(NodeInventory::of(&spec, &status))
}

/// A few names, or their number.
pub fn listed(names: &[String]) -> String {
    const MOST: usize = 8;
    if names.len() <= MOST {
        names.join(", ")
    } else {
        format!("{} and {} more", names[..MOST].join(", "), names.len() - MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_nodes::{close_renamed, served, with_pods};
    use kerf_runtime::cluster_policy::seen;
    use serde_json::json;

    /// What a T4 in two replicas has for a pod, when it has so many pods with one of them each.
    fn beside(pods: u32) -> String {
        let machine = json!({
            "metadata": {"name": "t4", "labels": {
                "nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "1",
                "nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing",
            }},
            "status": {"allocatable": {"nvidia.com/gpu": "2"}},
        });
        let pod = |number| {
            json!({
                "metadata": {"namespace": "ml", "name": format!("p{number}"), "uid": format!("u{number}")},
                "spec": {"nodeName": "t4", "containers": [{"name": "a", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
            })
        };
        let pods: Vec<_> = (0..pods).map(|number| serde_json::from_value(pod(number)).unwrap()).collect();
        let node = served(&serde_json::from_value(machine).unwrap()).unwrap();
        let nodes = with_pods([("t4".to_owned(), node)].into(), &pods);
        let container = json!({"name": "main", "sizeGb": 6, "count": 1, "resource": "nvidia.com/gpu", "kind": "time-slicing"});
        let document = json!({"version": 1, "isolation": "none", "containers": [container]}).to_string();
        let answers = by_node(&[], &nodes, &RequestDocument::parse(&document).unwrap());
        let lines: Vec<String> =
            answers.iter().map(|(answer, names)| format!("{}: {answer}", listed(names))).collect();
        lines.join("\n")
    }

    #[test]
    fn a_node_whose_mig_devices_get_other_names_says_what_the_extender_says() {
        let machine = json!({
            "metadata": {"name": "a100", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}},
            "status": {"allocatable": {"nvidia.com/gpu": "7"}},
        });
        let record =
            json!({"set": {}, "before": {}, "renaming": {"since": 1000, "nodes": ["a100"]}}).to_string();
        let policy = json!({
            "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy",
            "metadata": {"name": "cluster-policy", "annotations": {kerf_core::keys::PLUGIN_LAYOUT: record}},
            "spec": {"mig": {"strategy": "mixed"}},
        });
        let policy = seen(&serde_json::from_value(policy).unwrap()).unwrap();
        let container = json!({"name": "main", "sizeGb": 0, "count": 1, "resource": "nvidia.com/gpu", "kind": "time-slicing"});
        let document = json!({"version": 1, "isolation": "none", "containers": [container]}).to_string();
        let document = RequestDocument::parse(&document).unwrap();
        for (now, answer) in [
            (1010, Answer::Refused(Refusal::LayoutChanging)),
            (2000, Answer::Room("1 nvidia.com/gpu".to_owned())),
        ] {
            let node = served(&serde_json::from_value(machine.clone()).unwrap()).unwrap();
            let mut nodes = with_pods([("a100".to_owned(), node)].into(), &[]);
            close_renamed(&mut nodes, &policy, now);
            assert_eq!(by_node(&[], &nodes, &document), [(answer, vec!["a100".to_owned()])].into());
        }
    }

    #[test]
    fn a_static_node_has_room_for_what_pods_have_left_of_it() {
        assert_eq!(beside(1), "t4: has room: 1 nvidia.com/gpu");
        assert_eq!(beside(2), "t4: GPU slices in use");
    }
}
