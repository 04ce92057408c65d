//! Every refusal, each with a pod that gets it. They make `refusals.json`, which has the texts as a golden file and the
//! pods for a test with a real API server, and `docs/refusals.md`. `KERF_UPDATE=1` writes both.

use super::*;
use kerf_core::admission::{Refusal, Unfit};
use kerf_core::mig::UnknownComputeProfile;
use kerf_core::policy::{Denied, PolicyDocument, SupplyIndex};
use kerf_core::quantity::SizeError;
use kerf_core::request::{AskError, LimitRemedy};
use kerf_core::testing::static_node;
use serde_json::{Map, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Each case with its name. A missing case does not compile, and a case without a pod below fails the test.
macro_rules! cases {
    ($($name:literal => $case:pat),* $(,)?) => {
        const ALL: &[&str] = &[$($name),*];

        fn case(refusal: &Refusal) -> &'static str {
            match refusal { $($case => $name),* }
        }
    };
}

cases! {
    "size malformed" => Refusal::Ask(AskError::Size { source: SizeError::Malformed(_), .. }),
    "size negative" => Refusal::Ask(AskError::Size { source: SizeError::Negative(_), .. }),
    "size too small" => Refusal::Ask(AskError::Size { source: SizeError::TooSmall(_), .. }),
    "size too large" => Refusal::Ask(AskError::Size { source: SizeError::TooLarge(_), .. }),
    "amount" => Refusal::Ask(AskError::Amount { .. }),
    "count" => Refusal::Ask(AskError::Count { .. }),
    "compute" => Refusal::Ask(AskError::Compute { .. }),
    "fraction" => Refusal::Ask(AskError::Fraction { .. }),
    "fraction of what" => Refusal::Ask(AskError::FractionOfWhat { .. }),
    "profile malformed" => Refusal::Ask(AskError::Profile { source: UnknownComputeProfile::Malformed(_), .. }),
    "profile not offered" => Refusal::Ask(AskError::Profile { source: UnknownComputeProfile::NotOffered(..), .. }),
    "twice" => Refusal::Ask(AskError::Twice { .. }),
    "everybody's" => Refusal::Ask(AskError::Everybodys { .. }),
    "ambiguous" => Refusal::Ask(AskError::Ambiguous { .. }),
    "no default container" => Refusal::Ask(AskError::DefaultContainer { .. }),
    "no containers" => Refusal::Ask(AskError::NoContainers { .. }),
    "no container" => Refusal::Ask(AskError::NoContainer { .. }),
    "nothing asked" => Refusal::Ask(AskError::NothingAsked { .. }),
    "privileged" => Refusal::Ask(AskError::Privileged(_)),
    "class unknown" => Refusal::Ask(AskError::Isolation(_)),
    "movable" => Refusal::Ask(AskError::Movable(_)),
    "memory match" => Refusal::Ask(AskError::MemoryMatch(_)),
    "model" => Refusal::Ask(AskError::Model { .. }),
    "uuid" => Refusal::Ask(AskError::Uuid { .. }),
    "unknown key" => Refusal::Ask(AskError::UnknownKey { .. }),
    "label" => Refusal::Ask(AskError::Labelled { .. }),
    "unknown label" => Refusal::Ask(AskError::UnknownLabel { .. }),
    "limit that is an annotation" => Refusal::Ask(AskError::UnknownLimit { remedy: LimitRemedy::Annotation { .. }, .. }),
    "limit of another group" => Refusal::Ask(AskError::UnknownLimit { remedy: LimitRemedy::Name(_), .. }),
    "unknown limit" => Refusal::Ask(AskError::UnknownLimit { remedy: LimitRemedy::Size(_), .. }),
    "unknown model" => Refusal::Ask(AskError::UnknownModel { .. }),
    "idle key" => Refusal::Ask(AskError::Idle { others: None, .. }),
    "idle key beside another's limit" => Refusal::Ask(AskError::Idle { others: Some(_), .. }),
    "node name" => Refusal::Ask(AskError::NodeName) | Refusal::Unfit(Unfit::NodeName(_)),
    "nothing given" => Refusal::Policy(Denied::Nothing { .. }),
    "models denied" => Refusal::Policy(Denied::Models { .. }),
    "no model for it" => Refusal::Policy(Denied::NoModel { .. }),
    "nodes denied" => Refusal::Policy(Denied::Nodes { .. }),
    "class denied" => Refusal::Policy(Denied::Class { .. }),
    "count denied" => Refusal::Policy(Denied::Count { .. }),
    "too small" => Refusal::Policy(Denied::TooSmall { .. }),
    "too large" => Refusal::Policy(Denied::TooLarge { .. }),
    "pod's memory" => Refusal::Policy(Denied::PodMemory { .. }),
    "pod's slices" => Refusal::Policy(Denied::PodSlices { .. }),
    "kind" => Refusal::Policy(Denied::Kind { .. }),
    "no such slice" => Refusal::Policy(Denied::Size { .. }),
    "compute denied" => Refusal::Policy(Denied::Compute { .. }),
    "several GPUs" => Refusal::Policy(Denied::DistinctGpus { .. }),
    "several replicas" => Refusal::Policy(Denied::Replicas { .. }),
    "mapped to DRA" => Refusal::Policy(Denied::Mapped { .. }),
    "scheduler" => Refusal::Unfit(Unfit::Scheduler { .. }),
    "environment" => Refusal::Unfit(Unfit::Environment { .. }),
    "root beside an MPS daemon" => Refusal::Unfit(Unfit::Root(_)),
    "unknown namespace" => Refusal::Undecided(_),
    "no policy" => Refusal::NoPolicy(_),
    "no pod" => Refusal::Pod(_),
}

