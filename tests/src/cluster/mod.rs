//! A whole kerf cluster on this machine: the control plane, the three programs as processes with the rights
//! that `deploy/` grants, and GPU nodes with real agents on the simulated NVML.

mod bare;
mod images;
mod node;
mod options;
mod programs;
mod stand_in_node;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeStatus};
use kerf_core::keys;
use kerf_core::names::NodeName;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;

use crate::control_plane::{ControlPlane, ControlPlaneOptions, ports};
use crate::gpu_nodes::{Manner, SimulatedAgents};
use crate::pods::Pods;
pub use crate::pods::{request_of, resource_of};
use crate::process::Child;
pub use bare::{BareCluster, BareOptions};
pub use images::{kerf_images, with_gpus};
pub use node::{GpuServer, agent_program};
pub use options::{ClusterOptions, NodeSpec};
pub use programs::{start_scheduler, write_tls};
pub use stand_in_node::StandInNode;

/// The namespace that `deploy/` installs into.
pub const NAMESPACE: &str = "kerf-system";

/// kerf's objects without its workloads.
const MANIFESTS: &str = "deploy/local";

/// A selector for `kubectl apply` that skips the webhook and the guard.
const UNGUARDED: &str = "--selector=app.kubernetes.io/component notin (guard,webhook)";

/// A running cluster. [`Cluster::stop`] ends it in order; dropping it kills everything and keeps the logs.
pub struct Cluster {
    plane: ControlPlane,
    nodes: Vec<GpuServer>,
    webhook: Child,
    /// Further replicas, which [`Cluster::add_webhook`] started.
    replicas: Vec<Child>,
    extender: Child,
    policy: PathBuf,
    /// Addresses of the extender's replicas for agents. The first one is the cluster's own.
    agents_addresses: Vec<SocketAddr>,
}

