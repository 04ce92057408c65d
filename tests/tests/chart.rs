//! The Helm chart and the kustomize manifests: what they install, and that wrong values are refused by name.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kerf_tests::chart::{folder, helm, kustomize, template};
use kerf_tests::{binaries, cluster};
use serde_json::{Value, json};

/// Sets of values that change what is installed, each with its name.
const SETS: [(&str, &str, &[&str]); 4] = [
    ("main-scheduler", "kerf-system", &["--set", "scheduler.mode=main,extender.clusterIP=10.96.0.77"]),
    ("cert-manager", "kerf-system", &["--set", "webhook.certificates=cert-manager"]),
    (
        "own-registry",
        "gpu",
        &[
            "--set",
            "image.registry=registry.example.com/kerf,image.tag=v1,imagePullSecrets[0].name=pull,log.format=json",
        ],
    ),
    (
        "every-node",
        "kerf-system",
        &[
            "--set",
            "managedNodes.all=true,nodeAgent.driverRoot=/run/nvidia/driver,nodeAgent.runtimeClassName=nvidia",
            "--set",
            "nodeAgent.kubeletDir=/var/lib/k0s/kubelet,networkPolicy.enabled=true",
            "--set",
            "criticalPodsQuota=true,crds.keep=false,uninstall.enabled=false,test.enabled=false,webhook.replicas=1",
        ],
    ),
];

fn by_name(yaml: &str) -> BTreeMap<String, Value> {
    kerf_tests::chart::by_name(yaml).unwrap()
}

/// Removes the long list of names that the scheduler leaves to the extender, which another test checks.
fn without_names(mut object: Value) -> Value {
    let long = |text: &str| text.contains("ignoredByScheduler");
    for (_, text) in object.get_mut("data").and_then(Value::as_object_mut).into_iter().flatten() {
        if text.as_str().is_some_and(long) {
            let text_now = text.as_str().unwrap().to_owned();
            let kept = text_now
                .lines()
                .filter(|l| !l.contains("ignoredByScheduler") && !l.contains("  name: nvidia.com/"));
            *text = json!(kept.collect::<Vec<_>>().join("\n"));
        }
    }
    object
}

#[test]
fn helm_lint_passes() {
    let said = helm(&["lint", "--strict", &folder()]).unwrap();
    assert!(said.contains("1 chart(s) linted, 0 chart(s) failed"), "{said}");
}

