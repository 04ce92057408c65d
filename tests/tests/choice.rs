//! The kind of a pod's slice is chosen when the pod is placed: by what the nodes have that kube-scheduler offers, and
//! while the pod is pending by what becomes free.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Event, Pod, ResourceQuota, Taint};
use kerf_core::contract::{PassedKind, SliceState, SliceStatus};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_nvml_mock::Model;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, resource_of, root, sized_pod, wait};
use kerf_tests::oracle::Truth;
use kerf_tests::pods::{assignment_of, kind_of};
use kerf_tests::volumes::{ZONE, bound_in_zone};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
/// An A100 that belongs to one team alone.
const A100: &str = "a100";
const T4: &str = "t4";
const H100: &str = "h100";
const TEAM: &str = "team";
const NEUTRAL: &str = "kerf.dev/gpu-8gb";
/// A pod gets the Event about another kind after five minutes; pending pods are checked every ten seconds.
const EVENT_TIMEOUT: Duration = Duration::from_secs(330);

fn asks(name: &str, memory: &str) -> Pod {
    sized_pod(name, memory, "memory")
}

/// The pod with these additional fields.
fn merged(pod: &Pod, fields: &Value) -> anyhow::Result<Pod> {
    let mut document = serde_json::to_value(pod)?;
    json_patch::merge(&mut document, fields);
    Ok(serde_json::from_value(document)?)
}

