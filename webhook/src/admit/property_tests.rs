//! Properties of every pod: a patch changes what it must and nothing else, and an admitted pod is admitted unchanged.

use super::*;
use kerf_core::kind::{IsolationClass, Kind};
use kerf_core::policy::PolicyDocument;
use kerf_core::testing::{node_status, with_neutral_names};
use kerf_runtime::policy_file;
use proptest::prelude::*;
use serde_json::{Map, json};
use std::path::Path;

fn policies() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../policies"))
}

fn policy() -> Policies {
    policy_file::read(&policies().join("default.yaml")).unwrap()
}

fn supply() -> impl Strategy<Value = Supply> {
    let models = prop::sample::subsequence(
        vec!["H100-80GB", "A100-40GB", "H200-141GB", "T4-16GB", "L40S-48GB"],
        0..=5,
    );
    (models, any::<bool>()).prop_map(|(models, is_neutral)| {
        let status = node_status(&models);
        Supply::from_statuses(&[if is_neutral { with_neutral_names(status) } else { status }])
    })
}

#[derive(Debug, Clone)]
enum Ask {
    Nothing,
    Limit(String, u32),
    Note(String),
    Both(u32),
}

fn ask() -> impl Strategy<Value = Ask> {
    let name = prop_oneof![
        (1_u32..=80).prop_map(|gb| format!("kerf.dev/gpu-{gb}gb")),
        (1_u32..=80).prop_map(|gb| format!("gpu-{gb}gb")),
        prop::sample::select(vec![
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/mig-1g.10gb.me",
            "nvidia.com/mig-1c.3g.40gb",
            "nvidia.com/gpu-8gb"
        ])
        .prop_map(str::to_owned),
    ];
    prop_oneof![
        Just(Ask::Nothing),
        (name, 1_u32..=3).prop_map(|(name, count)| Ask::Limit(name, count)),
        (1_u32..=80, prop::sample::select(vec!["Gi", "G"]))
            .prop_map(|(n, unit)| Ask::Note(format!("{n}{unit}"))),
        (1_u32..=80).prop_map(Ask::Both),
    ]
}

fn resources(ask: &Ask, with_requests: bool) -> Value {
    let mut limits = Map::from_iter([("cpu".to_owned(), json!("2"))]);
    match ask {
        Ask::Limit(name, count) => drop(limits.insert(name.clone(), json!(count.to_string()))),
        Ask::Both(gb) => drop(limits.insert(format!("gpu-{gb}gb"), json!("2"))),
        Ask::Nothing => {}
        Ask::Note(_) => return json!({"requests": {"memory": "1Gi"}}),
    }
    if with_requests { json!({"limits": limits, "requests": limits}) } else { json!({"limits": limits}) }
}

fn affinity() -> impl Strategy<Value = Option<Value>> {
    let expression = json!({"key": "zone", "operator": "In", "values": ["a", "b"]});
    let term = prop::sample::select(vec![
        json!({"matchExpressions": [expression]}),
        json!({"matchExpressions": [expression, {"key": "disk", "operator": "Exists"}], "matchFields": []}),
        json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}),
        json!({}),
    ]);
    let required = prop::collection::vec(term, 1..4).prop_map(|terms| {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
    });
    let others = prop::sample::select(vec![
        json!(null),
        json!({}),
        json!({"nodeAffinity": null}),
        json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}),
        json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}),
    ]);
    prop::option::of(prop_oneof![required, others])
}

fn tolerations() -> impl Strategy<Value = Option<Value>> {
    let toleration = prop::sample::select(vec![
        json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}),
        json!({"key": "nvidia.com/gpu", "operator": "Exists"}),
        json!({"key": "spot", "operator": "Equal", "value": "true"}),
    ]);
    prop::option::of(prop::collection::vec(toleration, 0..3).prop_map(Value::Array))
}

/// The role of a container: `None` for an app container, otherwise whether it is a sidecar.
fn role() -> impl Strategy<Value = Option<bool>> {
    prop::sample::select(vec![None, None, Some(false), Some(true)])
}

