//! Other GPU managers: a conflict on managed nodes, and no problem elsewhere.

use super::{Finding, Observed, Seen, unknown};
use crate::check::observed::name_of;
use kerf_core::keys;
use kerf_core::resource::ResourceName;
use std::collections::BTreeSet;

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let mut findings = match &seen.other_managers {
        Seen::Unknown(why) => vec![unknown("the DaemonSets of all namespaces", why)],
        Seen::Found(_) | Seen::Absent => other_managers(seen),
    };
    if let Seen::Unknown(why) = &seen.device_classes {
        findings.push(unknown("the DeviceClasses", why));
    }
    findings.extend(classes(seen));
    if findings.is_empty() {
        findings.push(Finding::fine("no other program manages GPUs of kerf's nodes or takes its names"));
    }
    findings
}

fn other_managers(seen: &Observed) -> Vec<Finding> {
    let managed: BTreeSet<&str> = seen.managed().into_iter().map(name_of).collect();
    let mut findings = Vec::new();
    for manager in seen.other_managers.all() {
        let (program, evidence) = (manager.program.name(), &manager.evidence);
        let there: Vec<&str> =
            manager.nodes.iter().map(String::as_str).filter(|node| managed.contains(node)).collect();
        if let Some(first) = there.first() {
            findings.push(Finding::failure(
                format!("{program} runs on nodes that kerf serves ({evidence}): {}", there.join(", ")),
                manager.program.remedy(first),
            ));
        } else if evidence.starts_with("MutatingWebhookConfiguration") {
            findings.push(Finding::warning(
                format!("{program} changes pods too ({evidence})"),
                "keep it from pods that ask kerf: by its namespaceSelector, or turn its dialect on in kerf's policy (docs/requests.md) and uninstall it",
            ));
        }
    }
    findings
}

/// `DeviceClasses` by which dynamic resource allocation serves one of kerf's names. They are a problem, because
/// kube-scheduler then creates a claim, and the pod never gets kerf's device. The webhook avoids such a name if it can.
fn classes(seen: &Observed) -> Vec<Finding> {
    let knows_neutral = seen.flag_of("kerf-webhook", "--neutral-names") != Some("off");
    let of_class = |class: &serde_json::Value| {
        let resource = class["spec"]["extendedResourceName"].as_str()?;
        let class = class["metadata"]["name"].as_str().unwrap_or_default();
        let name = resource.parse::<ResourceName>();
        let conflict = format!("DeviceClass {class} has {resource} served by dynamic resource allocation");
        let free = format!(
            "kubectl patch deviceclass {class} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/extendedResourceName\"}}]'"
        );
        Some(match name {
            Ok(name) if !name.is_neutral() && knows_neutral => {
                let becomes = if name.size().is_some() {
                    "kerf gives no pod that name: pods that ask kerf for such a slice get kerf.dev/gpu-<N>gb"
                } else {
                    "kerf refuses pods that ask for it by this name; by size they get kerf.dev/gpu-<N>gb"
                };
                let keep = "leave it if pods of the class are to be served without kerf; otherwise";
                Finding::warning(format!("{conflict}; {becomes}"), format!("{keep}: {free}"))
            }
            Ok(_) => Finding::failure(format!("{conflict}, and that name is kerf's"), free),
            Err(_) if resource.starts_with(&format!("{}/", keys::GROUP)) => {
                Finding::failure(format!("{conflict}, and that name is kerf's"), free)
            }
            Err(_) => return None,
        })
    };
    seen.device_classes.all().iter().filter_map(of_class).collect()
}
