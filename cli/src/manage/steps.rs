//! Hands a node over in this order: wait until the pods that hold its GPUs have ended; set all labels at once; wait
//! until the programs that managed its GPUs have left; wait until kerf's agent serves it.
//!
//! No step takes a GPU from a pod. A pod that starts just before the labels are set keeps its GPU, because the agent
//! gives away nothing that the kubelet lists as held.

use super::Args;
use super::conflicting::conflicting;
use super::holders::claimed;
use super::plan::{Cluster, Observed, Plan};
use super::refused::Refused;
use super::served::served;
use crate::failure::NotFound;
use crate::output::line;
use crate::plugin_nodes::cluster_policy;
use crate::progress::Wait;
use crate::uninstall::job::{self, AGENT, NAME_LABEL, is_complete};
use anyhow::{Context as _, anyhow};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_core::names::PodKey;
use kerf_runtime::duration::friendly;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::plugin_pod::PluginPod;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

const PARALLEL_LIMIT: usize = 8;

/// Hands the nodes over. All are read before the first is changed, so that one refusal changes nothing.
pub(super) async fn manage(client: Client, args: &Args) -> anyhow::Result<()> {
    let handover = Handover::new(client, args).await?;
    let (mut plans, mut refused) = (Vec::new(), Vec::new());
    for name in handover.names().await? {
        match handover.plan(&name).await.and_then(|plan| handover.admit(&name, plan)) {
            Ok(plan) => plans.push((name, plan)),
            Err(error) => refused.push(error),
        }
    }
    all_well(refused)?;
    if args.dry_run {
        return plans.iter().try_for_each(|(name, plan)| handover.describe(name, plan));
    }
    let nodes = futures::stream::iter(plans.iter().map(|(name, _)| handover.hand_over(name)));
    let results: Vec<anyhow::Result<()>> = nodes.buffer_unordered(PARALLEL_LIMIT).collect().await;
    all_well(results.into_iter().filter_map(Result::err).collect())
}

fn all_well(mut errors: Vec<anyhow::Error>) -> anyhow::Result<()> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => {
            let lines = errors.iter().map(|error| format!("{error:#}")).collect::<Vec<_>>();
            Err(anyhow!("{}", lines.join("\n")))
        }
    }
}

struct Handover<'a> {
    args: &'a Args,
    cluster: Cluster,
    nodes: Api<Node>,
    pods: Api<PluginPod>,
    claims: Api<DynamicObject>,
    agents: Api<Pod>,
    gpu_nodes: Api<GpuNode>,
    jobs: Api<Job>,
}

impl<'a> Handover<'a> {
    async fn new(client: Client, args: &'a Args) -> anyhow::Result<Self> {
        let namespace = &args.kerf.name;
        let claim = ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceClaim"));
        Ok(Self {
            args,
            cluster: cluster(&client, namespace).await?,
            nodes: Api::all(client.clone()),
            pods: Api::all(client.clone()),
            claims: Api::all_with(client.clone(), &claim),
            agents: Api::namespaced(client.clone(), namespace),
            gpu_nodes: Api::all(client.clone()),
            jobs: Api::namespaced(client, namespace),
        })
    }

    async fn names(&self) -> anyhow::Result<BTreeSet<String>> {
        let Some(selector) = &self.args.selector else {
            return Ok(self.args.nodes.iter().cloned().collect());
        };
        let nodes = self.nodes.list_metadata(&ListParams::default().labels(selector)).await;
        let names: BTreeSet<String> =
            nodes.context("failed to list the nodes")?.iter().map(ResourceExt::name_any).collect();
        if names.is_empty() {
            let what = format!("no node has the labels {selector}");
            return Err(NotFound::new(what, "kubectl get nodes --show-labels lists them").into());
        }
        Ok(names)
    }