/// No pod gets these from a webhook behind a real API server without GPUs. The API server rejects the first itself, and
/// the others need static nodes or a watch that lags.
const DIRECT: [&str; 3] = ["no pod", "several replicas", "unknown namespace"];

/// The cases whose text repeats the user's value, because the user wrote it under the wrong key.
const WITH_VALUE: [&str; 5] =
    ["label", "unknown label", "limit that is an annotation", "limit of another group", "unknown limit"];

/// Policies that pods select by their label `policy`, so that all of them can be in force at once.
fn policies() -> Vec<Value> {
    let policy = |name: &str, spec: Value| {
        let mut all = json!({
            "match": {"labels": {"policy": name}},
            "defaultIsolation": "memory",
            "isolation": {"memory": ["mig", "mps"], "none": ["time-slicing", "mps", "mig"]},
        });
        json_patch::merge(&mut all, &spec);
        json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": all})
    };
    vec![
        policy("plain", json!({})),
        policy("dialects", json!({"dialects": ["nvidia", "hami", "gpushare", "kai", "runai"]})),
        policy(
            "bounded",
            json!({
                "sizes": {"minGb": 5, "maxGb": 40}, "maxCount": 8, "maxPerPod": {"memoryGb": 60, "slices": 4},
            }),
        ),
        policy(
            "shares",
            json!({
                "defaultIsolation": "none", "isolation": {"memory": null, "none": ["time-slicing"]},
            }),
        ),
        policy(
            "pool",
            json!({
                "models": ["A100-80GB", "T4-16GB"], "kindsByModel": {"A100-80GB": ["mig"], "T4-16GB": ["mps"]},
                "nodeSelector": {"pool": "research"},
            }),
        ),
        policy("closed", json!({"mps": {"rootContainers": "refuse"}})),
        policy("open", json!({"mps": {"rootContainers": "allow"}})),
        policy(
            "nothing",
            json!({"defaultIsolation": null, "isolation": null, "deny": "it has no GPU budget"}),
        ),
    ]
}

/// A pod that the API server would accept, if it asked for nothing wrong.
#[expect(clippy::needless_pass_by_value, reason = "so that the cases read as the manifests do")]
fn pod(policy: &str, annotations: Value, resources: Value) -> Value {
    let main = json!({"name": "main", "image": "none", "resources": resources});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "refused", "labels": {}, "annotations": annotations},
        "spec": {"containers": [main]},
    });
    if !policy.is_empty() {
        pod["metadata"]["labels"]["policy"] = json!(policy);
    }
    pod
}

