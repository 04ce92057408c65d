use super::*;
use kerf_core::admission::{self, CONTAINERS, Unfit};
use kerf_core::contract::ContainerRequest;
use kerf_core::kind::Kind;
use kerf_core::policy::PolicyDocument;
use kerf_core::request::GpuSelection;
use kerf_core::resource::{PluginName, ResourceName};
use kerf_core::testing::request;
use kerf_core::units::SizeGb;
use proptest::prelude::*;
use serde_json::json;

fn policy(more: &Value) -> Policy {
    let mut document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {"defaultIsolation": "memory", "isolation": {"memory": ["mig", "mps"]}, "tolerations": []},
    });
    json_patch::merge(&mut document["spec"], more);
    serde_json::from_value::<PolicyDocument>(document).unwrap().try_into().unwrap()
}

fn document(resource: &str) -> RequestDocument {
    request(resource, 1)
}

fn pod(spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"gpu-10gb": "1"}, "requests": {"gpu-10gb": "1"}}}]},
    });
    json_patch::merge(&mut pod["spec"], spec);
    pod
}

#[derive(Debug)]
struct PodPatch {
    ops: Vec<PatchOperation>,
    warnings: Vec<String>,
}

fn patch(pod: &Value, document: &RequestDocument, policy: &Policy) -> Result<PodPatch, Unfit> {
    let fit = admission::fit(pod, document, policy)?;
    let taken_out = fit.taken_out.iter().map(ToString::to_string);
    let warnings = taken_out.chain(fit.unseen.iter().map(ToString::to_string)).collect();
    let policies = Policies { pods: vec![policy.clone()], nodes: Vec::new() };
    Ok(PodPatch { ops: super::patch(pod, document, policy, &policies, &fit), warnings })
}

fn patched(before: &Value, document: &RequestDocument, policy: &Policy) -> (Value, Vec<String>) {
    let PodPatch { ops, warnings } = patch(before, document, policy).unwrap();
    let mut after = before.clone();
    json_patch::patch(&mut after, &ops).unwrap();
    let fit = admission::fit(&after, document, policy).unwrap();
    assert_eq!(mend(&after, document, &fit), [], "{after}");
    assert_eq!(patch(&after, document, policy).unwrap().ops, [], "once is enough: {after}");
    (after, warnings)
}

fn spec_of(spec: &Value, policy: &Value) -> Value {
    patched(&pod(spec), &document("nvidia.com/mig-1g.10gb"), &self::policy(policy)).0["spec"].take()
}

fn refusal(spec: &Value, policy: &Value) -> String {
    let refused = patch(&pod(spec), &document("nvidia.com/mig-1g.10gb"), &self::policy(policy));
    refused.unwrap_err().to_string()
}

fn terms(spec: &Value) -> &Value {
    &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
}

fn affinity(terms: &Value) -> Value {
    let required = json!({"nodeSelectorTerms": terms});
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
}

#[test]
fn the_policys_scheduler_replaces_the_pods_if_it_names_one() {
    assert_eq!(spec_of(&json!({}), &json!({}))["schedulerName"], "kerf-scheduler");
    assert_eq!(
        spec_of(&json!({"schedulerName": "default-scheduler"}), &json!({}))["schedulerName"],
        "kerf-scheduler"
    );
    let none = json!({"schedulerName": ""});
    assert_eq!(
        spec_of(&json!({"schedulerName": "default-scheduler"}), &none)["schedulerName"],
        "default-scheduler"
    );
    assert_eq!(spec_of(&json!({"schedulerName": "batch"}), &none)["schedulerName"], "batch");
    let message = refusal(&json!({"schedulerName": "batch"}), &json!({}));
    assert!(message.starts_with("spec.schedulerName: batch does not cut GPUs"), "{message}");
}