    async fn plan(&self, name: &str) -> anyhow::Result<Plan> {
        let node = self.nodes.get_opt(name).await.with_context(|| format!("failed to read node {name}"))?;
        let missing = || NotFound::new(format!("there is no node {name}"), "kubectl get nodes lists them");
        let node = node.ok_or_else(missing)?;
        let here = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let pods = self.pods.list(&here).await;
        let pods = pods.with_context(|| format!("failed to list the pods of node {name}"))?.items;
        let job = job::name(&node);
        let leave = self.jobs.get_opt(&job).await.with_context(|| format!("failed to read Job {job}"))?;
        let leaving = leave.filter(|leave| !is_complete(leave)).map(|_| job);
        let observed = Observed { node, pods, claimed: self.claimed().await?, leaving };
        Ok(Plan::new(&self.cluster, &observed)?)
    }

    async fn claimed(&self) -> anyhow::Result<BTreeSet<PodKey>> {
        match self.claims.list(&ListParams::default()).await {
            Ok(claims) => Ok(claimed(&claims.iter().map(|claim| json!(claim)).collect::<Vec<Value>>())),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
            Err(error) => Err(error).context("failed to list the ResourceClaims"),
        }
    }

    fn admit(&self, name: &str, plan: Plan) -> anyhow::Result<Plan> {
        if plan.in_the_way().is_empty() || self.args.wait.is_some() || self.args.dry_run {
            return Ok(plan);
        }
        Err(held(name, &plan).into())
    }

    fn describe(&self, name: &str, plan: &Plan) -> anyhow::Result<()> {
        if !plan.in_the_way().is_empty() {
            let pods = listed(plan.in_the_way());
            let what = match self.args.wait {
                Some(wait) => format!("would wait {} for them to end", friendly(wait)),
                None => "would be refused; --wait waits for them".to_owned(),
            };
            line(format!("node {name}: pods hold GPUs of it: {pods}; {what}"))?;
        }
        if plan.labels.is_empty() {
            line(format!("node {name}: has its labels already"))?;
        } else {
            line(format!("node {name}: would get the labels {}", plan.labels_text()))?;
        }
        for program in &plan.leaving {
            line(format!("node {name}: {program} would leave it"))?;
        }
        line(format!("node {name}: kerf's agent would serve it (dry run, nothing was done)"))
    }

    async fn hand_over(&self, name: &str) -> anyhow::Result<()> {
        let is_cordoned = self.args.cordon && self.cordon(name).await?;
        let done = self.steps(name).await;
        match (&done, is_cordoned) {
            (Ok(()), true) => self.set_unschedulable(name, false).await?,
            // The node stays cordoned, so that no new pod takes a GPU before the next run.
            (Err(_), true) => eprintln!("node {name} stays cordoned; to undo it: kubectl uncordon {name}"),
            (_, false) => {}
        }
        done
    }

    /// Cordons the node if it still needs its labels. Returns whether that changed the node, because a node that was
    /// cordoned before must stay so.
    async fn cordon(&self, name: &str) -> anyhow::Result<bool> {
        let node = self.nodes.get(name).await.with_context(|| format!("failed to read node {name}"))?;
        let is_cordoned = node.spec.and_then(|spec| spec.unschedulable) == Some(true);
        if is_cordoned {
            eprintln!(
                "node {name} was cordoned before, and stays so; when kerf serves it: kubectl uncordon {name}"
            );
            return Ok(false);
        }
        if self.plan(name).await?.labels.is_empty() {
            return Ok(false);
        }
        self.set_unschedulable(name, true).await?;
        Ok(true)
    }

