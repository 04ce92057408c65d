//! Converts what nos's GPU partitioner has written on Nodes: `nos.nebuly.com/spec-gpu-<index>-<profile>: <count>`. The
//! profile is a MIG profile or, for MPS, a size. nos's list of geometries is recognized too, but has no use in kerf.

use super::{Converted, mig_rule};
use kerf_core::mig::Profile;
use kerf_core::resource::ResourceName;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SPEC: &str = "nos.nebuly.com/spec-gpu-";

/// Adds a policy for the node, with one layout for all its GPUs.
pub(super) fn node(node: &Value, into: &mut Converted) {
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    let mut gpus: BTreeMap<u32, Vec<(ResourceName, u32)>> = BTreeMap::new();
    let problems = into.problems.len();
    for (key, count) in node["metadata"]["annotations"].as_object().into_iter().flatten() {
        let Some(rest) = key.strip_prefix(SPEC) else { continue };
        let read = rest.split_once('-').and_then(|(index, profile)| {
            Some((index.parse().ok()?, resource(profile)?, count.as_str()?.parse().ok()?))
        });
        match read {
            Some((_, _, 0)) => {}
            Some((index, resource, count)) => gpus.entry(index).or_default().push((resource, count)),
            None => into.problem(
                &format!("Node {name}: metadata.annotations[{key}]"),
                "it names no GPU, profile and count",
                "correct it, or take it out",
            ),
        }
    }
    if into.problems.len() > problems {
        return;
    }
    let field = format!("Node {name}: metadata.annotations");
    if gpus.is_empty() {
        return into.problem(&field, "nos has specified no GPU", "leave the Node out");
    }
    let mut rules: Vec<Value> = gpus.values().map(|slices| rule(slices)).collect();
    rules.dedup();
    // All GPUs must have the same layout, because nos names GPUs by NVML's index, which kerf's policies do not accept.
    if rules.len() > 1 {
        let what = "its GPUs are cut in different ways, each named by its index, which may be another GPU's after a boot";
        let remedy = "write a GpuNodePolicy with select.uuids or select.pciBusIds for each, as kerf gpu list prints them";
        return into.problem(&field, what, remedy);
    }
    into.policy(&format!("nos-{name}"), &field, &json!({"names": [name]}), &rules);
}

fn rule(slices: &[(ResourceName, u32)]) -> Value {
    let select = json!({});
    let layout: Vec<Value> =
        slices.iter().map(|(resource, count)| json!({"resource": resource, "count": count})).collect();
    let is_mig = slices.iter().any(|(resource, _)| matches!(resource, ResourceName::Mig(_)));
    if is_mig { mig_rule(&select, &layout) } else { mps_rule(&select, &layout) }
}

pub(super) fn mps_rule(select: &Value, layout: &[Value]) -> Value {
    json!({"select": select, "kinds": ["mps"], "modeChange": "with-reset", "layout": layout})
}

fn resource(profile: &str) -> Option<ResourceName> {
    if let Ok(profile) = profile.parse::<Profile>() {
        return Some(ResourceName::Mig(profile));
    }
    format!("nvidia.com/gpu-{profile}").parse().ok().filter(|name| matches!(name, ResourceName::Mps(_)))
}

pub(super) fn is_geometries(document: &Value) -> bool {
    let counts = |geometry: &Value| {
        geometry
            .as_object()
            .is_some_and(|profiles| profiles.keys().all(|profile| profile.parse::<Profile>().is_ok()))
    };
    let geometries =
        |model: &Value| model.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(counts));
    document.as_object().is_some_and(|models| !models.is_empty() && models.values().all(geometries))
}
