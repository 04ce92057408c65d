//! Tests that an author of pods gains nothing by writing what only kerf writes: request documents, assignments, labels
//! and limits, in any combination, in the first pass, in a second one, and after an update of the policies.
//!
//! Two judges check what is admitted. One has its own copy of the policies' bounds ([`bounds`]), because it must not
//! share a fault with the code under test. The other compares the forged pod with its honest twin, whose limits have
//! what the forged pod claims to have had there. The same code decides on the twin, so this judge finds what a forgery
//! adds, and not a bound that fails for all pods.

use super::*;
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kerf_core::policy::{PolicyDocument, SupplyIndex};
use kerf_core::testing::{node_status, static_node, with_neutral_names};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, json};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One policy for each namespace, and one that pods select by their label.
fn policies(max: u32, kinds: &Value) -> Policies {
    let policy = |name: &str, matched: Value, spec: Value| {
        let mut all = json!({"match": matched, "defaultIsolation": "memory", "isolation": kinds});
        json_patch::merge(&mut all, &spec);
        let document = json!({
            "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": all,
        });
        serde_json::from_value::<PolicyDocument>(document).unwrap().try_into().unwrap()
    };
    let bounds = json!({
        "sizes": {"minGb": 2, "maxGb": max}, "maxCount": 3, "maxPerPod": {"memoryGb": 2 * max, "slices": 4},
    });
    let dialects = json!({"dialects": ["mig", "nvidia", "hami", "gpushare", "kai", "runai"], "fractionOfGb": 80, "environment": "remove"});
    let hardware = json!({"defaultIsolation": "hardware", "isolation": {"memory": null, "none": null}});
    Policies {
        pods: vec![
            policy("gold", json!({"labels": {"tier": "gold"}}), json!({"sizes": {"maxGb": 2 * max}})),
            policy(
                "pool",
                json!({"labels": {"tier": "pool"}}),
                json!({
                    "models": ["H100-80GB", "A100-80GB"], "nodeSelector": {"pool": "a"}, "kindsByModel": {"A100-80GB": ["mig"]},
                }),
            ),
            policy(
                "denied",
                json!({"labels": {"tier": "denied"}}),
                json!({
                    "deny": "no budget", "defaultIsolation": null, "isolation": null,
                }),
            ),
            policy("bounded", json!({"namespaces": ["bounded"]}), bounds),
            policy("dialects", json!({"namespaces": ["dialects"]}), dialects),
            policy("hardware", json!({"namespaces": ["hardware"]}), hardware),
        ],
        nodes: Vec::new(),
    }
}

static BEFORE: LazyLock<Policies> = LazyLock::new(|| {
    policies(
        20,
        &json!({"hardware": ["mig"], "memory": ["mig", "mps"], "none": ["time-slicing", "mps", "mig", "whole"]}),
    )
});
static AFTER: LazyLock<Policies> = LazyLock::new(|| {
    policies(10, &json!({"hardware": ["mig"], "memory": ["mps"], "none": ["time-slicing"]}))
});
static SUPPLIES: LazyLock<[Supply; 6]> = LazyLock::new(|| {
    let instances = [
        ("gpu.product", "NVIDIA-A100-SXM4-80GB"),
        ("gpu.memory", "81920"),
        ("mig-1g.10gb.count", "4"),
        ("mig-1g.10gb.memory", "9728"),
        ("mig-3g.40gb.count", "2"),
        ("mig-3g.40gb.memory", "40192"),
    ];
    let mut index = SupplyIndex::default();
    index.show_static("n".into(), Some(static_node(&instances, &[("mig-1g.10gb", 4), ("mig-3g.40gb", 2)])));
    [
        Supply::default(),
        Supply::from_statuses(&[node_status(&["H100-80GB", "T4-16GB"])]),
        Supply::from_statuses(&[node_status(&["L40S-48GB"]), node_status(&["A100-40GB"])]),
        index.supply(),
        Supply::from_statuses(&[with_neutral_names(node_status(&["H100-80GB", "T4-16GB"]))]),
        Supply::from_statuses(&[with_neutral_names(node_status(&["L40S-48GB", "A100-40GB", "H200-141GB"]))]),
    ]
});
/// The supply of a static node. Its slices have fixed sizes, so a request may get a larger slice than it asks for.
const STATIC_SUPPLY: usize = 3;