#[test]
fn the_rendered_chart_equals_the_checked_in_manifests() {
    let mut xtask = Command::new(binaries::ours("xtask").unwrap());
    let output = xtask.args(["manifests", "--check"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Except for Helm's own marks and hooks, and for the namespace, which Helm creates by a flag.
#[test]
fn helm_and_kustomize_install_the_same() {
    let mut by_helm = by_name(&template("kerf-system", &["--no-hooks"]).unwrap());
    let mut by_kustomize = by_name(&kustomize("deploy/base").unwrap());
    assert!(by_kustomize.remove("v1 Namespace kerf-system").is_some());
    // The ConfigMap is found by its prefix, because kustomize puts the hash of its content into the name; Helm writes
    // the hash into the pods' annotations.
    let hashed = by_kustomize
        .keys()
        .find(|name| name.starts_with("v1 ConfigMap kerf-scheduler-config-"))
        .unwrap()
        .clone();
    let mut config = by_kustomize.remove(&hashed).unwrap();
    let suffixed = config["metadata"]["name"].as_str().unwrap().to_owned();
    config["metadata"]["name"] = json!("kerf-scheduler-config");
    by_kustomize.insert("v1 ConfigMap kerf-scheduler-config".to_owned(), config);
    let scheduler = by_kustomize.get_mut("apps/v1 Deployment kerf-scheduler").unwrap();
    let text = scheduler.to_string().replace(&suffixed, "kerf-scheduler-config");
    *scheduler = serde_json::from_str(&text).unwrap();
    for object in by_helm.values_mut().chain(by_kustomize.values_mut()) {
        for labels in
            [object.pointer_mut("/metadata/labels")].into_iter().flatten().filter_map(Value::as_object_mut)
        {
            labels.retain(|key, _| !key.starts_with("helm.sh/") && !key.ends_with("/managed-by"));
        }
        if object["kind"] == "ConfigMap" {
            object["metadata"].as_object_mut().unwrap().remove("labels");
        }
        // Kustomize takes these for namespaced objects; the API server drops the namespace.
        if object["apiVersion"] == "flowcontrol.apiserver.k8s.io/v1" {
            object["metadata"].as_object_mut().unwrap().remove("namespace");
        }
        for annotations in ["/metadata/annotations", "/spec/template/metadata/annotations"] {
            let Some(found) = object.pointer_mut(annotations).and_then(Value::as_object_mut) else {
                continue;
            };
            found.retain(|key, _| !key.starts_with("helm.sh/") && !key.starts_with("checksum/"));
            if found.is_empty() {
                let parent = annotations.strip_suffix("/annotations").unwrap();
                object.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove("annotations");
            }
        }
    }
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&by_helm), names(&by_kustomize));
    for (name, object) in &by_helm {
        assert_eq!(object, &by_kustomize[name], "{name}");
    }
}

#[test]
fn the_default_values_install_everything() {
    let objects = by_name(&template("kerf-system", &[]).unwrap());
    insta::assert_snapshot!("default", objects.keys().cloned().collect::<Vec<_>>().join("\n"));
    let hooks = objects.values().filter(|o| o["metadata"]["annotations"]["helm.sh/hook"].is_string());
    insta::assert_yaml_snapshot!("hooks", hooks.collect::<Vec<_>>());
}

#[test]
fn a_value_changes_only_what_it_names() {
    let default = by_name(&template("kerf-system", &[]).unwrap());
    for (set, namespace, arguments) in SETS {
        let objects = by_name(&template(namespace, arguments).unwrap());
        let gone: Vec<&String> = default.keys().filter(|name| !objects.contains_key(*name)).collect();
        let changed = objects.iter().filter(|(name, object)| default.get(*name) != Some(*object));
        // Another namespace changes everything, so only the programs and their configuration are compared.
        let shown = |object: &&Value| {
            namespace == "kerf-system"
                || ["Deployment", "DaemonSet", "ConfigMap"].iter().any(|k| object["kind"] == *k)
        };
        let changed: Vec<Value> =
            changed.map(|(_, object)| object).filter(shown).cloned().map(without_names).collect();
        insta::assert_yaml_snapshot!(set, json!({"gone": gone, "changed or new": changed}));
    }
}

#[test]
fn a_wrong_value_is_refused_and_named() {
    let cases = [
        ("webhook.replica=3", "at '/webhook': additional properties 'replica' not allowed"),
        ("webhook.replicas=two", "at '/webhook/replicas': got string, want integer"),
        ("webhook.replicas=0", "at '/webhook/replicas': minimum: got 0, want 1"),
        ("scheduler.mode=third", "at '/scheduler/mode': value must be one of 'second', 'main'"),
        ("uninstall.settle=5d", "at '/uninstall/settle': '5d' does not match pattern"),
        (
            "image.registry=https://registry.example.com",
            "at '/image/registry': 'https://registry.example.com' does not match",
        ),
        ("nodeAgent.driverRoot=run", "at '/nodeAgent/driverRoot': 'run' does not match pattern '^/'"),
        ("nodeAgent.imex.channelIDs[0]=1", "at '/nodeAgent/imex/channelIDs/0': maximum: got 1, want 0"),
        ("extender.extraArgs[0]=-v", "at '/extender/extraArgs/0': '-v' does not match pattern '^--'"),
        (
            "webhook.resources.limits.memory=lots",
            "at '/webhook/resources/limits/memory': 'lots' does not match",
        ),
        ("policies.files.Team=x", "at '/policies/files': additional properties 'Team' not allowed"),
        ("policies.files.a\\.yaml.kind=Pod", "value must be one of 'GpuPolicy', 'GpuNodePolicy'"),
        ("policies.files.default\\.yaml=x", "policies.files: default.yaml is the chart's own"),
        ("policies.files.partitioning\\.yaml=x", "policies.files: partitioning.yaml is the chart's own"),
        (
            "policies.default=false",
            "policies: kerf serves no pod without a GpuPolicy; set policies.default=true",
        ),
        (
            "policies.default=false,policies.files.a\\.yaml=kind: GpuNodePolicy",
            "policies: kerf serves no pod without a GpuPolicy",
        ),
        (
            "managedNodes.labelled=false,managedNodes.nos=false,managedNodes.withoutDevicePlugin=false",
            "managedNodes: no node would be kerf's; set managedNodes.labelled=true",
        ),
        ("scheduler.mode=main,scheduler.name=mine", "scheduler.name: with scheduler.mode=main pods keep"),
        ("managedNodes.terms[0].matchLabels.a=b", "additional properties 'matchLabels' not allowed"),
        ("webhook.image=kerf-webhook:1", "at '/webhook/image': got string, want object"),
        ("webhook.image.digest=abc", "at '/webhook/image/digest': 'abc' does not match"),
        ("webhook.port=443", "at '/webhook/port': minimum: got 443, want 1,024"),
        ("commonLabels.a=1", "at '/commonLabels/a': got number, want string"),
        (
            "webhook.hostNetwork=true,webhook.port=10250",
            "webhook.port: in the host's network 10250 is the kubelet's; set webhook.port=9443",
        ),
        (
            "webhook.hostNetwork=true,extender.hostNetwork=true",
            "extender.adminPort: in the host's network the webhook has this port too; set extender.adminPort=9091",
        ),
        (
            "extender.hostNetwork=true,networkPolicy.egress.enabled=true",
            "networkPolicy.egress.enabled: no rule can name the extender's pods in the host's network",
        ),
        ("monitoring.rules.runbookUrl=", "at '/monitoring/rules/runbookUrl': '' does not match pattern"),
        (
            "monitoring.rules.runbookUrl=a#b",
            "at '/monitoring/rules/runbookUrl': 'a#b' does not match pattern",
        ),
        (
            "monitoring.rules.pendingSeconds=4h",
            "at '/monitoring/rules/pendingSeconds': got string, want integer",
        ),
        (
            "monitoring.rules.pendingSeconds=59",
            "at '/monitoring/rules/pendingSeconds': minimum: got 59, want 60",
        ),
        // A value that cannot be looked up without a cluster must be set.
        (
            "scheduler.mode=main",
            "extender.clusterIP: with scheduler.mode=main the cluster's scheduler calls the extender by the address of its Service",
        ),
        ("preflight=required", "preflight: Helm sees no cluster, so nothing can be looked up"),
    ];
    for (values, expected) in cases {
        let refused = template("kerf-system", &["--set", values]).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains(expected)), "{values}: {refused:?}");
    }
    let old = helm(&["template", "kerf", &folder(), "--kube-version", "v1.32.0"]).unwrap_err().to_string();
    assert!(old.contains("requires kubeVersion: >=1.33.0-0"), "{old}");
}