#[test]
fn a_dialects_scheduler_is_replaced_where_the_dialect_is_on() {
    let kai = json!({"schedulerName": "kai-scheduler"});
    assert_eq!(spec_of(&kai, &json!({"dialects": ["kai"]}))["schedulerName"], "kerf-scheduler");
    let own = json!({"dialects": ["kai"], "schedulerName": ""});
    assert_eq!(spec_of(&kai, &own)["schedulerName"], "default-scheduler");
    assert!(refusal(&kai, &json!({})).contains("kai-scheduler does not cut GPUs"));
}

#[test]
fn no_container_keeps_the_name_by_which_it_asked() {
    let names = [
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
        "aliyun.com/gpu-mem",
        "gpu-10gb",
    ];
    let asking =
        json!(names.map(|name| (name, "1")).into_iter().collect::<std::collections::BTreeMap<_, _>>());
    let resources = json!({"limits": asking, "requests": asking});
    let containers =
        json!([{"name": "main", "resources": resources}, {"name": "side", "resources": resources}]);
    let spec = spec_of(&json!({"containers": containers}), &json!({}));
    let given = json!({"nvidia.com/mig-1g.10gb": "1"});
    assert_eq!(spec["containers"][0]["resources"], json!({"limits": given, "requests": given}));
    assert_eq!(spec["containers"][1]["resources"], json!({"limits": {}, "requests": {}}));
}

#[test]
fn a_runtime_class_is_set_only_where_the_pod_names_none() {
    let policy = json!({"runtimeClassName": "nvidia"});
    assert_eq!(spec_of(&json!({}), &policy)["runtimeClassName"], "nvidia");
    assert_eq!(spec_of(&json!({"runtimeClassName": null}), &policy)["runtimeClassName"], "nvidia");
    assert_eq!(spec_of(&json!({"runtimeClassName": "kata"}), &policy)["runtimeClassName"], "kata");
    assert!(spec_of(&json!({}), &json!({})).get("runtimeClassName").is_none());
}

#[test]
fn a_pod_without_the_annotation_gets_the_policys_movable_default() {
    let policy = policy(&json!({"preemption": {"movableByDefault": true}}));
    let movable = |annotations: Value| {
        let mut before = pod(&json!({}));
        before["metadata"]["annotations"] = annotations;
        let (after, _) = patched(&before, &document("nvidia.com/mig-1g.10gb"), &policy);
        after["metadata"]["annotations"]["kerf.dev/movable"].clone()
    };
    assert_eq!(movable(json!(null)), "true");
    assert_eq!(movable(json!({"kerf.dev/movable": "false"})), "false");
}

#[test]
fn a_preset_node_becomes_required_affinity_or_is_refused() {
    let policy = json!({"nodeName": "affinity"});
    let named = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    let spec = spec_of(&json!({"nodeName": "n1"}), &policy);
    assert!(spec.get("nodeName").is_none());
    assert_eq!(terms(&spec)[0]["matchFields"], json!([named]));
    assert_eq!(terms(&spec)[0]["matchExpressions"][0]["key"], "kerf.dev/mig-max-gb");
    // Each of the user's terms selects nodes by itself, so each of them gets it.
    let zone = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]});
    let other = json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}]});
    let mut before = affinity(&json!([zone, other, {}]));
    before["nodeName"] = json!("n1");
    let spec = spec_of(&before, &policy);
    assert_eq!(terms(&spec)[0]["matchFields"], json!([named]));
    assert_eq!(terms(&spec)[1]["matchFields"], json!([other["matchFields"][0], named]));
    assert_eq!(terms(&spec)[2], json!({}), "a term that selects nothing goes on doing so");
    let message = refusal(&json!({"nodeName": "n1"}), &json!({}));
    assert!(message.starts_with("spec.nodeName"), "{message}");
    assert!(spec_of(&json!({"nodeName": ""}), &json!({})).get("nodeName").is_some(), "it names no node");
}

