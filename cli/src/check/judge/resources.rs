//! The `CustomResourceDefinition` of `GpuNodes`, and the admission policies that guard what only kerf writes.

use super::{Finding, Observed, Seen, unknown};
use crate::check::difference::differences;
use crate::counted::counted;
use serde_json::{Value, json};

/// The shipped CRD. It is compiled in, so that the check needs no checkout.
const CRD: &str = include_str!("../../../../deploy/base/gpunodes.kerf.dev.yaml");

const GUARDS: [&str; 11] = [
    "bindings.guard",
    "extender.guard",
    "gpunodes.guard",
    "gpunodes-status.guard",
    "leader.guard",
    "node-agent.guard",
    "pods.guard",
    "schedulers.guard",
    "system-pods.guard",
    "undecided-pods.guard",
    "workloads.guard",
];

const PRUNED: &str =
    " and prunes status.neutralUpToGb, so that no node takes pods that several kinds may serve";

const DIFFERENCES_LIMIT: usize = 3;

const APPLY: &str = "kubectl apply --server-side -f deploy/base/gpunodes.kerf.dev.yaml (Helm does not update CRDs that are there)";

pub fn judge_before(seen: &Observed) -> Vec<Finding> {
    vec![match &seen.crd {
        Seen::Absent => Finding::fine("no CRD of kerf's is there yet"),
        Seen::Found(crd) => {
            let finding = definition(crd);
            if finding.is_failure() {
                finding
            } else {
                Finding::fine("the CRD is there already, of this version")
            }
        }
        Seen::Unknown(why) => unknown("the CRD", why),
    }]
}

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let crd = match &seen.crd {
        Seen::Found(crd) => definition(crd),
        Seen::Absent => Finding::failure("there is no CRD gpunodes.kerf.dev", APPLY),
        Seen::Unknown(why) => unknown("the CRD", why),
    };
    vec![crd, guards(seen)]
}

fn definition(found: &Value) -> Finding {
    let Ok(shipped) = serde_saphyr::from_str::<Value>(CRD) else {
        return Finding::fine("this program's own CRD cannot be read");
    };
    let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
    let established = conditions.into_iter().any(|c| c["type"] == "Established" && c["status"] == "True");
    let pruned = if keeps_neutral_names(found) { "" } else { PRUNED };
    let different = differences(&compared_fields(&shipped), &compared_fields(found));
    if let Some(first) = different.first() {
        let more = different.iter().take(DIFFERENCES_LIMIT).map(ToString::to_string).collect::<Vec<_>>();
        let rest = different.len().saturating_sub(DIFFERENCES_LIMIT);
        let rest = if rest > 0 { format!("; and {rest} more") } else { String::new() };
        debug_assert!(!first.path.is_empty());
        return Finding::failure(
            format!("the CRD gpunodes.kerf.dev is of another version{pruned}: {}{rest}", more.join("; ")),
            format!("{APPLY}, or use the kerf of the cluster's version"),
        );
    }
    if !established {
        return Finding::failure(
            "the CRD gpunodes.kerf.dev is not established",
            "kubectl describe crd gpunodes.kerf.dev says why; mostly another CRD has one of its names",
        );
    }
    Finding::fine("the CRD gpunodes.kerf.dev is there and of this version")
}

pub fn keeps_neutral_names(crd: &Value) -> bool {
    let status = "/schema/openAPIV3Schema/properties/status/properties/neutralUpToGb";
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    versions.into_iter().any(|version| version.pointer(status).is_some())
}

/// Only the fields that kerf sets, because the API server fills in others.
fn compared_fields(crd: &Value) -> Value {
    let version = |version: &Value| {
        let mut kept = version.clone();
        if let Some(fields) = kept.as_object_mut() {
            fields.retain(|key, _| matches!(key.as_str(), "name" | "served" | "schema" | "subresources"));
        }
        kept
    };
    let versions: Vec<Value> =
        crd["spec"]["versions"].as_array().into_iter().flatten().map(version).collect();
    json!({"scope": crd["spec"]["scope"], "kind": crd["spec"]["names"]["kind"], "versions": versions})
}

fn guards(seen: &Observed) -> Finding {
    let (found, bound) = match (&seen.guards, &seen.guards_bound) {
        (Seen::Found(found), Seen::Found(bound)) => (found, bound),
        (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => {
            return unknown("the ValidatingAdmissionPolicies", why);
        }
        _ => (&Vec::new(), &Vec::new()),
    };
    let names = GUARDS.map(|name| format!("{name}.{}", kerf_core::keys::GROUP));
    let missing: Vec<&str> = names
        .iter()
        .filter(|name| !found.contains(name) || !bound.contains(name))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        let policies = counted(names.len(), "admission policy");
        return Finding::fine(format!("{policies} guard what only kerf writes"));
    }
    Finding::warning(
        format!(
            "admission policies are missing or not bound: {}; users can write what only kerf should",
            missing.join(", ")
        ),
        "kubectl apply --server-side -k deploy/base/guard",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Value {
        let mut crd: Value = serde_saphyr::from_str(CRD).unwrap();
        crd["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        crd["spec"]["conversion"] = json!({"strategy": "None"});
        crd
    }

    #[test]
    fn another_crd_than_the_shipped_one_fails_by_its_fields() {
        assert!(!definition(&shipped()).is_failure());
        let mut old = shipped();
        old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            .as_object_mut()
            .unwrap()
            .remove("policy");
        let finding = definition(&old);
        assert!(
            finding.is_failure() && finding.what.contains("properties.spec.properties.policy is missing"),
            "{finding:?}"
        );
        let mut waiting = shipped();
        waiting["status"] = json!({});
        assert!(definition(&waiting).what.contains("not established"));
    }

    #[test]
    fn guards_must_be_bound() {
        let names = || GUARDS.map(|name| format!("{name}.kerf.dev")).to_vec();
        let seen = |guards: Vec<String>, bound: Vec<String>| Observed {
            guards: Seen::Found(guards),
            guards_bound: Seen::Found(bound),
            ..Observed::default()
        };
        assert!(!guards(&seen(names(), names())).is_warning());
        let finding = guards(&seen(names(), names()[1..].to_vec()));
        assert!(finding.is_warning() && finding.what.contains("bindings.guard.kerf.dev"), "{finding:?}");
    }

    #[test]
    fn the_known_guards_are_the_shipped_guards() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/base/guard");
        let mut shipped = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for document in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
                if document["kind"] == "ValidatingAdmissionPolicy" {
                    shipped.push(document["metadata"]["name"].as_str().unwrap().to_owned());
                }
            }
        }
        shipped.sort();
        let mut known = GUARDS.map(|name| format!("{name}.kerf.dev")).to_vec();
        known.sort();
        assert_eq!(shipped, known);
    }
}