#[test]
fn own_policies_suffice_if_one_of_them_is_for_pods() {
    let document =
        r#"{"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "a"}, "spec": {}}"#;
    let text = "policies.files.a\\.yaml=kind: GpuNodePolicy\n--- # pods\nkind: GpuPolicy";
    for given in [["--set", text], ["--set-json", &format!("policies.files={{\"a.yaml\": {document}}}")]] {
        let yaml =
            template("kerf-system", &[&["--set", "policies.default=false"][..], &given].concat()).unwrap();
        let policies = &by_name(&yaml)["v1 ConfigMap kerf-policies"]["data"];
        assert_eq!(policies.as_object().unwrap().keys().collect::<Vec<_>>(), ["a.yaml"]);
    }
}

#[test]
fn the_scheduler_gets_the_configuration_that_kerf_prints() {
    let printed = |arguments: &[&str]| {
        let mut kerf = Command::new(binaries::ours("kerf").unwrap());
        String::from_utf8(
            kerf.args(["scheduler-config", "--leader-elect"]).args(arguments).output().unwrap().stdout,
        )
        .unwrap()
    };
    let installed = |namespace, arguments: &[&str], name: &str, key: &str| {
        by_name(&template(namespace, arguments).unwrap())[name]["data"][key].as_str().unwrap().to_owned()
    };
    let second = installed(
        "gpu",
        &["--set", "scheduler.name=mine"],
        "v1 ConfigMap kerf-scheduler-config",
        "config.yaml",
    );
    assert!(
        second == printed(&["--kerf-namespace", "gpu", "--scheduler-name", "mine"]),
        "kerf prints another"
    );
    let main = installed("kerf-system", SETS[0].2, "v1 ConfigMap kerf-main-scheduler", "scheduler.yaml");
    let flags = "--scheduler-name default-scheduler --scheduler-name kerf-scheduler --lease kube-system/kube-scheduler \
                 --tls-dir /etc/kubernetes/kerf --kubeconfig /etc/kubernetes/scheduler.conf \
                 --extender-url https://10.96.0.77:9444/scheduler";
    assert!(main == printed(&flags.split_whitespace().collect::<Vec<_>>()), "kerf prints another");
}