impl Cluster {
    /// Starts everything, and waits until a pod that asks for a slice would be served. `progress` gets a text
    /// for each step.
    pub async fn start(options: ClusterOptions, mut progress: impl FnMut(&str)) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let mut plane = ControlPlane::start(options.control_plane).await?;
        progress(&format!("control plane up ({:.1} s)", begun.elapsed().as_secs_f64()));
        install(&plane, &[]).await?;
        progress("kerf's objects applied: CRD, rights, webhook configuration");
        let shipped = options.policy.unwrap_or_else(|| root().join("policies/default.yaml"));
        // The programs read a copy, so that a test can change the policy.
        let policy =
            copy(&shipped, plane.dir()).with_context(|| format!("failed to copy {}", shipped.display()))?;
        let agents_addresses = addresses(if options.two_extenders { 2 } else { 1 })?;
        let mut flags = options.extender_flags;
        flags.extend(agents_addresses.first().map(|address| format!("--agents-address={address}")));
        flags.extend(options.simulated_agents.then(|| "--agents-unauthenticated".to_owned()));
        let extender = programs::extender(&plane, &policy, &flags).await?;
        let webhook = programs::webhook(&plane, &policy).await?;
        programs::scheduler(&mut plane).await?;
        progress("webhook, extender and kerf's scheduler run");
        let mut nodes = Vec::new();
        for spec in options.nodes {
            nodes.push(GpuServer::start(&plane, spec, &agents_addresses).await?);
        }
        let replicas = Vec::new();
        let cluster = Self { plane, nodes, webhook, replicas, extender, policy, agents_addresses };
        cluster.wait_until_serving().await?;
        progress(&format!(
            "{} agents serve ({:.1} s in all)",
            cluster.nodes.len(),
            begun.elapsed().as_secs_f64()
        ));
        Ok(cluster)
    }

    async fn wait_until_serving(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            self.is_served(node).await?;
        }
        wait(Duration::from_secs(30), "the webhook to answer", async || Ok(self.admits(&probe()).await)).await
    }

    async fn is_served(&self, node: &GpuServer) -> anyhow::Result<()> {
        // Being ready is not enough: the extender uses only nodes whose agent is connected.
        let is_served = |status: &GpuNodeStatus| {
            let connected = status.condition(Condition::CONNECTED);
            status.is_ready() && connected.is_some_and(|found| found.status == ConditionStatus::True)
        };
        let served =
            async || Ok(self.gpu_node(node.name()).await?.read_status()?.as_ref().is_some_and(is_served));
        let what = format!("node {} to be served by its agent", node.name());
        wait(Duration::from_mins(1), &what, served).await.with_context(|| node.agent_log())
    }

    /// Adds a GPU node, and waits until its agent serves it.
    pub async fn add_node(&mut self, spec: NodeSpec) -> anyhow::Result<()> {
        let node = GpuServer::start(&self.plane, spec, &self.agents_addresses).await?;
        self.is_served(&node).await?;
        self.nodes.push(node);
        Ok(())
    }

    /// Addresses of the extender's replicas for agents. The first one is the cluster's own.
    #[must_use]
    pub fn agents_addresses(&self) -> &[SocketAddr] {
        &self.agents_addresses
    }

    /// Starts a simulated agent for each existing and each later GpuNode.
    #[must_use]
    pub fn simulate_agents(&self, manner: Manner) -> SimulatedAgents {
        let extenders = self.agents_addresses.iter().map(ToString::to_string).collect();
        SimulatedAgents::start(&self.plane.client(), extenders, manner)
    }

    /// The flags with which an agent of a further node finds the extender. Its token is written to this file.
    pub async fn extender_flags(&self, node: &str, token: &Path) -> anyhow::Result<Vec<OsString>> {
        node::extender_flags(&self.plane, &self.agents_addresses, node, token).await
    }

    /// Whether admission adds a request document to the pod.
    async fn admits(&self, pod: &Pod) -> bool {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let admitted = self.pods().create(&dry_run, pod).await;
        admitted.is_ok_and(|p| p.metadata.annotations.is_some_and(|a| a.contains_key(keys::REQUEST)))
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
    pub fn nodes(&self) -> &[GpuServer] {
        &self.nodes
    }

    /// The GPU nodes, to break parts of them.
    pub fn nodes_mut(&mut self) -> &mut [GpuServer] {
        &mut self.nodes
    }

    /// All programs of kerf's: the extender, the webhook and the agents.
    pub fn programs(&mut self) -> Vec<&mut Child> {
        let agents = self.nodes.iter_mut().map(GpuServer::agent);
        [&mut self.extender, &mut self.webhook].into_iter().chain(agents).collect()
    }

    pub fn extender(&mut self) -> &mut Child {
        &mut self.extender
    }

    pub fn webhook(&mut self) -> &mut Child {
        &mut self.webhook
    }

    /// Starts another replica of the webhook for pods with this label, and waits until it admits one.
    pub async fn add_webhook(&mut self, label: (&str, &str)) -> anyhow::Result<()> {
        self.replicas.push(programs::webhook_for(&self.plane, &self.policy, label).await?);
        let mut probe = probe();
        probe.metadata.labels = Some([(label.0.to_owned(), label.1.to_owned())].into());
        wait(Duration::from_secs(30), "the replica to answer", async || Ok(self.admits(&probe).await)).await
    }

    /// The policy file or folder that webhook and extender read.
    #[must_use]
    pub fn policy_file(&self) -> &Path {
        &self.policy
    }

    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.plane.client())
    }

    /// The same pods, with the helpers of [`Pods`].
    fn asked(&self) -> Pods {
        Pods::new(self.plane.client())
    }

    /// [`Pods::create`].
    pub async fn create(&self, pod: &Pod) -> anyhow::Result<Pod> {
        self.asked().create(pod).await
    }

    /// [`Pods::refusal`].
    pub async fn refusal(&self, pod: &Pod) -> anyhow::Result<String> {
        self.asked().refusal(pod).await
    }

    /// [`Pods::dry_run_refusal`].
    pub async fn dry_run_refusal(&self, pod: &Pod) -> anyhow::Result<Option<String>> {
        self.asked().dry_run_refusal(pod).await
    }

    /// [`Pods::running`].
    pub async fn running(&self, name: &str) -> anyhow::Result<Pod> {
        self.asked().running(name).await
    }

    /// [`Pods::phase`].
    pub async fn phase(&self, name: &str) -> anyhow::Result<String> {
        self.asked().phase(name).await
    }

    /// [`Pods::delete`].
    pub async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.asked().delete(name).await
    }

    /// [`Pods::event`].
    pub async fn event(&self, name: &str, text: &str) -> anyhow::Result<String> {
        self.asked().event(name, text).await
    }

    /// Cordons or uncordons a node, and gives the programs time to see it.
    pub async fn cordon(&self, node: &str, is_shut: bool) -> anyhow::Result<()> {
        let patch = Patch::Merge(serde_json::json!({"spec": {"unschedulable": is_shut}}));
        Api::<Node>::all(self.plane().client()).patch(node, &PatchParams::default(), &patch).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    /// The GpuNode of a node; an empty one if there is none.
    pub async fn gpu_node(&self, name: &str) -> anyhow::Result<GpuNode> {
        let found = Api::<GpuNode>::all(self.plane.client()).get_opt(name).await?;
        Ok(found.unwrap_or_else(|| GpuNode::new(&NodeName::new(name))))
    }

    /// Applies one of `deploy/examples` to the namespace `default`.
    pub async fn apply_example(&self, name: &str) -> anyhow::Result<String> {
        let path = root().join("deploy/examples").join(name);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        self.plane.apply(&text).await
    }

    /// Ends the nodes first, because their agents call the extender and the API server.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        for node in self.nodes {
            node.stop().await?;
        }
        let timeout = Duration::from_secs(5);
        self.webhook.terminate(timeout)?;
        for mut replica in self.replicas {
            replica.terminate(timeout)?;
        }
        self.extender.terminate(timeout)?;
        self.plane.stop().await
    }
}

