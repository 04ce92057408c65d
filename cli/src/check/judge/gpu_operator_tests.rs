use super::*;
use serde_json::json;

const COMMAND: &str = "helm install kerf deploy/chart --namespace kerf-system --create-namespace -f deploy/values/gpu-operator.yaml";

fn said(spec: Option<Value>, nodes: &[(&str, &str)], runtime: &str) -> Vec<Finding> {
    let node = |(name, driver): &(&str, &str)| {
        let info = json!({
            "architecture": "", "bootID": "", "containerRuntimeVersion": runtime, "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
        });
        let labels = json!({DEPLOY_DRIVER: driver});
        serde_json::from_value(
            json!({"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info}}),
        )
        .unwrap()
    };
    let policy = spec.map(|spec| json!({"metadata": {"name": "cluster-policy"}, "spec": spec}));
    judge(&Observed {
        namespace: "kerf-system".to_owned(),
        cluster_policy: policy.map_or(Seen::Absent, Seen::Found),
        nodes: Seen::Found(nodes.iter().map(node).collect()),
        ..Observed::default()
    })
}

fn texts(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.what.as_str()).collect()
}

fn sets(spec: Value, driver: &str, runtime: &str) -> String {
    let findings = said(Some(spec), &[("n1", driver)], runtime);
    let command = findings[2].what.strip_prefix("install kerf with: ").unwrap();
    command.strip_prefix(COMMAND).unwrap().to_owned()
}

/// The defaults of GPU Operator's chart need nothing but the file.
#[test]
fn the_values_file_fits_the_operators_defaults() {
    let chart = json!({
        "driver": {"enabled": true, "useNvidiaDriverCRD": false}, "toolkit": {"enabled": true, "installDir": "/usr/local/nvidia"},
        "cdi": {"enabled": true, "nriPluginEnabled": false}, "operator": {"runtimeClass": "nvidia", "defaultRuntime": "containerd"},
        "hostPaths": {"rootFS": "/", "driverInstallDir": "/run/nvidia/driver"},
    });
    for spec in [json!({}), chart] {
        let findings = said(Some(spec), &[("n1", "true")], "containerd://2.1.4");
        assert_eq!(
            texts(&findings),
            [
                "ClusterPolicy cluster-policy: GPU Operator installs the driver in a container (/run/nvidia/driver), GPU \
                 Operator installs the container toolkit, CDI is on",
                "kerf's chart needs nodeAgent.driverRoot=/run/nvidia/driver, nodeAgent.runtimeClassName=nvidia",
                &format!("install kerf with: {COMMAND}"),
            ]
        );
    }
    assert_eq!(file_values().len(), 2);
}

#[test]
fn other_values_of_the_cluster_are_set_by_flags_beside_the_file() {
    let (off, none) = (" --set 'nodeAgent.driverRoot=/'", " --set 'nodeAgent.runtimeClassName='");
    let nri = r" --set 'nodeAgent.podAnnotations.nvidia\.cdi\.k8s\.io/container\.node-agent=management.nvidia.com/gpu=all'";
    for (spec, driver, runtime, expected) in [
        (json!({"driver": {"enabled": false}}), "true", "containerd", off.to_owned()),
        (json!({}), "pre-installed", "containerd", off.to_owned()),
        (json!({"cdi": {"enabled": false}}), "true", "containerd", String::new()),
        (json!({"cdi": {"enabled": false}}), "true", "cri-o://1.33.0", none.to_owned()),
        (json!({"cdi": {"enabled": true}}), "true", "cri-o://1.33.0", String::new()),
        (
            json!({"cdi": {"enabled": true, "nriPluginEnabled": true}}),
            "true",
            "containerd",
            format!("{nri}{none}"),
        ),
        (
            json!({"hostPaths": {"driverInstallDir": "/opt/nvidia", "kubeletRootDir": "/var/lib/k0s/kubelet"}}),
            "true",
            "containerd",
            " --set 'nodeAgent.driverRoot=/opt/nvidia' --set 'nodeAgent.kubeletDir=/var/lib/k0s/kubelet'"
                .to_owned(),
        ),
        (
            json!({"operator": {"runtimeClass": "nvidia-gpu"}}),
            "true",
            "containerd",
            " --set 'nodeAgent.runtimeClassName=nvidia-gpu'".to_owned(),
        ),
    ] {
        assert_eq!(sets(spec.clone(), driver, runtime), expected, "{spec} {driver} {runtime}");
    }
}

#[test]
fn an_unclear_cluster_policy_is_a_warning() {
    for (spec, nodes, why) in [
        (
            json!({}),
            &[("n1", "pre-installed"), ("n2", "true")][..],
            "the driver of n1 is on the node itself, that of n2",
        ),
        (json!({"toolkit": {"enabled": false}}), &[("n1", "true")], "does not install the container toolkit"),
    ] {
        let findings = said(Some(spec), nodes, "containerd");
        let warnings: Vec<_> = findings.iter().filter(|finding| finding.is_warning()).collect();
        assert!(warnings.len() == 1 && warnings[0].what.contains(why), "{findings:?}");
    }
    let labels = said(None, &[("n1", "true")], "containerd");
    assert!(
        labels[0].is_warning() && labels[0].what.starts_with("node n1 has labels of GPU Operator"),
        "{labels:?}"
    );
    let seen = Observed { cluster_policy: Seen::Unknown("forbidden".to_owned()), ..Observed::default() };
    assert!(judge(&seen)[0].is_warning());
}

#[test]
fn a_cluster_without_the_operator_needs_no_file() {
    let findings = said(None, &[], "containerd");
    assert!(findings.len() == 1 && !findings[0].is_warning(), "{findings:?}");
    assert!(!findings[0].what.contains(FILE), "{findings:?}");
}
