//! What each node has for a pod now, by the code that the extender decides with. Pure.

use kerf_core::contract::RequestDocument;
use kerf_core::inventory::NodeInventory;
use kerf_core::packing::{Fleet, Refusal, Terms, fit};
use kerf_runtime::gpu_node::GpuNode;
use std::collections::BTreeMap;
use std::fmt;

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It has room, for slices of these shapes.
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

/// The answers, each with the nodes that give it.
pub fn by_node(nodes: &[GpuNode], document: &RequestDocument) -> BTreeMap<Answer, Vec<String>> {
    let read: Vec<(String, Result<NodeInventory, Refusal>)> =
        nodes.iter().map(|node| (node.name().to_string(), inventory(node))).collect();
    let mut fleet = Fleet::new(Terms::default());
    let all = read.iter().filter_map(|(_, inventory)| inventory.as_ref().ok());
    for gpu in all.flat_map(|inventory| &inventory.gpus) {
        gpu.join(&mut fleet, None);
    }
    let mut answers: BTreeMap<Answer, Vec<String>> = BTreeMap::new();
    for (name, inventory) in read {
        let found = inventory.and_then(|inventory| fit(&inventory, document, &fleet));
        let answer = match found {
            Ok(fit) => {
                let shapes: Vec<String> =
                    fit.slices.iter().map(|slice| format!("{} on {}", slice.shape, slice.gpu)).collect();
                Answer::Room(shapes.join(", "))
            }
            Err(refusal) => Answer::Refused(refusal),
        };
        answers.entry(answer).or_default().push(name);
    }
    answers
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