    async fn set_unschedulable(&self, name: &str, unschedulable: bool) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        let word = if unschedulable { "cordon" } else { "uncordon" };
        let patched = self.nodes.patch(name, &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("failed to {word} node {name}"))?;
        line(format!("node {name} is {word}ed"))
    }

    async fn steps(&self, name: &str) -> anyhow::Result<()> {
        let plan = self.pods_end(name).await?;
        if !plan.labels.is_empty() {
            self.label(name, &plan).await?;
        }
        let end = Instant::now() + self.args.timeout;
        self.conflicting_leave(name, end).await?;
        self.agent_serves(name, end).await
    }

    async fn pods_end(&self, name: &str) -> anyhow::Result<Plan> {
        let mut wait = self.wait("pods", Instant::now() + self.args.wait.unwrap_or_default());
        loop {
            let plan = self.plan(name).await?;
            if plan.in_the_way().is_empty() {
                return Ok(plan);
            }
            wait.rename(format!("pods that hold GPUs of node {name} ({})", listed(plan.in_the_way())));
            wait.next_check(|| held(name, &plan)).await?;
        }
    }

    async fn label(&self, name: &str, plan: &Plan) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": plan.labels}}));
        let labelled = self.nodes.patch(name, &PatchParams::default(), &patch).await;
        labelled.with_context(|| format!("failed to label node {name}; nothing was done to it"))?;
        line(format!("node {name} has the labels {}", plan.labels_text()))?;
        // The node is read again, because pods may have started between the last check and the labels.
        let came = self.plan(name).await?.holders;
        if !came.is_empty() {
            line(format!(
                "node {name}: pods started meanwhile; they keep their GPUs until they end, and kerf gives these GPUs to no other pod: {}",
                listed(&came)
            ))?;
        }
        Ok(())
    }

    async fn conflicting_leave(&self, name: &str, end: Instant) -> anyhow::Result<()> {
        let mut wait = self.wait(format!("other programs to leave node {name}"), end);
        loop {
            let leaving = self.plan(name).await?.leaving;
            if leaving.is_empty() {
                return Ok(());
            }
            let programs = leaving.join(" and ");
            let node = name.to_owned();
            wait.next_check(|| Refused::ConflictingStays { node, programs }).await?;
        }
    }

    async fn agent_serves(&self, name: &str, end: Instant) -> anyhow::Result<()> {
        let theirs = ListParams::default().labels(&format!("{NAME_LABEL}={AGENT}"));
        let mut wait = self.wait(format!("kerf's agent to serve node {name}"), end);
        loop {
            let pods = self.agents.list(&theirs).await.context("failed to list the agents' pods")?;
            let is_here = |pod: &&Pod| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name)
                    && pod.metadata.deletion_timestamp.is_none()
            };
            let gpu_node = self.gpu_nodes.get_opt(name).await;
            let gpu_node = gpu_node.with_context(|| format!("failed to read GpuNode {name}"))?;
            match served(&self.args.kerf.name, pods.iter().find(is_here), gpu_node.as_ref()) {
                Ok(what) => return line(format!("node {name} is managed by kerf: {what}")),
                Err(why) => wait.next_check(|| Refused::NotServed { node: name.to_owned(), why }).await?,
            }
        }
    }

    fn wait(&self, what: impl Into<String>, end: Instant) -> Wait {
        let wait = Wait::until(what, end).every(POLL_INTERVAL);
        if self.args.nodes.len() == 1 { wait } else { wait.beside_others() }
    }
}

async fn cluster(client: &Client, namespace: &str) -> anyhow::Result<Cluster> {
    let agents = Api::<DaemonSet>::namespaced(client.clone(), namespace).get_opt(AGENT).await;
    let agents = agents.context("failed to read the agents' DaemonSet")?;
    let spec = agents.and_then(|agents| agents.spec?.template.spec);
    let sets = Api::<DaemonSet>::all(client.clone()).list(&ListParams::default()).await;
    Ok(Cluster {
        namespace: namespace.to_owned(),
        agents: spec.ok_or_else(|| Refused::NoAgents(namespace.to_owned()))?,
        has_cluster_policy: cluster_policy(client)
            .await
            .context("failed to read the ClusterPolicy")?
            .is_some(),
        conflicting: conflicting(sets.context("failed to list the DaemonSets")?.items),
    })
}

fn held(name: &str, plan: &Plan) -> Refused {
    Refused::Held { node: name.to_owned(), pods: listed(plan.in_the_way()) }
}

fn listed(pods: &BTreeSet<String>) -> String {
    pods.iter().cloned().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
