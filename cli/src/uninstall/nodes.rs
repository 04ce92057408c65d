//! Leaves all nodes before kerf's objects are deleted: removes the webhook, ends the agents, and undoes on each node
//! what its agent has set.
//!
//! The Jobs are created, suspended, before the agents' `DaemonSet` is deleted. They keep its pod template, so that an
//! interrupted run can be repeated. While the `DaemonSet` exists, agents have run since any earlier Jobs, so their
//! completion proves nothing.

use super::job::{self, AGENT, LEAVE, NAME_LABEL, is_complete, is_ready};
use super::{NodesArgs, deleted};
use crate::counted::{counted, plural};
use crate::output::line;
use crate::progress::Wait;
use anyhow::{Context as _, anyhow};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeSet;
use tokio::time::Instant;

/// Leaves all nodes. The webhook goes first, because it fails closed and would otherwise deny pods once its own are
/// gone.
pub(super) async fn leave(client: Client, args: &NodesArgs) -> anyhow::Result<()> {
    let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let gone = deleted(configurations.delete("kerf", &DeleteParams::default()).await)
        .context("failed to delete the MutatingWebhookConfiguration kerf; nothing was done")?;
    line(if gone { "webhook configuration deleted" } else { "webhook configuration was deleted before" })?;
    let leaving = Leaving::new(client, args);
    let ready = leaving.ready_nodes().await?;
    leaving.plan(&ready).await?;
    leaving.end_agents(&ready).await?;
    leaving.carry_out().await
}

struct Leaving<'a> {
    args: &'a NodesArgs,
    end: Instant,
    nodes: Api<Node>,
    gpu_nodes: Api<GpuNode>,
    agents: Api<DaemonSet>,
    pods: Api<Pod>,
    jobs: Api<Job>,
}

impl<'a> Leaving<'a> {
    fn new(client: Client, args: &'a NodesArgs) -> Self {
        Self {
            args,
            end: Instant::now() + args.timeout + args.settle,
            nodes: Api::all(client.clone()),
            gpu_nodes: Api::all(client.clone()),
            agents: Api::namespaced(client.clone(), &args.kerf.name),
            pods: Api::namespaced(client.clone(), &args.kerf.name),
            jobs: Api::namespaced(client, &args.kerf.name),
        }
    }

    /// The nodes that have an agent and are ready. It names on standard error those that are not, because nothing is
    /// undone there.
    async fn ready_nodes(&self) -> anyhow::Result<Vec<Node>> {
        let served = match self.gpu_nodes.list_metadata(&ListParams::default()).await {
            Ok(list) => list.items.iter().map(ResourceExt::name_any).collect::<BTreeSet<_>>(),
            // Without the resource there are no agents.
            Err(kube::Error::Api(status)) if status.code == 404 => BTreeSet::new(),
            Err(error) => {
                return Err(error).context("failed to list the GpuNodes, which show the nodes with agents");
            }
        };
        let nodes = self.nodes.list(&ListParams::default()).await.context("failed to list the nodes")?;
        let (ready, away): (Vec<Node>, Vec<Node>) =
            nodes.items.into_iter().filter(|node| served.contains(&node.name_any())).partition(is_ready);
        for node in away {
            let name = node.name_any();
            eprintln!(
                "node {name} is not ready: nothing is undone there. When it is back, reinstall and uninstall kerf, or \
                 delete /var/lib/kerf, /run/kerf and /var/run/cdi/kerf.dev-* there and its labels kerf.dev/*"
            );
        }
        Ok(ready)
    }

    /// Creates the Jobs while the `DaemonSet` still exists, because the Jobs copy its pod template.
    async fn plan(&self, ready: &[Node]) -> anyhow::Result<()> {
        let Some(agents) =
            self.agents.get_opt(AGENT).await.context("failed to read the agents' DaemonSet")?
        else {
            return Ok(());
        };
        self.drop_earlier_jobs().await?;
        for node in ready {
            let job = job::leave(&agents, node, self.args.settle)?;
            let made = self.jobs.create(&PostParams::default(), &job).await;
            made.with_context(|| format!("failed to make the Job for node {}", node.name_any()))?;
        }
        Ok(())
    }

