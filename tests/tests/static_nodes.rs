//! Nodes that NVIDIA's device plugin serves: pods that ask kerf run on them, and no more than there are devices, even
//! if other pods take some. A stand-in serves the devices; `StaticServer` accepts NVIDIA's own plugin as well.

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_core::keys;
use kerf_tests::binaries;
use kerf_tests::chart;
use kerf_tests::cluster::{Cluster, ClusterOptions, pod, request_of, resource_of, sized_pod, wait};
use kerf_tests::pods::node_of;
use kerf_tests::static_node::StaticServer;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(2);
const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
const SMALL: &str = "nvidia.com/mig-1g.10gb";

/// One kind for each class, so that each pod's node is determined.
const POLICY: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: static}
spec:
  defaultIsolation: memory
  isolation: {hardware: [mig, whole], memory: [mps], none: [time-slicing]}
";

/// A node's GPU feature discovery labels: product, memory, count, replicas, strategy.
fn labels(product: &str, memory: u32, count: u32, replicas: u32, strategy: &str) -> Vec<(String, String)> {
    let mig = if product.contains("-MIG-") { "single" } else { "" };
    let labels = [
        ("gpu.product", product.to_owned()),
        ("gpu.memory", memory.to_string()),
        ("gpu.count", count.to_string()),
        ("gpu.replicas", replicas.to_string()),
        ("gpu.sharing-strategy", strategy.to_owned()),
        ("mig.strategy", mig.to_owned()),
    ];
    labels
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(k, v)| (format!("nvidia.com/{k}"), v))
        .collect()
}

struct Scene {
    cluster: Cluster,
    nodes: BTreeMap<&'static str, StaticServer>,
}

impl Scene {
    async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, POLICY)?;
        let mut options = ClusterOptions::without_controller_manager(Vec::new());
        options.policy = Some(policy);
        let cluster = Cluster::start(options, |_| ()).await?;
        let (a100, shared) = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB-SHARED");
        let single = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb";
        let mut mixed = labels(a100, 81_920, 1, 1, "none");
        for (key, value) in [
            ("mig.strategy", "mixed"),
            ("mig-1g.10gb.count", "4"),
            ("mig-1g.10gb.memory", "9728"),
            ("mig-1g.10gb.replicas", "1"),
        ] {
            mixed.push((format!("nvidia.com/{key}"), value.to_owned()));
        }
        let layouts = [
            ("whole", labels(a100, 81_920, 2, 1, "none"), GPU, 2),
            ("sliced", labels("NVIDIA-A10G-SHARED", 23_028, 2, 4, "time-slicing"), GPU, 8),
            ("renamed", labels("NVIDIA-A10G", 23_028, 2, 4, "time-slicing"), SHARED, 8),
            ("mps", labels(shared, 81_920, 2, 4, "mps"), GPU, 8),
            ("single", labels(single, 9728, 7, 1, "none"), GPU, 7),
            ("mixed", mixed, SMALL, 4),
            ("unlabelled", Vec::new(), GPU, 1),
        ];
        let mut nodes = BTreeMap::new();
        for (name, labels, resource, count) in layouts {
            let mut node = StaticServer::start(cluster.plane(), name, labels).await?;
            node.serve(resource, count).await?;
            nodes.insert(name, node);
        }
        let scene = Self { cluster, nodes };
        for (name, resource, count) in
            [("mps", GPU, 8), ("mixed", SMALL, 4), ("single", GPU, 7), ("renamed", SHARED, 8)]
        {
            scene.has(name, resource, count).await?;
        }
        // The webhook reads the nodes through a watch, so it has them a moment later.
        let asks = pod("probe", &[(keys::GPU_MEMORY, "10Gi")]);
        let dry_run = kube::api::PostParams { dry_run: true, ..Default::default() };
        let is_known = async || {
            let probe = scene.cluster.pods().create(&dry_run, &asks).await?;
            Ok(resource_of(&probe)? == GPU)
        };
        wait(TIMEOUT, "the webhook to read the static nodes", is_known).await?;
        Ok(scene)
    }

    fn api(&self) -> Api<Node> {
        Api::all(self.cluster.plane().client())
    }

    /// Waits until a Node has this many devices of a name.
    async fn has(&self, node: &str, resource: &str, count: u32) -> anyhow::Result<()> {
        wait(TIMEOUT, &format!("{node} to have {count} {resource}"), async || {
            let status = self.api().get(node).await?.status.unwrap_or_default();
            let has = status.allocatable.unwrap_or_default().get(resource).map(|amount| amount.0.clone());
            Ok(has == Some(count.to_string()))
        })
        .await
    }

    async fn label(&self, node: &str, labels: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.api().patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until this many devices of a name are held on a node, by its kubelet's account.
    async fn held(&self, node: &str, resource: &str, count: usize) -> anyhow::Result<()> {
        let server = &self.nodes[node];
        wait(TIMEOUT, &format!("{count} {resource} of {node} to be held"), async || {
            ensure!(server.held(resource) == count, "{} are", server.held(resource));
            Ok(true)
        })
        .await
    }

    /// Checks that every kubelet admitted every pod that it got.
    fn no_pod_was_refused(&self) {
        for server in self.nodes.values() {
            assert!(
                server.kubelet().failed_admissions().is_empty(),
                "{}: {:?}",
                server.name(),
                server.kubelet().failed_admissions()
            );
            assert!(server.kubelet().started_without_device().is_empty(), "{}", server.name());
        }
    }
}