fn model_terms(gpus: &Value) -> Value {
    let gpus: GpuSelection = serde_json::from_value(gpus.clone()).unwrap();
    let document = RequestDocument { gpus, ..document("nvidia.com/mig-1g.10gb") };
    let (after, _) = patched(&pod(&json!({})), &document, &policy(&json!({})));
    let mut expressions = terms(&after["spec"])[0]["matchExpressions"].clone();
    expressions.as_array_mut().unwrap().remove(0);
    expressions
}

#[test]
fn models_are_selected_by_the_label_and_mixed_nodes_stay_eligible() {
    let model = |operator: &str, values: &[&str]| json!({"key": "kerf.dev/gpu-model", "operator": operator, "values": values});
    assert_eq!(model_terms(&json!({})), json!([]));
    assert_eq!(model_terms(&json!({"models": ["H100-80GB"]})), json!([model("In", &["H100-80GB", "mixed"])]));
    assert_eq!(
        model_terms(&json!({"models": ["L4-24GB", "T4-16GB"], "notModels": ["T4-16GB"]})),
        json!([model("In", &["L4-24GB", "T4-16GB", "mixed"]), model("NotIn", &["T4-16GB"])])
    );
    assert_eq!(
        model_terms(&json!({"uuids": ["GPU-1"], "notUuids": ["GPU-2"]})),
        json!([]),
        "no label names them"
    );
    // The API server rejects what is no valid label value.
    assert_eq!(
        model_terms(&json!({"models": ["H100 80GB", "x".repeat(64)], "notModels": ["-a"]})),
        json!([model("In", &["mixed"])])
    );
}

fn env(variables: &Value) -> Value {
    json!({"containers": [{"name": "main", "env": variables}]})
}

