//! Judges the same cases through kube-scheduler and the extender. All cases are in one control plane; a label
//! restricts each pod to its own nodes. Pods come with their request document, because the webhook has no
//! inventory here; agents are simulated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Event, Pod, Taint};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{Case, CaseNode, Verdict};
use crate::cluster::{Cluster, ClusterOptions, wait};
use crate::gpu_nodes::{Manner, NodeObject, SimulatedAgents};
use crate::pods::{is_unschedulable, kind_of, node_of};
use crate::volumes::{ZONE, bound_in_zone};

const TIMEOUT: Duration = Duration::from_secs(30);
/// A pod with capacity must be bound by then: kube-scheduler's longest backoff, and a margin.
const BINDING_TIMEOUT: Duration = Duration::from_secs(20);
/// How many objects are created concurrently.
const AT_ONCE: usize = 8;
const CASE: &str = "example.com/case";
const TEAM: &str = "example.com/team";
const NEIGHBOUR: &str = "example.com/neighbour-of";

/// A cluster without kubelets, with simulated agents.
pub struct Scene {
    cluster: Cluster,
    agents: SimulatedAgents,
}

/// The results of all cases.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The verdict of each case.
    pub verdicts: Vec<Verdict>,
    /// For each case that was pending at some time, kube-scheduler's last message.
    pub refusals: BTreeMap<usize, String>,
}