    /// Deletes earlier Jobs. A node's Job has the same name in every run, so a completed Job of an earlier run would
    /// look like this run's.
    async fn drop_earlier_jobs(&self) -> anyhow::Result<()> {
        let mut wait = Wait::until("Jobs of an earlier uninstall to go", self.end);
        loop {
            let jobs = self.planned().await?;
            if jobs.is_empty() {
                return Ok(());
            }
            for job in &jobs {
                self.drop_job(job).await?;
            }
            let names = jobs.iter().map(ResourceExt::name_any).collect::<Vec<_>>().join(", ");
            let namespace = &self.args.kerf.name;
            wait.next_check(|| {
                anyhow!(
                    "Jobs of an earlier uninstall do not go: {names}. What keeps them: kubectl -n {namespace} get jobs -l \
                     {NAME_LABEL}={LEAVE} -o yaml"
                )
            })
            .await?;
        }
    }

    async fn planned(&self) -> anyhow::Result<Vec<Job>> {
        let ours = ListParams::default().labels(&format!("{NAME_LABEL}={LEAVE}"));
        Ok(self.jobs.list(&ours).await.context("failed to list the Jobs")?.items)
    }

    async fn drop_job(&self, job: &Job) -> anyhow::Result<()> {
        let name = job.name_any();
        deleted(self.jobs.delete(&name, &DeleteParams::background()).await)
            .with_context(|| format!("failed to delete Job {name}"))?;
        Ok(())
    }

    /// Deletes the `DaemonSet` and waits until its pods on these nodes are gone, because the agent and the Job write
    /// the same checkpoint.
    async fn end_agents(&self, ready: &[Node]) -> anyhow::Result<()> {
        deleted(self.agents.delete(AGENT, &DeleteParams::background()).await)
            .context("failed to delete the agents' DaemonSet")?;
        let names: BTreeSet<String> = ready.iter().map(ResourceExt::name_any).collect();
        let theirs = ListParams::default().labels(&format!("{NAME_LABEL}={AGENT}"));
        let mut wait = Wait::until("the agents to end", self.end);
        loop {
            let pods = self.pods.list(&theirs).await.context("failed to list the agents' pods")?;
            let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let left: Vec<String> =
                pods.iter().filter_map(node).filter(|node| names.contains(node)).collect();
            if left.is_empty() {
                drop(wait);
                return line("the agents have ended");
            }
            wait.next_check(|| anyhow!("agents still run on {}", left.join(", "))).await?;
        }
    }

    async fn carry_out(&self) -> anyhow::Result<()> {
        let run = Patch::Merge(json!({"spec": {"suspend": false}}));
        for job in self.planned().await? {
            let name = job.name_any();
            self.jobs.patch(&name, &PatchParams::default(), &run).await.context("failed to start a Job")?;
        }
        let mut wait = Wait::until("nodes to be put back as they were", self.end);
        loop {
            // Jobs of deleted nodes are left out, because a node may be deleted while this waits, and its Job would
            // never complete.
            let jobs = self.for_present_nodes(self.planned().await?).await?;
            let (done, left): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(|job| is_complete(job));
            if left.is_empty() {
                for job in &done {
                    self.drop_job(job).await?;
                }
                drop(wait);
                let are = if done.len() == 1 { "is as it was" } else { "are as they were" };
                return line(format!(
                    "{} {are} before kerf, but for what pods hold",
                    counted(done.len(), "node")
                ));
            }
            let names = left.iter().map(|job| job::node_of(job)).collect::<Vec<_>>().join(", ");
            let namespace = &self.args.kerf.name;
            wait.rename(format!("{} {names} to be put back", plural(left.len() as u64, "node")));
            wait.next_check(|| {
                anyhow!(
                    "not all was put back on {names}. Why: kubectl -n {namespace} logs -l {NAME_LABEL}={LEAVE}. The Jobs go \
                     on; uninstall again, or, if the nodes will not come back, without hooks (helm uninstall --no-hooks), and then \
                     kubectl -n {namespace} delete jobs -l {NAME_LABEL}={LEAVE}: they would undo what another installation sets"
                )
            })
            .await?;
        }
    }

    /// The Jobs of existing nodes. Those of deleted nodes are deleted with a message, because they can never complete.
    async fn for_present_nodes(&self, jobs: Vec<Job>) -> anyhow::Result<Vec<Job>> {
        let nodes =
            self.nodes.list_metadata(&ListParams::default()).await.context("failed to list the nodes")?;
        let present: BTreeSet<String> = nodes.iter().map(ResourceExt::name_any).collect();
        let (current, orphaned): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| present.contains(job::node_of(job)));
        for job in orphaned {
            self.drop_job(&job).await?;
            line(format!(
                "node {} is no longer in the cluster, and its Job goes as well",
                job::node_of(&job)
            ))?;
        }
        Ok(current)
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
