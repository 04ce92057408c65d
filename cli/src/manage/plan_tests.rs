use super::super::conflicting::conflicting;
use super::*;
use serde_json::{Value, json};

const PLUGIN: &str = "nvcr.io/nvidia/k8s-device-plugin:v0.19.3";
const MANAGER: &str = "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.13.0";
const DRA: &str = "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0";

fn set(name: &str, container: &str, image: &str, node_selector: &Value) -> Value {
    let containers = json!([{"name": container, "image": image}]);
    let spec = json!({"nodeSelector": node_selector, "containers": containers});
    json!({
        "metadata": {"name": name, "namespace": "gpu-operator"},
        "spec": {"selector": {}, "template": {"spec": spec}},
    })
}

fn operators_sets() -> Vec<Value> {
    let deploy = |what: &str| json!({(format!("nvidia.com/gpu.deploy.{what}")): "true"});
    vec![
        set("plugin", "nvidia-device-plugin", PLUGIN, &deploy("device-plugin")),
        set("manager", "nvidia-mig-manager", MANAGER, &deploy("mig-manager")),
        set("dra", "gpus", DRA, &deploy("dra-driver")),
    ]
}

fn pod_of(set: &str) -> PluginPod {
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set, "uid": "u"});
    let metadata = json!({"namespace": "gpu-operator", "name": set, "ownerReferences": [owner]});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": "n1"}})).unwrap()
}

fn holder() -> PluginPod {
    let container = json!({"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}});
    let spec = json!({"nodeName": "n1", "containers": [container]});
    serde_json::from_value(json!({"metadata": {"namespace": "ml", "name": "train"}, "spec": spec})).unwrap()
}

fn cluster(sets: Vec<Value>) -> Cluster {
    Cluster {
        namespace: "kerf-system".to_owned(),
        agents: serde_json::from_value(
            json!({"containers": [], "nodeSelector": {"kerf.dev/managed": "true"}}),
        )
        .unwrap(),
        has_cluster_policy: false,
        conflicting: conflicting(sets.into_iter().map(|set| serde_json::from_value(set).unwrap()).collect()),
    }
}

fn observed(labels: &Value, pods: Vec<PluginPod>) -> Observed {
    let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let node = json!({"metadata": {"name": "n1", "labels": labels}, "status": status});
    let node = serde_json::from_value(node).unwrap();
    Observed { node, pods, claimed: BTreeSet::new(), leaving: None }
}

fn plan(cluster: &Cluster, labels: &Value, pods: Vec<PluginPod>) -> Plan {
    Plan::new(cluster, &observed(labels, pods)).unwrap()
}

#[test]
fn the_labels_of_gpu_operator_and_kerf_change_in_one_patch() {
    let deployed =
        json!({"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/gpu.deploy.dra-driver": "false"});
    let plan = plan(&cluster(operators_sets()), &deployed, vec![pod_of("plugin"), pod_of("manager")]);
    assert_eq!(
        plan.labels_text(),
        "kerf.dev/managed=true nvidia.com/gpu.deploy.device-plugin=false nvidia.com/gpu.deploy.mig-manager=false"
    );
    assert_eq!(
        plan.leaving,
        [
            "NVIDIA's device plugin (DaemonSet gpu-operator/plugin)",
            "NVIDIA's MIG manager (DaemonSet gpu-operator/manager)"
        ]
    );
}

#[test]
fn gpu_operator_is_recognized_by_its_policy_labels_or_daemon_sets() {
    let without = cluster(vec![]);
    let with_policy = Cluster { has_cluster_policy: true, ..without.clone() };
    let driver = json!({"nvidia.com/gpu.deploy.driver": "pre-installed"});
    for (cluster, labels, number) in [
        (&without, &json!({}), 1),
        (&with_policy, &json!({}), 3),
        (&without, &driver, 3),
        (&cluster(operators_sets()), &json!({}), 4),
    ] {
        assert_eq!(plan(cluster, labels, vec![]).labels.len(), number, "{labels}");
    }
}

#[test]
fn a_program_that_no_label_keeps_away_is_named_with_the_command() {
    let alone = cluster(vec![set("plugin", "nvidia-device-plugin-ctr", PLUGIN, &json!({}))]);
    let refused = Plan::new(&alone, &observed(&json!({}), vec![pod_of("plugin")])).unwrap_err().to_string();
    assert!(
        refused.contains("NVIDIA's device plugin (DaemonSet gpu-operator/plugin) would go on"),
        "{refused}"
    );
    assert!(refused.contains("kubectl -n gpu-operator patch daemonset plugin --type=merge -p"), "{refused}");
    // The program runs on other nodes only.
    assert_eq!(plan(&alone, &json!({}), vec![]).leaving, Vec::<String>::new());
}

#[test]
fn holders_block_only_the_change_of_the_labels() {
    let alone = cluster(vec![]);
    let before = plan(&alone, &json!({}), vec![holder()]);
    assert_eq!(before.in_the_way(), &["ml/train".to_owned()].into());
    let after = plan(&alone, &json!({"kerf.dev/managed": "true"}), vec![holder()]);
    assert_eq!((after.in_the_way().len(), after.holders.len()), (0, 1));
}

#[test]
fn a_node_that_must_not_be_handed_over_is_refused_by_name() {
    let good = || observed(&json!({}), vec![]);
    let mut not_ready = good();
    not_ready.node.status = None;
    let leaving = Observed { leaving: Some("kerf-leave-u1".to_owned()), ..good() };
    let busy = |label: &str, value: &str| observed(&json!({label: value}), vec![]);
    let mut elsewhere = cluster(vec![]);
    elsewhere.agents.node_selector = Some([("pool".to_owned(), "a".to_owned())].into());
    for (cluster, observed, why) in [
        (cluster(vec![]), not_ready, "node n1 is not ready"),
        (cluster(vec![]), leaving, "is being given back by Job kerf-leave-u1 in namespace kerf-system"),
        (
            cluster(vec![]),
            busy("nvidia.com/mig.config.state", "pending"),
            "(label nvidia.com/mig.config.state=pending)",
        ),
        (
            cluster(vec![]),
            busy("nvidia.com/gpu.deploy.dcgm", "paused-for-mig-change"),
            "(label nvidia.com/gpu.deploy.dcgm=paused-for-mig-change)",
        ),
        (elsewhere, good(), "leaves out node n1"),
    ] {
        let refused = Plan::new(&cluster, &observed).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(Plan::new(&cluster(vec![]), &busy("nvidia.com/mig.config.state", "success")).is_ok());
}

#[test]
fn programs_that_kerfs_agent_pauses_do_not_count_as_the_mig_managers() {
    let managed = |paused: &str| {
        let labels = json!({"kerf.dev/managed": "true", paused: "paused-for-mig-change"});
        Plan::new(&cluster(vec![]), &observed(&labels, vec![]))
    };
    assert!(managed("nvidia.com/gpu.deploy.dcgm-exporter").is_ok());
    // The agent never pauses the device plugin, so this label is the MIG manager's.
    let refused = managed("nvidia.com/gpu.deploy.device-plugin").unwrap_err().to_string();
    assert!(
        refused.contains("(label nvidia.com/gpu.deploy.device-plugin=paused-for-mig-change)"),
        "{refused}"
    );
}
