//! Tests that no pod gets a model, a kind on a model, or a node that its policy excludes.

use super::*;
use crate::keys;
use crate::kind::Kind;
use crate::mig::catalog;
use crate::policy::{PolicyDocument, SupplyIndex};
use crate::static_node;
use crate::testing::{node_status, static_node, with_neutral_names};
use proptest::prelude::*;
use serde_json::{Map, json};
use std::collections::BTreeMap;

const MODELS: [&str; 5] = ["H100-80GB", "A100-40GB", "T4-16GB", "L4-24GB", "GeForce-RTX-4090"];
const KINDS: [&str; 4] = ["mig", "whole", "mps", "time-slicing"];

/// Product and memory in the labels of static nodes, for each model; the last has no labels.
const PRODUCTS: [(&str, &str); 4] =
    [("NVIDIA-H100-80GB-HBM3", "81559"), ("Tesla-T4", "15360"), ("NVIDIA-L4", "23034"), ("", "")];

fn policies(spec: Value) -> Policies {
    let document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "bound"}, "spec": spec,
    });
    let document: PolicyDocument = serde_json::from_value(document).unwrap();
    Policies { pods: vec![document.try_into().unwrap()], nodes: Vec::new() }
}

/// Managed nodes of these models, with neutral names or without, and static nodes with these products.
fn supply(models: &[&str], products: &[usize], is_neutral: bool) -> (Supply, Vec<static_node::StaticNode>) {
    let mut index = SupplyIndex::default();
    for (place, model) in models.iter().enumerate() {
        let name = format!("n{place}").as_str().into();
        let status = node_status(&[model]);
        let status = if is_neutral { with_neutral_names(status) } else { status };
        index.show(name, &crate::contract::GpuNodeSpec::default(), &status);
    }
    let of_product = |product: &usize| {
        let (product, memory) = PRODUCTS[*product];
        let mut labels = vec![("gpu.count", "2")];
        if !product.is_empty() {
            labels.extend([("gpu.product", product), ("gpu.memory", memory)]);
        }
        static_node(&labels, &[("gpu", 2)])
    };
    let statics: Vec<_> = products.iter().map(of_product).collect();
    for (place, node) in statics.iter().enumerate() {
        index.show_static(format!("s{place}").as_str().into(), Some(node.clone()));
    }
    (index.supply(), statics)
}

fn some_of(all: &'static [&'static str], least: usize) -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(all.to_vec(), least..=all.len())
}

