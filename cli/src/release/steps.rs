//! Gives a node back in this order: wait until its pods have ended; label it as not managed; wait until its agent has
//! ended; undo what the agent has set; delete the GpuNode and the Job.
//!
//! Only the agent sees slices become free, so pods must end while it runs. When it ends, it reports the node as not
//! served, and from then on the extender reserves nothing there.

use super::Args;
use super::holders::holders;
use super::node_state::{NodeState, nvidias_return};
use super::refused::Refused;
use crate::failure::NotFound;
use crate::output::line;
use crate::progress::Wait;
use crate::uninstall::job::{self, AGENT, NAME_LABEL, is_ready};
use crate::uninstall::{admins_policy, deleted};
use anyhow::Context as _;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::keys;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::plugin_pod::PluginPod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// The timeout for holders that the agent still reported when it ended. It is short, because the reservations in
/// GpuNode.status do not change any more by then.
const RESERVATIONS_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn release(client: Client, args: &Args) -> anyhow::Result<()> {
    let release = Release::new(client, args);
    let name = &args.node;
    let node = release.node().await?;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    match release.node_state(&node).await? {
        NodeState::NotManaged => return Err(Refused::NotManaged(name.clone()).into()),
        NodeState::Released => line(format!("node {name} was given back already"))?,
        node_state => release.leave(&node, node_state == NodeState::Managed).await?,
    }
    if let Some(command) = nvidias_return(name, &labels) {
        eprintln!("labels keep NVIDIA's programs away from it; to let them come back: {command}");
    }
    if node.spec.and_then(|spec| spec.unschedulable) == Some(true) {
        eprintln!("it is cordoned; when NVIDIA's device plugin serves it: kubectl uncordon {name}");
    }
    Ok(())
}

pub(super) struct Release<'a> {
    pub(super) args: &'a Args,
    nodes: Api<Node>,
    gpu_nodes: Api<GpuNode>,
    pods: Api<PluginPod>,
    agents: Api<DaemonSet>,
    agents_pods: Api<PluginPod>,
    pub(super) jobs: Api<Job>,
}

impl<'a> Release<'a> {
    fn new(client: Client, args: &'a Args) -> Self {
        Self {
            args,
            nodes: Api::all(client.clone()),
            gpu_nodes: Api::all(client.clone()),
            pods: Api::all(client.clone()),
            agents: Api::namespaced(client.clone(), &args.kerf.name),
            agents_pods: Api::namespaced(client.clone(), &args.kerf.name),
            jobs: Api::namespaced(client, &args.kerf.name),
        }
    }

    async fn node(&self) -> anyhow::Result<Node> {
        let name = &self.args.node;
        let node = self.nodes.get_opt(name).await.with_context(|| format!("failed to read node {name}"))?;
        let remedy = format!(
            "kubectl get nodes lists them. If its machine is gone for good: kubectl delete gpunode {name} --ignore-not-found"
        );
        Ok(node.ok_or_else(|| NotFound::new(format!("there is no node {name}"), remedy))?)
    }

    pub(super) async fn gpu_node(&self) -> anyhow::Result<Option<GpuNode>> {
        let name = &self.args.node;
        self.gpu_nodes.get_opt(name).await.with_context(|| format!("failed to read GpuNode {name}"))
    }

    async fn node_state(&self, node: &Node) -> anyhow::Result<NodeState> {
        let has_pods = self.agent_runs().await? || self.job(&job::name(node)).await?.is_some();
        let labels = node.metadata.labels.clone().unwrap_or_default();
        Ok(NodeState::from_labels(&labels, self.gpu_node().await?.is_some(), has_pods))
    }

    async fn leave(&self, node: &Node, is_managed: bool) -> anyhow::Result<()> {
        let Args { node: name, kerf, settle, timeout, .. } = self.args;
        if !is_ready(node) {
            return Err(Refused::NotReady(name.clone()).into());
        }
        let agents = self.agents.get_opt(AGENT).await.context("failed to read the agents' DaemonSet")?;
        let agents = agents.ok_or_else(|| Refused::NoAgents(kerf.name.clone()))?;
        let job = job::leave(&agents, node, *settle)?;
        // These two steps are skipped for a labelled node, because an interrupted run has done them.
        if is_managed {
            self.pods_end().await?;
            self.label_unmanaged().await?;
        }
        let end = Instant::now() + *timeout;
        self.agent_ends(end).await?;
        self.wait_without_holders().await?;
        self.put_back(&job, &job::name(node), end + *settle).await?;
        self.delete_gpu_node().await?;
        self.drop_job(&job::name(node)).await?;
        line(format!("node {name} is released"))
    }