/// The address has brackets in a URL, but not in a certificate.
#[test]
fn the_extender_may_have_an_ipv6_address() {
    let values = ["--set", "scheduler.mode=main,extender.clusterIP=fd00:10:96::44"];
    let objects = by_name(&template("kerf-system", &values).unwrap());
    let config = objects["v1 ConfigMap kerf-main-scheduler"]["data"]["scheduler.yaml"].as_str().unwrap();
    assert!(config.contains("urlPrefix: https://[fd00:10:96::44]:9444/scheduler\n"), "{config}");
    let pod = &objects["apps/v1 Deployment kerf-extender"]["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].as_array().unwrap();
    assert!(arguments.contains(&json!("--tls-name=fd00:10:96::44")), "{arguments:?}");
    assert_eq!(objects["v1 Service kerf-extender"]["spec"]["clusterIP"], "fd00:10:96::44");
}

#[test]
fn the_scheduler_has_the_clusters_version() {
    let versions = [
        ("v1.33.4-gke.1036000", "v1.33.4"),
        ("v1.35.1+k3s1", "v1.35.1"),
        ("v1.37.2", "v1.37.2"),
        // The form in which Argo CD 3.3 passes the version.
        ("1.34", "v1.34.0"),
        ("v1.34", "v1.34.0"),
    ];
    for (cluster, image) in versions {
        let yaml = helm(&["template", "kerf", &folder(), "--kube-version", cluster]).unwrap();
        assert!(yaml.contains(&format!("image: registry.k8s.io/kube-scheduler:{image}\n")), "{cluster}");
    }
}

/// Helm's own default would become the scheduler's version.
#[test]
fn the_schedulers_version_must_be_given_without_a_cluster() {
    let chart = folder();
    let render = |arguments: &[&str]| helm(&[&["template", "kerf", &chart][..], arguments].concat());
    let expected = "scheduler.image.tag: the second kube-scheduler has the cluster's version";
    let missing: [&[&str]; 3] = [&[], &["--kube-version", "v1.36.0"], &["--set", "preflight=never"]];
    for arguments in missing {
        let refused = render(arguments).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains(expected)), "{arguments:?}: {refused:?}");
    }
    let digest = format!("scheduler.image.digest=sha256:{}", "ab".repeat(32));
    let given: [&[&str]; 6] = [
        &["--set", "scheduler.image.tag=v1.36.0"],
        &["--set", &digest],
        &["--kube-version", "v1.36.4"],
        &["--kube-version", "1.36"],
        // The form in which Argo CD passes the API versions of a cluster of this version.
        &["--kube-version", "v1.36.0", "--api-versions", "v1,v1/Pod,apps/v1,apps/v1/Deployment"],
        &["--set", "scheduler.mode=main,extender.clusterIP=10.96.0.77"],
    ];
    for arguments in given {
        let made = render(arguments).map(drop);
        assert!(made.is_ok(), "{arguments:?}: {made:?}");
    }
}

/// This is without a cluster; `chart_cluster.rs` has one.
#[test]
fn preflight_decides_which_objects_are_read() {
    let by_default = template("kerf-system", &[]).unwrap();
    for (preflight, is_rendered) in [("auto", true), ("never", true), ("required", false)] {
        let made = template("kerf-system", &["--set", &format!("preflight={preflight}")]);
        assert_eq!(made.is_ok(), is_rendered, "{preflight}");
        if let Ok(made) = made {
            assert!(made == by_default, "{preflight} changes what is installed");
        }
    }
    for preflight in ["auto", "never", "required"] {
        let values = format!("preflight={preflight},scheduler.mode=main");
        assert!(
            template("kerf-system", &["--set", &values]).is_err(),
            "{preflight}: no address is looked up"
        );
    }
}

