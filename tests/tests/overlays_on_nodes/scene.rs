//! A cluster with nodes that NVIDIA's programs serve, on which only applied manifests run.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{NodeCondition, Pod};
use kerf_core::keys;
use kerf_tests::binaries;
use kerf_tests::cluster::{BareCluster, BareOptions, NodeSpec, root, wait};
use kerf_tests::kubelet::{Image, PodKey};
use kerf_tests::nvidia_plugin::{StaticNode, StaticNodeSpec};
use kerf_tests::overlays::Layout;
use kerf_tests::pods::phase_of;
use kube::Api;
use kube::api::ListParams;

/// The timeout of everything that an admin waits for. NVIDIA's plugin alone takes half a minute for MPS.
pub const TIMEOUT: Duration = Duration::from_mins(2);

/// The label by which the overlays choose nodes; GPU Operator and node feature discovery set it.
const PRESENT: &str = "nvidia.com/gpu.present";

/// The namespace of the validation workloads.
const DEMO: &str = "demo";

pub struct Scene {
    pub cluster: BareCluster,
    nodes: Vec<StaticNode>,
}

impl Scene {
    /// These nodes, whose GPU taint keeps other pods away, and one node for kerf. `timeout` is how long a layout may
    /// take.
    pub async fn start(timeout: &str, nodes: Vec<StaticNodeSpec>) -> anyhow::Result<Self> {
        let mut options = BareOptions::new(vec![NodeSpec::without_gpus("cpu")]);
        // The times of a real kubelet and a real plugin are longer, so two flags are shortened. The manifests stay as
        // they are.
        let extender = Image::running(binaries::ours("kerf-extender")?)
            .with_arguments(&["--plugin-config-delay=2s", &format!("--plugin-timeout={timeout}")])
            .with_wildcards(&["--address=[::]:9444", "--admin-address=[::]:9090"]);
        options.images.push(("kerf-extender".to_owned(), extender));
        let cluster = BareCluster::start(options).await?;
        cluster.plane().kubectl(&["create", "namespace", "gpu-operator"]).await?;
        let mut scene = Self { cluster, nodes: Vec::new() };
        for spec in nodes {
            let node = StaticNode::start(scene.cluster.plane(), spec).await?;
            scene.kubectl(&["taint", "node", node.name(), "nvidia.com/gpu=present:NoSchedule"]).await?;
            scene.kubectl(&["cordon", node.name()]).await?;
            scene.nodes.push(node);
        }
        Ok(scene)
    }

    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.cluster.plane().kubectl(arguments).await
    }

    pub fn node(&self, name: &str) -> &StaticNode {
        self.nodes.iter().find(|node| node.name() == name).unwrap()
    }

    /// Applies an overlay, as its first line says.
    pub async fn apply(&self, overlay: &str) -> anyhow::Result<()> {
        self.cluster.apply(&format!("deploy/overlays/{overlay}")).await?;
        self.cluster.kerf_is_up(0, TIMEOUT).await
    }

    /// Makes the overlays choose the node.
    pub async fn choose(&self, name: &str) -> anyhow::Result<()> {
        self.node(name).set_label(PRESENT, Some("true")).await
    }

    /// Makes the overlays not choose the node, which then has no layout.
    pub async fn leave(&self, name: &str) -> anyhow::Result<()> {
        self.node(name).set_label(PRESENT, None).await?;
        let gone = async || Ok(self.condition(name).await?.is_none() && self.config(name).await?.is_none());
        wait(TIMEOUT, &format!("the layout of {name} to go"), gone).await
    }

    /// Opens only this node to pods.
    pub async fn open(&self, name: &str) -> anyhow::Result<()> {
        for node in &self.nodes {
            let verb = if node.name() == name { "uncordon" } else { "cordon" };
            self.kubectl(&[verb, node.name()]).await?;
        }
        Ok(())
    }

    /// The configuration that the node's label names.
    pub async fn config(&self, name: &str) -> anyhow::Result<Option<String>> {
        Ok(self.node(name).labels().await?.remove("device-plugin.config"))
    }

    async fn condition(&self, name: &str) -> anyhow::Result<Option<NodeCondition>> {
        let status = self.node(name).node().await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        Ok(conditions.into_iter().find(|condition| condition.type_ == keys::LAYOUT_CONDITION))
    }

    /// Waits until the node's condition has this status and reason and contains this text. Returns its message.
    pub async fn until(&self, name: &str, state: (&str, &str), text: &str) -> anyhow::Result<String> {
        let mut message = String::new();
        let is = async || {
            let condition = self.condition(name).await?.context("there is none")?;
            message = condition.message.clone().unwrap_or_default();
            let found = (condition.status.as_str(), condition.reason.as_deref().unwrap_or_default());
            ensure!(found == state && message.contains(text), "it is {condition:?}");
            Ok(true)
        };
        wait(TIMEOUT, &format!("{name}: {state:?} {text:?}"), is).await?;
        Ok(message)
    }

    pub async fn until_in_force(&self, name: &str, layout: &str) -> anyhow::Result<String> {
        self.until(name, ("True", "InForce"), &format!("layout {layout} is in force")).await
    }

    /// The pods of the validation workloads.
    pub async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let api = Api::<Pod>::namespaced(self.cluster.plane().client(), DEMO);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    /// Waits until the node offers what the demo shows.
    pub async fn until_offered(&self, name: &str, layout: &Layout) -> anyhow::Result<()> {
        let wanted: Vec<(String, String)> = layout
            .allocatable
            .iter()
            .map(|(resource, count)| {
                (resource.trim_start_matches("nvidia.com/").to_owned(), count.to_string())
            })
            .collect();
        let wanted: Vec<(&str, &str)> = wanted.iter().map(|(name, count)| (&**name, &**count)).collect();
        let node = self.node(name);
        node.until_allocatable(&wanted).await?;
        node.until(&format!("the labels of {}", layout.overlay), async || {
            let present = node.labels().await?;
            let is = |(key, value): &&(&str, &str)| present.get(*key).map(String::as_str) != Some(*value);
            let wrong: Vec<_> = layout.labels.iter().filter(is).collect();
            ensure!(wrong.is_empty(), "{wrong:?} of {present:?}");
            Ok(())
        })
        .await
    }

    /// Applies a validation workload and waits until as many pods run on the node, and as many are pending, as the demo
    /// shows.
    pub async fn work(&self, name: &str, layout: &Layout, workload: &str) -> anyhow::Result<()> {
        let folder = root().join("deploy/examples/validation").join(workload).display().to_string();
        self.kubectl(&["apply", "--server-side", "-k", &folder]).await?;
        let settled = async || {
            let pods = self.pods().await?;
            let here =
                |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name);
            let running = pods.iter().filter(here).filter(|pod| phase_of(pod) == "Running").count();
            let pending = pods.iter().filter(|pod| phase_of(pod) == "Pending").count();
            let stands: Vec<_> = pods.iter().map(kerf_tests::pods::state_of).collect();
            ensure!(pods.len() == running + pending, "{stands:#?}");
            ensure!((running, pending) == (layout.running, layout.pending), "{stands:#?}");
            Ok(true)
        };
        wait(TIMEOUT, &format!("{workload} to show what {} is", layout.overlay), settled).await
    }

    /// The devices that the workload's running pods see, by NVIDIA's plugin.
    pub async fn visible(&self, name: &str) -> anyhow::Result<BTreeSet<String>> {
        let mut seen = BTreeSet::new();
        for pod in self.pods().await?.iter().filter(|pod| phase_of(pod) == "Running") {
            let key = PodKey::new(DEMO, pod.metadata.name.as_deref().unwrap_or_default());
            let grant =
                self.node(name).kubelet().grant(&key, "dcgmproftester").context("nothing is given")?;
            let devices = grant.environment.get("NVIDIA_VISIBLE_DEVICES").context("no devices are given")?;
            seen.insert(devices.clone());
        }
        Ok(seen)
    }

    pub async fn rest(&self) -> anyhow::Result<()> {
        self.kubectl(&["delete", "deployment", "--all", "-n", DEMO]).await?;
        let gone = async || Ok(self.pods().await?.is_empty());
        wait(TIMEOUT, "the workload to go", gone).await
    }

    pub async fn end(self) -> anyhow::Result<()> {
        for node in self.nodes {
            node.check()?;
            node.stop().await?;
        }
        self.cluster.stop().await
    }
}