const NAMESPACES: [&str; 4] = ["bounded", "dialects", "hardware", "nobody's"];
const CONTAINERS: [&str; 3] = ["main", "side", "load"];
/// Names by which pods ask, and names that kerf gives.
const NAMES: [&str; 16] = [
    "kerf.dev/gpu-5gb",
    "kerf.dev/gpu-10gb",
    "kerf.dev/gpu-80gb",
    "gpu-40gb",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/mig-7g.80gb",
    "nvidia.com/mig-1c.3g.40gb",
    "nvidia.com/gpu-10gb",
    "nvidia.com/gpu-80gb",
    "nvidia.com/gpu-10gb.shared",
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb.shared",
    "nvidia.com/gpumem",
    "aliyun.com/gpu-mem",
];
const RESERVED: [&str; 3] = [keys::ASSIGNMENT, keys::EPOCH, keys::ROOM];
const CLASSES: [&str; 3] = ["hardware", "memory", "none"];

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![2 => prop::sample::select(NAMES.to_vec()), 1 => prop::sample::select(NAMES[..2].to_vec())]
}

fn amount() -> impl Strategy<Value = &'static str> {
    prop_oneof![9 => Just("1"), 1 => prop::sample::select(vec!["2", "3", "8", "0", "3000"])]
}

fn limits() -> impl Strategy<Value = Map<String, Value>> {
    let count = prop_oneof![1 => Just(0_usize), 5 => Just(1), 1 => Just(2)];
    count.prop_flat_map(|count| prop::collection::vec((name(), amount()), count)).prop_map(|entries| {
        entries.into_iter().map(|(name, amount)| (name.to_owned(), json!(amount))).collect()
    })
}

fn notes() -> impl Strategy<Value = Map<String, Value>> {
    let sizes = || prop::sample::select(vec!["5Gi", "10Gi", "80Gi"]);
    let note = prop_oneof![
        4 => sizes().prop_map(|size| ("kerf.dev/gpu-memory".to_owned(), size.to_owned())),
        1 => sizes().prop_map(|size| ("kerf.dev/gpu-memory.side".to_owned(), size.to_owned())),
        4 => prop::sample::select(CLASSES.to_vec()).prop_map(|class| ("kerf.dev/isolation".to_owned(), class.to_owned())),
        1 => prop::sample::select(vec!["2", "9"]).prop_map(|count| ("kerf.dev/gpu-count".to_owned(), count.to_owned())),
        1 => Just(("kerf.dev/gpu-profile".to_owned(), "7g.80gb".to_owned())),
        2 => Just(("kerf.dev/gpu-model".to_owned(), "H100-80GB".to_owned())),
        2 => Just(("kerf.dev/movable".to_owned(), "true".to_owned())),
        1 => Just(("gpu-fraction".to_owned(), "0.5".to_owned())),
    ];
    prop::collection::vec(note, 0..=2)
        .prop_map(|notes| notes.into_iter().map(|(key, text)| (key, json!(text))).collect())
}

