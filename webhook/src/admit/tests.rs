use super::*;
use kerf_core::policy::PolicyDocument;
use kerf_core::testing::{node_status, with_neutral_names};
use serde_json::json;

fn policy_with(spec: &Value) -> Policies {
    let mut document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "default"},
        "spec": {
            "defaultIsolation": "memory",
            "isolation": {"hardware": ["mig"], "memory": ["mig", "mps"], "none": ["time-slicing", "mps", "mig"]},
        }
    });
    json_patch::merge(&mut document["spec"], spec);
    let policy = serde_json::from_value::<PolicyDocument>(document).unwrap().try_into().unwrap();
    Policies { pods: vec![policy], nodes: Vec::new() }
}

fn policy() -> Policies {
    policy_with(&json!({}))
}

fn supply() -> Supply {
    Supply::from_statuses(&[node_status(&["H100-80GB", "H100-80GB"]), node_status(&["T4-16GB"])])
}

fn admitted(pod: &Value) -> Admission {
    admit(pod, "default", &policy(), &supply())
}

fn pod(annotations: &Value, resources: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "model-", "namespace": "default", "annotations": annotations},
        "spec": {
            "containers": [{"name": "main", "image": "model:1", "resources": resources}],
            "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        }
    })
}

fn limits(name: &str, count: &str) -> Value {
    json!({"limits": {"cpu": "2", name: count}, "requests": {"cpu": "1", name: count}})
}

fn patched(before: &Value) -> Value {
    let Admission::Patched { ops, .. } = admitted(before) else { panic!("{:?}", admitted(before)) };
    let mut after = before.clone();
    json_patch::patch(&mut after, &ops).unwrap();
    after
}

fn message(pod: &Value) -> String {
    match admitted(pod) {
        Admission::Denied { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

fn with(pod: &Value, path: &str, value: Value) -> Value {
    let mut pod = pod.clone();
    let (parent, key) = path.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value;
    pod
}

/// A pod whose init containers, sidecar and app container ask in every possible way.
fn staged() -> Value {
    json!({
        "metadata": {"name": "staged", "annotations": {
            "kerf.dev/gpu-memory": "10Gi", "kerf.dev/gpu-memory.fetch": "5Gi",
        }},
        "spec": {
            "initContainers": [
                {"name": "chown"},
                {"name": "fetch"},
                {"name": "proxy", "restartPolicy": "Always", "resources": limits("gpu-10gb", "1")},
                {"name": "load", "resources": limits("kerf.dev/gpu-10gb", "2")},
            ],
            "containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}],
        }
    })
}

/// Adds a proxy as Istio's and Linkerd's webhooks do: before or after the app containers, or as a native sidecar.
fn injected(pod: &Value, proxy: &str, place: Option<usize>) -> Value {
    let (mut pod, mut container) = (pod.clone(), json!({"name": proxy, "image": "proxy"}));
    if let Some(place) = place {
        pod["spec"]["containers"].as_array_mut().unwrap().insert(place, container);
    } else {
        container["restartPolicy"] = json!("Always");
        pod["spec"]["initContainers"] = json!([container]);
    }
    pod
}

#[test]
fn an_injected_sidecar_gets_no_slice_whether_its_webhook_runs_before_kerf_or_after_it() {
    let given = |pod: &Value, list: &str, name: &str| {
        let containers = pod["spec"][list].as_array().unwrap().iter();
        let limits = containers
            .filter(|container| container["name"] == name)
            .map(|c| c["resources"]["limits"].clone());
        limits.collect::<Vec<_>>()
    };
    let plain = pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({}));
    for proxy in ["istio-proxy", "linkerd-proxy"] {
        for (place, list) in [(Some(0), "containers"), (Some(1), "containers"), (None, "initContainers")] {
            let before = patched(&injected(&plain, proxy, place));
            let after = injected(&patched(&plain), proxy, place);
            let named =
                with(&after, "/metadata/annotations/kubectl.kubernetes.io~1default-container", json!("main"));
            for pod in [&before, &after, &named] {
                assert_eq!(admitted(pod), Admission::Untouched, "{proxy} at {place:?}");
                assert_eq!(given(pod, "containers", "main"), [json!({"nvidia.com/mig-1g.10gb": "1"})]);
                assert_eq!(given(pod, list, proxy), [Value::Null]);
            }
        }
    }
}

#[test]
fn every_spelling_has_its_patch() {
    let two = json!({
        "metadata": {"name": "pair"},
        "spec": {
            "containers": [
                {"name": "large", "resources": {"limits": {"kerf.dev/gpu-40gb": "1"}, "requests": {"kerf.dev/gpu-40gb": "1"}}},
                {"name": "log"},
                {"name": "small", "resources": {"limits": {"nvidia.com/gpu-8gb": "1"}, "requests": {"nvidia.com/gpu-8gb": "1"}}},
            ],
            "affinity": {"nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [],
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
                    {},
                ]}
            }},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "schedulerName": "kerf-scheduler",
        }
    });
    let cases = [
        ("annotation", pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({}))),
        ("qualified limit", pod(&json!(null), &limits("kerf.dev/gpu-10gb", "2"))),
        ("bare limit", pod(&json!({"team": "vision"}), &limits("gpu-10gb", "1"))),
        ("annotation and limit", pod(&json!({"kerf.dev/gpu-memory": "10G"}), &limits("gpu-10gb", "3"))),
        ("exact profile", pod(&json!({}), &limits("nvidia.com/mig-2g.20gb", "1"))),
        ("requests only", pod(&json!({}), &json!({"requests": {"gpu-10gb": 1}}))),
        (
            "time slice",
            pod(&json!({"kerf.dev/gpu-memory": "13Gi", "kerf.dev/isolation": "none"}), &json!(null)),
        ),
        ("two kinds and affinity of the user's", two),
        ("init containers and a sidecar", staged()),
    ];
    for (name, pod) in cases {
        let Admission::Patched { ops, warnings, .. } = admitted(&pod) else { panic!("{:?}", admitted(&pod)) };
        insta::assert_json_snapshot!(
            name.replace([' ', '\''], "_"),
            json!({"patch": ops, "warnings": warnings})
        );
    }
}

