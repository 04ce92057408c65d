//! Valid inputs, from shipped files and from each dialect, and the words with a meaning in them.

use std::path::PathBuf;

use anyhow::Context as _;
use kerf_core::testing::request;
use serde_json::{Value, json};

use super::targets::{read, yaml_files};

/// Amounts as users write them.
pub const QUANTITIES: &[&str] = &[
    "10Gi",
    "10G",
    "10240Mi",
    "10737418240",
    "1e10",
    "0.5Gi",
    "1.5Ti",
    "500m",
    "16",
    "1",
    "10E",
    "10Ei",
    "1k",
    "100n",
    "7u",
    "1E3",
    "1e+3",
    "-1Gi",
    "+2Gi",
    ".5Gi",
    "5.",
    "25%",
    "0",
];
/// Parts that change a quantity.
pub const QUANTITY_WORDS: &[&str] = &[
    "Gi", "G", "Mi", "M", "Ki", "k", "Ti", "Pi", "Ei", "E", "m", "u", "n", "e", "+", "-", ".", "%", " ", "_",
    "٣",
];

/// Names as users write them.
pub const NAMES: &[&str] = &[
    "1g.10gb",
    "1g.10gb+me",
    "1g.12gb.me",
    "1c.3g.40gb",
    "2c.7g.80gb",
    "7g.80gb",
    "1g.10gb+gfx",
    "3g.71gb",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-1g.10gb.me",
    "nvidia.com/mig-1c.3g.40gb",
    "nvidia.com/gpu-10gb",
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "kerf.dev/gpu-10gb",
    "gpu-10gb",
    "kerf.dev/mps-10gb",
    "kerf.dev/gpu-replica",
];
/// Parts that change a name.
pub const NAME_WORDS: &[&str] = &[
    "1g",
    "7g",
    "10gb",
    ".",
    "c.",
    "+me",
    ".me",
    "+gfx",
    ".gfx",
    "gpu-",
    "mig-",
    "mps-",
    "nvidia.com/",
    "kerf.dev/",
    "gb",
    "+",
    "shared",
];

/// Keys and values of reviews and of request documents.
pub const REVIEW_WORDS: &[&str] = &[
    "kerf.dev/gpu-memory",
    "kerf.dev/gpu-memory.main",
    "kerf.dev/gpu-profile",
    "kerf.dev/gpu-count",
    "kerf.dev/compute",
    "kerf.dev/gpu-model",
    "kerf.dev/gpu-model-not",
    "kerf.dev/gpu-uuid",
    "kerf.dev/gpu-uuid-not",
    "kerf.dev/memory-match",
    "kerf.dev/isolation",
    "kerf.dev/movable",
    "kerf.dev/request",
    "kerf.dev/assignment",
    "kerf.dev/room",
    "kerf.dev/gpu-10gb",
    "gpu-10gb",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-1c.3g.40gb",
    "nvidia.com/gpu-10gb",
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "hardware",
    "memory",
    "none",
    "nominal",
    "strict",
    "mig",
    "mps",
    "whole",
    "time-slicing",
    "10Gi",
    "50%",
    "0.5",
    "CREATE",
    "UPDATE",
    "DELETE",
    "pods",
    "deployments",
    "ephemeralcontainers",
    "limits",
    "requests",
    "resources",
    "containers",
    "initContainers",
    "nodeName",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "nodeAffinity",
    "matchExpressions",
    "restartPolicy",
    "Always",
    "null",
    "true",
    "[]",
    "{}",
    "[",
    "{",
    "}",
    "]",
    ",",
    ":",
    "\\u0000",
    "\\ud800",
    "~1",
    "~0",
    "/",
];

/// Keys and values of policy files.
pub const POLICY_WORDS: &[&str] = &[
    "names",
    "gpus",
    "select",
    "pciBusIds",
    "uuids",
    "kinds",
    "modeChange",
    "with-reset",
    "computeInstances",
    "strict",
    "exclusive",
    "memoryPercent",
    "timeSlicing",
    "replicas",
    "length",
    "memoryLimits",
    "layout",
    "resource",
    "count",
    "warm",
    "overUse",
    "removeRejectedPods",
    "nvidia.com/gpu-13gb",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1c.3g.40gb",
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "GpuPolicy",
    "GpuNodePolicy",
    "kerf.dev/v1alpha1",
    "match",
    "namespaces",
    "namespaceLabels",
    "labels",
    "priorityClasses",
    "serviceAccounts",
    "models",
    "defaultIsolation",
    "isolation",
    "hardware",
    "memory",
    "none",
    "mig",
    "mps",
    "whole",
    "time-slicing",
    "tolerations",
    "schedulerName",
    "maxCount",
    "sizes",
    "minGb",
    "maxGb",
    "stepGb",
    "maxPerPod",
    "quota",
    "memoryGb",
    "slices",
    "dialects",
    "fractionOfGb",
    "nodeName",
    "environment",
    "runtimeClassName",
    "waiting",
    "afterSeconds",
    "preemption",
    "packing",
    "weights",
    "1g.10gb",
    "\n---\n",
    "\n  ",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "<<: ",
    "!!str ",
    "|\n",
    ">\n",
    "#",
    "'",
    "\"",
    "~",
    "\t",
    "? ",
    "%YAML 1.2\n",
];