#[test]
fn variables_that_lead_past_a_slice_are_refused() {
    for name in ["NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] {
        for variable in [
            json!({"name": name, "value": "all"}),
            json!({"name": name, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}),
        ] {
            let message = refusal(&env(&json!([{"name": "A", "value": "1"}, variable])), &json!({}));
            assert!(message.starts_with(&format!("container main, env[{name}]:")), "{message}");
        }
    }
    let harmless = env(
        &json!([{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}, {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]),
    );
    assert_eq!(spec_of(&harmless, &json!({}))["containers"][0]["env"], harmless["containers"][0]["env"]);
}

#[test]
fn a_variable_that_kerf_cannot_read_is_refused_beside_a_slice_of_another_container() {
    let variable =
        json!({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    let containers = json!({"containers": [{"name": "main"}, {"name": "side", "env": [variable]}]});
    let message = refusal(&containers, &json!({}));
    assert!(message.starts_with("container side, env[NVIDIA_VISIBLE_DEVICES]:"), "{message}");
}

#[test]
fn variables_that_lead_past_a_slice_are_removed_with_a_warning() {
    let variables = json!([
        {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"},
        {"name": "A", "value": "1"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "B", "value": "$(A)"},
    ]);
    let policy = policy(&json!({"environment": "remove"}));
    let before = pod(&env(&variables));
    let (after, warnings) = patched(&before, &document("nvidia.com/mig-1g.10gb"), &policy);
    assert_eq!(after["spec"]["containers"][0]["env"], json!([variables[1], variables[4]]));
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("container main: env[NVIDIA_VISIBLE_DEVICES]"), "{warnings:?}");
}

#[test]
fn a_pod_with_an_mps_share_is_warned_of_variables_that_kerf_cannot_read() {
    let sources = json!([
        {"configMapRef": {"name": "settings"}},
        {"prefix": "APP_", "configMapRef": {"name": "prefixed"}},
        {"prefix": "CUDA_", "secretRef": {"name": "keys", "optional": true}},
        {"prefix": "CUDA_MPS_PIPE_", "secretRef": {"name": "more"}},
    ]);
    let before = pod(
        &json!({"containers": [{"name": "main", "envFrom": sources}, {"name": "side", "envFrom": sources}]}),
    );
    let warnings = |resource: &str| {
        let (after, warnings) = patched(&before, &document(resource), &policy(&json!({})));
        assert_eq!(after["spec"]["containers"][0]["envFrom"], sources, "it is left as it is");
        warnings
    };
    let reported = warnings("nvidia.com/gpu-10gb");
    assert_eq!(
        reported[0],
        "container main, envFrom[0]: kerf does not read ConfigMap settings; CUDA_MPS_* in it would lead past the pod's slice; keep them out of it, or set a prefix"
    );
    let of = |warning: &String| warning.split("; ").next().unwrap().to_owned();
    assert_eq!(
        reported[1..].iter().map(of).collect::<Vec<_>>(),
        [
            "container main, envFrom[2]: kerf does not read Secret keys",
            "container main, envFrom[3]: kerf does not read Secret more",
        ]
    );
    assert_eq!(warnings("nvidia.com/mig-1g.10gb"), [""; 0]);
}

#[test]
fn unknown_fields_of_another_versions_document_are_removed() {
    let document = document("nvidia.com/mig-1g.10gb");
    let (mut carrying, _) = patched(&pod(&json!({})), &document, &policy(&json!({})));
    let mut newer = json!(document);
    newer["aFieldOfTomorrow"] = json!(true);
    carrying["metadata"]["annotations"][keys::REQUEST] = json!(newer.to_string());
    let read = RequestDocument::parse(&newer.to_string()).unwrap();
    let fit = admission::fit(&carrying, &read, &policy(&json!({}))).unwrap();
    let ops = mend(&carrying, &read, &fit);
    json_patch::patch(&mut carrying, &ops).unwrap();
    assert_eq!(carrying["metadata"]["annotations"][keys::REQUEST], json!(document.to_json()));
}

#[test]
fn the_allowed_variables_depend_on_the_kind_of_the_containers_slice() {
    let whole = RequestDocument {
        containers: vec![ContainerRequest {
            resource: "nvidia.com/gpu".parse().unwrap(),
            ..document("nvidia.com/gpu-10gb").containers.remove(0)
        }],
        ..document("nvidia.com/gpu-10gb")
    };
    let refused = |document: &RequestDocument, container: &str, name: &str, value: &str| {
        let variable = json!({"name": name, "value": value});
        let containers = ["main", "side"]
            .map(|c| if c == container { json!({"name": c, "env": [variable]}) } else { json!({"name": c}) });
        patch(&pod(&json!({"containers": containers})), document, &policy(&json!({}))).is_err()
    };
    let mps = document("nvidia.com/gpu-10gb");
    let open = |kinds: &[Kind]| {
        let mut open = document("kerf.dev/gpu-10gb");
        open.containers[0].kinds = kinds.to_vec();
        open
    };
    let (whole_or_mig, whole_alone) = (open(&[Kind::Whole, Kind::Mig]), open(&[Kind::Whole]));
    for (document, container, name, value, expected) in [
        (&whole_or_mig, "main", "NVIDIA_VISIBLE_DEVICES", "all", true),
        (&whole_or_mig, "main", "CUDA_MPS_LOG_DIRECTORY", "/x", true),
        (&whole_alone, "main", "NVIDIA_VISIBLE_DEVICES", "all", true),
        (&whole_alone, "main", "CUDA_MPS_LOG_DIRECTORY", "/x", false),
        (&mps, "main", "CUDA_MPS_LOG_DIRECTORY", "/x", true),
        (&mps, "main", "NVIDIA_VISIBLE_DEVICES", "void", true),
        (&mps, "side", "NVIDIA_VISIBLE_DEVICES", "all", true),
        (&mps, "side", "NVIDIA_VISIBLE_DEVICES", "void", false),
        (&mps, "side", "CUDA_MPS_LOG_DIRECTORY", "/x", false),
        (&whole, "main", "NVIDIA_VISIBLE_DEVICES", "all", true),
        (&whole, "main", "CUDA_MPS_LOG_DIRECTORY", "/x", false),
    ] {
        assert_eq!(refused(document, container, name, value), expected, "{container} {name}={value}");
    }
}

/// Agents without neutral names do not write the label, so pods with such names must not go to their nodes.
#[test]
fn a_neutral_pod_goes_to_nodes_that_have_its_size_by_any_kind() {
    let mut open = document("kerf.dev/gpu-96gb");
    open.containers[0].size_gb = SizeGb(90);
    open.containers[0].kinds = vec![Kind::Mps, Kind::Whole];
    let (pod, _) = patched(&pod(&json!({})), &open, &policy(&json!({})));
    let expected = json!([{"key": "kerf.dev/gpu-max-gb", "operator": "Gt", "values": ["89"]}]);
    assert_eq!(terms(&pod["spec"])[0]["matchExpressions"], expected);
}

fn resource() -> impl Strategy<Value = String> {
    let ours = [
        "gpu-10gb",
        "kerf.dev/gpu-10gb",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-2g.20gb",
        "nvidia.com/gpu-8gb.shared",
    ];
    prop::sample::select([&ours[..], &["cpu", "memory", "example.com/fpga"]].concat()).prop_map(str::to_owned)
}

fn resources() -> impl Strategy<Value = Value> {
    let map = || prop::option::of(prop::collection::btree_map(resource(), Just("1"), 0..4));
    (map(), map()).prop_map(|(limits, requests)| json!({"limits": limits, "requests": requests}))
}

fn variables() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "A",
        "B",
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_X",
    ]);
    let variable =
        (name, 0..9_u32).prop_map(|(name, value)| json!({"name": name, "value": value.to_string()}));
    prop::collection::vec(variable, 0..6).prop_map(Value::Array)
}