#[test]
fn every_refusal_names_the_field_and_the_remedy() {
    let noted = |size: &str| pod(&json!({"kerf.dev/gpu-memory": size}), &json!({}));
    let ten = noted("10Gi");
    let cases = [
        ("gpu-0gb", pod(&json!({}), &limits("gpu-0gb", "1"))),
        ("gpu-999gb", pod(&json!({}), &limits("kerf.dev/gpu-999gb", "1"))),
        ("10Ti", noted("10Ti")),
        ("-1Gi", noted("-1Gi")),
        ("10", noted("10")),
        ("two sizes", pod(&json!({}), &json!({"limits": {"gpu-10gb": "1", "gpu-20gb": "1"}}))),
        ("annotation against limit", pod(&json!({"kerf.dev/gpu-memory": "20Gi"}), &limits("gpu-10gb", "1"))),
        (
            "requests against limits",
            pod(&json!({}), &json!({"limits": {"gpu-10gb": "1"}, "requests": {"gpu-10gb": "2"}})),
        ),
        ("class", with(&ten, "/metadata/annotations/kerf.dev~1isolation", json!("total"))),
        ("count", pod(&json!({}), &limits("gpu-10gb", "17"))),
        ("fraction", pod(&json!({}), &limits("gpu-10gb", "500m"))),
        ("weak kind", pod(&json!({}), &limits("nvidia.com/gpu-10gb.shared", "1"))),
        ("privileged", with(&ten, "/spec/containers/0/securityContext", json!({"privileged": true}))),
        ("node name", with(&ten, "/spec/nodeName", json!("n1"))),
        ("scheduler", with(&ten, "/spec/schedulerName", json!("batch"))),
        (
            "init container",
            with(
                &ten,
                "/spec/initContainers",
                json!([{"name": "load", "resources": limits("gpu-0gb", "1")}]),
            ),
        ),
        ("init container's annotation", {
            let pod = with(&ten, "/metadata/annotations/kerf.dev~1gpu-memory.load", json!("20Gi"));
            with(
                &pod,
                "/spec/initContainers",
                json!([{"name": "load", "resources": limits("gpu-10gb", "1")}]),
            )
        }),
        (
            "privileged init container",
            with(
                &ten,
                "/spec/initContainers",
                json!([
                    {"name": "load", "securityContext": {"privileged": true}, "resources": limits("gpu-10gb", "1")},
                ]),
            ),
        ),
        ("not a pod", json!({"spec": {"containers": "none"}})),
    ];
    let lines = cases.map(|(name, pod)| format!("{name}: {}", message(&pod)));
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_pod_without_a_gpu_request_is_not_changed() {
    for resources in [json!(null), limits("nvidia.com/gpu", "1"), json!({"limits": {"memory": "1Gi"}})] {
        assert_eq!(admitted(&pod(&json!({"kerf.dev/movable": "true"}), &resources)), Admission::Untouched);
    }
}

#[test]
fn an_admitted_pod_is_not_changed_again() {
    for before in [
        pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({})),
        pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &limits("gpu-10gb", "3")),
        pod(&json!({"kerf.dev/isolation": "none"}), &limits("kerf.dev/gpu-13gb", "1")),
        pod(&json!({}), &limits("nvidia.com/mig-1g.10gb.me", "1")),
        staged(),
    ] {
        assert_eq!(admitted(&patched(&before)), Admission::Untouched, "{before}");
    }
}