fn noted(key: &str, text: &str) -> Value {
    pod("plain", json!({key: text}), json!({}))
}

fn labelled(key: &str, text: &str) -> Value {
    with(pod("plain", json!({}), json!({})), "/metadata/labels", json!({"policy": "plain", key: text}))
}

fn ten_with(key: &str, text: &str) -> Value {
    pod("plain", json!({"kerf.dev/gpu-memory": "10Gi", key: text}), json!({}))
}

fn limited(policy: &str, name: &str, amount: &str) -> Value {
    pod(policy, json!({}), json!({"limits": {name: amount}}))
}

fn with(mut pod: Value, path: &str, value: Value) -> Value {
    let (parent, key) = path.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

fn asks() -> Vec<Value> {
    let side = json!({"name": "side", "image": "none"});
    let ten = || noted("kerf.dev/gpu-memory", "10Gi");
    let fraction = |text: &str| pod("dialects", json!({"gpu-fraction": text}), json!({}));
    vec![
        noted("kerf.dev/gpu-memory", "ten"),
        limited("plain", "gpu-10", "1"),
        noted("kerf.dev/gpu-memory", "-1Gi"),
        noted("kerf.dev/gpu-memory", "10"),
        limited("plain", "gpu-0gb", "1"),
        noted("kerf.dev/gpu-memory", "10Ti"),
        limited("plain", "kerf.dev/gpu-999gb", "1"),
        limited("dialects", "nvidia.com/gpumem", "300k"),
        limited("dialects", "nvidia.com/gpumem-percentage", "101"),
        limited("dialects", "aliyun.com/gpu-mem", "500m"),
        pod("dialects", json!({"gpu-memory": "2Gi"}), json!({})),
        limited("plain", "gpu-10gb", "0"),
        limited("plain", "gpu-10gb", "500m"),
        ten_with("kerf.dev/gpu-count", "0"),
        limited("dialects", "nvidia.com/gpu", "1500m"),
        ten_with("kerf.dev/compute", "0"),
        ten_with("kerf.dev/compute.main", "half"),
        limited("dialects", "nvidia.com/gpucores", "200"),
        fraction("1"),
        fraction("half"),
        fraction("0.5"),
        noted("kerf.dev/gpu-profile", "1g10gb"),
        noted("kerf.dev/gpu-profile", "5c.7g.80gb"),
        pod("plain", json!({}), json!({"limits": {"gpu-10gb": "1", "gpu-20gb": "1"}})),
        pod(
            "plain",
            json!({}),
            json!({"limits": {"nvidia.com/gpu-10gb": "1", "nvidia.com/mig-1g.10gb": "1"}}),
        ),
        pod("plain", json!({"kerf.dev/gpu-memory": "20Gi"}), json!({"limits": {"gpu-10gb": "1"}})),
        pod("dialects", json!({"kerf.dev/gpu-memory": "20Gi"}), json!({"limits": {"nvidia.com/gpu": "1"}})),
        pod("dialects", json!({"gpu-fraction": "0.5", "gpu-memory": "2000"}), json!({})),
        ten_with("kerf.dev/gpu-profile", "1g.10gb"),
        pod("plain", json!({"kerf.dev/gpu-memory": "20Gi"}), json!({"limits": {"nvidia.com/gpu": "1"}})),
        pod("plain", json!({}), json!({"limits": {"gpu-10gb": "1", "nvidia.com/gpumem": "3000"}})),
        pod("plain", json!({}), json!({"limits": {"gpu-10gb": "1", "aliyun.com/gpu-mem": "3"}})),
        pod(
            "dialects",
            json!({"kerf.dev/gpu-memory": "9Gi"}),
            json!({"limits": {"nvidia.com/mig-1g.10gb": "1"}}),
        ),
        with(ten(), "/spec/containers", json!([ten()["spec"]["containers"][0], side])),
        ten_with("kubectl.kubernetes.io/default-container", "sidecar"),
        with(ten(), "/spec/containers", json!([])),
        noted("kerf.dev/gpu-memory.other", "20Gi"),
        ten_with("kerf.dev/compute.other", "20"),
        noted("kerf.dev/gpu-count", "2"),
        pod("dialects", json!({"gpu-fraction-num-devices": "2"}), json!({})),
        with(ten(), "/spec/containers/0/securityContext", json!({"privileged": true})),
        ten_with("kerf.dev/isolation", "total"),
        ten_with("kerf.dev/movable", "yes"),
        ten_with("kerf.dev/memory-match", "exact"),
        ten_with("kerf.dev/gpu-model", "H100 80GB"),
        ten_with("nvidia.com/use-gputype", "A100,"),
        ten_with("kerf.dev/gpu-uuid", "0"),
        ten_with("kerf.dev/gpu-uuid-not", "GPU-1,MIG-2"),
        noted("kerf.dev/gpu-memroy", "10Gi"),
        ten_with("kerf.dev/isolation.main", "none"),
        labelled("kerf.dev/gpu-memory", "10Gi"),
        labelled("kerf.dev/gpu-memory.main", "10Gi"),
        labelled("kerf.dev/gpu", "1"),
        limited("plain", "kerf.dev/gpu-memory", "20Gi"),
        limited("plain", "kerf.dev/compute", "50"),
        limited("plain", "kerf.dev/gpu", "1"),
        limited("plain", "kerf.dev/gpu-20Gi", "1"),
        limited("plain", "kerf.dev/mig-1g.10gb", "1"),
        ten_with("kerf.dev/gpu-model", "T4"),
        ten_with("nvidia.com/use-gputype", "T5-16GB"),
        noted("kerf.dev/compute.main", "50"),
        noted("kerf.dev/isolation", "hardwre"),
        pod("plain", json!({"kerf.dev/gpu-model": "H100-80GB"}), json!({"limits": {"nvidia.com/gpu": "1"}})),
        with(ten(), "/spec/nodeName", json!("n1")),
    ]
}

fn denials() -> Vec<Value> {
    let sized = |policy: &str, gb: u32, count: &str| limited(policy, &format!("kerf.dev/gpu-{gb}gb"), count);
    let by_size = json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/gpu-model": "H100-80GB"});
    let mut mixed = limited("pool", "nvidia.com/mig-1g.10gb", "1");
    let share =
        json!({"name": "share", "image": "none", "resources": {"limits": {"nvidia.com/gpu-10gb": "1"}}});
    mixed["spec"]["containers"].as_array_mut().unwrap().push(share);
    vec![
        sized("nothing", 10, "1"),
        limited("nothing", "nvidia.com/gpu", "1"),
        pod("pool", by_size, json!({})),
        pod(
            "pool",
            json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/gpu-model-not": "A100-80GB,T4-16GB"}),
            json!({}),
        ),
        pod("pool", json!({"kerf.dev/gpu-memory": "10Gi", "nvidia.com/use-gputype": "H100"}), json!({})),
        pod(
            "pool",
            json!({"kerf.dev/gpu-model": "T4-16GB"}),
            json!({"limits": {"nvidia.com/mig-1g.10gb": "1"}}),
        ),
        mixed,
        pod(
            "pool",
            json!({"kerf.dev/isolation": "none", "kerf.dev/gpu-model": "T4-16GB"}),
            json!({"limits": {"nvidia.com/gpu-20gb": "1"}}),
        ),
        with(sized("pool", 10, "1"), "/spec/nodeSelector", json!({"pool": "prod"})),
        ten_with("kerf.dev/isolation", "hardware"),
        sized("plain", 10, "17"),
        sized("bounded", 2, "1"),
        sized("bounded", 41, "1"),
        sized("bounded", 20, "4"),
        sized("bounded", 5, "5"),
        limited("plain", "nvidia.com/gpu-10gb.shared", "1"),
        limited("dialects", "nvidia.com/gpu", "1"),
        sized("shares", 100, "1"),
        limited("plain", "nvidia.com/gpu-97gb", "1"),
        pod("shares", json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/compute": "30"}), json!({})),
        pod("dialects", json!({}), json!({"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8192"}})),
        with(noted("kerf.dev/gpu-memory", "10Gi"), "/spec/schedulerName", json!("batch")),
        with(
            noted("kerf.dev/gpu-memory", "10Gi"),
            "/spec/containers/0/env",
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        ),
        limited("closed", "nvidia.com/gpu-10gb", "1"),
        with(limited("plain", "nvidia.com/gpu-10gb", "1"), "/spec/hostNetwork", json!(true)),
        with(
            limited("plain", "nvidia.com/gpu-10gb", "1"),
            "/spec/volumes",
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
        ),
        with(
            limited("plain", "nvidia.com/gpu-10gb", "1"),
            "/spec/containers/0/securityContext",
            json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
        ),
        pod("", json!({"kerf.dev/gpu-memory": "10Gi"}), json!({})),
        json!({"spec": {"containers": "none"}}),
    ]
}

/// Pods that are created with a warning about something that the webhook cannot see, or that a process cannot do.
fn warned(in_force: &Policies) -> Vec<Value> {
    let share = |sources: Value| {
        with(limited("plain", "nvidia.com/gpu-10gb", "1"), "/spec/containers/0/envFrom", sources)
    };
    let pods = [
        share(
            json!([{"configMapRef": {"name": "settings"}}, {"prefix": "APP_", "secretRef": {"name": "keys"}}]),
        ),
        share(json!([{"prefix": "CUDA_", "secretRef": {"name": "keys", "optional": true}}])),
    ];
    let case = |(name, pod): (&str, Value)| {
        let admission = decide(&pod, "default", in_force, &Supply::default()).unwrap();
        let warnings = admission.unwrap().warnings;
        assert!(!warnings.is_empty(), "{name}");
        json!({"case": name, "pod": pod, "text": warnings[0]})
    };
    let pods = pods.map(|pod| ("environment not seen", pod));
    let instances = limited("plain", "kerf.dev/gpu-10gb", "2");
    let more = [
        ("unknown model in a list", ten_with("kerf.dev/gpu-model", "T4-16GB,L4")),
        ("unknown model", ten_with("kerf.dev/gpu-model-not", "T4")),
        ("several instances", instances),
        ("root beside an MPS daemon", limited("open", "nvidia.com/gpu-10gb", "1")),
        ("copied", copied()),
    ];
    pods.into_iter().chain(more).map(case).collect()
}

#[test]
fn every_refusal_has_its_text_and_a_pod_that_gets_it() {
    let documents =
        policies().into_iter().map(|policy| serde_json::from_value::<PolicyDocument>(policy).unwrap());
    let in_force = Policies { pods: documents.map(|d| d.try_into().unwrap()).collect(), nodes: Vec::new() };
    let (mut reached, mut cases) = (BTreeSet::new(), Vec::new());
    for pod in asks().into_iter().chain(denials()) {
        let refusal = decide(&pod, "default", &in_force, &Supply::default()).expect_err(&pod.to_string());
        let name = case(&refusal);
        reached.insert(name);
        cases.push(
            json!({"case": name, "direct": DIRECT.contains(&name), "pod": pod, "text": refusal.to_string()}),
        );
    }
    let pod = limited("plain", "kerf.dev/gpu-10gb", "2");
    let gpu = limited("plain", "nvidia.com/gpu", "1");
    for (place, pod, refusal) in [
        ("where only MPS replicas of NVIDIA's device plugin serve it", &pod, of_replicas(&pod, &in_force)),
        ("in a namespace that was just created", &pod, of_unknown_namespace(&pod)),
        ("where a policy has the dialect `nvidia` and a DeviceClass maps the name", &gpu, of_mapped(&gpu)),
    ] {
        let name = case(&refusal);
        reached.insert(name);
        cases.push(json!({
            "case": name, "direct": true, "where": place, "pod": pod, "text": refusal.to_string(),
        }));
    }
    let missing: Vec<_> = ALL.iter().filter(|name| !reached.contains(*name)).collect();
    assert!(missing.is_empty(), "no pod gets {missing:?}");
    cases.iter().for_each(assert_helps);
    let warned = warned(&in_force);
    let page = refusal_page::page(&cases, &warned);
    let made =
        serde_json::to_string_pretty(&json!({"policies": policies(), "cases": cases, "warned": warned}))
            .unwrap()
            + "\n";
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    compare(&root.join("src/admit/refusals.json"), &made);
    compare(&root.join("../docs/refusals.md"), &page);
}

fn assert_helps(case: &Value) {
    let (name, text) = (case["case"].as_str().unwrap(), case["text"].as_str().unwrap());
    assert!(text.contains("; ") || name == "no pod", "{name} has no remedy: {text}");
    if WITH_VALUE.contains(&name) {
        let (metadata, main) = (&case["pod"]["metadata"], &case["pod"]["spec"]["containers"][0]);
        let written = [&metadata["labels"], &main["resources"]["limits"]];
        let values = written.into_iter().filter_map(Value::as_object).flat_map(Map::values);
        let is_named = values.filter_map(Value::as_str).any(|value| text.contains(&format!("{value:?}")));
        assert!(is_named, "{name} does not say what was written: {text}");
    }
}

/// The refusal that needs NVIDIA's device plugin, because the pod asks twice for a share that only its replicas could
/// serve.
fn of_replicas(pod: &Value, in_force: &Policies) -> Refusal {
    let labels =
        [("gpu.memory", "81920"), ("gpu.count", "2"), ("gpu.replicas", "4"), ("gpu.sharing-strategy", "mps")];
    let mut index = SupplyIndex::default();
    index.show_static("n".into(), Some(static_node(&labels, &[("gpu", 8)])));
    decide(pod, "default", in_force, &index.supply()).unwrap_err()
}

/// The refusal that needs a `DeviceClass`.
fn of_mapped(pod: &Value) -> Refusal {
    let policy: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "gpus"},
        "spec": {"defaultIsolation": "hardware", "isolation": {"hardware": ["whole"]}, "dialects": ["mig", "nvidia"]},
    }))
    .unwrap();
    let in_force = Policies { pods: vec![policy.try_into().unwrap()], nodes: Vec::new() };
    let mapped = [("nvidia.com/gpu".to_owned(), "gpu.nvidia.com".to_owned())].into();
    decide(pod, "default", &in_force, &Supply::default().mapped(std::sync::Arc::new(mapped))).unwrap_err()
}