fn container(name: &'static str) -> impl Strategy<Value = Value> {
    (resources(), prop::option::of(variables())).prop_map(
        move |(resources, env)| json!({"name": name, "image": "i", "resources": resources, "env": env}),
    )
}

fn node_terms() -> impl Strategy<Value = Value> {
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let term = prop::sample::select(vec![
        json!({"matchExpressions": [zone]}),
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}], "matchExpressions": []}),
        json!({"matchExpressions": null}),
    ]);
    prop::option::of(prop::collection::vec(term, 1..3))
        .prop_map(|terms| terms.map_or(json!(null), |t| affinity(&json!(t))["affinity"].take()))
}

fn rest(pod: &Value) -> Value {
    let mut pod = pod.clone();
    for list in CONTAINERS {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            for map in ["limits", "requests"] {
                let entries = container["resources"][map].as_object_mut();
                if let Some(entries) = entries {
                    entries.retain(|name, _| !name.contains("gpu-") && !name.contains("mig-"));
                }
                if container["resources"][map] == json!({}) {
                    container["resources"][map] = json!(null);
                }
            }
            let dangerous = |name: &str| name.starts_with("CUDA_MPS_") || name == "NVIDIA_VISIBLE_DEVICES";
            if let Some(variables) = container["env"].as_array_mut() {
                variables.retain(|variable| !dangerous(variable["name"].as_str().unwrap()));
            }
        }
    }
    pod["metadata"] = json!(null);
    for key in ["affinity", "nodeName", "schedulerName", "runtimeClassName", "tolerations"] {
        pod["spec"].as_object_mut().unwrap().remove(key);
    }
    pod
}