#[test]
fn a_sidecar_that_is_injected_later_does_not_undo_an_admission() {
    let mut after = patched(&pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({})));
    after["spec"]["containers"].as_array_mut().unwrap().insert(0, json!({"name": "proxy"}));
    assert_eq!(admitted(&after), Admission::Untouched);
}

#[test]
fn init_containers_that_are_injected_later_do_not_undo_an_admission() {
    let mut after = patched(&staged());
    after["spec"]["initContainers"].as_array_mut().unwrap().insert(0, json!({"name": "mesh"}));
    after["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "log"}));
    assert_eq!(admitted(&after), Admission::Untouched);
}

#[test]
fn a_change_by_another_webhook_is_mended_without_a_new_choice() {
    let lenient = policy_with(&json!({"environment": "remove"}));
    let good = patched(&pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({})));
    let main = &good["spec"]["containers"][0];
    let proxy = |more: Value| {
        let mut proxy = json!({"name": "proxy"});
        json_patch::merge(&mut proxy, &more);
        with(&good, "/spec/containers", json!([proxy, main]))
    };
    let terms =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let zone = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]});
    let cases = [
        ("another term", with(&good, terms, json!([good.pointer(terms).unwrap()[0], zone]))),
        ("all GPUs visible", proxy(json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}))),
        ("none of another's GPUs", proxy(json!({"resources": {"limits": {"nvidia.com/gpu": "0"}}}))),
        ("label removed", with(&good, "/metadata/labels", json!({}))),
        ("scheduler replaced", with(&good, "/spec/schedulerName", json!("default-scheduler"))),
        ("affinity removed", with(&good, "/spec/affinity", json!(null))),
    ];
    let mut patches = Vec::new();
    for (name, mut pod) in cases {
        let admission = admit(&pod, "default", &lenient, &supply());
        let Admission::Mended { ops, warnings } = admission else { panic!("{name}: {admission:?}") };
        json_patch::patch(&mut pod, &ops).unwrap();
        assert_eq!(admit(&pod, "default", &lenient, &supply()), Admission::Untouched, "{name}");
        patches.push(json!({"case": name, "patch": ops, "warnings": warnings}));
    }
    insta::assert_json_snapshot!(patches);
}

#[test]
fn a_request_that_another_webhook_adds_later_is_decided_anew() {
    let first = patched(&pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({})));
    let terms =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    for (key, value, expected) in [
        ("kerf.dev/isolation", "none", "nvidia.com/gpu-10gb.shared"),
        ("kerf.dev/gpu-model", "T4-16GB", "nvidia.com/gpu-10gb"),
        ("kerf.dev/gpu-memory", "40Gi", "nvidia.com/mig-3g.40gb"),
        ("kerf.dev/compute", "50", "nvidia.com/mig-4g.40gb"),
    ] {
        let mut second = first.clone();
        second["metadata"]["annotations"][key] = json!(value);
        let Admission::Patched { ops, .. } = admitted(&second) else { panic!("{:?}", admitted(&second)) };
        json_patch::patch(&mut second, &ops).unwrap();
        assert_eq!(second["spec"]["containers"][0]["resources"]["limits"], json!({expected: "1"}), "{key}");
        let mut honest = pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({}));
        honest["metadata"]["annotations"][key] = json!(value);
        assert_eq!(
            second.pointer(terms),
            patched(&honest).pointer(terms),
            "{key}: of the first choice nothing is left"
        );
        assert_eq!(admitted(&second), Admission::Untouched);
    }
}