/// A pod of one to five containers of all roles, with fields that users and other webhooks add.
fn pod() -> impl Strategy<Value = Value> {
    let parts = (
        prop::collection::vec((ask(), any::<bool>(), role()), 1..6),
        prop::option::of(prop::sample::select(IsolationClass::ALL.to_vec())),
        affinity(),
        tolerations(),
        prop::sample::select(vec![None, Some("default-scheduler"), Some("kerf-scheduler")]),
        prop::option::of(Just(json!({"app": "a/b~c"}))),
    );
    parts.prop_map(|(asks, class, affinity, tolerations, scheduler, labels)| {
        let mut annotations = Map::from_iter([("note".to_owned(), json!("kept"))]);
        if let Some(class) = class {
            annotations.insert("kerf.dev/isolation".to_owned(), json!(class.to_string()));
        }
        let (mut containers, mut inits) = (Vec::new(), Vec::new());
        for (index, (ask, with_requests, role)) in asks.iter().enumerate() {
            let size = match ask {
                Ask::Note(size) => Some(size.clone()),
                Ask::Both(gb) => Some(format!("{gb}Gi")),
                Ask::Nothing | Ask::Limit(..) => None,
            };
            if let Some(size) = size {
                annotations.insert(format!("kerf.dev/gpu-memory.c{index}"), json!(size));
            }
            let mut container = json!({"name": format!("c{index}"), "resources": resources(ask, *with_requests)});
            match role {
                None => containers.push(container),
                Some(sidecar) => {
                    if *sidecar {
                        container["restartPolicy"] = json!("Always");
                    }
                    inits.push(container);
                }
            }
        }
        let mut pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": containers}});
        if !inits.is_empty() {
            pod["spec"]["initContainers"] = json!(inits);
        }
        let optional = [("affinity", affinity), ("tolerations", tolerations), ("schedulerName", scheduler.map(|s| json!(s)))];
        for (key, value) in optional {
            if let Some(value) = value {
                pod["spec"][key] = value;
            }
        }
        if let Some(labels) = labels {
            pod["metadata"]["labels"] = labels;
        }
        pod
    })
}

fn is_ours(name: &str) -> bool {
    name.starts_with("kerf.dev/gpu-") || name.starts_with("gpu-") || name.starts_with("nvidia.com/")
}

fn drop_if_empty(parent: &mut Value, key: &str) {
    let empty = match &parent[key] {
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.is_empty(),
        other => other.is_null(),
    };
    if let (true, Some(members)) = (empty, parent.as_object_mut()) {
        members.remove(key);
    }
}

/// The pod without everything that an admission may add or remove. The rest must be the same before and after.
fn rest(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let containers = ["initContainers", "containers"].map(|list| pod["spec"][list].take());
    let containers = containers.map(|list| match list {
        Value::Array(containers) => containers,
        _ => Vec::new(),
    });
    let mut containers = containers.concat();
    for container in &mut containers {
        for map in ["limits", "requests"] {
            if let Some(map) = container["resources"][map].as_object_mut() {
                map.retain(|name, _| !is_ours(name));
            }
            drop_if_empty(&mut container["resources"], map);
        }
    }
    pod["spec"]["containers"] = json!(containers);
    pod["metadata"]["annotations"].as_object_mut().unwrap().remove("kerf.dev/request");
    if let Some(labels) = pod["metadata"]["labels"].as_object_mut() {
        labels.remove("kerf.dev/sliced");
    }
    drop_if_empty(&mut pod["metadata"], "labels");
    pod["spec"].as_object_mut().unwrap().remove("schedulerName");
    pod["spec"].as_object_mut().unwrap().remove("hostUsers");
    if let Some(tolerations) = pod["spec"]["tolerations"].as_array_mut() {
        tolerations
            .retain(|t| *t != json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}));
    }
    drop_if_empty(&mut pod["spec"], "tolerations");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(terms) = pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"].as_array_mut()
    {
        for term in terms.iter_mut() {
            if let Some(expressions) = term["matchExpressions"].as_array_mut() {
                let is_ours = |key: &str| key.starts_with("kerf.dev/") || key.starts_with("nvidia.com/");
                expressions.retain(|e| !is_ours(e["key"].as_str().unwrap()));
            }
            drop_if_empty(term, "matchExpressions");
        }
        // If static nodes could serve the pod, each term has become two.
        terms.dedup();
        if terms.iter().all(|term| *term == json!({})) {
            terms.clear();
        }
    }
    drop_if_empty(&mut pod["spec"]["affinity"]["nodeAffinity"][required], "nodeSelectorTerms");
    drop_if_empty(&mut pod["spec"]["affinity"]["nodeAffinity"], required);
    drop_if_empty(&mut pod["spec"]["affinity"], "nodeAffinity");
    drop_if_empty(&mut pod["spec"], "affinity");
    pod
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|list| pod["spec"][list].as_array()).flatten()
}

fn asks(pod: &Value) -> bool {
    let noted =
        pod["metadata"]["annotations"].as_object().unwrap().keys().any(|k| k.starts_with("kerf.dev/"));
    noted
        || containers(pod)
            .any(|c| c["resources"]["limits"].as_object().is_some_and(|l| l.keys().any(|k| is_ours(k))))
}