fn pod() -> impl Strategy<Value = Value> {
    let container = || (limits(), any::<bool>());
    let parts = (
        prop_oneof![3 => prop::collection::vec(container(), 1), 1 => prop::collection::vec(container(), 2..=3)],
        prop_oneof![Just(Map::new()), notes()],
        prop::sample::select(vec![
            None,
            None,
            None,
            Some("gold"),
            Some("pool"),
            Some("denied"),
            Some("silver"),
        ]),
        prop_oneof![
            15 => Just(None),
            1 => prop::sample::select(vec!["schedulerName", "nodeName", "privileged", "env"]).prop_map(Some),
            2 => Just(Some("affinity")),
        ],
        any::<bool>(),
    );
    parts.prop_map(|(containers, notes, tier, more, init)| {
        let containers = containers.into_iter().zip(CONTAINERS);
        let containers = containers.map(|((mut limits, with_requests), name)| {
            limits.insert("cpu".to_owned(), json!("2"));
            let requests = if with_requests { limits.clone() } else { Map::new() };
            json!({"name": name, "resources": {"limits": limits, "requests": requests}})
        });
        let mut containers: Vec<Value> = containers.collect();
        let inits = if init && containers.len() == 3 { containers.split_off(2) } else { Vec::new() };
        let mut pod = json!({
            "metadata": {"name": "p", "annotations": notes, "labels": {}},
            "spec": {"containers": containers, "initContainers": inits},
        });
        if let Some(tier) = tier {
            pod["metadata"]["labels"]["tier"] = json!(tier);
        }
        match more {
            Some("privileged") => {
                pod["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
            }
            Some("env") => {
                pod["spec"]["containers"][0]["env"] =
                    json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
            }
            // Another webhook has added this affinity, which kerf's webhook must not remove.
            Some("affinity") => {
                let required = json!({"nodeSelectorTerms": [{"matchExpressions": [required_by_another()]}]});
                pod["spec"]["affinity"] =
                    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
            }
            Some(field) => pod["spec"][field] = json!("other"),
            None => {}
        }
        pod
    })
}

fn required_by_another() -> Value {
    json!({"key": "tenant", "operator": "In", "values": ["a"]})
}

#[derive(Debug, Clone)]
enum Forgery {
    Document(Value),
    Field(&'static str, Value),
    Container(usize, &'static str, Value),
    /// Another name in the limits, and the same name in the document.
    Swap(usize, &'static str),
    Limit(usize, &'static str, &'static str),
    Key(&'static str),
    Label,
    Namespace(usize),
}

/// A document's claim about the limits before admission.
fn asked() -> impl Strategy<Value = Value> {
    let entry = (prop::sample::select(CONTAINERS.to_vec()), name(), amount());
    prop::collection::vec(entry, 0..3).prop_map(|asked| {
        let mut all = json!({"main": {"cpu": "64"}});
        for (container, name, amount) in asked {
            all[container][name] = json!(amount);
        }
        all
    })
}

fn forgery() -> impl Strategy<Value = Forgery> {
    let container = (name(), 1_u32..100, 1_u32..9)
        .prop_map(|(name, size, count)| json!({"resource": name, "sizeGb": size, "count": count}));
    let document = (asked(), prop::collection::vec(container, 1..=3), prop::sample::select(CLASSES.to_vec()));
    let document = document.prop_map(|(asked, mut containers, class)| {
        for (container, name) in containers.iter_mut().zip(CONTAINERS) {
            container["name"] = json!(name);
        }
        let chosen = json!({"policy": "gold", "by": "nobody"});
        json!({"version": 1, "isolation": class, "containers": containers, "asked": asked, "chosen": chosen})
    });
    prop_oneof![
        1 => document.prop_map(Forgery::Document),
        1 => asked().prop_map(|asked| Forgery::Field("asked", asked)),
        1 => prop::sample::select(CLASSES.to_vec()).prop_map(|class| Forgery::Field("isolation", json!(class))),
        1 => Just(Forgery::Field("chosen", json!({"policy": "gold"}))),
        1 => Just(Forgery::Field("gpus", json!({"models": ["H200-141GB"]}))),
        1 => Just(Forgery::Field("movesNobody", json!(true))),
        1 => Just(Forgery::Field("nodes", json!({"tenant": "a"}))),
        1 => Just(Forgery::Field("staticNodes", json!(true))),
        1 => Just(Forgery::Field("version", json!(2))),
        1 => (0_usize..3, name()).prop_map(|(at, name)| Forgery::Container(at, "resource", json!(name))),
        1 => (0_usize..3, 1_u32..100).prop_map(|(at, size)| Forgery::Container(at, "sizeGb", json!(size))),
        1 => (0_usize..3, 1_u32..9).prop_map(|(at, count)| Forgery::Container(at, "count", json!(count))),
        1 => (0_usize..3, name(), amount()).prop_map(|(at, name, amount)| Forgery::Limit(at, name, amount)),
        2 => (0_usize..2, name()).prop_map(|(at, name)| Forgery::Swap(at, name)),
        1 => prop::sample::select(RESERVED.to_vec()).prop_map(Forgery::Key),
        1 => Just(Forgery::Label),
        1 => (0_usize..4).prop_map(Forgery::Namespace),
    ]
}

fn forge(pod: &mut Value, namespace: &mut usize, forgery: &Forgery) {
    let request = &mut pod["metadata"]["annotations"][keys::REQUEST];
    let mut document: Value = request
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or(json!({"containers": []}));
    match forgery {
        Forgery::Document(forged) => document = forged.clone(),
        Forgery::Field(key, value) => document[*key] = value.clone(),
        Forgery::Container(at, key, value) => {
            if let Some(container) = document["containers"].get_mut(*at) {
                container[*key] = value.clone();
            }
        }
        Forgery::Swap(at, name) => {
            let given = document["containers"].get_mut(*at).filter(|given| given["resource"].is_string());
            let Some(given) = given else { return clean(pod) };
            let (container, before) = (given["name"].clone(), given["resource"].as_str().unwrap().to_owned());
            given["resource"] = json!(name);
            for list in ["initContainers", "containers"] {
                let containers = pod["spec"][list].as_array_mut().into_iter().flatten();
                for container in containers.filter(|found| found["name"] == container) {
                    rename(&mut container["resources"], &before, name);
                }
            }
        }
        Forgery::Limit(at, name, amount) => {
            // A document alone gives nothing, so a forger also puts the document's names into the limits.
            if let Some(container) = pod["spec"]["containers"].get_mut(*at) {
                container["resources"] =
                    json!({"limits": {"cpu": "2", *name: amount}, "requests": {*name: amount}});
            }
            return clean(pod);
        }
        Forgery::Key(key) => {
            pod["metadata"]["annotations"][*key] = json!("{}");
            return clean(pod);
        }
        Forgery::Label => {
            pod["metadata"]["labels"][keys::SLICED] = json!("true");
            return clean(pod);
        }
        Forgery::Namespace(other) => {
            *namespace = *other;
            return clean(pod);
        }
    }
    pod["metadata"]["annotations"][keys::REQUEST] = json!(document.to_string());
}

fn rename(resources: &mut Value, before: &str, name: &str) {
    for map in ["limits", "requests"] {
        if let Some(entries) = resources[map].as_object_mut()
            && let Some(amount) = entries.remove(before)
        {
            entries.insert(name.to_owned(), amount);
        }
    }
}

/// Removes the `null` that indexing inserts for a missing value.
fn clean(pod: &mut Value) {
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|_, value| !value.is_null());
    }
}

#[derive(Debug, Default)]
struct Counts {
    forged: AtomicU64,
    admitted: AtomicU64,
    refused: AtomicU64,
    /// The honest twins, all of which must be admitted.
    twins: AtomicU64,
}

type Gain = Result<(), String>;

/// The beginnings of failures. `cargo xtask bench forging` searches for the first.
const GAIN: &str = "a forged pod gets more than an honest one";
const UNSTABLE: &str = "an admitted pod is not admitted as it is";

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|list| pod["spec"][list].as_array()).flatten()
}

/// Whether a name asks for GPUs. Of the generated names only the CPU's does not.
fn asks_by(name: &str) -> bool {
    name != "cpu"
}

/// A pod's limits and requests, either those that ask for GPUs or the others.
fn resources(container: &Value, asking: bool) -> Map<String, Value> {
    let maps = ["limits", "requests"]
        .map(|map| container["resources"][map].as_object().cloned().unwrap_or_default());
    maps.into_iter()
        .flatten()
        .filter(|(name, amount)| asks_by(name) == asking && *amount != json!("0"))
        .collect()
}

fn patched(pod: &Value, admission: &Admission) -> Option<Value> {
    let mut after = pod.clone();
    match admission {
        Admission::Untouched => {}
        Admission::Patched { ops, .. } | Admission::Mended { ops, .. } | Admission::Qualified { ops } => {
            json_patch::patch(&mut after, ops).unwrap();
        }
        Admission::Denied { .. } => return None,
    }
    Some(after)
}

fn document(pod: &Value) -> Option<RequestDocument> {
    let text = pod["metadata"]["annotations"][keys::REQUEST].as_str()?;
    Some(RequestDocument::parse(text).unwrap())
}

/// The pod as an honest user would write it: its limits have what the document claims about them.
fn honest(pod: &Value, document: &RequestDocument) -> Value {
    let mut honest = pod.clone();
    let metadata = honest["metadata"].as_object_mut().unwrap();
    metadata["annotations"].as_object_mut().unwrap().remove(keys::REQUEST);
    metadata["labels"].as_object_mut().unwrap().remove(keys::SLICED);
    // At a second admission a key without a container's name means the same container as at the first.
    let apps: Vec<_> = document.containers.iter().filter(|container| container.role.is_app()).collect();
    if let [only] = &apps[..] {
        let annotations = honest["metadata"]["annotations"].as_object_mut().unwrap();
        for key in [keys::GPU_MEMORY, keys::GPU_PROFILE, keys::GPU_COUNT] {
            if let Some(text) = annotations.remove(key) {
                annotations.entry(format!("{key}.{}", only.name)).or_insert(text);
            }
        }
    }
    let asked = document.asked.clone().unwrap_or_default();
    for list in ["initContainers", "containers"] {
        for container in honest["spec"][list].as_array_mut().into_iter().flatten() {
            let mut limits = resources(container, false);
            let name = container["name"].as_str().unwrap();
            let asked = asked.get(name).into_iter().flatten();
            limits.extend(asked.map(|(name, amount)| (name.clone(), json!(amount))));
            container["resources"] = json!({"limits": limits});
        }
    }
    honest
}

/// The kind and the size of a name that kerf gives, parsed without kerf's code, so that a fault in it is found.
fn kind_and_size(name: &str) -> (&str, Option<u64>) {
    let size = |text: &str| text.strip_suffix("gb")?.parse().ok();
    if let Some(text) = name.strip_prefix("kerf.dev/gpu-") {
        return ("any", size(text));
    }
    let name = name.strip_prefix("nvidia.com/").unwrap_or(name);
    let (plain, is_shared) = name.strip_suffix(".shared").map_or((name, false), |plain| (plain, true));
    match (plain.strip_prefix("mig-"), plain.strip_prefix("gpu-")) {
        (Some(profile), _) => ("mig", profile.rsplit('.').next().and_then(size)),
        (_, Some(text)) => (if is_shared { "time-slicing" } else { "mps" }, size(text)),
        _ => (if is_shared { "time-slicing" } else { "whole" }, None),
    }
}

fn bounds(
    pod: &Value,
    document: &RequestDocument,
    namespace: &str,
    is_before: bool,
    is_static: bool,
) -> Gain {
    let max = if is_before { 20 } else { 10 };
    let tier = pod["metadata"]["labels"]["tier"].as_str();
    let (largest, most, in_all) = match (tier, namespace) {
        (Some("denied"), _) => (0, 0, 0),
        (Some("gold"), _) => (2 * max, 16, u64::MAX),
        (Some("pool"), _) | (_, "dialects" | "hardware") => (u64::MAX, 16, u64::MAX),
        (_, "bounded") => (max, 3, 2 * max),
        _ => (0, 0, 0),
    };
    let class = pod["metadata"]["annotations"]["kerf.dev/isolation"].as_str();
    let allowed = match (class, namespace, is_before) {
        _ if tier.is_none_or(|tier| tier == "silver") && namespace == "hardware" => &["mig"][..],
        (Some("hardware"), ..) => &["mig"],
        (Some("memory"), _, true) => &["mig", "mps"],
        (Some("memory"), _, false) => &["mps"],
        // Without a class the name may imply one.
        (_, _, true) => &["time-slicing", "mps", "mig", "whole"],
        (_, _, false) => &["time-slicing", "mps", "mig"],
    };
    for container in containers(pod) {
        for (name, count) in resources(container, true) {
            let count = count.as_str().and_then(|count| count.parse::<u64>().ok()).unwrap_or(u64::MAX);
            let (kind, size) = kind_and_size(&name);
            let size = size.filter(|_| !is_static).unwrap_or_default();
            if size > largest || count > most || kind != "any" && !allowed.contains(&kind) {
                return Err(format!("{count} of {name} is beyond the policy"));
            }
        }
    }
    let mut kinds = document.containers.iter().flat_map(|container| &container.kinds);
    if let Some(kind) = kinds.find(|kind| !allowed.contains(&kind.as_str())) {
        return Err(format!("{kind} is beyond the policy"));
    }
    // The policy limits what is asked, and a slice may be larger. Init containers do not count, because they give back
    // what they hold.
    let asked = document.containers.iter().filter(|container| container.role.is_app());
    let memory: u64 =
        asked.map(|container| u64::from(container.count) * u64::from(container.size_gb.0)).sum();
    if memory > in_all { Err(format!("{memory} GB in all are beyond the policy")) } else { Ok(()) }
}

fn keeps_affinity(before: &Value, pod: &Value) -> bool {
    let terms = |pod: &Value| {
        let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
        let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        terms.as_array().cloned().unwrap_or_default()
    };
    let has = |term: &Value| {
        term["matchExpressions"].as_array().is_some_and(|all| all.contains(&required_by_another()))
    };
    !terms(before).iter().any(has) || !terms(pod).is_empty() && terms(pod).iter().all(has)
}

fn judge(
    before: &Value,
    pod: &Value,
    namespace: &str,
    policies: &Policies,
    supply: &Supply,
    counts: &Counts,
) -> Gain {
    let has = |map: &str, key: &str| pod["metadata"][map].get(key).is_some();
    for key in RESERVED {
        if has("annotations", key) {
            return Err(format!("keeps {key}"));
        }
    }
    if !keeps_affinity(before, pod) {
        return Err("loses what another webhook requires of its node".to_owned());
    }
    for (was, is) in containers(before).zip(containers(pod)) {
        if resources(was, false) != resources(is, false) {
            return Err("has other limits of what is not kerf's".to_owned());
        }
    }
    let Some(document) = document(pod) else {
        let kerfs = |name: &str| {
            name.starts_with("kerf.dev/")
                || name.starts_with("nvidia.com/gpu-")
                || name.starts_with("nvidia.com/mig-")
                || name.starts_with("gpu-")
        };
        let mut names = containers(pod).flat_map(|container| resources(container, true));
        return match names.find(|(name, _)| kerfs(name)) {
            _ if has("labels", keys::SLICED) => Err("has the label and no slices".to_owned()),
            Some((name, _)) => Err(format!("has {name} and was not decided on")),
            None => Ok(()),
        };
    };
    is_carried(pod, &document)?;
    let honest_pod = honest(pod, &document);
    counts.twins.fetch_add(1, Relaxed);
    let twin = admit(&honest_pod, namespace, policies, supply);
    let Admission::Patched { document: twins, .. } = &twin else {
        return Err(format!("its honest twin is not admitted: {twin:?}"));
    };
    if document != **twins {
        return Err(format!("{document:?} is not what its honest twin gets, {twins:?}"));
    }
    let after = patched(&honest_pod, &twin).unwrap();
    if pod["spec"]["schedulerName"] != after["spec"]["schedulerName"] {
        return Err("has another scheduler".to_owned());
    }
    Ok(())
}

/// Whether the pod carries what its document says, and nothing else by which it would get more.
fn is_carried(pod: &Value, document: &RequestDocument) -> Gain {
    let spec = &pod["spec"];
    for container in containers(pod) {
        let given = document.containers.iter().find(|given| container["name"] == json!(given.name));
        let expected: Map<String, Value> = given
            .map(|given| (given.resource.to_string(), json!(given.count.to_string())))
            .into_iter()
            .collect();
        if resources(container, true) != expected {
            return Err(format!("{container} does not carry {given:?}"));
        }
        let sees_all =
            container["env"].as_array().into_iter().flatten().any(|v| v["name"] == "NVIDIA_VISIBLE_DEVICES");
        if sees_all || given.is_some() && container["securityContext"]["privileged"] == json!(true) {
            return Err(format!("{container} sees other GPUs than its own"));
        }
    }
    if spec["nodeName"].is_string() || spec["schedulerName"] == json!("other") {
        return Err("goes past the scheduler".to_owned());
    }
    if pod["metadata"]["labels"][keys::SLICED] != json!("true") {
        return Err("has no label".to_owned());
    }
    Ok(())
}

/// A pod, whether it is admitted first, its forgeries, its namespace and the cluster's supply.
type Case = (Value, bool, Vec<Forgery>, usize, usize);

fn attack((mut pod, first, forgeries, mut namespace, supply): Case, counts: &Counts) -> Gain {
    let (is_static, supply) = (supply == STATIC_SUPPLY, &SUPPLIES[supply]);
    if first && let Some(admitted) = patched(&pod, &admit(&pod, NAMESPACES[namespace], &BEFORE, supply)) {
        pod = admitted;
    }
    let honest = (pod.clone(), namespace);
    for forgery in &forgeries {
        forge(&mut pod, &mut namespace, forgery);
    }
    let is_forged = honest != (pod.clone(), namespace);
    let namespace = NAMESPACES[namespace];
    let count = |counter: &AtomicU64| counter.fetch_add(u64::from(is_forged), Relaxed);
    count(&counts.forged);
    for (pass, is_before) in [true, true, false, false].into_iter().enumerate() {
        let policies = if is_before { &*BEFORE } else { &*AFTER };
        let admission = admit(&pod, namespace, policies, supply);
        let Some(after) = patched(&pod, &admission) else {
            if pass == 0 {
                count(&counts.refused);
            }
            return Ok(());
        };
        let judged = judge(&pod, &after, namespace, policies, supply, counts);
        let decided = document(&after);
        let judged = judged.and_then(|()| match &decided {
            Some(document) => bounds(&after, document, namespace, is_before, is_static),
            None => Ok(()),
        });
        judged.map_err(|gain| format!("{GAIN}: {gain}\nbefore: {pod}\nafter: {after}"))?;
        let again = admit(&after, namespace, policies, supply);
        if again != Admission::Untouched {
            return Err(format!("{UNSTABLE}: {again:?}\nbefore: {pod}\nafter: {after}"));
        }
        if pass == 0 && decided.is_some() {
            count(&counts.admitted);
        }
        pod = after;
    }
    Ok(())
}

fn attack_times(cases: u32) {
    let counts = Counts::default();
    let namespace = prop_oneof![9 => 0..3_usize, 1 => Just(3)];
    let first = prop_oneof![3 => Just(true), 1 => Just(false)];
    let case = (pod(), first, prop::collection::vec(forgery(), 1..4), namespace, 0..SUPPLIES.len());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let found = runner.run(&case, |case| attack(case, &counts).map_err(TestCaseError::fail));
    found.unwrap_or_else(|gain| panic!("{gain}"));
    let Counts { forged, admitted, refused, twins } = &counts;
    let [forged, admitted, refused, twins] =
        [forged, admitted, refused, twins].map(|count| count.load(Relaxed));
    println!(
        "forged pods: {forged}; with more than an honest pod gets: 0; admitted as their honest twin: {admitted}; refused: {refused}; honest twins admitted: {twins} of {twins}"
    );
    assert!(admitted * 5 >= forged, "too few forged pods are admitted to judge");
}

#[test]
fn a_forged_pod_gets_no_more_than_an_honest_one() {
    attack_times(10_000);
}

/// `cargo xtask bench forging` runs this, because it takes too long for every run of the tests.
#[test]
#[ignore = "takes minutes"]
fn a_million_forged_pods_get_no_more_than_honest_ones() {
    attack_times(1_000_000);
}

/// Earlier versions recorded here which replica had admitted the pod, and other replicas made pods wait for it.
#[test]
fn chosen_by_is_ignored() {
    let supply = &SUPPLIES[4];
    let plain = json!({"metadata": {"annotations": {"kerf.dev/gpu-memory": "10Gi"}}, "spec": {"containers": [{"name": "main"}]}});
    let honest = patched(&plain, &admit(&plain, "dialects", &BEFORE, supply)).unwrap();
    let mut forged = honest.clone();
    let mut claimed: Value =
        serde_json::from_str(honest["metadata"]["annotations"][keys::REQUEST].as_str().unwrap()).unwrap();
    let full = json!({"container": "main", "kind": "mig", "reason": "full", "resource": "nvidia.com/mig-1g.10gb", "room": 0, "pending": 9});
    json_patch::merge(
        &mut claimed["chosen"],
        &json!({"by": "another", "passed": [full], "waits": [full], "selectsNodes": true}),
    );
    forged["metadata"]["annotations"][keys::REQUEST] = json!(claimed.to_string());
    let admission = admit(&forged, "dialects", &BEFORE, supply);
    assert_eq!(patched(&forged, &admission), Some(honest), "{admission:?}");
}