proptest! {
    /// A patched pod carries everything and needs no second patch, and the rest of it is unchanged.
    #[test]
    fn a_patched_pod_needs_no_second_patch_and_keeps_the_rest(
        main in container("main"),
        side in container("side"),
        load in container("load"),
        affinity in node_terms(),
        node in prop::option::of(Just("n9")),
        scheduler in prop::sample::select(vec![None, Some("default-scheduler"), Some("kerf-scheduler")]),
        models in prop::sample::subsequence(vec!["H100-80GB", "T4-16GB", "no label!"], 0..=3),
    ) {
        let spec = json!({
            "containers": [main, side], "initContainers": [load], "affinity": affinity, "nodeName": node, "schedulerName": scheduler,
        });
        let before = json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": spec});
        let policy = policy(&json!({
            "nodeName": "affinity", "environment": "remove", "runtimeClassName": "nvidia", "preemption": {"movableByDefault": true},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        }));
        let mut wanted = document("nvidia.com/mig-1g.10gb");
        let of = wanted.containers[0].clone();
        wanted.containers.insert(0, ContainerRequest { name: "load".to_owned(), resource: "nvidia.com/gpu-8gb".parse().unwrap(), ..of });
        wanted.gpus.models = models.into_iter().map(str::to_owned).collect();
        let (after, _) = patched(&before, &wanted, &policy);
        prop_assert_eq!(rest(&after), rest(&before));
        prop_assert_eq!(&after["metadata"]["labels"]["a"], &json!("b"));
        prop_assert!(after["spec"]["nodeName"].is_null());
        for (path, name) in [("/spec/containers/0", "nvidia.com/mig-1g.10gb"), ("/spec/initContainers/0", "nvidia.com/gpu-8gb")] {
            for map in ["limits", "requests"] {
                let entries = after.pointer(&format!("{path}/resources/{map}")).unwrap().as_object().unwrap();
                let ours: Vec<&String> = entries.keys().filter(|name| name.contains("gpu-") || name.contains("mig-")).collect();
                prop_assert_eq!(ours, [name]);
            }
        }
    }
}

fn fixed(resource: ResourceName) -> RequestDocument {
    let mut document = RequestDocument { static_nodes: true, ..document("nvidia.com/mig-1g.10gb") };
    document.containers[0].resource = resource;
    document
}

#[test]
fn each_term_becomes_two_where_static_nodes_serve_the_pod_too() {
    let given = json!([
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
    ]);
    let both = fixed(document("nvidia.com/mig-1g.10gb").containers[0].resource);
    let of = |spec: &Value| terms(&patched(&pod(spec), &both, &policy(&json!({}))).0["spec"]).clone();
    let cut = json!({"key": "kerf.dev/mig-max-gb", "operator": "Gt", "values": ["9"]});
    let not_kerfs = json!({"key": "kerf.dev/managed", "operator": "NotIn", "values": ["true"]});
    let instances = json!({"key": "nvidia.com/mig-1g.10gb.count", "operator": "Gt", "values": ["0"]});
    assert_eq!(
        of(&json!({})),
        json!([{"matchExpressions": [cut]}, {"matchExpressions": [not_kerfs, instances]}])
    );
    let (zone, name) = (&given[0]["matchExpressions"][0], &given[2]["matchFields"][0]);
    assert_eq!(
        of(&affinity(&given)),
        json!([
            {"matchExpressions": [zone, cut]},
            {"matchExpressions": [zone, not_kerfs, instances]},
            {},
            {"matchExpressions": [cut], "matchFields": [name]},
            {"matchExpressions": [not_kerfs, instances], "matchFields": [name]},
        ])
    );
}

#[test]
fn names_of_static_nodes_select_only_those_by_nvidias_labels() {
    let some = |key: &str| json!({"key": key, "operator": "Gt", "values": ["0"]});
    let is = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let profile = "1g.10gb".parse().unwrap();
    for (name, kind, label) in [
        (PluginName::Gpu, Kind::Mps, is("nvidia.com/gpu.sharing-strategy", "mps")),
        (PluginName::Gpu, Kind::Mig, is("nvidia.com/mig.strategy", "single")),
        (PluginName::Gpu, Kind::TimeSlicing, some("nvidia.com/gpu.count")),
        (PluginName::Shared, Kind::TimeSlicing, some("nvidia.com/gpu.count")),
        (PluginName::MigShared(profile), Kind::TimeSlicing, some("nvidia.com/mig-1g.10gb.count")),
    ] {
        let (pod, _) =
            patched(&pod(&json!({})), &fixed(ResourceName::Plugin(name, kind)), &policy(&json!({})));
        let not_kerfs = json!({"key": "kerf.dev/managed", "operator": "NotIn", "values": ["true"]});
        assert_eq!(*terms(&pod["spec"]), json!([{"matchExpressions": [not_kerfs, label]}]), "{name}");
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({name.to_string(): "1"}));
    }
}