#[test]
fn a_pod_without_a_request_loses_the_fields_that_only_kerf_may_write() {
    let bare = pod(&json!({"note": "stays"}), &json!({"limits": {"cpu": "1"}}));
    let mut marked =
        patched(&pod(&json!({"note": "stays"}), &json!({"limits": {"cpu": "1", "gpu-10gb": "1"}})));
    marked["metadata"]["annotations"]["kerf.dev/assignment"] = json!("{}");
    for map in ["limits", "requests"] {
        marked["spec"]["containers"][0]["resources"][map]
            .as_object_mut()
            .unwrap()
            .remove("nvidia.com/mig-1g.10gb");
    }
    let Admission::Mended { ops, warnings } = admitted(&marked) else { panic!("{:?}", admitted(&marked)) };
    json_patch::patch(&mut marked, &ops).unwrap();
    assert!(warnings[0].starts_with("metadata.annotations[kerf.dev/request], metadata.annotations[kerf.dev/assignment], metadata.labels[kerf.dev/sliced]:"));
    assert_eq!((warnings.len(), &marked["metadata"]["annotations"]), (1, &bare["metadata"]["annotations"]));
    assert_eq!(
        (&marked["metadata"]["labels"], marked.pointer("/spec/affinity/nodeAffinity")),
        (&json!({}), Some(&json!({})))
    );
}

#[test]
fn tolerations_of_another_policy_do_not_make_an_admitted_pod_forged() {
    let after = patched(&pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({})));
    let other = policy_with(&json!({"tolerations": [{"key": "gpu"}]}));
    assert_eq!(admit(&after, "default", &other, &supply()), Admission::Untouched);
}

#[test]
fn a_document_that_does_not_match_its_pod_is_ignored() {
    let good = patched(&pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({})));
    let request = good["metadata"]["annotations"]["kerf.dev/request"].as_str().unwrap().to_owned();
    let document = |from: &str, to: &str| {
        assert!(request.contains(from), "{request}");
        with(&good, "/metadata/annotations/kerf.dev~1request", json!(request.replace(from, to)))
    };
    let main = "/spec/containers/0/resources";
    let cases = [
        ("larger slice", document("1g.10gb", "7g.80gb")),
        ("other size than the annotation's", document("\"sizeGb\":10", "\"sizeGb\":9")),
        ("other container", document("\"main\"", "\"side\"")),
        ("other count", document("\"count\":1", "\"count\":2")),
        ("no limit", with(&good, main, json!({}))),
        ("second ask", {
            let more = json!({"name": "more", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}});
            with(&good, "/spec/containers", json!([good["spec"]["containers"][0], more]))
        }),
        ("sidecar made an init container", {
            let staged = patched(&staged());
            with(&staged, "/spec/initContainers/2/restartPolicy", json!(null))
        }),
        ("init container's limit", {
            let staged = patched(&staged());
            with(&staged, "/spec/initContainers/3/resources", json!({}))
        }),
        ("other scheduler", with(&good, "/spec/schedulerName", json!("batch"))),
        (
            "other class than the annotation's",
            with(&good, "/metadata/annotations/kerf.dev~1isolation", json!("none")),
        ),
        ("bound", with(&good, "/spec/nodeName", json!("n1"))),
        ("privileged", with(&good, "/spec/containers/0/securityContext", json!({"privileged": true}))),
        ("other version", document("\"version\":1", "\"version\":2")),
        ("unknown class", document("\"memory\"", "\"total\"")),
        ("greedy", {
            let pod = document("\"count\":1", "\"count\":17");
            with(
                &pod,
                main,
                json!({"limits": {"nvidia.com/mig-1g.10gb": "17"}, "requests": {"nvidia.com/mig-1g.10gb": "17"}}),
            )
        }),
    ];
    let cases = cases.map(|(name, pod)| format!("{name}: {}", outcome(&pod)));
    insta::assert_snapshot!(cases.join("\n"));
}

/// What a pod with one or several containers gets, and whether a warning says that kerf decided again.
fn outcome(pod: &Value) -> String {
    match admitted(pod) {
        Admission::Denied { message, .. } => format!("denied, {message}"),
        Admission::Untouched => "as it is".to_owned(),
        Admission::Mended { .. } => "mended".to_owned(),
        Admission::Qualified { .. } => panic!("a pod is no template"),
        Admission::Patched { document, warnings, .. } => {
            let anew = warnings.iter().filter(|warning| warning.contains("anew")).count();
            let containers = document.containers.iter();
            let given: Vec<String> =
                containers.map(|c| format!("{} x {} for {}", c.count, c.resource, c.name)).collect();
            format!("{}, decided anew: {}", given.join(" and "), anew > 0)
        }
    }
}

