use super::super::decide;
use super::*;
use crate::contract::GpuNodeSpec;
use crate::policy::{Policies, PolicyDocument, Supply, SupplyIndex};
use crate::testing::{node_status, request, with_neutral_names};
use serde_json::json;

/// A pod that asks for 4 GB, with this spec and with this security context of its container.
fn pod(spec: Value, context: Value) -> Value {
    let main = json!({"name": "main", "securityContext": context, "resources": {"limits": {"gpu-4gb": "1"}}});
    let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    pod["spec"]["containers"] = json!([&[main], containers.as_slice()].concat());
    pod
}

fn restricted() -> Value {
    json!({"runAsNonRoot": true, "allowPrivilegeEscalation": false})
}

fn root(spec: Value, context: Value) -> Root {
    Root::from_pod(&pod(spec, context), RootContainers::Isolate)
}

fn is_separable(root: &Root) -> bool {
    matches!(root, Root::Separable(_))
}

fn is_exposed(root: &Root) -> bool {
    matches!(root, Root::Exposed(_))
}

#[test]
fn a_pod_without_root_in_any_container_needs_no_user_namespace() {
    let with = |key: &str, value: Value| {
        let mut context = restricted();
        context[key] = value;
        context
    };
    let none = || json!({});
    for (spec, context, fenced) in [
        (none(), restricted(), true),
        (none(), json!({"runAsUser": 1000, "allowPrivilegeEscalation": false}), true),
        (
            json!({"securityContext": {"runAsNonRoot": true}}),
            json!({"allowPrivilegeEscalation": false}),
            true,
        ),
        (json!({"securityContext": {"runAsUser": 7}}), json!({"allowPrivilegeEscalation": false}), true),
        (none(), json!({"runAsUser": 1, "allowPrivilegeEscalation": false}), true),
        (none(), with("privileged", json!(false)), true),
        (none(), with("capabilities", json!({"drop": ["ALL"]})), true),
        (none(), with("capabilities", json!({"add": []})), true),
        (json!({"initContainers": [{"name": "i", "securityContext": restricted()}]}), restricted(), true),
        (none(), none(), false),
        (none(), json!({"runAsNonRoot": true}), false),
        (none(), json!({"allowPrivilegeEscalation": false}), false),
        (none(), with("runAsUser", json!("root")), false),
        (none(), with("runAsUser", json!(0)), false),
        (none(), with("runAsNonRoot", json!(false)), false),
        (none(), with("capabilities", json!({"add": ["SETUID"]})), false),
        (none(), with("allowPrivilegeEscalation", json!(true)), false),
        (json!({"securityContext": {"runAsUser": 0}}), restricted(), false),
        (json!({"containers": [{"name": "side"}]}), restricted(), false),
        (json!({"initContainers": [{"name": "i"}]}), restricted(), false),
    ] {
        let found = root(spec.clone(), context.clone());
        assert_eq!((found == Root::Isolated, is_separable(&found)), (fenced, !fenced), "{spec} {context}");
    }
}

#[test]
fn a_user_namespace_is_set_unless_something_forbids_it() {
    let volume = |volume: Value| json!({"volumes": [volume]});
    for own in [
        json!({"name": "v", "emptyDir": {}}),
        json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "v", "configMap": {"name": "c"}}),
        json!({"name": "v", "secret": {"secretName": "s"}}),
        json!({"name": "v", "downwardAPI": {}}),
        json!({"name": "v", "projected": {"sources": []}}),
    ] {
        assert!(is_separable(&root(volume(own.clone()), json!({}))), "{own}");
    }
    for (spec, part) in [
        (json!({"hostUsers": true}), "spec.hostUsers is true"),
        (json!({"hostNetwork": true}), "spec.hostNetwork"),
        (json!({"hostPID": true}), "spec.hostPID"),
        (json!({"hostIPC": true}), "spec.hostIPC"),
        (volume(json!({"name": "v", "hostPath": {"path": "/data"}})), "spec.volumes[v]"),
        (volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}})), "spec.volumes[v]"),
        (volume(json!({"name": "v", "ephemeral": {}})), "spec.volumes[v]"),
        (volume(json!({"name": "v", "nfs": {"server": "s", "path": "/"}})), "spec.volumes[v]"),
        (volume(json!({"name": "v", "csi": {"driver": "d"}})), "spec.volumes[v]"),
        (volume(json!({"name": "v", "image": {"reference": "r"}})), "spec.volumes[v]"),
        (volume(json!({"name": "v", "emptyDir": {"medium": "HugePages-2Mi"}})), "spec.volumes[v]"),
        (json!({"containers": [{"name": "raw", "volumeDevices": [{"name": "v"}]}]}), "volumeDevices"),
    ] {
        let Root::Exposed(exposed) = root(spec.clone(), json!({})) else { panic!("{spec}") };
        assert!(exposed.to_string().contains(part), "{exposed}");
    }
    let forced = json!({"hostUsers": false, "volumes": [{"name": "v", "hostPath": {"path": "/data"}}]});
    assert_eq!(root(forced, json!({})), Root::Isolated, "kerf accepts the pod's own hostUsers");
}