/// The refusal that needs a watch which lags.
fn of_unknown_namespace(pod: &Value) -> Refusal {
    let policy: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "gold"},
        "spec": {
            "match": {"namespaceLabels": {"tier": "gold"}},
            "defaultIsolation": "memory", "isolation": {"memory": ["mig"]},
        },
    }))
    .unwrap();
    let in_force = Policies { pods: vec![policy.try_into().unwrap()], nodes: Vec::new() };
    let labels = [("tier".to_owned(), "gold".to_owned())].into();
    let known = kerf_core::request::Namespace { name: "default", labels: Some(&labels) };
    assert!(decide(pod, known, &in_force, &Supply::default()).unwrap().is_some());
    decide(pod, "default", &in_force, &Supply::default()).unwrap_err()
}

pub(super) fn compare(path: &Path, made: &str) {
    if std::env::var_os("KERF_UPDATE").is_some() {
        std::fs::write(path, made).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    let line = made.lines().zip(found.lines()).find(|(made, found)| made != found);
    assert!(
        made == found,
        "{} is not what the test makes; first {line:?}; KERF_UPDATE=1 writes it",
        path.display()
    );
}

/// A copy of a pod that was admitted and bound earlier, for another request.
fn copied() -> Value {
    let document = json!({
        "version": 1, "isolation": "memory", "asked": {"main": {"kerf.dev/gpu-40gb": "1"}},
        "containers": [{"name": "main", "sizeGb": 40, "count": 1, "resource": "nvidia.com/gpu-40gb"}],
    });
    let annotations = json!({"kerf.dev/request": document.to_string(), "kerf.dev/assignment": "{}"});
    pod("plain", annotations, json!({"limits": {"nvidia.com/gpu-40gb": "1"}}))
}