/// A policy's spec. Each class has only kinds that isolate enough for it.
fn spec() -> impl Strategy<Value = Value> {
    let kinds = prop::collection::btree_map(prop::sample::select(&MODELS[..]), some_of(&KINDS, 1), 0..4);
    let parts = (
        prop::option::of(some_of(&MODELS, 1)),
        kinds,
        prop::option::of(prop::sample::select(vec!["a", "b", "c"])),
        some_of(&KINDS[..3], 1).prop_shuffle(),
        some_of(&KINDS, 1).prop_shuffle(),
    );
    parts.prop_map(|(models, kinds, pool, memory, none)| {
        let mut spec = json!({
            "defaultIsolation": "memory", "isolation": {"memory": memory, "none": none},
            "dialects": ["nvidia"], "kindsByModel": kinds,
        });
        if let Some(models) = models {
            spec["kindsByModel"].as_object_mut().unwrap().retain(|model, _| models.contains(&model.as_str()));
            spec["models"] = json!(models);
        }
        if let Some(pool) = pool {
            spec["nodeSelector"] = json!({"pool": pool});
        }
        spec
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let names = [
        "kerf.dev/gpu-10gb",
        "kerf.dev/gpu-20gb",
        "kerf.dev/gpu-70gb",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpu-5gb",
        "nvidia.com/gpu-5gb.shared",
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
    ];
    let container = (prop::sample::select(names.to_vec()), 1_u32..3);
    let parts = (
        prop::collection::vec(container, 1..4),
        prop::option::weighted(0.3, some_of(&MODELS, 1)),
        prop::option::weighted(0.2, some_of(&MODELS, 1)),
        prop::option::weighted(0.1, Just("GPU-0")),
        prop::option::of(prop::sample::select(vec!["memory", "none"])),
        prop::option::of(prop::sample::select(vec!["a", "b"])),
    );
    parts.prop_map(|(containers, models, not, uuid, class, pool)| {
        let mut annotations = Map::new();
        for (key, value) in [
            (keys::GPU_MODEL, models.map(|models| models.join(","))),
            (keys::GPU_MODEL_NOT, not.map(|models| models.join(","))),
            (keys::GPU_UUID, uuid.map(str::to_owned)),
            (keys::ISOLATION, class.map(str::to_owned)),
        ] {
            annotations.extend(value.map(|value| (key.to_owned(), json!(value))));
        }
        let containers = containers.into_iter().enumerate();
        let containers = containers.map(|(place, (name, count))| {
            json!({"name": format!("c{place}"), "resources": {"limits": {name: count.to_string()}}})
        });
        json!({
            "metadata": {"annotations": annotations},
            "spec": {"containers": containers.collect::<Vec<_>>(), "nodeSelector": pool.map(|pool| json!({"pool": pool}))},
        })
    })
}

/// An independent implementation of the policy's rule for a kind on a model, to compare with.
fn allows(spec: &Value, model: &str, kind: Kind) -> bool {
    let has = |list: &Value, word: &str| list.as_array().is_none_or(|list| list.iter().any(|w| w == word));
    has(&spec["models"], model) && has(&spec["kindsByModel"][model], kind.as_str())
}

fn cases() -> ProptestConfig {
    ProptestConfig { cases: 512, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn no_pod_gets_a_model_a_kind_or_a_node_that_its_policy_excludes(
        spec in spec(), pod in pod(), managed in prop::collection::vec(prop::sample::select(&MODELS[..4]), 0..4),
        products in prop::collection::vec(0..PRODUCTS.len(), 0..3), is_neutral in any::<bool>(),
    ) {
        let document = serde_json::from_value::<PolicyDocument>(json!({
            "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "bound"}, "spec": spec.clone(),
        })).unwrap();
        prop_assume!(document.problems().is_empty());
        let (supply, statics) = supply(&managed, &products, is_neutral);
        let policies = policies(spec.clone());
        let Ok(Some(Admitted { document, .. })) = decide(&pod, "web", &policies, &supply) else { return Ok(()) };
        let models = catalog::MODELS.iter().map(|model| model.name).chain(MODELS);
        for model in models.filter(|model| document.gpus.admits_model(model)) {
            let on_model = |kind: &Kind| document.kinds_by_model.get(model).is_none_or(|kinds| kinds.contains(kind));
            for container in &document.containers {
                let kinds = Kind::ALL.into_iter().filter(|kind| container.may_be(*kind));
                for kind in kinds.filter(|kind| !container.resource.is_neutral() || on_model(kind)) {
                    prop_assert!(allows(&spec, model, kind), "{model} {container:?} {:?}", document.gpus);
                }
            }
        }
        for node in statics.iter().filter(|node| static_node::suits(node, &document).is_ok()) {
            for container in &document.containers {
                let is_known = !node.model.is_empty() || spec["models"].is_null();
                prop_assert!(is_known && allows(&spec, &node.model, container.only_kind().unwrap()), "{node:?} {container:?}");
            }
        }
        let labels: BTreeMap<String, String> =
            spec.get("nodeSelector").map(|labels| serde_json::from_value(labels.clone()).unwrap()).unwrap_or_default();
        prop_assert_eq!(&document.nodes, &labels);
        let own = &pod["spec"]["nodeSelector"]["pool"];
        prop_assert!(own.is_null() || labels.get("pool").is_none_or(|pool| own == pool), "they contradict each other");
    }
}

/// What each container of a pod with these limits and annotations gets, and on which models, or the refusal.
fn became(spec: &Value, managed: &[&str], limits: &[&str], annotations: Value) -> String {
    let containers = limits
        .iter()
        .enumerate()
        .map(|(place, name)| json!({"name": format!("c{place}"), "resources": {"limits": {*name: "1"}}}));
    let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers.collect::<Vec<_>>()}});
    match decide(&pod, "web", &policies(spec.clone()), &supply(managed, &[], false).0) {
        Ok(admitted) => {
            let document = admitted.unwrap().document;
            let names = document.containers.iter().map(|container| container.resource.to_string());
            let gpus = &document.gpus;
            let not = if gpus.not_models.is_empty() {
                String::new()
            } else {
                format!(" not {}", gpus.not_models.join(" "))
            };
            format!("{} on {}{not}", names.collect::<Vec<_>>().join(" "), gpus.models.join(" "))
        }
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn a_kind_that_no_allowed_model_serves_is_skipped() {
    let spec = |more: Value| {
        let mut spec =
            json!({"defaultIsolation": "memory", "isolation": {"memory": ["mig", "mps", "whole"]}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let (ten, all) = ("kerf.dev/gpu-10gb", ["H100-80GB", "A30-24GB", "T4-16GB"]);
    let by_kind = json!({"kindsByModel": {"H100-80GB": ["whole"], "A30-24GB": ["mig"]}});
    for (policy, managed, limits, annotations, expected) in [
        (json!({}), &all[..], &[ten][..], json!({}), "nvidia.com/mig-1g.10gb on "),
        (json!({"models": ["T4-16GB"]}), &all, &[ten], json!({}), "nvidia.com/gpu-10gb on T4-16GB"),
        (json!({"models": ["T4-16GB"]}), &[], &[ten], json!({}), "kerf.dev/gpu-10gb on T4-16GB"),
        (json!({"models": ["A30-24GB"]}), &all, &[ten], json!({}), "nvidia.com/mig-2g.12gb on A30-24GB"),
        (by_kind.clone(), &all, &[ten], json!({}), "nvidia.com/mig-2g.12gb on  not H100-80GB"),
        (json!({"kindsByModel": {"T4-16GB": ["whole"]}}), &all[2..], &[ten], json!({}), "nvidia.com/gpu on "),
        (
            by_kind.clone(),
            &all,
            &[ten],
            json!({"kerf.dev/gpu-model": "H100-80GB,T4-16GB"}),
            "nvidia.com/gpu-10gb on T4-16GB",
        ),
        (
            json!({"models": ["A30-24GB", "T4-16GB"]}),
            &all,
            &[ten],
            json!({"kerf.dev/gpu-model": "H100-80GB,T4-16GB"}),
            "nvidia.com/gpu-10gb on T4-16GB",
        ),
        // The second container leaves the pod only the A30, which has no 1g.10gb.
        (
            json!({"models": ["A30-24GB", "H100-80GB"], "kindsByModel": {"H100-80GB": ["mig"]}}),
            &all,
            &[ten, "nvidia.com/gpu-5gb"],
            json!({}),
            "nvidia.com/mig-2g.12gb nvidia.com/gpu-5gb on A30-24GB",
        ),
        (
            json!({"models": ["T4-16GB"], "kindsByModel": {"T4-16GB": ["mps"]}}),
            &all,
            &["nvidia.com/mig-1g.10gb"],
            json!({}),
            "container c0: policy bound allows no GPU model for nvidia.com/mig-1g.10gb: 1 among those that the pod may have (T4-16GB); ask for another isolation class, ask for one kind in all containers, or name other models in metadata.annotations[kerf.dev/gpu-model]",
        ),
        (
            json!({"models": ["T4-16GB"]}),
            &all,
            &["kerf.dev/gpu-40gb"],
            json!({}),
            "container c0: no slice of kind mig, mps, whole can have 40 GB; ask for 15 GB or less, or for another class",
        ),
    ] {
        let found = became(&spec(policy.clone()), managed, limits, annotations.clone());
        assert_eq!(found, expected, "{policy} {limits:?} {annotations}");
    }
}

#[test]
fn a_denied_pod_is_refused_if_it_asks_in_any_accepted_way() {
    let mut policies = policies(json!({"match": {"namespaces": ["web"]}, "deny": "no budget"}));
    let other = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "other"},
        "spec": {"defaultIsolation": "memory", "isolation": {"memory": ["mig"]}, "dialects": ["nvidia", "mig"]},
    });
    policies.pods.push(serde_json::from_value::<PolicyDocument>(other).unwrap().try_into().unwrap());
    let refused = |metadata: Value, name: &str| {
        let main = json!({"name": "main", "resources": {"limits": {name: "1"}}});
        let pod = json!({"metadata": metadata, "spec": {"containers": [main]}});
        match decide(&pod, "web", &policies, &Supply::default()) {
            Ok(admitted) => admitted.map(|_| "admitted".to_owned()),
            Err(refusal) => Some(refusal.to_string()),
        }
    };
    let text = "policy bound gives this pod no GPU: no budget; ask an admin of the cluster, who writes kerf's policies";
    for name in ["kerf.dev/gpu-10gb", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "gpu-10"] {
        assert_eq!(refused(json!({}), name).as_deref(), Some(text), "{name}");
    }
    assert_eq!(refused(json!({"annotations": {"kerf.dev/gpu-memory": "ten"}}), "cpu").as_deref(), Some(text));
    assert_eq!(
        refused(json!({"annotations": {"kerf.dev/request": "{}"}}), "cpu"),
        None,
        "it asks for nothing"
    );
    for name in ["cpu", "aliyun.com/gpu-mem", "amd.com/gpu"] {
        assert_eq!(refused(json!({}), name), None, "{name}: no policy takes it");
    }
}

/// A policy with `deny` lists no dialects. The default list must not make a webhook that fails closed match
/// `nvidia.com/mig-*`.
#[test]
fn a_policy_that_denies_accepts_no_dialect() {
    let mut policies = policies(json!({"match": {"namespaces": ["web"]}, "deny": "no budget"}));
    assert!(policies.dialects().is_empty());
    let other = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "other"},
        "spec": {"defaultIsolation": "memory", "isolation": {"memory": ["mig"]}, "dialects": []},
    });
    policies.pods.push(serde_json::from_value::<PolicyDocument>(other).unwrap().try_into().unwrap());
    assert!(policies.dialects().is_empty());
    let main = json!({"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}});
    for namespace in ["web", "elsewhere"] {
        let pod = json!({"metadata": {}, "spec": {"containers": [main]}});
        assert!(matches!(decide(&pod, namespace, &policies, &Supply::default()), Ok(None)), "{namespace}");
    }
}