#[test]
fn a_user_namespace_does_not_fence_a_container_that_may_mount() {
    let adding = |names: &[&str]| json!({"capabilities": {"add": names}});
    let namespaces = [json!({}), json!({"hostUsers": false})];
    for context in [
        json!({"privileged": true}),
        adding(&["SYS_ADMIN"]),
        adding(&["NET_ADMIN", "ALL"]),
        adding(&["cap_sys_admin"]),
    ] {
        for spec in &namespaces {
            let Root::Exposed(exposed) = root(spec.clone(), context.clone()) else {
                panic!("{spec} {context}")
            };
            assert!(exposed.to_string().contains("CAP_SYS_ADMIN"), "{exposed}");
            assert!(
                exposed.remedy().contains("SYS_ADMIN and ALL from capabilities.add"),
                "{}",
                exposed.remedy()
            );
        }
        let beside =
            json!({"hostUsers": false, "containers": [{"name": "side", "securityContext": context}]});
        assert!(is_exposed(&root(beside, restricted())), "{context} in a container beside");
    }
    let others = adding(&["SYS_PTRACE", "MKNOD", "DAC_READ_SEARCH", "NET_ADMIN"]);
    assert!(is_separable(&root(json!({}), others.clone())));
    assert_eq!(root(json!({"hostUsers": false}), others), Root::Isolated);
}

#[test]
fn only_isolate_puts_a_pod_into_a_user_namespace() {
    for rule in [RootContainers::Refuse, RootContainers::Allow] {
        let plain = Root::from_pod(&pod(json!({}), json!({})), rule);
        assert!(is_exposed(&plain));
        assert_eq!(Root::from_pod(&pod(json!({"hostUsers": false}), json!({})), rule), Root::Isolated);
        assert_eq!(Root::from_pod(&pod(json!({}), restricted()), rule), Root::Isolated);
    }
}

/// A cluster with a T4 for shares only, on a node with or without user namespaces, and with an H100 in MIG mode if
/// `mig` is true.
fn supply(users: bool, mig: bool) -> Supply {
    let mut index = SupplyIndex::default();
    index.show("t4".into(), &GpuNodeSpec::default(), &node_status(&["T4-16GB"]));
    index.show_user_namespaces(&"t4".into(), users);
    if mig {
        index.show("h100".into(), &GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
        index.show_user_namespaces(&"h100".into(), false);
    }
    index.supply()
}

fn policies(rule: &str) -> Policies {
    let policy: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {
            "defaultIsolation": "memory", "isolation": {"memory": ["mps", "mig"]},
            "mps": {"rootContainers": rule},
        },
    }))
    .unwrap();
    Policies { pods: vec![policy.try_into().unwrap()], nodes: Vec::new() }
}

/// The decision on a pod: its kind, whether it gets a user namespace, how its root processes are treated, and the
/// number of warnings.
fn outcome(rule: &str, supply: &Supply, pod: &Value) -> Result<(Kind, bool, RootProcesses, usize), String> {
    let policies = policies(rule);
    let admitted = decide(pod, "default", &policies, supply).map_err(|refusal| {
        assert_eq!(refusal.reason(), "bypass", "{refusal}");
        refusal.to_string()
    })?;
    let admitted = admitted.unwrap();
    let document = &admitted.document;
    let about_root = admitted.warnings.iter().filter(|warning| warning.contains("MPS daemon")).count();
    Ok((
        document.containers[0].only_kind().unwrap(),
        admitted.fit.user_namespace,
        document.root_processes,
        about_root,
    ))
}

