//! Converts mig-parted's configuration (`mig-configs`), which has a layout of GPUs for each name. The MIG manager
//! applies the one in a node's label, and the converted policies match the same label.

use super::{Converted, mig_rule, select_gpus};
use kerf_core::mig::Profile;
use kerf_core::nvidia_keys::MIG_CONFIG;
use kerf_core::resource::ResourceName;
use serde_json::{Map, Value, json};

pub(super) fn configurations(configurations: &Map<String, Value>, field: &str, into: &mut Converted) {
    let above = if field.is_empty() { String::new() } else { format!("{field}.") };
    for (name, entries) in configurations {
        let field = format!("{above}mig-configs.{name}");
        let problems = into.problems.len();
        let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
        let rules: Vec<Value> = entries
            .iter()
            .enumerate()
            .filter_map(|(number, entry)| rule(entry, &format!("{field}[{number}]"), into))
            .collect();
        // A configuration with a problem gives no policy, because a part of it would use GPUs for other purposes than
        // intended.
        if into.problems.len() == problems {
            into.policy(name, &field, &json!({"labels": {MIG_CONFIG: name}}), &rules);
        }
    }
}

fn rule(entry: &Value, field: &str, into: &mut Converted) -> Option<Value> {
    if !entry["device-filter"].is_null() {
        let remedy = "take it out, and write select.models into the policy";
        into.problem(
            &format!("{field}.device-filter"),
            "kerf does not know GPUs by their PCI device ids",
            remedy,
        );
        return None;
    }
    let select = select_gpus(&entry["devices"], &format!("{field}.devices"), into)?;
    match entry["mig-enabled"].as_bool() {
        Some(true) => Some(mig_rule(&select, &layout(&entry["mig-devices"], field, into)?)),
        Some(false) => {
            let kinds = ["whole", "mps", "time-slicing"];
            Some(json!({"select": select, "kinds": kinds, "modeChange": "with-reset"}))
        }
        None => {
            into.problem(
                &format!("{field}.mig-enabled"),
                "it is neither true nor false",
                "write one of them",
            );
            None
        }
    }
}

fn layout(devices: &Value, field: &str, into: &mut Converted) -> Option<Vec<Value>> {
    let mut layout = Vec::new();
    for (profile, count) in devices.as_object().into_iter().flatten() {
        let Ok(profile) = profile.parse::<Profile>() else {
            let what = "this is no GPU instance's profile that kerf can lay out";
            into.problem(
                &format!("{field}.mig-devices[{profile}]"),
                what,
                "write profiles like 1g.10gb or 1g.10gb+me",
            );
            return None;
        };
        layout.push(json!({"resource": ResourceName::Mig(profile), "count": count}));
    }
    Some(layout)
}
