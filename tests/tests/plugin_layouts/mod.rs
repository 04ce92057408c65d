//! Layouts of nodes that NVIDIA's device plugin serves, with GPU Operator's real CRD and a stand-in for the plugin.
//! They are applied when no pod holds a GPU, rolled back on failure, continued by the next leader, and removed with
//! their policy.

mod plugin;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, NodeCondition, Pod};
use k8s_openapi::api::events::v1::Event;
use kerf_core::keys;
use kerf_tests::cluster::{Cluster, ClusterOptions, root, wait};
use kerf_tests::gpu_operator::cluster_policy_crd;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use plugin::{Plugin, cluster_policies};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const LABEL: &str = "nvidia.com/device-plugin.config";
const OPERATOR: &str = "gpu-operator";

/// A cluster with GPU Operator's CRD, whose policies are the shipped default and the shipped layouts.
async fn cluster() -> anyhow::Result<Cluster> {
    let shipped = tempfile::tempdir()?;
    for (from, to) in [("default.yaml", "90-default.yaml"), ("examples/layouts.yaml", "50-layouts.yaml")] {
        std::fs::copy(root().join("policies").join(from), shipped.path().join(to))?;
    }
    let mut options = ClusterOptions::without_controller_manager(Vec::new());
    options.policy = Some(shipped.path().to_owned());
    let flags = ["--plugin-timeout=4s", "--plugin-config-delay=1s", "--request-lifetime=1s"];
    options.extender_flags.extend(flags.map(str::to_owned));
    let cluster = Cluster::start(options, |_| ()).await?;
    cluster.plane().apply(&cluster_policy_crd()?).await?;
    cluster.plane().definitions_established().await?;
    Ok(cluster)
}

/// A `ClusterPolicy` as the operator's chart makes it, with this plugin configuration.
async fn cluster_policy(cluster: &Cluster, config: Value) -> anyhow::Result<()> {
    let none = json!({});
    let policy = json!({
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
        "spec": {
            "daemonsets": none, "dcgm": none, "dcgmExporter": none, "driver": none, "gfd": none, "nodeStatusExporter": none,
            "toolkit": none, "operator": {"defaultRuntime": "containerd"}, "mig": {"strategy": "single"},
            "devicePlugin": {"config": config},
        },
    });
    let api = cluster_policies(&cluster.plane().client());
    api.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    Ok(())
}

/// A node with a GPU, as GPU feature discovery labels it.
async fn node(cluster: &Cluster, name: &str, product: &str) -> anyhow::Result<()> {
    let labels = json!({
        "nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "15360",
        "nvidia.com/gpu.compute.major": "7", "nvidia.com/gpu.compute.minor": "5",
    });
    let node = json!({"metadata": {"name": name, "labels": labels}});
    Api::<Node>::all(cluster.plane().client())
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    Ok(())
}

async fn label(cluster: &Cluster, node: &str, key: &str, value: Option<&str>) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
    Api::<Node>::all(cluster.plane().client()).patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn found(cluster: &Cluster, name: &str) -> anyhow::Result<Node> {
    Ok(Api::<Node>::all(cluster.plane().client()).get(name).await?)
}

async fn config(cluster: &Cluster, name: &str) -> anyhow::Result<Option<String>> {
    Ok(found(cluster, name).await?.metadata.labels.and_then(|mut labels| labels.remove(LABEL)))
}

async fn condition(cluster: &Cluster, name: &str) -> anyhow::Result<Option<NodeCondition>> {
    let conditions =
        found(cluster, name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
    Ok(conditions.into_iter().find(|condition| condition.type_ == keys::LAYOUT_CONDITION))
}

/// Waits until the node's condition has this status and reason. Returns its message.
async fn state(cluster: &Cluster, node: &str, status: &str, reason: &str) -> anyhow::Result<String> {
    let is = async || {
        let condition = condition(cluster, node).await?.context("no condition")?;
        let found = (condition.status.as_str(), condition.reason.as_deref().unwrap_or_default());
        anyhow::ensure!(found == (status, reason), "it is {condition:?}");
        Ok(true)
    };
    wait(TIMEOUT, &format!("node {node} to be {status}, {reason}"), is).await?;
    Ok(condition(cluster, node).await?.and_then(|condition| condition.message).unwrap_or_default())
}

/// A pod that another scheduler has bound to the node, with a GPU of NVIDIA's plugin.
async fn hold(cluster: &Cluster, name: &str, node: &str) -> anyhow::Result<()> {
    let resources = json!({"limits": {"nvidia.com/gpu": "1"}});
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        },
    });
    let pods = Api::<Pod>::default_namespaced(cluster.plane().client());
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

