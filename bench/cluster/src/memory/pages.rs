//! Lists of the cluster's objects, in pages as the extender asks for them.

use std::collections::BTreeMap;

use kerf_core::keys;
use serde_json::{Value, json};

use super::population::{PodNumber, Population};
use super::{nodes, pods};

/// The parameters of a request.
pub type Parameters = BTreeMap<String, String>;

/// The page of a list of `resource` that these parameters ask for.
pub fn page(population: Population, resource: &str, parameters: &Parameters) -> anyhow::Result<Value> {
    let Population { nodes, pods_per_node, others_per_node } = population;
    let selector = parameters.get("labelSelector").map(String::as_str).unwrap_or_default();
    let are_sliced = selector == format!("{}=true", keys::SLICED);
    let (count, per_node) = match resource {
        "pods" if are_sliced => (population.pods(), pods_per_node),
        "pods" => (nodes * others_per_node, others_per_node),
        _ => (nodes, 1),
    };
    let number = |name| parameters.get(name).and_then(|text| text.parse::<usize>().ok());
    let from = number("continue").unwrap_or(0).min(count);
    let to = number("limit").map_or(count, |limit| count.min(from + limit));
    let item = |number: usize| {
        let pod = || PodNumber::new(number, per_node);
        match resource {
            "pods" if are_sliced => Ok(pods::with_slice(pod())),
            "pods" => Ok(pods::other(pod())),
            "nodes" => Ok(nodes::node(number)),
            _ => nodes::gpu_node(number, pods_per_node),
        }
    };
    let items = (from..to).map(item).collect::<anyhow::Result<Vec<_>>>()?;
    let mut metadata = json!({"resourceVersion": "1"});
    if to < count {
        metadata["continue"] = json!(to.to_string());
        metadata["remainingItemCount"] = json!(count - to);
    }
    Ok(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}))
}