    /// Waits until no pod holds anything, at most as long as `--wait` says. It fails without an agent, because no other
    /// program sees pods end.
    async fn pods_end(&self) -> anyhow::Result<()> {
        let mut wait = Wait::new("pods", self.args.wait.unwrap_or_default());
        loop {
            let (held, _) = self.holders().await?;
            if held.is_empty() {
                return Ok(());
            }
            let (node, pods) = (self.args.node.clone(), listed(&held));
            if !self.agent_runs().await? {
                return Err(Refused::HeldUnseen { node, pods }.into());
            }
            wait.rename(format!("pods that hold slices of node {node} ({pods})"));
            wait.next_check(|| Refused::Held { node, pods }).await?;
        }
    }

    /// The holders, and the GpuNode from which they were read. [`Self::delete_gpu_node`] needs its version.
    async fn holders(&self) -> anyhow::Result<(BTreeSet<String>, Option<GpuNode>)> {
        let node = &self.args.node;
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods =
            self.pods.list(&here).await.with_context(|| format!("failed to list the pods of node {node}"))?;
        let gpu_node = self.gpu_node().await?;
        Ok((holders(node, gpu_node.as_ref(), &pods.items)?, gpu_node))
    }

    /// With this label the `DaemonSet` no longer selects the node: the agent's pod ends, and no other starts.
    async fn label_unmanaged(&self) -> anyhow::Result<()> {
        let name = &self.args.node;
        let label = Patch::Merge(json!({"metadata": {"labels": {keys::MANAGED: "false"}}}));
        let labelled = self.nodes.patch(name, &PatchParams::default(), &label).await;
        labelled.with_context(|| format!("failed to label node {name}; nothing was done"))?;
        line(format!("node {name} is labelled {}=false", keys::MANAGED))
    }

    async fn agent_runs(&self) -> anyhow::Result<bool> {
        let theirs = ListParams::default().labels(&format!("{NAME_LABEL}={AGENT}"));
        let pods = self.agents_pods.list(&theirs).await.context("failed to list the agents' pods")?;
        Ok(pods.iter().any(|pod| pod.is_on(&self.args.node)))
    }

    /// The Job must not start before the agent has ended, because both write the same checkpoint.
    async fn agent_ends(&self, end: Instant) -> anyhow::Result<()> {
        let Args { node, kerf, .. } = self.args;
        let mut wait = Wait::until("the agent's pod to end", end);
        while self.agent_runs().await? {
            wait.next_check(|| Refused::AgentStays { node: node.clone(), namespace: kerf.name.clone() })
                .await?;
        }
        drop(wait);
        line("its agent has ended")
    }

    /// Fails if a pod has started while the agent ended, because nothing would undo what it holds, and no agent would
    /// see it end.
    async fn wait_without_holders(&self) -> anyhow::Result<Option<GpuNode>> {
        let mut wait = Wait::new("reservations to be given up", RESERVATIONS_TIMEOUT);
        loop {
            let (held, gpu_node) = self.holders().await?;
            if held.is_empty() {
                return Ok(gpu_node);
            }
            let (node, pods) = (self.args.node.clone(), listed(&held));
            wait.next_check(|| Refused::HeldUnseen { node, pods }).await?;
        }
    }

    /// Deletes the GpuNode only in the version in which nothing was held. If it has changed since, the check is
    /// repeated, because a pod may hold something now.
    async fn delete_gpu_node(&self) -> anyhow::Result<()> {
        let name = &self.args.node;
        loop {
            let Some(gpu_node) = self.wait_without_holders().await? else { return Ok(()) };
            let ObjectMeta { uid, resource_version, .. } = gpu_node.metadata.clone();
            let as_seen = Preconditions { uid, resource_version };
            let delete = DeleteParams { preconditions: Some(as_seen), ..DeleteParams::default() };
            match deleted(self.gpu_nodes.delete(name, &delete).await) {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                result => {
                    result.with_context(|| format!("failed to delete GpuNode {name}"))?;
                    line(format!("GpuNode {name} is deleted"))?;
                    if let Some(policy) = admins_policy(&gpu_node) {
                        line(format!(
                            "an admin had written its spec.policy, to keep if kerf is to come back: {policy}"
                        ))?;
                    }
                    return Ok(());
                }
            }
        }
    }
}

fn listed(pods: &BTreeSet<String>) -> String {
    pods.iter().cloned().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