/// The pod with one container that requests this much CPU.
fn with_cpu(pod: &Pod, cpu: &str) -> anyhow::Result<Pod> {
    let main = json!({"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}});
    merged(pod, &json!({"spec": {"containers": [main]}}))
}

fn kept_for_the_team() -> NodeSpec {
    let mut node = NodeSpec::new(A100, Model::A100Gb40, 1);
    let (key, value, effect) = (TEAM.to_owned(), Some("ml".to_owned()), "NoSchedule".to_owned());
    node.taints.push(Taint { key, value, effect, time_added: None });
    node
}

/// MIG was passed over: the T4 never has it, and this many nodes with it were not offered, one of them for its taint.
fn mig_passed(excluded: u32) -> Vec<PassedKind> {
    vec![PassedKind { kind: Kind::Mig, full: 0, never: 1, excluded, tainted: 1 }]
}

struct Scene {
    cluster: Cluster,
    _policies: tempfile::TempDir,
}

impl Scene {
    /// A cluster whose only node belongs to the team.
    async fn start() -> anyhow::Result<Self> {
        let policies = tempfile::tempdir()?;
        std::fs::copy(root().join("policies/default.yaml"), policies.path().join("90-default.yaml"))?;
        let mut options = ClusterOptions::without_controller_manager(vec![kept_for_the_team()]);
        options.policy = Some(policies.path().to_owned());
        Ok(Self { cluster: Cluster::start(options, |_| ()).await?, _policies: policies })
    }

    /// Creates the pod, waits until it runs, and returns its node and the kind of its slice.
    async fn run(&self, pod: &Pod) -> anyhow::Result<(Pod, String, Kind)> {
        self.cluster.create(pod).await?;
        self.placed(pod.metadata.name.as_deref().unwrap_or_default()).await
    }

    async fn placed(&self, name: &str) -> anyhow::Result<(Pod, String, Kind)> {
        let running = self.cluster.running(name).await?;
        let node = running.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let kind = kind_of(&running)?;
        Ok((running, node, kind))
    }

    /// The same for a pod that gets an MPS share of the T4 in its first scheduling cycle, although MIG is preferred.
    async fn shares_the_t4_at_once(&self, pod: &Pod, passed: &[PassedKind]) -> anyhow::Result<()> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let (pod, node, kind) = self.run(pod).await?;
        ensure!((node.as_str(), kind) == (T4, Kind::Mps), "{name} is on {node} by {kind}");
        ensure!(assignment_of(&pod)?.passed == passed, "{name}: {:?}", assignment_of(&pod)?.passed);
        let failed = self.events(&name, "FailedScheduling").await?;
        ensure!(failed.is_empty(), "{name} waited: {failed:?}");
        Ok(())
    }

    /// Deletes the pod and waits until its slices are free in its agent's status. The status is written with a delay,
    /// so first the pod must appear in it.
    async fn leaves(&self, name: &str) -> anyhow::Result<()> {
        let holds = |slice: &SliceStatus| slice.holder.as_ref().is_some_and(|holder| holder.pod == name);
        if assignment_of(&self.cluster.pods().get(name).await?).is_ok() {
            let reported = async || Ok(self.slices().await?.iter().any(holds));
            wait(TIMEOUT, &format!("the slices of {name} to be held"), reported).await?;
        }
        self.cluster.delete(name).await?;
        let is_left = |slice: &SliceStatus| match &slice.reservation {
            Some(reservation) => reservation.pod != name,
            None => slice.state == SliceState::Idle,
        };
        let free = async || {
            let is_free = self.slices().await?.iter().all(is_left);
            Ok(is_free && Truth::observe(&self.cluster).await?.is_settled())
        };
        wait(TIMEOUT, &format!("the slices of {name} to be free"), free).await
    }

    /// All slices in their agents' statuses.
    async fn slices(&self) -> anyhow::Result<Vec<SliceStatus>> {
        let nodes = Api::<GpuNode>::all(self.cluster.plane().client()).list(&ListParams::default()).await?;
        let mut slices = Vec::new();
        for node in &nodes.items {
            slices.extend(node.read_status()?.context("no status")?.slices);
        }
        Ok(slices)
    }

    /// The pod is pending, with a reason.
    async fn waits(&self, pod: &Pod) -> anyhow::Result<()> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let created = self.cluster.create(pod).await?;
        ensure!(
            resource_of(&created)?.starts_with(keys::SIZE_PREFIX),
            "{name} has {}",
            resource_of(&created)?
        );
        self.reported(name, "FailedScheduling").await?;
        ensure!(self.cluster.phase(name).await? == "Pending", "{name} runs");
        Ok(())
    }

    async fn events(&self, pod: &str, reason: &str) -> anyhow::Result<Vec<String>> {
        let about = ListParams::default().fields(&format!("involvedObject.name={pod},reason={reason}"));
        let events = Api::<Event>::default_namespaced(self.cluster.plane().client()).list(&about).await?;
        Ok(events.items.into_iter().filter_map(|event| event.message).collect())
    }

    /// Waits for the pod's Event with this reason, and returns its message.
    async fn reported(&self, pod: &str, reason: &str) -> anyhow::Result<String> {
        self.event_within(TIMEOUT, pod, reason).await
    }

    async fn event_within(&self, timeout: Duration, pod: &str, reason: &str) -> anyhow::Result<String> {
        let reported = async || Ok(!self.events(pod, reason).await?.is_empty());
        wait(timeout, &format!("an Event {reason} on {pod}"), reported).await?;
        self.events(pod, reason).await?.pop().context("the Event is gone")
    }

    /// Waits until the webhook gives a pod of 8 GiB this name.
    async fn is_named(&self, name: &str) -> anyhow::Result<()> {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let given = async || {
            let given = resource_of(&self.cluster.pods().create(&dry_run, &asks("probe", "8Gi")).await?)?;
            ensure!(given == name, "they are given {given}");
            Ok(true)
        };
        wait(TIMEOUT, &format!("pods of 8 GiB to be given {name}"), given).await
    }

    /// If only one name is possible the pod gets it, even if a node with another kind joins later.
    async fn one_name_alone_is_concrete(&mut self) -> anyhow::Result<()> {
        self.is_named("nvidia.com/mig-1g.10gb").await?;
        self.cluster.create(&asks("early", "8Gi")).await?;
        self.reported("early", "FailedScheduling").await?;
        ensure!(self.events("early", "AnotherKindHasRoom").await?.is_empty(), "nothing else has any");
        self.cluster.add_node(NodeSpec::new(T4, Model::T4, 1).with_label(ZONE, "b")).await
    }

    async fn a_tainted_kind_is_passed_over_at_once(&self) -> anyhow::Result<()> {
        self.is_named(NEUTRAL).await?;
        self.shares_the_t4_at_once(&asks("other", "8Gi"), &mig_passed(1)).await?;
        let message = self.reported("other", "SlicesAssigned").await?;
        ensure!(message.contains("MPS share"), "{message}");
        ensure!(
            message.contains("mig was preferred: ") && message.contains("excluded by taints"),
            "{message}"
        );
        let tolerates = json!({"spec": {"tolerations": [{"key": TEAM, "operator": "Exists"}]}});
        let (pod, node, kind) = self.run(&merged(&asks("theirs", "8Gi"), &tolerates)?).await?;
        ensure!((node.as_str(), kind) == (A100, Kind::Mig), "theirs is on {node} by {kind}");
        ensure!(assignment_of(&pod)?.passed.is_empty(), "nothing is better");
        Truth::ensure_sound(&self.cluster).await
    }

    async fn a_node_that_joins_is_taken(&mut self) -> anyhow::Result<()> {
        let later = merged(&asks("later", "8Gi"), &json!({"metadata": {"labels": {"app": "first"}}}))?;
        self.waits(&later).await?;
        self.cluster.add_node(NodeSpec::new(H100, Model::H100, 1).with_label(ZONE, "a")).await?;
        let (_, node, kind) = self.placed("later").await?;
        ensure!((node.as_str(), kind) == (H100, Kind::Mig), "later is on {node} by {kind}");
        Ok(())
    }

    /// CPU, a volume of another zone, and another pod each keep the pod from the nodes that have MIG.
    async fn nodes_that_the_scheduler_excludes_are_skipped_at_once(&self) -> anyhow::Result<()> {
        let excluded = mig_passed(2);
        let busy = merged(&with_cpu(&pod("busy", &[]), "127")?, &json!({"spec": {"nodeName": H100}}))?;
        self.cluster.create(&busy).await?;
        self.cluster.running("busy").await?;
        self.shares_the_t4_at_once(&with_cpu(&asks("cpu", "4Gi"), "2")?, &excluded).await?;
        self.leaves("cpu").await?;
        self.leaves("busy").await?;

        bound_in_zone(&self.cluster.plane().client(), "data", "b").await?;
        let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        // A pod of root with a volume cannot have a user namespace, and so no MPS share.
        let main =
            json!({"name": "main", "image": "none", "securityContext": {"allowPrivilegeEscalation": false}});
        let spec = json!({"volumes": volume, "securityContext": {"runAsUser": 1000}, "containers": [main]});
        let mounts = merged(&asks("volume", "4Gi"), &json!({"spec": spec}))?;
        self.shares_the_t4_at_once(&mounts, &excluded).await?;
        self.leaves("volume").await?;

        let term = json!({"labelSelector": {"matchLabels": {"app": "first"}}, "topologyKey": "kubernetes.io/hostname"});
        let apart = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        let apart = json!({"spec": {"affinity": {"podAntiAffinity": apart}}});
        self.shares_the_t4_at_once(&merged(&asks("apart", "4Gi"), &apart)?, &excluded).await?;
        self.leaves("apart").await?;
        Truth::ensure_sound(&self.cluster).await
    }

    async fn a_pending_pod_takes_free_capacity_first(&self) -> anyhow::Result<()> {
        let filler = [(keys::GPU_MEMORY, "10Gi"), (keys::ISOLATION, "hardware"), (keys::GPU_COUNT, "6")];
        self.run(&pod("filler", &filler)).await?;
        for name in ["one", "two"] {
            self.waits(&asks(name, "8Gi")).await?;
        }
        self.cluster.delete("other").await?;
        let runs = async |name: &str| Ok::<_, anyhow::Error>(self.cluster.phase(name).await? == "Running");
        wait(TIMEOUT, "one of two to run", async || Ok(runs("one").await? || runs("two").await?)).await?;
        let (first, second) = if runs("one").await? { ("one", "two") } else { ("two", "one") };
        let (_, node, kind) = self.placed(first).await?;
        ensure!((node.as_str(), kind) == (T4, Kind::Mps), "{first} is on {node} by {kind}");
        self.cluster.delete("filler").await?;
        let (_, node, kind) = self.placed(second).await?;
        ensure!((node.as_str(), kind) == (H100, Kind::Mig), "{second} is on {node} by {kind}");
        Truth::ensure_sound(&self.cluster).await?;
        self.leaves(first).await?;
        self.leaves(second).await
    }

    async fn a_node_that_opens_is_taken(&self) -> anyhow::Result<()> {
        self.cluster.cordon(H100, true).await?;
        let (_, node, kind) = self.run(&asks("fills", "8Gi")).await?;
        ensure!((node.as_str(), kind) == (T4, Kind::Mps), "fills is on {node} by {kind}");
        self.waits(&asks("opens", "8Gi")).await?;
        self.cluster.cordon(H100, false).await?;
        let (_, node, kind) = self.placed("opens").await?;
        ensure!((node.as_str(), kind) == (H100, Kind::Mig), "opens is on {node} by {kind}");
        Truth::ensure_sound(&self.cluster).await
    }

    /// Waits until the T4's node policy allows this kind only, and its agent has applied that.
    async fn t4_allows(&self, kind: Kind) -> anyhow::Result<()> {
        let patch = json!([{"op": "add", "path": "/spec/policy", "value": {"gpus": [{"kinds": [kind]}]}}]);
        let patch = ["patch", "gpunode", T4, "--type=json", "--patch", &patch.to_string()];
        self.cluster.plane().kubectl(&patch).await?;
        let taken_up = async || {
            let status = self.cluster.gpu_node(T4).await?.read_status()?.context("no status")?;
            Ok(status.gpus.iter().all(|gpu| gpu.kinds == [kind]))
        };
        wait(TIMEOUT, &format!("the agent of {T4} to serve {kind} alone"), taken_up).await
    }

    /// The pod was admitted when no node had a kind for it. Its neutral name lets it take one that comes later.
    async fn a_kind_that_a_policy_allows_later_is_taken(&self) -> anyhow::Result<()> {
        self.cluster.cordon(H100, true).await?;
        self.t4_allows(Kind::TimeSlicing).await?;
        self.waits(&asks("allowed", "4Gi")).await?;
        self.t4_allows(Kind::Mps).await?;
        let (_, node, kind) = self.placed("allowed").await?;
        ensure!((node.as_str(), kind) == (T4, Kind::Mps), "allowed is on {node} by {kind}");
        Truth::ensure_sound(&self.cluster).await?;
        self.leaves("allowed").await?;
        self.cluster.cordon(H100, false).await
    }

    /// A `ResourceQuota` on a neutral name, with the status that its controller would write.
    async fn a_resource_quota_counts_a_neutral_name(&self) -> anyhow::Result<()> {
        let name = format!("requests.{}", NEUTRAL.replace("8gb", "4gb"));
        let quota = json!({"metadata": {"name": "gpus"}, "spec": {"hard": {&name: "1"}}});
        let quotas = Api::<ResourceQuota>::default_namespaced(self.cluster.plane().client());
        quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
        let read = Patch::Merge(json!({"status": {"hard": {&name: "1"}, "used": {&name: "0"}}}));
        quotas.patch_status("gpus", &PatchParams::default(), &read).await?;
        self.run(&asks("within", "4Gi")).await?;
        let refused = self.cluster.refusal(&asks("beyond", "4Gi")).await?;
        ensure!(refused.contains("exceeded quota: gpus") && refused.contains(&name), "{refused}");
        self.run(&asks("of-another-size", "8Gi")).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kind_is_chosen_on_the_pods_node() -> anyhow::Result<()> {
    let mut scene = Scene::start().await?;
    scene.one_name_alone_is_concrete().await?;
    scene.cluster.delete("early").await?;
    scene.a_tainted_kind_is_passed_over_at_once().await?;
    scene.a_node_that_joins_is_taken().await?;
    scene.nodes_that_the_scheduler_excludes_are_skipped_at_once().await?;
    scene.a_pending_pod_takes_free_capacity_first().await?;
    scene.a_kind_that_a_policy_allows_later_is_taken().await?;
    scene.a_node_that_opens_is_taken().await?;
    scene.a_resource_quota_counts_a_neutral_name().await?;
    scene.cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits for more than five minutes"]
async fn a_pod_with_a_concrete_name_gets_an_event_about_another_kind() -> anyhow::Result<()> {
    let mut scene = Scene::start().await?;
    scene.one_name_alone_is_concrete().await?;
    let message = scene.event_within(EVENT_TIMEOUT, "early", "AnotherKindHasRoom").await?;
    ensure!(message.contains("by mps") && message.contains("create the pod anew"), "{message}");
    ensure!(scene.cluster.phase("early").await? == "Pending", "kerf does not delete the pod");
    scene.cluster.stop().await
}