#[test]
fn a_request_by_the_plugins_name_admits_nodes_without_labels() {
    let mut document = fixed(ResourceName::Plugin(PluginName::Gpu, Kind::TimeSlicing));
    document.containers[0].size_gb = kerf_core::units::SizeGb::ANY;
    let (pod, _) = patched(&pod(&json!({})), &document, &policy(&json!({})));
    let not_kerfs = json!({"key": "kerf.dev/managed", "operator": "NotIn", "values": ["true"]});
    assert_eq!(*terms(&pod["spec"]), json!([{"matchExpressions": [not_kerfs]}]));
}

#[test]
fn whole_gpus_without_a_size_select_only_nodes_with_gpus() {
    let mut document = fixed(ResourceName::Whole);
    document.containers[0].size_gb = kerf_core::units::SizeGb::ANY;
    let (pod, _) = patched(&pod(&json!({})), &document, &policy(&json!({})));
    let counted = json!({"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["0"]});
    assert_eq!(terms(&pod["spec"])[1]["matchExpressions"][1], counted);
}

/// The policy's node selector is nowhere else in the pod, so a term without it would admit any node.
#[test]
fn every_term_has_the_labels_of_the_policys_nodes() {
    let pool = json!({"key": "pool", "operator": "In", "values": ["a"]});
    let zone = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
    let field = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
    let managed = document("nvidia.com/mig-1g.10gb");
    let both = RequestDocument { static_nodes: true, ..managed.clone() };
    for mut document in [managed, both, fixed("nvidia.com/gpu".parse().unwrap())] {
        document.nodes = [("pool".to_owned(), "a".to_owned())].into();
        for given in [json!(null), json!([zone]), json!([zone, field])] {
            let spec = if given.is_null() { json!({}) } else { affinity(&given) };
            let (after, _) = patched(&pod(&spec), &document, &policy(&json!({})));
            let terms = terms(&after["spec"]).as_array().unwrap();
            let has =
                |term: &Value| term["matchExpressions"].as_array().is_some_and(|all| all.contains(&pool));
            assert!(!terms.is_empty() && terms.iter().all(has), "{terms:?}");
        }
    }
}

/// A forged document removes only expressions of policies in force.
#[test]
fn only_labels_of_a_policy_are_withdrawn() {
    let (pool, tenant) = (json!({"pool": "a"}), json!({"tenant": "a"}));
    let policy = policy(&json!({"nodeSelector": pool}));
    let policies = Policies { pods: vec![policy], nodes: Vec::new() };
    for (selector, is_withdrawn) in [(pool, true), (tenant, false)] {
        let labels = serde_json::from_value::<std::collections::BTreeMap<String, String>>(selector).unwrap();
        let mut former = document("nvidia.com/mig-1g.10gb");
        former.containers.clear();
        let is = |(key, value): (&String, &String)| json!({"key": key, "operator": "In", "values": [value]});
        let term = json!({"matchExpressions": labels.iter().map(is).collect::<Vec<_>>()});
        former.nodes = labels;
        let mut plain = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
        json_patch::merge(&mut plain["spec"], &affinity(&json!([term])));
        plain["metadata"]["annotations"] = json!({keys::REQUEST: former.to_json()});
        let mut after = plain.clone();
        json_patch::patch(&mut after, &clear(&plain, &policies)).unwrap();
        assert_eq!(terms(&after["spec"]).is_null(), is_withdrawn, "{after}");
    }
}