pub fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The shipped policies, each of which is complete alone, and one with every dialect.
pub fn policy_files() -> anyhow::Result<Vec<PathBuf>> {
    let mut files = yaml_files("tests/src/fuzz/policies")?;
    files.extend(yaml_files("policies")?.into_iter().filter(|path| !path.ends_with("kustomization.yaml")));
    Ok(files)
}

/// These policy files, the shipped examples of each field, and one for nodes with the fields that are missing
/// there.
pub fn policies() -> anyhow::Result<Vec<Vec<u8>>> {
    let mut files = policy_files()?;
    files.extend(yaml_files("policies/examples")?);
    files.extend(yaml_files("tests/src/fuzz/policies/nodes")?);
    files.iter().map(|path| Ok(read(path)?.into_bytes())).collect()
}

pub fn requests() -> anyhow::Result<Vec<Vec<u8>>> {
    let names = ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu-10gb", "nvidia.com/mig-3g.40gb"];
    names.iter().map(|name| Ok(serde_json::to_vec(&request(name, 2))?)).collect()
}

/// `AdmissionReview`s of the shipped examples, and of a pod for each dialect.
pub fn reviews() -> anyhow::Result<Vec<Vec<u8>>> {
    let mut objects = dialects();
    for path in yaml_files("deploy/examples")? {
        for document in read(&path)?.split("\n---") {
            let object: Value = serde_saphyr::from_str(document)
                .with_context(|| format!("failed to read {}", path.display()))?;
            objects.push(object);
        }
    }
    objects
        .iter()
        .filter(|object| object.is_object())
        .map(|object| Ok(serde_json::to_vec(&review(object))?))
        .collect()
}

/// The `AdmissionReview` of the object's creation.
fn review(object: &Value) -> Value {
    let (group, resource) = match object["kind"].as_str() {
        Some("Deployment") => ("apps", "deployments"),
        Some("Job") => ("batch", "jobs"),
        _ => ("", "pods"),
    };
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "CREATE", "namespace": "default",
            "resource": {"group": group, "version": "v1", "resource": resource}, "dryRun": false, "object": object,
        },
    })
}

fn dialects() -> Vec<Value> {
    let by_limits = [
        json!({"kerf.dev/gpu-10gb": "2"}),
        json!({"gpu-20gb": 1, "cpu": "500m"}),
        json!({"nvidia.com/mig-1g.10gb": "1"}),
        json!({"nvidia.com/mig-1c.3g.40gb": "1"}),
        json!({"nvidia.com/gpu-10gb": "1"}),
        json!({"nvidia.com/gpu": "1"}),
        json!({"nvidia.com/gpu.shared": "2"}),
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"}),
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
        json!({"aliyun.com/gpu-mem": "8"}),
    ];
    let by_annotations = [
        json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/isolation": "hardware"}),
        json!({"kerf.dev/gpu-memory.main": "10Gi", "kerf.dev/gpu-memory.init": "4Gi", "kerf.dev/movable": "true"}),
        json!({"kerf.dev/gpu-profile": "1g.10gb", "kerf.dev/gpu-count": "2", "kerf.dev/gpu-model": "H100-80GB"}),
        json!({"kerf.dev/gpu-profile": "1c.3g.40gb", "kerf.dev/isolation": "memory"}),
        json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/compute": "50%", "kerf.dev/memory-match": "strict"}),
        json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
        json!({"gpu-memory": "4096", "runai/queue": "team"}),
    ];
    let limits =
        by_limits.iter().map(|limits| pod(&json!({}), &json!({"limits": limits, "requests": limits})));
    limits.chain(by_annotations.iter().map(|annotations| pod(annotations, &json!({})))).collect()
}

/// A pod with every field that a patch must respect.
fn pod(annotations: &Value, resources: &Value) -> Value {
    let expression = json!({"key": "zone", "operator": "In", "values": ["a"]});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations, "labels": {"app": "p"}},
        "spec": {
            "nodeName": "",
            "initContainers": [{"name": "init", "image": "i", "restartPolicy": "Always"}],
            "containers": [
                {"name": "main", "image": "i", "resources": resources,
                 "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
                {"name": "side", "image": "i"},
            ],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}],
            }}},
            "tolerations": [{"key": "k", "operator": "Exists"}],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_runtime::policy_file;

    #[test]
    fn every_policy_file_that_inputs_are_made_from_is_a_good_one() {
        for (number, text) in policies().unwrap().iter().enumerate() {
            let text = String::from_utf8_lossy(text);
            let parsed = policy_file::parse(std::path::Path::new("corpus.yaml"), &text);
            assert!(parsed.is_ok(), "file {number}: {parsed:?}\n{text}");
        }
    }
}