/// The repository's root. Away from the checkout, it is the folder above the running program that has kerf's
/// manifests.
#[must_use]
pub fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if built.join(MANIFESTS).is_dir() { built } else { carried().unwrap_or(built) }
}

fn carried() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let mut folders = executable.ancestors().skip(1);
    folders.find(|folder| folder.join(MANIFESTS).is_dir()).map(Path::to_owned)
}

/// One or two free loopback addresses.
fn addresses(count: usize) -> std::io::Result<Vec<SocketAddr>> {
    let ports: [u16; 2] = ports::free()?;
    Ok(ports.into_iter().take(count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect())
}

/// Copies a policy file or folder into `folder`, and returns the copy's path.
fn copy(shipped: &Path, folder: &Path) -> std::io::Result<PathBuf> {
    if !shipped.is_dir() {
        let copied = folder.join("policy.yaml");
        return std::fs::copy(shipped, &copied).map(|_| copied);
    }
    let copied = folder.join("policies");
    std::fs::create_dir_all(&copied)?;
    for file in std::fs::read_dir(shipped)? {
        let file = file?;
        std::fs::copy(file.path(), copied.join(file.file_name()))?;
    }
    Ok(copied)
}

async fn install(plane: &ControlPlane, more: &[&str]) -> anyhow::Result<()> {
    let manifests = root().join(MANIFESTS).display().to_string();
    plane.kubectl(&[&["apply", "--server-side", "-k", &manifests], more].concat()).await?;
    plane.definitions_established().await
}

/// A control plane without a scheduler, with kerf's objects but without its webhook and guard. It is for
/// tests that act as kerf's programs with an admin's rights, and that write into pods what the webhook would
/// write.
pub async fn unguarded(options: ControlPlaneOptions) -> anyhow::Result<ControlPlane> {
    let plane = ControlPlane::start(ControlPlaneOptions { scheduler: false, ..options }).await?;
    install(&plane, &[UNGUARDED]).await?;
    Ok(plane)
}

fn probe() -> Pod {
    sized_pod("admission-probe", "1Gi", "none")
}

/// A pod with one container `main`, these annotations, and a placeholder image.
#[must_use]
pub fn pod(name: &str, annotations: &[(&str, &str)]) -> Pod {
    let container = serde_json::json!({"name": "main", "image": "none"});
    let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: serde_json::from_value(
            serde_json::json!({"containers": [container], "terminationGracePeriodSeconds": 0}),
        )
        .ok(),
        status: None,
    }
}

/// A pod that asks for this amount of GPU memory in this isolation class.
#[must_use]
pub fn sized_pod(name: &str, memory: &str, isolation: &str) -> Pod {
    pod(name, &[(keys::GPU_MEMORY, memory), (keys::ISOLATION, isolation)])
}

/// A pod whose container has `count` devices of `resource` in its limits.
#[must_use]
pub fn limited_pod(name: &str, resource: &str, count: u32) -> Pod {
    with_limit(pod(name, &[]), resource, count)
}

/// The pod with `count` devices of `resource` in its containers' limits.
#[must_use]
pub fn with_limit(mut pod: Pod, resource: &str, count: u32) -> Pod {
    let limits = BTreeMap::from([(resource.to_owned(), Quantity(count.to_string()))]);
    for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
        container.resources =
            Some(ResourceRequirements { limits: Some(limits.clone()), ..ResourceRequirements::default() });
    }
    pod
}

/// A pod that no scheduler binds, with one device of `resource` in its limits.
#[must_use]
pub fn unscheduled_pod(name: &str, resource: &str) -> Pod {
    let mut pod = limited_pod(name, resource, 1);
    pod.spec.get_or_insert_default().scheduler_name = Some("nobody".to_owned());
    pod
}

/// The pod with a controller as its owner.
#[must_use]
pub fn owned(mut pod: Pod) -> Pod {
    let owner = OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: "owner".to_owned(),
        uid: "5f0f9d2e-0000-4000-8000-000000000001".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    pod.metadata.owner_references = Some(vec![owner]);
    pod
}

/// Polls until `done` returns true. The timeout's error includes the last error of `done`.
pub async fn wait(
    timeout: Duration,
    what: &str,
    mut done: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let answer = done().await;
        if matches!(answer, Ok(true)) {
            return Ok(());
        }
        if begun.elapsed() > timeout {
            match answer {
                Err(error) => return Err(error.context(format!("waited {timeout:?} for {what}"))),
                Ok(_) => bail!("waited {timeout:?} for {what}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