#[test]
fn the_rule_decides_on_a_pod_that_would_get_an_mps_share() {
    use RootProcesses::{Allowed, Harmless, KeptOut};
    let plain = || pod(json!({}), json!({}));
    let host = || pod(json!({"hostNetwork": true}), json!({}));
    let safe = || pod(json!({"hostNetwork": true}), restricted());
    let apart = || pod(json!({"hostUsers": false}), json!({}));
    let mig = json!({"name": "side", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}});
    let beside_mig = || pod(json!({"containers": [mig]}), json!({}));
    let (able, unable) = (supply(true, true), supply(false, true));
    for (rule, supply, pod, expected) in [
        ("isolate", &able, plain(), (Kind::Mps, true, Harmless, 0)),
        ("isolate", &able, apart(), (Kind::Mps, false, Harmless, 0)),
        ("isolate", &able, safe(), (Kind::Mps, false, Harmless, 0)),
        ("isolate", &able, host(), (Kind::Mig, false, KeptOut, 1)),
        ("isolate", &unable, plain(), (Kind::Mig, false, KeptOut, 1)),
        ("isolate", &unable, safe(), (Kind::Mps, false, Harmless, 0)),
        ("refuse", &able, apart(), (Kind::Mps, false, Harmless, 0)),
        ("refuse", &able, safe(), (Kind::Mps, false, Harmless, 0)),
        ("allow", &able, plain(), (Kind::Mps, false, Allowed, 1)),
        ("allow", &unable, host(), (Kind::Mps, false, Allowed, 1)),
        ("allow", &able, safe(), (Kind::Mps, false, Harmless, 0)),
        ("allow", &able, beside_mig(), (Kind::Mps, false, Allowed, 1)),
    ] {
        assert_eq!(outcome(rule, supply, &pod), Ok(expected), "{rule} {pod}");
    }
    for (rule, supply, pod, part) in [
        (
            "refuse",
            &able,
            plain(),
            "spec.hostUsers is not false; set spec.hostUsers: false, or set runAsNonRoot",
        ),
        ("refuse", &able, host(), "remove spec.hostNetwork"),
        ("refuse", &able, beside_mig(), "spec.hostUsers is not false"),
    ] {
        let refusal = outcome(rule, supply, &pod).unwrap_err();
        assert!(refusal.contains(part), "{refusal}");
    }
}

#[test]
fn a_pod_that_only_mps_can_serve_is_refused_with_the_remedy() {
    let named = |spec: Value| {
        let mut pod = pod(spec, json!({}));
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu-4gb": "1"});
        pod
    };
    let refusal = outcome("isolate", &supply(true, true), &named(json!({"hostPID": true}))).unwrap_err();
    assert!(refusal.contains("container main") && refusal.contains("; remove spec.hostPID"), "{refusal}");
    assert_eq!(outcome("isolate", &supply(true, true), &named(json!({}))).map(|found| found.1), Ok(true));
    let refusal = outcome("isolate", &supply(false, true), &named(json!({}))).unwrap_err();
    assert!(refusal.contains("node t4, which may serve the pod, has no user namespaces"), "{refusal}");
}

#[test]
fn a_pod_without_an_mps_share_stays_unchanged() {
    let mut hardware = pod(json!({"hostNetwork": true}), json!({}));
    hardware["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/mig-1g.10gb": "1"});
    for rule in ["isolate", "refuse", "allow"] {
        let found = outcome(rule, &supply(false, true), &hardware);
        assert_eq!(found, Ok((Kind::Mig, false, RootProcesses::Harmless, 0)), "{rule}");
    }
}

#[test]
fn a_second_decision_equals_the_first() {
    let (policies, supply) = (policies("isolate"), supply(true, true));
    for spec in [json!({}), json!({"hostNetwork": true})] {
        let mut pod = pod(spec, json!({}));
        let first = decide(&pod, "default", &policies, &supply).unwrap().unwrap();
        assert!(!first.again, "{pod}");
        let resource = first.document.containers[0].resource.to_string();
        pod["metadata"]["annotations"] = json!({"kerf.dev/request": first.document.to_json()});
        pod["metadata"]["labels"] = json!({"kerf.dev/sliced": "true"});
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({resource: "1"});
        let second = decide(&pod, "default", &policies, &supply).unwrap().unwrap();
        assert!(second.again, "{pod}");
        assert_eq!(second.fit.user_namespace, first.fit.user_namespace, "another webhook took it out");
    }
}

