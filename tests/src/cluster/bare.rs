//! A cluster before kerf is installed: a control plane, nodes, and Services that lead to pods. Applied
//! manifests start their own pods, as processes; no program of kerf is started by hand.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use super::images::kerf_images;
use super::stand_in_node::{folder, gpu_files};
use super::{NAMESPACE, NodeSpec, StandInNode, root};
use crate::chart;
use crate::control_plane::{ControlPlane, ControlPlaneOptions};
use crate::kubelet::{Image, PodProcesses};
use crate::pods::{Pods, is_ready, state_of};
use crate::services::ServiceProxy;

pub struct BareOptions {
    /// Deployments and `DaemonSet`s need the controller manager.
    pub control_plane: ControlPlaneOptions,
    pub nodes: Vec<NodeSpec>,
    /// Images on every node, by name, besides those of kerf and kube-scheduler.
    pub images: Vec<(String, Image)>,
}

impl BareOptions {
    #[must_use]
    pub fn new(nodes: Vec<NodeSpec>) -> Self {
        Self { control_plane: ControlPlaneOptions::default(), nodes, images: Vec::new() }
    }
}

/// A running cluster. [`BareCluster::stop`] ends it in order; dropping it kills everything and keeps the
/// logs.
pub struct BareCluster {
    // Fields are dropped in this order: pods before the servers that they call.
    nodes: Vec<StandInNode>,
    services: ServiceProxy,
    images: Vec<(String, Image)>,
    plane: ControlPlane,
}

impl BareCluster {
    /// Starts the control plane, then the nodes.
    pub async fn start(options: BareOptions) -> anyhow::Result<Self> {
        let plane = ControlPlane::start(options.control_plane).await?;
        let services = ServiceProxy::start(&plane.client(), plane.dir())?;
        let mut cluster = Self { nodes: Vec::new(), services, images: options.images, plane };
        for spec in options.nodes {
            cluster.add_node(spec).await?;
        }
        Ok(cluster)
    }

    pub async fn add_node(&mut self, spec: NodeSpec) -> anyhow::Result<()> {
        let mut images = kerf_images(&gpu_files(&self.plane, &spec.name))?;
        for (name, image) in &self.images {
            images.add(name, image.clone());
        }
        let url = self.plane.url().trim_start_matches("https://");
        let api_server: SocketAddr = url.parse().context("the API server has no address")?;
        let processes = PodProcesses {
            images,
            api_server: Some(api_server),
            hosts: Some(self.services.hosts().to_owned()),
            ..PodProcesses::default()
        };
        // The agent's manifest puts MPS daemons into this cgroup. A kernel would create the file; here it is
        // an ordinary file.
        let cgroup = folder(&self.plane, &spec.name).join("host/sys/fs/cgroup/kerf-mps");
        std::fs::create_dir_all(&cgroup)?;
        std::fs::write(cgroup.join("cgroup.procs"), "")?;
        self.nodes.push(StandInNode::start(&self.plane, spec, processes).await?);
        Ok(())
    }

    #[must_use]
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The control plane, to restart parts of it.
    pub fn plane_mut(&mut self) -> &mut ControlPlane {
        &mut self.plane
    }

    #[must_use]
    pub fn nodes(&self) -> &[StandInNode] {
        &self.nodes
    }

    pub fn node(&self, name: &str) -> anyhow::Result<&StandInNode> {
        self.nodes.iter().find(|node| node.name() == name).with_context(|| format!("there is no node {name}"))
    }

    #[must_use]
    pub fn pods(&self) -> Pods {
        Pods::new(self.plane.client())
    }

    /// Runs Helm as an admin who waits until everything is ready, and returns its output.
    pub async fn helm(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.helm_now(&[arguments, &["--wait", "--timeout", "4m"]].concat()).await
    }

    /// Runs Helm without waiting, for objects whose programs cannot become ready.
    pub async fn helm_now(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let arguments = [arguments, &["--namespace", NAMESPACE]].concat();
        chart::said(&chart::helm_on(&self.plane, &arguments).await?)
    }

    /// Runs `helm install` of the chart with default values, and returns its notes.
    pub async fn install(&self) -> anyhow::Result<String> {
        self.helm(&["install", "kerf", &chart::folder(), "--create-namespace"]).await
    }

    /// Runs `kubectl apply --server-side -k` on a folder of the repository.
    pub async fn apply(&self, kustomization: &str) -> anyhow::Result<String> {
        let folder = root().join(kustomization).display().to_string();
        self.plane.kubectl(&["apply", "--server-side", "-k", &folder]).await
    }

    /// Waits until kerf is up as its manifests declare it: two webhooks, extenders and schedulers, and an
    /// agent on each of `managed` nodes.
    pub async fn kerf_is_up(&self, managed: usize, timeout: Duration) -> anyhow::Result<()> {
        let agents = format!("daemonset/kerf-node-agent numberReady {managed}");
        let parts = [
            "deployment/kerf-webhook readyReplicas 2",
            "deployment/kerf-scheduler readyReplicas 2",
            "deployment/kerf-extender readyReplicas 2",
            &agents,
        ];
        for part in parts {
            let [object, field, count] = part.split(' ').collect::<Vec<_>>()[..] else { continue };
            let (condition, flag) = (
                format!("--for=jsonpath={{.status.{field}}}={count}"),
                format!("--timeout={}s", timeout.as_secs()),
            );
            let waited = self.plane.kubectl(&["wait", &condition, &flag, "-n", NAMESPACE, object]).await;
            if let Err(error) = waited {
                let api: Api<Pod> = Api::namespaced(self.plane.client(), NAMESPACE);
                let pods = api.list(&ListParams::default()).await?.items;
                return Err(error.context(pods.iter().map(line).collect::<Vec<_>>().join("\n")));
            }
        }
        Ok(())
    }

    /// Ends the nodes first, because pods call the control plane.
    pub async fn stop(self) -> anyhow::Result<()> {
        for node in self.nodes {
            node.stop().await;
        }
        drop(self.services);
        self.plane.stop().await
    }
}

/// The state of a pod in one line.
fn line(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("no node");
    let statuses = pod.status.iter().filter_map(|status| status.container_statuses.as_ref()).flatten();
    let waiting = statuses.filter_map(|status| status.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    let ready = if is_ready(pod) { "ready" } else { "not ready" };
    format!("{name} on {node}: {ready}; {}; {}", state_of(pod), waiting.collect::<Vec<_>>().join(", "))
}
