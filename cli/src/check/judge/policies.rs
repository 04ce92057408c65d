//! The admin's policies, parsed as the webhook and the extender parse them, so that the check finds the same mistakes.

use super::{Finding, Observed, Seen, unknown};
use crate::check::observed::name_of;
use kerf_core::policy::{Policies, Weight};
use kerf_runtime::policy_file::{Contents, check_texts};
use std::path::{Path, PathBuf};

const CONFIG_MAP: &str = "kerf-policies";

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let contents = match contents(seen) {
        Ok(contents) => contents,
        Err(findings) => return findings,
    };
    let policies = contents.policies();
    let remedy = format!(
        "kubectl -n {} edit configmap {CONFIG_MAP}; kerf policy check FILE reports the same for a file",
        seen.namespace
    );
    let mut findings = Vec::new();
    if policies.pods.is_empty() {
        findings.push(Finding::failure(
            format!("ConfigMap {CONFIG_MAP} has no GpuPolicy, without which no pod may ask for a GPU"),
            format!(
                "add policies/default.yaml to it: kubectl -n {} edit configmap {CONFIG_MAP}",
                seen.namespace
            ),
        ));
    } else {
        let (pods, nodes) = (policies.pods.len(), policies.nodes.len());
        findings.push(Finding::fine(format!("all can be read: {pods} for pods, {nodes} for nodes")));
    }
    for (finding, place) in contents.findings() {
        let what = format!("{place}: {finding}");
        findings.push(if finding.fault.weight() >= Weight::CheckFails {
            Finding::failure(what, remedy.clone())
        } else {
            Finding::warning(what, remedy.clone())
        });
    }
    findings
}

pub fn policies(seen: &Observed) -> Result<Policies, Vec<Finding>> {
    contents(seen).map(|contents| contents.policies())
}

fn contents(seen: &Observed) -> Result<Contents, Vec<Finding>> {
    if let Seen::Unknown(why) = &seen.config_maps {
        return Err(vec![unknown(&format!("the ConfigMap {CONFIG_MAP}"), why)]);
    }
    let namespace = &seen.namespace;
    let Some(map) = seen.config_maps.all().iter().find(|map| name_of(*map) == CONFIG_MAP) else {
        return Err(vec![Finding::failure(
            format!("there is no ConfigMap {CONFIG_MAP} in {namespace}"),
            format!("kubectl -n {namespace} create configmap {CONFIG_MAP} --from-file=policies/default.yaml"),
        )]);
    };
    let texts = map.data.iter().flatten().map(|(key, text)| (PathBuf::from(key), text.clone()));
    check_texts(Path::new(CONFIG_MAP), texts).map_err(|errors| {
        let remedy = format!(
            "kubectl -n {namespace} edit configmap {CONFIG_MAP}; until then what was good before stays in force, and a program that starts anew leaves the file out"
        );
        errors.into_iter().map(|error| Finding::failure(error.to_string(), remedy.clone())).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn judged(data: &serde_json::Value) -> Vec<Finding> {
        let map = serde_json::from_value(json!({"metadata": {"name": CONFIG_MAP}, "data": data})).unwrap();
        judge(&Observed { config_maps: Seen::Found(vec![map]), ..Observed::default() })
    }

    #[test]
    fn the_shipped_policy_has_no_findings() {
        let shipped = include_str!("../../../../policies/default.yaml");
        let findings = judged(&json!({"default.yaml": shipped}));
        assert!(findings.iter().all(|finding| finding.remedy().is_none()), "{findings:?}");
    }

    #[test]
    fn a_mistake_fails_with_file_line_and_column() {
        let findings = judged(
            &json!({"a.yaml": "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {name: a}\nspec: {isolatoin: {}}\n"}),
        );
        assert!(findings[0].is_failure() && findings[0].what.starts_with("a.yaml:4:"), "{findings:?}");
        assert!(judge(&Observed::default())[0].what.contains("no ConfigMap kerf-policies"));
    }
}
