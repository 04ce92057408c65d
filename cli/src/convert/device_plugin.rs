//! Converts the sharing of NVIDIA's device plugin (`sharing.timeSlicing`, `sharing.mps`), and of nos's plugin, whose
//! MPS shares have sizes (`memoryGB`).

use super::nos::mps_rule;
use super::{Converted, select_gpus};
use kerf_core::nvidia_keys::{CONFIG, PREFIX};
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;
use serde_json::{Value, json};

/// Adds a policy for the nodes with this configuration. `key` is its key in a `ConfigMap`; without a key the policy
/// matches all nodes, and the admin narrows it.
pub(super) fn sharing(sharing: &Value, key: Option<&str>, field: &str, into: &mut Converted) {
    let above = if field.is_empty() { String::new() } else { format!("{field}.") };
    let problems = into.problems.len();
    let mut rules = Vec::new();
    for kind in ["timeSlicing", "mps"] {
        for (number, resource) in sharing[kind]["resources"].as_array().into_iter().flatten().enumerate() {
            let field = format!("{above}sharing.{kind}.resources[{number}]");
            if let Some(rule) = rule(kind, resource, &field, into) {
                take(rule, &mut rules, &field, into);
            }
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

/// A key as a part of an object's name. Kubernetes allows no capitals and no underscores there.
fn legal(key: &str) -> String {
    key.to_lowercase().replace('_', "-")
}

/// Adds a rule, which comes from `field`. A rule for MIG devices is merged into the one for the same GPUs, and into one
/// for other MIG devices of these GPUs with as many replicas.
fn take(rule: Value, rules: &mut Vec<Value>, field: &str, into: &mut Converted) {
    let Some(known) = rules.iter_mut().find(|known| known["select"] == rule["select"]) else {
        return rules.push(rule);
    };
    let turns = |rule: &Value| rule["mig"]["timeSlicing"].as_u64();
    match (turns(known), turns(&rule)) {
        (Some(known), Some(other)) if known != other => {
            let what =
                format!("pods take {other} turns on these MIG devices and {known} on others of the GPUs");
            into.problem(&format!("{field}.replicas"), &what, "write one number for all profiles");
        }
        (Some(_), Some(_)) => {}
        (None, None) => rules.push(rule),
        (None, Some(_)) => join(known, &rule),
        (Some(_), None) => {
            let of_mig = std::mem::replace(known, rule);
            join(known, &of_mig);
        }
    }
}

/// Merges two rules for the same GPUs, without and with MIG mode. The mode is not changed, because the rules name both
/// and only the admin can decide.
fn join(rule: &mut Value, of_mig: &Value) {
    let kinds = [&rule["kinds"], &of_mig["kinds"]].map(|kinds| kinds.as_array().cloned().unwrap_or_default());
    rule["kinds"] = kinds.concat().into();
    rule["modeChange"] = json!("never");
    rule["mig"] = of_mig["mig"].clone();
}

fn is_of_mig(name: &str) -> bool {
    let whole = if name.contains('/') { name.to_owned() } else { format!("{PREFIX}{name}") };
    matches!(whole.parse(), Ok(ResourceName::Mig(_)))
}

fn rule(kind: &str, resource: &Value, field: &str, into: &mut Converted) -> Option<Value> {
    let name = resource["name"].as_str().unwrap_or_default();
    let of_mig = is_of_mig(name);
    if of_mig && kind == "mps" {
        let what = format!("{name} is shared by MPS, and kerf shares MIG devices by time slices only");
        into.problem(&format!("{field}.name"), &what, "write it under sharing.timeSlicing, or take it out");
        return None;
    }
    if !of_mig && name != "nvidia.com/gpu" && name != "gpu" {
        let what = format!("{name} is shared, and kerf shares GPUs and MIG devices");
        into.problem(&format!("{field}.name"), &what, "take it out");
        return None;
    }
    let Some(replicas) = resource["replicas"].as_u64() else {
        into.problem(&format!("{field}.replicas"), "it is no number of replicas", "write one like 4");
        return None;
    };
    let select = select(&resource["devices"], field, into)?;
    if of_mig {
        return Some(json!({
            "select": select, "kinds": ["mig"], "modeChange": "with-reset", "mig": {"timeSlicing": replicas},
        }));
    }
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

fn select(devices: &Value, field: &str, into: &mut Converted) -> Option<Value> {
    match devices {
        Value::Null => Some(json!({})),
        other => select_gpus(other, &format!("{field}.devices"), into),
    }
}