#[test]
fn a_pod_is_decided_by_the_policy_that_matches_it_now() {
    let after = patched(&pod(&json!({"kerf.dev/gpu-memory": "10Gi"}), &json!({})));
    let strict =
        policy_with(&json!({"defaultIsolation": "hardware", "isolation": {"memory": null, "none": null}}));
    let Admission::Patched { document, .. } = admit(&after, "default", &strict, &supply()) else {
        panic!("{after}")
    };
    assert_eq!(document.isolation, kerf_core::kind::IsolationClass::Hardware);
    let small = policy_with(&json!({"sizes": {"maxGb": 5}}));
    let Admission::Denied { message, .. } = admit(&after, "default", &small, &supply()) else {
        panic!("{after}")
    };
    assert!(message.contains("10 GB is more than the 5 GB"), "{message}");
}

/// The limit has the same text before and after admission. It is read as the request again, and stays.
#[test]
fn a_neutral_name_that_was_asked_and_given_is_not_changed() {
    let supply = Supply::from_statuses(&[with_neutral_names(node_status(&["H100-80GB", "T4-16GB"]))]);
    let admitted = |pod: &Value| admit(pod, "default", &policy(), &supply);
    let limit = |name: &str| pod(&json!({}), &limits(name, "1"));
    for (before, given) in [
        (limit("kerf.dev/gpu-10gb"), "kerf.dev/gpu-10gb"),
        (limit("gpu-10gb"), "kerf.dev/gpu-10gb"),
        (limit("kerf.dev/gpu-13gb"), "kerf.dev/gpu-14gb"),
        (pod(&json!({"kerf.dev/gpu-memory": "13Gi"}), &json!({})), "kerf.dev/gpu-14gb"),
    ] {
        let mut after = before.clone();
        let Admission::Patched { ops, .. } = admitted(&before) else { panic!("{:?}", admitted(&before)) };
        json_patch::patch(&mut after, &ops).unwrap();
        let limits = after["spec"]["containers"][0]["resources"]["limits"].as_object().unwrap();
        let ours: Vec<&String> = limits.keys().filter(|name| *name != "cpu").collect();
        assert_eq!(ours, [given], "{before}");
        assert_eq!(admitted(&after), Admission::Untouched, "{before}");
        let mut bound = after.clone();
        bound["spec"]["nodeName"] = json!("n1");
        bound["metadata"]["annotations"]["kerf.dev/assignment"] = json!("{}");
        let Admission::Mended { ops, .. } = admitted(&bound) else { panic!("{:?}", admitted(&bound)) };
        json_patch::patch(&mut bound, &ops).unwrap();
        assert_eq!(bound, after, "a copy of a running pod");
        // A tool that strips annotations leaves the limit, which asks for the size in its name.
        let mut stripped = after.clone();
        stripped["metadata"].as_object_mut().unwrap().remove("annotations");
        let Admission::Patched { document, .. } = admitted(&stripped) else {
            panic!("{:?}", admitted(&stripped))
        };
        assert_eq!(document.containers[0].resource.to_string(), given);
    }
}

#[test]
fn a_forged_document_gains_nothing() {
    let bounded = policy_with(&json!({"sizes": {"maxGb": 10}}));
    for resource in ["nvidia.com/mig-7g.80gb", "nvidia.com/gpu-80gb"] {
        let container = json!({"name": "main", "sizeGb": 10, "count": 1, "resource": resource});
        let document = json!({
            "version": 1, "isolation": "memory", "containers": [container], "chosen": {"policy": "default"},
        });
        let forged = pod(&json!({"kerf.dev/request": document.to_string()}), &limits(resource, "1"));
        let honest = pod(&json!({}), &limits(resource, "1"));
        let Admission::Denied { message, .. } = admit(&honest, "default", &bounded, &supply()) else {
            panic!()
        };
        match admit(&forged, "default", &bounded, &supply()) {
            Admission::Denied { message: same, .. } => assert_eq!(same, message),
            other => panic!("{resource}: {other:?}"),
        }
    }
}