impl Scene {
    /// Starts the cluster without the guard and the webhook, because this code acts as agents and webhook
    /// with an admin's rights.
    pub async fn start() -> anyhow::Result<Self> {
        let cluster = Cluster::start(ClusterOptions::of_simulated_nodes(), |_| ()).await?;
        let plane = cluster.plane();
        plane.kubectl(&["delete", "validatingadmissionpolicybinding", "--all"]).await?;
        plane.kubectl(&["delete", "mutatingwebhookconfiguration", "--all"]).await?;
        let probe = pod(0, &Case::random(0))?;
        let pods = cluster.pods();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let as_it_is = async || {
            let made = pods.create(&dry_run, &probe).await?;
            let affinity = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.affinity.clone());
            Ok(made.metadata.annotations == probe.metadata.annotations && affinity(&made) == affinity(&probe))
        };
        wait(TIMEOUT, "guard and webhook to be gone", as_it_is).await?;
        let agents = cluster.simulate_agents(Manner::default());
        Ok(Self { cluster, agents })
    }

    /// Creates the cases' nodes, waits until they are seen, creates all pods, and judges once nothing changes
    /// any more.
    pub async fn judge(&self, cases: &[Case]) -> anyhow::Result<Outcome> {
        let client = self.cluster.plane().client();
        let make = async |(number, case): (usize, &Case)| make(&client, number, case).await;
        stream::iter(cases.iter().enumerate())
            .map(make)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        // The extender decides by its index, so it must have seen the nodes before the pods are created.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let pods = Api::<Pod>::default_namespaced(client);
        let create = async |(number, case): (usize, &Case)| {
            pods.create(&PostParams::default(), &pod(number, case)?)
                .await
                .map(drop)
                .map_err(anyhow::Error::from)
        };
        stream::iter(cases.iter().enumerate())
            .map(create)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        let began = Instant::now();
        loop {
            let outcome = self.look(&pods, cases).await?;
            // Only a stranded pod may still be bound until then, so other verdicts need no wait.
            let is_over = began.elapsed() > BINDING_TIMEOUT;
            let stranded = outcome.iter().flatten().any(|verdict| matches!(verdict, Verdict::Stranded(_)));
            if let (Some(verdicts), true) = (outcome.into_iter().collect(), is_over || !stranded) {
                return Ok(Outcome { verdicts, refusals: self.refusals().await? });
            }
            ensure!(began.elapsed() < 2 * TIMEOUT, "kube-scheduler has not looked at each pod");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The verdict of each case; `None` for a pod that kube-scheduler has not tried yet.
    async fn look(&self, pods: &Api<Pod>, cases: &[Case]) -> anyhow::Result<Vec<Option<Verdict>>> {
        let listed = pods.list(&ListParams::default().labels(keys::SLICED)).await?.items;
        let mut verdicts = vec![None; cases.len()];
        for pod in listed {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let number: usize = name.trim_start_matches("pod-").parse()?;
            let case = cases.get(number).context("a pod of no case")?;
            let given = given(&pod)?;
            verdicts[number] = (given.is_some() || is_unschedulable(&pod)).then(|| case.judge(given));
        }
        Ok(verdicts)
    }

    /// kube-scheduler's messages about pods for which it found no node, at least once.
    async fn refusals(&self) -> anyhow::Result<BTreeMap<usize, String>> {
        let failed = ListParams::default().fields("reason=FailedScheduling");
        let events = Api::<Event>::default_namespaced(self.cluster.plane().client());
        let said = events.list(&failed).await?.items.into_iter().filter_map(|event| {
            let number = event.involved_object.name?.strip_prefix("pod-")?.parse().ok()?;
            Some((number, event.message.unwrap_or_default()))
        });
        Ok(said.collect())
    }

    /// Ends the agents before the cluster, because they are connected to its extender.
    pub async fn stop(self) -> anyhow::Result<()> {
        drop(self.agents);
        self.cluster.stop().await
    }
}

fn node_name(number: usize, place: usize) -> String {
    format!("case-{number}-{place}")
}

async fn make(client: &Client, number: usize, case: &Case) -> anyhow::Result<()> {
    for (place, node) in case.nodes.iter().enumerate() {
        let mut object = NodeObject::new(&node_name(number, place));
        object.cpu = node.cpu.to_string();
        object.labels =
            [(CASE.to_owned(), number.to_string()), (ZONE.to_owned(), node.zone.to_owned())].into();
        object.taints = taint(node).into_iter().collect();
        object.create(client, node.status()?).await?;
        if node.has_neighbour {
            let neighbour = json!({
                "metadata": {"name": format!("neighbour-{number}-{place}"), "labels": {NEIGHBOUR: number.to_string()}},
                "spec": {"nodeName": object.name, "containers": [{"name": "main", "image": "none"}]},
            });
            let pods = Api::<Pod>::default_namespaced(client.clone());
            pods.create(&PostParams::default(), &serde_json::from_value(neighbour)?).await?;
        }
    }
    match case.pod.zone {
        Some(zone) => bound_in_zone(client, &format!("volume-{number}"), zone).await,
        None => Ok(()),
    }
}

fn taint(node: &CaseNode) -> Option<Taint> {
    let (key, effect) = (TEAM.to_owned(), "NoSchedule".to_owned());
    node.tainted.then_some(Taint { key, effect, value: None, time_added: None })
}

/// The pod with what the webhook would write.
fn pod(number: usize, case: &Case) -> anyhow::Result<Pod> {
    let asked = &case.pod;
    let limits = json!({"cpu": asked.cpu.to_string(), asked.name().to_string(): "1"});
    let mut spec = json!({
        "schedulerName": "kerf-scheduler",
        "nodeSelector": {CASE: number.to_string()},
        "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
    });
    if asked.tolerates {
        spec["tolerations"] = json!([{"key": TEAM, "operator": "Exists"}]);
    }
    if asked.zone.is_some() {
        let claim = json!({"claimName": format!("volume-{number}")});
        spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": claim}]);
    }
    if asked.apart {
        spec["affinity"] = apart(number);
    }
    let pod = json!({
        "metadata": {
            "name": format!("pod-{number}"),
            "labels": {keys::SLICED: "true"},
            "annotations": {keys::REQUEST: asked.request().to_json()},
        },
        "spec": spec,
    });
    Ok(serde_json::from_value(pod)?)
}

fn apart(number: usize) -> Value {
    let selector = json!({"matchLabels": {NEIGHBOUR: number.to_string()}});
    let term = json!({"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"});
    json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
}

/// The index of the pod's node in its case, and the kind of its slice.
fn given(pod: &Pod) -> anyhow::Result<Option<(usize, Kind)>> {
    let Some(node) = node_of(pod) else { return Ok(None) };
    let place = node.rsplit('-').next().context("the node has no number")?.parse()?;
    Ok(Some((place, kind_of(pod)?)))
}