proptest! {
    #[test]
    fn a_patch_changes_only_the_fields_of_a_request(pod in pod(), supply in supply()) {
        match admit(&pod, "default", &policy(), &supply) {
            Admission::Untouched => prop_assert!(!asks(&pod)),
            Admission::Mended { .. } => prop_assert!(false, "it carries no request"),
            Admission::Qualified { .. } => prop_assert!(false, "a pod is no template"),
            Admission::Denied { message, .. } => {
                prop_assert!(asks(&pod));
                prop_assert!(message.contains("container ") || message.contains("metadata.annotations"), "{}", message);
            }
            Admission::Patched { ops, document, .. } => {
                prop_assert!(asks(&pod));
                let mut after = pod.clone();
                json_patch::patch(&mut after, &ops).unwrap();
                prop_assert_eq!(rest(&pod), rest(&after));
                let has_mps = document.containers.iter().any(|request| request.may_be(Kind::Mps));
                prop_assert_eq!(after["spec"]["hostUsers"] == false, has_mps, "none of these pods is without root");
                for request in &document.containers {
                    let container = containers(&after).find(|c| c["name"] == json!(request.name)).unwrap();
                    for map in ["limits", "requests"] {
                        let ours: Vec<_> = container["resources"][map].as_object().unwrap().iter().filter(|(k, _)| is_ours(k)).collect();
                        prop_assert_eq!(ours, [(&request.resource.to_string(), &json!(request.count.to_string()))]);
                    }
                }
                prop_assert_eq!(admit(&after, "default", &policy(), &supply), Admission::Untouched);
            }
        }
    }
}

/// The shipped policy, with a setting that removes variables which lead past a slice.
fn lenient() -> Policies {
    let text = std::fs::read_to_string(policies().join("default.yaml")).unwrap();
    let mut document: Value = serde_saphyr::from_str(&text).unwrap();
    document["spec"]["environment"] = json!("remove");
    let document: PolicyDocument = serde_json::from_value(document).unwrap();
    Policies { pods: vec![document.try_into().unwrap()], nodes: Vec::new() }
}

/// Changes by other webhooks that kerf's document does not contain.
fn change(pod: &mut Value, change: &str) {
    let required =
        &mut pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    match change {
        "term" => {
            let zone = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["c"]}]});
            required["nodeSelectorTerms"].as_array_mut().unwrap().push(zone);
        }
        "affinity" => pod["spec"]["affinity"] = json!(null),
        "label" => pod["metadata"]["labels"] = json!({"team": "a"}),
        "scheduler" => pod["spec"]["schedulerName"] = json!("default-scheduler"),
        "environment" => {
            let env = json!([{"name": "A"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
            let proxy = json!({"name": "proxy", "env": env});
            pod["spec"]["containers"].as_array_mut().unwrap().insert(0, proxy);
        }
        _ => {
            let limits = json!({"limits": {"nvidia.com/gpu": "0"}, "requests": {"nvidia.com/gpu": "0"}});
            let log = json!({"name": "log", "resources": limits});
            pod["spec"]["containers"].as_array_mut().unwrap().push(log);
        }
    }
}

proptest! {
    #[test]
    fn an_admitted_pod_that_was_changed_gets_its_fields_back(
        mut pod in pod(),
        supply in supply(),
        changes in prop::sample::subsequence(vec!["term", "affinity", "label", "scheduler", "environment", "none of it"], 1..=6),
    ) {
        let policies = lenient();
        if let Admission::Patched { ops, document, .. } = admit(&pod, "default", &policies, &supply) {
            json_patch::patch(&mut pod, &ops).unwrap();
            for named in changes {
                change(&mut pod, named);
            }
            let again = admit(&pod, "default", &policies, &supply);
            let Admission::Mended { ops, .. } = again else { panic!("{again:?}") };
            json_patch::patch(&mut pod, &ops).unwrap();
            prop_assert_eq!(admit(&pod, "default", &policies, &supply), Admission::Untouched, "{}", pod);
            prop_assert_eq!(&pod["metadata"]["annotations"]["kerf.dev/request"], &json!(document.to_json()));
        }
    }
}

#[test]
fn every_shipped_policy_is_valid() {
    let shipped = policy_file::read(policies()).unwrap();
    let pods: Vec<_> = shipped.pods.iter().map(kerf_core::policy::Policy::name).collect();
    let nodes: Vec<_> = shipped.nodes.iter().map(|rules| rules.name.as_str()).collect();
    assert_eq!((pods, nodes), (vec!["default"], vec!["nos-mig", "nos-mps"]));
}
