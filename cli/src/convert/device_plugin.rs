//! How NVIDIA's device plugin shares GPUs (`sharing.timeSlicing`, `sharing.mps`), and nos's plugin, whose MPS shares have
//! sizes (`memoryGB`).

use super::nos::mps_rule;
use super::{Converted, select_gpus};
use kerf_core::nvidia_keys::CONFIG;
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;
use serde_json::{Value, json};

/// A policy for the nodes that have the configuration, by its key of a `ConfigMap`; without one for all nodes, which the
/// admin limits to those that have it.
pub(super) fn sharing(sharing: &Value, key: Option<&str>, field: &str, into: &mut Converted) {
    let above = if field.is_empty() { String::new() } else { format!("{field}.") };
    let problems = into.problems.len();
    let mut rules = Vec::new();
    for kind in ["timeSlicing", "mps"] {
        for (number, resource) in sharing[kind]["resources"].as_array().into_iter().flatten().enumerate() {
            let field = format!("{above}sharing.{kind}.resources[{number}]");
            rules.extend(rule(kind, resource, &field, into));
        }
    }
    if into.problems.len() > problems {
        return;
    }
    let (name, matched) = match key {
        Some(key) => (format!("device-plugin-{}", legal(key)), json!({"labels": {CONFIG: key}})),
        None => ("device-plugin".to_owned(), json!({})),
    };
    into.policy(&name, &format!("{above}sharing"), &matched, &rules);
}

/// A key as a part of an object's name, which has no capitals and no underscores.
fn legal(key: &str) -> String {
    key.to_lowercase().replace('_', "-")
}

fn rule(kind: &str, resource: &Value, field: &str, into: &mut Converted) -> Option<Value> {
    let name = resource["name"].as_str().unwrap_or_default();
    if name != "nvidia.com/gpu" && name != "gpu" {
        let what = format!("{name} is shared, and kerf shares whole GPUs only");
        into.problem(&format!("{field}.name"), &what, "take it out, and let pods ask for a smaller profile");
        return None;
    }
    let Some(replicas) = resource["replicas"].as_u64() else {
        into.problem(&format!("{field}.replicas"), "it is no number of replicas", "write one like 4");
        return None;
    };
    let select = select(&resource["devices"], field, into)?;
    if kind == "timeSlicing" {
        return Some(json!({
            "select": select, "kinds": ["time-slicing"], "modeChange": "with-reset", "timeSlicing": {"replicas": replicas},
        }));
    }
    let Some(size) = resource["memoryGB"].as_u64().and_then(|size| u32::try_from(size).ok()) else {
        return Some(json!({
            "select": select, "kinds": ["mps"], "modeChange": "with-reset", "mps": {"replicas": replicas},
        }));
    };
    let layout = json!({"resource": ResourceName::Mps(SizeGb(size)), "count": replicas});
    Some(mps_rule(&select, &[layout]))
}

/// `devices`: absent or `all`, or names of GPUs.
fn select(devices: &Value, field: &str, into: &mut Converted) -> Option<Value> {
    match devices {
        Value::Null => Some(json!({})),
        other => select_gpus(other, &format!("{field}.devices"), into),
    }
}
