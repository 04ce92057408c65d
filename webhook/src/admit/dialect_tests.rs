//! Tests of other systems' manifests: the table in `docs/reference/requests.md`, and properties of all of them.

use super::refusal_tests::compare;
use super::*;
use kerf_core::policy::PolicyDocument;
use kerf_core::testing::{node_status, with_neutral_names};
use proptest::prelude::*;
use serde_json::{Map, json};
use std::fmt::Write;
use std::path::PathBuf;

fn docs() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))
}

fn yaml(path: &std::path::Path) -> Value {
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn policies() -> Policies {
    let document: PolicyDocument =
        serde_json::from_value(yaml(&docs().join("dialects/policy.yaml"))).unwrap();
    Policies { pods: vec![document.try_into().unwrap()], nodes: Vec::new() }
}

/// A node with two H100 in MIG mode, and one with a T4 and an L40S without MIG.
fn supply() -> Supply {
    let nodes = [node_status(&["H100-80GB", "H100-80GB"]), node_status(&["T4-16GB", "L40S-48GB"])];
    Supply::from_statuses(&nodes.map(with_neutral_names))
}

/// The annotations, foreign labels and limits by which the manifest asks.
fn asked(pod: &Value) -> String {
    let entries = |map: &Value| {
        let entry = |(key, value): (&String, &Value)| {
            format!("`{key}: {}`", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        map.as_object().into_iter().flatten().map(entry).collect::<Vec<_>>()
    };
    let metadata = &pod["metadata"];
    let labels = entries(&metadata["labels"]).into_iter().map(|label| format!("label {label}"));
    let limits = entries(&pod["spec"]["containers"][0]["resources"]["limits"])
        .into_iter()
        .map(|l| format!("limit {l}"));
    entries(&metadata["annotations"]).into_iter().chain(labels).chain(limits).collect::<Vec<_>>().join("<br>")
}

fn became(admission: &Admission) -> (String, String) {
    match admission {
        Admission::Untouched => ("nothing".to_owned(), String::new()),
        Admission::Mended { .. } => panic!("a manifest carries no request"),
        Admission::Qualified { .. } => panic!("a pod is no template"),
        Admission::Denied { message, .. } => ("refused".to_owned(), message.clone()),
        Admission::Patched { document, warnings, .. } => {
            let got = document.containers.iter().map(|c| {
                let kinds: Vec<&str> = c.kinds.iter().map(|kind| kind.as_str()).collect();
                let kinds =
                    if kinds.is_empty() { String::new() } else { format!(" by {}", kinds.join(" or ")) };
                format!("{} × `{}`{kinds}", c.count, c.resource)
            });
            let got = got.collect::<Vec<_>>().join(", ");
            (format!("{got}, {}", document.isolation), warnings.join("<br>"))
        }
    }
}

#[test]
fn the_table_of_dialects_has_the_names_that_the_manifests_get() {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(docs().join("dialects")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|path| !path.ends_with("policy.yaml"));
    files.sort_unstable();
    let mut table = "| manifest | asks by | gets | warnings |\n|---|---|---|---|\n".to_owned();
    for path in &files {
        let pod = yaml(path);
        let (got, reported) = became(&admit(&pod, "default", &policies(), &supply()));
        let name = path.file_name().unwrap().to_string_lossy();
        let title = name.trim_end_matches(".yaml").split_once('-').unwrap().1.to_owned();
        writeln!(table, "| [{title}](../dialects/{name}) | {} | {got} | {reported} |", asked(&pod)).unwrap();
    }
    let path = docs().join("reference/requests.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- table -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end of table -->").unwrap();
    compare(&path, &format!("{before}<!-- table -->\n{table}<!-- end of table -->{after}"));
}

/// A container's request in some dialect: annotations, labels and limits.
fn ask() -> impl Strategy<Value = (Value, Value, Value)> {
    let count = 1_u32..=3;
    prop_oneof![
        (prop::sample::select(vec!["nvidia.com/gpu", "nvidia.com/gpu.shared"]), count.clone())
            .prop_map(|(name, count)| (json!({}), json!({}), json!({name: count.to_string()}))),
        (1_u32..=90_000, count.clone(), prop::option::of(1_u32..=100)).prop_map(|(mib, count, cores)| {
            let mut limits = json!({"nvidia.com/gpu": count.to_string(), "nvidia.com/gpumem": mib.to_string()});
            if let Some(cores) = cores {
                limits["nvidia.com/gpucores"] = json!(cores.to_string());
            }
            (json!({}), json!({}), limits)
        }),
        (1_u32..=100, prop::sample::select(vec!["A100", "T4", "H100"])).prop_map(|(percent, model)| {
            let notes = json!({"nvidia.com/use-gputype": model});
            (notes, json!({}), json!({"nvidia.com/gpumem-percentage": percent.to_string()}))
        }),
        (1_u32..=90, count.clone()).prop_map(|(gib, count)| {
            (json!({}), json!({"aliyun.com/gpu-count": count.to_string()}), json!({"aliyun.com/gpu-mem": gib.to_string()}))
        }),
        (1_u32..100, count.clone()).prop_map(|(percent, count)| {
            let notes = json!({"gpu-fraction": format!("0.{percent:02}"), "gpu-fraction-num-devices": count.to_string()});
            (notes, json!({}), json!({"cpu": "1"}))
        }),
        (1_u32..90_000).prop_map(|mib| (json!({"gpu-memory": mib.to_string()}), json!({}), json!({}))),
        (1_u32..90, count, prop::option::of(1_u32..=100), any::<bool>()).prop_map(|(gib, count, compute, strict)| {
            let mut notes = json!({"kerf.dev/gpu-memory": format!("{gib}Gi"), "kerf.dev/gpu-count": count.to_string()});
            if let Some(compute) = compute {
                notes["kerf.dev/compute"] = json!(compute.to_string());
            }
            if strict {
                notes["kerf.dev/memory-match"] = json!("strict");
            }
            (notes, json!({}), json!({}))
        }),
    ]
}

proptest! {
    #[test]
    fn a_pod_that_was_admitted_by_any_dialect_is_admitted_unchanged(
        (mut notes, labels, limits) in ask(),
        class in prop::option::of(prop::sample::select(vec!["hardware", "memory", "none"])),
        scheduler in prop::option::of(prop::sample::select(vec!["kai-scheduler", "runai-scheduler", "hami-scheduler"])),
        named in prop::option::of(prop::sample::select(vec!["H100-80GB", "T4-16GB,L40S-48GB"])),
        models in prop::sample::subsequence(vec!["H100-80GB", "A100-40GB", "H200-141GB", "T4-16GB", "L40S-48GB"], 0..=5),
    ) {
        for (key, value) in [("kerf.dev/isolation", class), ("kerf.dev/gpu-model", named)] {
            if let Some(value) = value {
                notes[key] = json!(value);
            }
        }
        let mut pod = json!({
            "metadata": {"name": "p", "annotations": notes, "labels": labels},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]},
        });
        if let Some(scheduler) = scheduler {
            pod["spec"]["schedulerName"] = json!(scheduler);
        }
        let (policies, supply) = (policies(), Supply::from_statuses(&[node_status(&models)]));
        if let Admission::Patched { ops, document, .. } = admit(&pod, "default", &policies, &supply) {
            let mut after = pod.clone();
            json_patch::patch(&mut after, &ops).unwrap();
            prop_assert_eq!(admit(&after, "default", &policies, &supply), Admission::Untouched, "{}", after);
            let request = &document.containers[0];
            for map in ["limits", "requests"] {
                let mut left = after["spec"]["containers"][0]["resources"][map].as_object().cloned().unwrap_or_default();
                left.remove("cpu");
                let only = Map::from_iter([(request.resource.to_string(), json!(request.count.to_string()))]);
                prop_assert_eq!(left, only);
            }
            for (key, value) in pod["metadata"]["annotations"].as_object().unwrap() {
                prop_assert_eq!(&after["metadata"]["annotations"][key], value, "what asked by annotation stays");
            }
        }
    }
}