/// The decision on a pod that asks for 10 GB, in a cluster with a T4, an H100 and neutral names: its name, its kinds,
/// whether it gets a user namespace, and how its root processes are treated.
fn open_outcome(rule: &str, without: &[&str], spec: Value) -> (String, Vec<Kind>, bool, RootProcesses) {
    let mut index = SupplyIndex::default();
    for (name, model) in [("t4", "T4-16GB"), ("h100", "H100-80GB")] {
        index.show(name.into(), &GpuNodeSpec::default(), &with_neutral_names(node_status(&[model])));
    }
    for name in without {
        index.show_user_namespaces(&(*name).into(), false);
    }
    let policies = policies(rule);
    let admitted = decide(&pod(spec, json!({})), "default", &policies, &index.supply()).unwrap().unwrap();
    let main = &admitted.document.containers[0];
    assert_eq!(admitted.document.user_namespace, admitted.fit.user_namespace);
    let root = admitted.document.root_processes;
    (main.resource.to_string(), main.kinds.clone(), admitted.fit.user_namespace, root)
}

#[test]
fn mps_is_a_kind_of_a_pod_with_root_only_if_all_its_nodes_have_user_namespaces() {
    use RootProcesses::{Allowed, Harmless, KeptOut};
    let neutral = || "kerf.dev/gpu-4gb".to_owned();
    let both = || vec![Kind::Mps, Kind::Mig];
    let mig = || ("nvidia.com/mig-1g.10gb".to_owned(), Vec::new());
    let host = || json!({"hostNetwork": true});
    assert_eq!(open_outcome("isolate", &[], json!({})), (neutral(), both(), true, Harmless));
    for without in [&["t4"][..], &["h100"], &["t4", "h100"]] {
        let (name, kinds) = mig();
        assert_eq!(open_outcome("isolate", without, json!({})), (name, kinds, false, KeptOut), "{without:?}");
    }
    for (rule, spec) in [("isolate", host()), ("refuse", host()), ("refuse", json!({}))] {
        let (name, kinds) = mig();
        assert_eq!(open_outcome(rule, &[], spec), (name, kinds, false, KeptOut), "{rule}");
    }
    assert_eq!(open_outcome("allow", &[], host()), (neutral(), both(), false, Allowed));
}

#[test]
fn the_document_says_whether_the_pod_has_a_user_namespace() {
    let admitted = |spec: Value, context| {
        let pod = pod(spec, context);
        decide(&pod, "default", &policies("isolate"), &supply(true, true)).unwrap().unwrap().document
    };
    assert!(admitted(json!({}), json!({})).user_namespace, "kerf puts it there");
    assert!(admitted(json!({"hostUsers": false}), restricted()).user_namespace, "it is there itself");
    assert!(!admitted(json!({}), restricted()).user_namespace);
}

#[test]
fn one_node_with_user_namespaces_is_enough_for_mps_alone() {
    let mut index = SupplyIndex::default();
    let share = request("nvidia.com/gpu-4gb", 1);
    for name in ["a", "b"] {
        index.show(name.into(), &GpuNodeSpec::default(), &node_status(&["T4-16GB"]));
    }
    index.show("h100".into(), &GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
    index.show_user_namespaces(&"h100".into(), false);
    assert_eq!(index.supply().without_user_namespaces(&share), None);
    assert!(index.show_user_namespaces(&"a".into(), false));
    assert!(!index.show_user_namespaces(&"a".into(), false), "nothing changed");
    assert_eq!(index.supply().without_user_namespaces(&share), None, "the pod can go to the other");
    assert!(index.show_user_namespaces(&"b".into(), false));
    assert_eq!(index.supply().without_user_namespaces(&share), Some(&"a".into()));
    index.retain_static(|name| name.as_str() != "b");
    assert_eq!(index.supply().without_user_namespaces(&share), None, "a node that is gone says nothing");
}