/// A pod that asks NVIDIA's device plugin and that another scheduler has bound to a node.
fn foreign(name: &str, node: &str, resource: &str, count: u32) -> anyhow::Result<Pod> {
    let mut pod = serde_json::to_value(pod(name, &[]))?;
    pod["spec"]["nodeName"] = json!(node);
    pod["spec"]["containers"][0]["resources"]["limits"][resource] = json!(count.to_string());
    Ok(serde_json::from_value(pod)?)
}

/// The output of `kerf explain` for a pod.
fn explained(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    let mut kerf = Command::new(binaries::ours("kerf")?);
    chart::said(&kerf.args(["explain", name, "--kubeconfig"]).arg(cluster.plane().kubeconfig()).output()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn kerfs_pods_and_others_never_overcommit_a_static_node() -> anyhow::Result<()> {
    let scene = Scene::start().await?;
    let cluster = &scene.cluster;

    for (name, memory, isolation, resource, nodes) in [
        ("replica", "10Gi", "memory", GPU, &["mps"][..]),
        ("slice", "5Gi", "none", GPU, &["sliced", "renamed"]),
        ("instance", "10Gi", "hardware", GPU, &["single", "mixed"]),
        ("gpu", "70Gi", "hardware", GPU, &["whole"]),
    ] {
        cluster.create(&sized_pod(name, memory, isolation)).await?;
        let pod = cluster.running(name).await?;
        let node = node_of(&pod).context("no node")?.to_owned();
        assert!(nodes.contains(&node.as_str()), "{name} is on {node}");
        let named = resource_of(&pod)?;
        assert!(
            named == resource || node == "renamed" && named == SHARED || node == "mixed" && named == SMALL,
            "{named}"
        );
        let assignment = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(keys::ASSIGNMENT))
            .context("no assignment")?;
        let assigned: Value = serde_json::from_str(assignment)?;
        assert_eq!(assigned["devices"][0]["count"], 1, "{assignment}");
        assert!(request_of(&pod)?.static_nodes);
    }

    // A pod without a GPU request never meets kerf.
    let bare = cluster.create(&pod("bare", &[])).await?;
    let written = (bare.metadata.annotations.unwrap_or_default(), bare.metadata.labels.unwrap_or_default());
    assert_eq!(written, (BTreeMap::new(), BTreeMap::new()));
    let spec = bare.spec.context("no spec")?;
    assert!(
        spec.affinity.is_none() && spec.scheduler_name.as_deref() == Some("default-scheduler"),
        "{spec:?}"
    );

    // Another pod takes three of the eight MPS replicas, and kerf's pod has one: four are left for a burst of forty.
    cluster.create(&foreign("foreign", "mps", GPU, 3)?).await?;
    scene.held("mps", GPU, 4).await?;
    let burst: Vec<Pod> = (0..40).map(|number| sized_pod(&format!("p{number}"), "10Gi", "memory")).collect();
    try_join_all(burst.iter().map(|pod| cluster.create(pod))).await?;
    scene.held("mps", GPU, 8).await?;
    let bound = async || {
        let pods = cluster.pods().list(&ListParams::default()).await?.items;
        let bound = pods.into_iter().filter(|pod| node_of(pod).is_some());
        let names = bound.filter_map(|pod| pod.metadata.name).filter(|name| name.starts_with('p'));
        anyhow::Ok(names.collect::<Vec<_>>())
    };
    let found = bound().await?;
    assert_eq!(found.len(), 4, "of eight, three are another's and one is the first pod's");
    let waits = burst.iter().filter_map(|pod| pod.metadata.name.as_ref()).find(|name| !found.contains(name));
    let said = explained(cluster, waits.context("all are bound")?)?;
    assert!(said.lines().any(|line| line.trim() == "mps: GPU slices in use"), "{said}");
    scene.no_pod_was_refused();

    cluster.delete("foreign").await?;
    wait(TIMEOUT, "three more to run", async || Ok(bound().await?.len() == 7)).await?;
    scene.held("mps", GPU, 8).await?;
    // More devices of the plugin make room too. The labels are changed first, because until both agree, nothing there
    // counts as isolated.
    let mut scene = scene;
    scene.label("mps", json!({"nvidia.com/gpu.count": "3"})).await?;
    scene.nodes.get_mut("mps").context("no node")?.serve(GPU, 12).await?;
    scene.held("mps", GPU, 12).await?;
    scene.no_pod_was_refused();
    scene.cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_stay_counted_when_a_node_becomes_managed_and_static_again() -> anyhow::Result<()> {
    let scene = Scene::start().await?;
    let cluster = &scene.cluster;
    for number in 0..2 {
        cluster.create(&sized_pod(&format!("a{number}"), "10Gi", "memory")).await?;
        cluster.running(&format!("a{number}")).await?;
    }
    scene.held("mps", GPU, 2).await?;
    scene.label("mps", json!({keys::MANAGED: "true"})).await?;
    cluster.create(&sized_pod("waits", "10Gi", "memory")).await?;
    cluster.event("waits", "nodes are available").await?;
    let pod = cluster.pods().get("waits").await?;
    assert_eq!(node_of(&pod), None, "the node is no longer static");
    scene.held("mps", GPU, 2).await?;

    // A new leader has no memory of the pods, so it must count what is held when the node becomes static again.
    cluster.delete("waits").await?;
    scene.label("mps", json!({keys::MANAGED: null})).await?;
    let burst: Vec<Pod> = (0..12).map(|number| sized_pod(&format!("b{number}"), "10Gi", "memory")).collect();
    let known = async || {
        let dry_run = kube::api::PostParams { dry_run: true, ..Default::default() };
        let probe = cluster.pods().create(&dry_run, &sized_pod("probe", "10Gi", "memory")).await?;
        Ok(resource_of(&probe)? == GPU)
    };
    wait(TIMEOUT, "the webhook to read the static node again", known).await?;
    try_join_all(burst.iter().map(|pod| cluster.create(pod))).await?;
    scene.held("mps", GPU, 8).await?;
    scene.no_pod_was_refused();
    scene.cluster.stop().await
}