#[test]
fn the_charts_version_is_the_programs_and_its_icon_is_the_picture() {
    let read = |name: &str| std::fs::read_to_string(cluster::root().join("deploy/chart").join(name)).unwrap();
    let chart: Value = serde_saphyr::from_str(&read("Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((chart["version"].as_str(), chart["appVersion"].as_str()), (Some(version), Some(version)));
    let images: Vec<Value> =
        serde_saphyr::from_str(chart["annotations"]["artifacthub.io/images"].as_str().unwrap()).unwrap();
    let expected = ["kerf-webhook", "kerf-extender", "kerf-node-agent", "kerf-cli"]
        .map(|name| json!({"name": name, "image": format!("{name}:{version}")}));
    assert_eq!(images, expected);
    // To write it: base64 --wrap=0 deploy/chart/icon.svg
    let icon = BASE64_STANDARD.encode(read("icon.svg"));
    assert_eq!(chart["icon"], json!(format!("data:image/svg+xml;base64,{icon}")));
}

/// Whether a term of a required node affinity selects a node. It supports only the operators that the chart writes.
fn selects(term: &Value, labels: &BTreeMap<String, String>) -> bool {
    term["matchExpressions"].as_array().unwrap().iter().all(|expression| {
        let value = labels.get(expression["key"].as_str().unwrap());
        let listed =
            value.is_some_and(|value| expression["values"].as_array().unwrap().contains(&json!(value)));
        let is_in = expression["operator"] == "In";
        assert!(is_in || expression["operator"] == "NotIn", "what does this mean: {expression}");
        listed == is_in
    })
}

#[test]
fn agents_run_on_the_nodes_that_the_programs_regard_as_managed() {
    let by_helm = by_name(&template("kerf-system", &[]).unwrap());
    let (_, agent) = by_helm.iter().find(|(_, object)| object["kind"] == "DaemonSet").unwrap();
    let terms = &agent["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let labels = [
        ("kerf.dev/managed", &["true", "false", ""][..]),
        ("nvidia.com/gpu.present", &["true", "false"]),
        ("nvidia.com/gpu.deploy.device-plugin", &["true", "false"]),
        ("nos.nebuly.com/gpu-partitioning", &["mig", "mps", "hybrid"]),
    ];
    let mut nodes = vec![BTreeMap::new()];
    for (key, values) in labels {
        let with = |node: &BTreeMap<String, String>, value: &str| {
            let mut node = node.clone();
            node.insert(key.to_owned(), value.to_owned());
            node
        };
        let more: Vec<_> =
            nodes.iter().flat_map(|node| values.iter().map(|value| with(node, value))).collect();
        nodes.extend(more);
    }
    let is_put =
        |node: &BTreeMap<String, String>| terms.as_array().unwrap().iter().any(|term| selects(term, node));
    for node in &nodes {
        assert_eq!(kerf_core::managed::is_managed(node), is_put(node), "{node:?}");
    }
    assert_eq!(nodes.len(), 4 * 3 * 3 * 4);
    assert!(nodes.iter().any(is_put) && !nodes.iter().all(is_put));
}

/// The schema has each of these values, and the agent's pod shows them.
#[test]
fn the_values_for_gpu_operator_are_the_agents() {
    let file = cluster::root().join("deploy/values/gpu-operator.yaml");
    let by_file = by_name(&template("kerf-system", &["-f", &file.display().to_string()]).unwrap());
    let default = by_name(&template("kerf-system", &[]).unwrap());
    let changed: Vec<&String> = by_file
        .iter()
        .filter(|(name, object)| default.get(*name) != Some(*object))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(changed, ["apps/v1 DaemonSet kerf-node-agent"]);
    let pod = &by_file[changed[0]]["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let root = volumes.iter().find(|volume| volume["name"] == "driver-root").unwrap();
    assert_eq!(root["hostPath"]["path"], "/run/nvidia/driver");
    assert_eq!(pod["runtimeClassName"], "nvidia");
    let arguments = pod["containers"][0]["args"].as_array().unwrap();
    assert!(arguments.contains(&json!("--host-driver-root=/run/nvidia/driver")), "{arguments:?}");
    // As `kerf check --pre` sets it if the container toolkit runs its NRI plugin.
    let nri =
        r"nodeAgent.podAnnotations.nvidia\.cdi\.k8s\.io/container\.node-agent=management.nvidia.com/gpu=all";
    let sets = ["-f", &file.display().to_string(), "--set", nri, "--set", "nodeAgent.runtimeClassName="];
    let template = &by_name(&template("kerf-system", &sets).unwrap())[changed[0]]["spec"]["template"];
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["nvidia.cdi.k8s.io/container.node-agent"], "management.nvidia.com/gpu=all");
    assert_eq!(template["spec"]["runtimeClassName"], Value::Null);
}