async fn release(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let pods = Api::<Pod>::default_namespaced(cluster.plane().client());
    pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

async fn settings(cluster: &Cluster) -> anyhow::Result<Value> {
    Ok(cluster_policies(&cluster.plane().client()).get("cluster-policy").await?.data["spec"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_is_applied_to_a_free_node_and_removed_with_its_policy() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    node(&cluster, "t4", "Tesla-T4").await?;
    label(&cluster, "t4", keys::LAYOUT, Some("time-sliced-4")).await?;
    let message = state(&cluster, "t4", "False", "ConfigMapRefused").await?;
    assert!(message.contains("--plugin-namespace"), "{message}");

    cluster_policy(&cluster, json!({"name": "", "default": ""})).await?;
    let plugin = Plugin::start(cluster.plane().client());
    hold(&cluster, "theirs", "t4").await?;
    cluster.plane().kubectl(&["create", "namespace", OPERATOR]).await?;
    let message = state(&cluster, "t4", "Unknown", "WaitsForPods").await?;
    assert!(message.ends_with("default/theirs"), "{message}");
    assert_eq!(config(&cluster, "t4").await?, None);
    let spec = settings(&cluster).await?;
    assert_eq!(spec["devicePlugin"]["config"], json!({"name": "kerf-device-plugin", "default": "default"}));
    assert_eq!(spec["mig"]["strategy"], "single", "no layout in use has to do with MIG");
    let maps = Api::<ConfigMap>::namespaced(cluster.plane().client(), OPERATOR);
    let texts = maps.get("kerf-device-plugin").await?.data.unwrap_or_default();
    let expected = ["default", "mig-mixed", "mig-single", "mps-2", "mps-4", "time-sliced-2", "time-sliced-4"];
    assert_eq!(texts.keys().collect::<Vec<_>>(), expected);

    // A new leader has no memory of the change, so it must continue from what the node shows.
    cluster.extender().kill()?;
    release(&cluster, "theirs").await?;
    cluster.extender().restart()?;
    let message = state(&cluster, "t4", "True", "InForce").await?;
    assert_eq!(message, "layout time-sliced-4 is in force: 4 nvidia.com/gpu");
    assert_eq!(config(&cluster, "t4").await?.as_deref(), Some("time-sliced-4"));

    plugin.fails.store(true, Ordering::Relaxed);
    label(&cluster, "t4", keys::LAYOUT, Some("mps-2")).await?;
    let message = state(&cluster, "t4", "False", "RolledBack").await?;
    assert!(message.contains("taken back to configuration time-sliced-4"), "{message}");
    assert_eq!(config(&cluster, "t4").await?.as_deref(), Some("time-sliced-4"));
    plugin.fails.store(false, Ordering::Relaxed);

    std::fs::remove_file(cluster.policy_file().join("50-layouts.yaml"))?;
    label(&cluster, "t4", keys::LAYOUT, None).await?;
    let gone = async || {
        let node = found(&cluster, "t4").await?;
        let recorded = node.metadata.annotations.is_some_and(|all| all.contains_key(keys::PLUGIN_LAYOUT));
        let config = settings(&cluster).await?["devicePlugin"]["config"].clone();
        let is_back = config == json!({}) && config_is_absent(&cluster).await?;
        Ok(is_back && !recorded && condition(&cluster, "t4").await?.is_none())
    };
    wait(TIMEOUT, "everything to be as it was", gone).await?;

    let events = Api::<Event>::namespaced(cluster.plane().client(), "default");
    let events = events.list(&ListParams::default().fields("regarding.kind=Node")).await?.items;
    let count = |reason: &str| events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count();
    for reason in
        ["LayoutConfigMapRefused", "LayoutWaitsForPods", "LayoutInForce", "LayoutRolledBack", "LayoutRemoved"]
    {
        assert_eq!(count(reason), 1, "{reason} is reported once: {events:#?}");
    }
    cluster.stop().await
}

async fn config_is_absent(cluster: &Cluster) -> anyhow::Result<bool> {
    Ok(config(cluster, "t4").await?.is_none())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_obstacle_to_a_layout_is_reported_and_the_node_is_unchanged() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    cluster.plane().kubectl(&["create", "namespace", OPERATOR]).await?;
    cluster_policy(&cluster, json!({"name": "theirs", "default": "any"})).await?;
    for name in ["t4", "no-mig", "by-hand", "misspelt"] {
        node(&cluster, name, "Tesla-T4").await?;
    }
    label(&cluster, "t4", keys::LAYOUT, Some("time-sliced-4")).await?;
    label(&cluster, "no-mig", keys::LAYOUT, Some("mig-mixed")).await?;
    label(&cluster, "by-hand", LABEL, Some("their-own")).await?;
    label(&cluster, "by-hand", keys::LAYOUT, Some("mps-4")).await?;
    label(&cluster, "misspelt", keys::LAYOUT, Some("time-sliced-5")).await?;
    for (node, reason, remedy) in [
        ("t4", "OtherConfigMap", "remove spec.devicePlugin.config.name there"),
        ("no-mig", "UnfitGpus", "Tesla-T4 cannot be cut by MIG; choose a layout with migStrategy none"),
        ("by-hand", "LabelByHand", "remove the label to have layout mps-4"),
        ("misspelt", "UnknownLayout", "there are: time-sliced-2, time-sliced-4, mig-single"),
    ] {
        let message = state(&cluster, node, "False", reason).await?;
        assert!(message.contains(remedy), "{message}");
        assert_eq!(
            config(&cluster, node).await?.as_deref(),
            (node == "by-hand").then_some("their-own"),
            "{node}"
        );
    }
    let config = settings(&cluster).await?["devicePlugin"]["config"].clone();
    assert_eq!(config, json!({"name": "theirs", "default": "any"}));

    let _plugin = Plugin::start(cluster.plane().client());
    let patch = Patch::Merge(json!({"spec": {"devicePlugin": {"config": null}}}));
    let policies = cluster_policies(&cluster.plane().client());
    policies.patch("cluster-policy", &PatchParams::default(), &patch).await?;
    state(&cluster, "t4", "True", "InForce").await?;
    cluster.stop().await
}
