//! The extender as a process between a real API server and a real kube-scheduler. The test plays the webhook (pods come
//! with their request document) and the agents (every slice is ready as soon as it is reserved).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_core::testing::{node_status, request};
use kerf_tests::binaries;
use kerf_tests::cluster::{start_scheduler, unguarded, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions, ports};
use kerf_tests::gpu_nodes::{Manner, NodeObject, SimulatedAgents};
use kerf_tests::percentile;
use kerf_tests::pods::admitted;
use kerf_tests::process::Child;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};
use tokio::sync::watch;

const TIMEOUT: Duration = Duration::from_secs(30);
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const WHOLE: &str = "nvidia.com/mig-7g.80gb";
const NAMESPACE: &str = "kerf-system";

/// For each pod, its node and when the node's name was first seen.
type Bound = watch::Receiver<BTreeMap<String, (String, Instant)>>;

struct Scene {
    plane: ControlPlane,
    extender: Child,
    address: String,
    pods: Api<Pod>,
    bound: Bound,
    agents: SimulatedAgents,
    agents_address: String,
}

impl Scene {
    async fn start(nodes: usize, gpus: &[&str]) -> anyhow::Result<Self> {
        let mut options = ControlPlaneOptions::without_controller_manager();
        options.priority_and_fairness = false;
        let mut plane = unguarded(options).await?;
        for n in 0..nodes {
            let node = NodeObject::new(&format!("node-{n:02}"));
            node.create(&plane.client(), node_status(gpus)).await?;
        }
        let [port] = ports::free()?;
        let agents_address = format!("127.0.0.1:{port}");
        let extenders = vec![agents_address.clone()];
        let agents = SimulatedAgents::start(&plane.client(), extenders, Manner::default());
        let (extender, address) = spawn(&plane, "127.0.0.1:0", &agents_address).await?;
        // An agent that has received a leader's epoch is connected to it.
        let are_connected = async || {
            Ok((0..nodes).all(|n| agents.epoch(&format!("node-{n:02}")).is_ok_and(|epoch| epoch > 0)))
        };
        wait(TIMEOUT, "the agents to be connected", are_connected).await?;
        start_scheduler(&mut plane, "kerf-scheduler", &address).await?;
        let pods = Api::default_namespaced(plane.client());
        let bound = watch_bound(pods.clone());
        Ok(Self { plane, extender, address, pods, bound, agents, agents_address })
    }

    async fn create(&self, name: &str, resource: &str) -> anyhow::Result<()> {
        self.create_with(name, resource, &json!({})).await
    }

    /// Creates a pod whose spec has these additional fields.
    async fn create_with(&self, name: &str, resource: &str, spec: &Value) -> anyhow::Result<()> {
        let mut pod = admitted(name, "kerf-scheduler", resource, &request(resource, 1));
        json_patch::merge(&mut pod["spec"], spec);
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// The node that a pod is bound to, and when that was seen.
    async fn bound(&self, name: &str) -> anyhow::Result<(String, Instant)> {
        let mut bound = self.bound.clone();
        let seen = tokio::time::timeout(TIMEOUT, bound.wait_for(|bound| bound.contains_key(name))).await;
        let seen = seen.with_context(|| format!("{name} is not bound\n{}", self.extender.log_tail()))??;
        Ok(seen[name].clone())
    }

    /// The time from the pod's creation to its Binding.
    async fn walk(&self, name: &str, resource: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.create(name, resource).await?;
        Ok(self.bound(name).await?.1 - began)
    }

    /// Deletes a pod at once, because no kubelet runs here.
    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Waits until none of a node's slices is reserved. Returns their number.
    async fn until_idle(&self, node: &str) -> anyhow::Result<usize> {
        wait(TIMEOUT, "all slices to be idle", async || Ok(self.agents.reserved(node)?.is_empty()))
            .await
            .with_context(|| self.extender.log_tail())?;
        Ok(self.agents.status(node)?.slices.len())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.extender.terminate(Duration::from_secs(5))?;
        self.plane.stop().await
    }
}

fn watch_bound(pods: Api<Pod>) -> Bound {
    let (sender, receiver) = watch::channel(BTreeMap::new());
    tokio::spawn(async move {
        let mut pods =
            Box::pin(watcher(pods, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(event) = pods.next().await {
            let Ok(pod) = event else { continue };
            let node = pod.spec.and_then(|spec| spec.node_name);
            if let (Some(name), Some(node)) = (pod.metadata.name, node) {
                sender.send_modify(|bound| {
                    bound.entry(name).or_insert((node, Instant::now()));
                });
            }
        }
    });
    receiver
}

/// Starts the extender, and returns the address that it serves on.
async fn spawn(plane: &ControlPlane, address: &str, agents: &str) -> anyhow::Result<(Child, String)> {
    let kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "kerf-extender").await?;
    let file: PathBuf = plane.dir().join("extender.address");
    let _absent = std::fs::remove_file(&file);
    let child = plane
        .program("kerf-extender", binaries::ours("kerf-extender")?)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--admin-address", "127.0.0.1:0", "--tls-name", "127.0.0.1", "--identity", "extender"])
        .args(["--lease-duration", "3s"])
        .args(["--log", "info,kerf_extender=debug", "--address", address, "--address-file"])
        .arg(&file)
        .args(["--agents-unauthenticated", "--agents-address", agents])
        .spawn()?;
    let listening = wait(TIMEOUT, "the extender to listen", async || Ok(file.exists())).await;
    listening.with_context(|| child.log_tail())?;
    Ok((child, std::fs::read_to_string(file)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_bound_to_new_and_to_idle_slices() -> anyhow::Result<()> {
    let scene = Scene::start(1, &["H100-80GB"; 2]).await?;
    scene.walk("warm-up", SMALL).await?;
    scene.delete("warm-up").await?;
    scene.until_idle("node-00").await?;
    let mut times = [Vec::new(), Vec::new()];
    for (round, times) in times.iter_mut().enumerate() {
        for n in 0..13 {
            times.push(scene.walk(&format!("pod-{round}-{n}"), SMALL).await?);
        }
        for n in 0..13 {
            scene.delete(&format!("pod-{round}-{n}")).await?;
        }
        let idle = scene.until_idle("node-00").await?;
        ensure!(idle >= 13, "slices stay as idle capacity");
    }
    for times in &mut times {
        times.sort();
    }
    let [new, idle] = times.map(|times| percentile(&times, 50).unwrap_or_default());
    println!("created to bound: new slice p50 {new:?}, idle slice p50 {idle:?}");

    scene.walk("whole", WHOLE).await?;
    let pod = scene.pods.get("whole").await?;
    let assignment = &pod.metadata.annotations.unwrap_or_default()[keys::ASSIGNMENT];
    ensure!(assignment.contains("7g.80gb"), "{assignment}");
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preference_decides_between_nodes_of_equal_cost() -> anyhow::Result<()> {
    let scene = Scene::start(6, &["H100-80GB"]).await?;
    scene.plane.kubectl(&["label", "node", "node-04", "disk=fast"]).await?;
    let fast = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]});
    let terms = json!([{"weight": 100, "preference": fast}]);
    let prefers =
        json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}});
    scene.create("any", WHOLE).await?;
    ensure!(scene.bound("any").await?.0 == "node-00", "it goes where it is expected");
    scene.create_with("prefers", WHOLE, &prefers).await?;
    let node = scene.bound("prefers").await?.0;
    ensure!(node == "node-04", "it is on {node}");
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unschedulable_pod_has_a_reason_and_is_bound_once_capacity_is_free() -> anyhow::Result<()> {
    let scene = Scene::start(1, &["H100-80GB"]).await?;
    scene.walk("first", WHOLE).await?;
    scene.create("second", WHOLE).await?;
    wait(TIMEOUT, "the reason", async || {
        let status = scene.pods.get("second").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        Ok(conditions.iter().any(|c| c.message.as_deref().is_some_and(|m| m.contains("GPU slices in use"))))
    })
    .await?;
    scene.delete("first").await?;
    scene.bound("second").await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_keeps_reservations_and_releases_those_of_ended_pods() -> anyhow::Result<()> {
    let mut scene = Scene::start(1, &["H100-80GB"]).await?;
    scene.walk("stays", SMALL).await?;
    scene.walk("goes", SMALL).await?;
    let before = scene.agents.epoch("node-00")?;
    scene.extender.kill()?;
    scene.delete("goes").await?;
    scene.create("comes", SMALL).await?;
    scene.extender = spawn(&scene.plane, &scene.address, &scene.agents_address).await?.0;
    scene.bound("comes").await?;
    wait(TIMEOUT, "the slice to be given back", async || {
        let mut pods = scene.agents.reserved("node-00")?;
        pods.sort();
        Ok(pods == ["comes", "stays"])
    })
    .await
    .with_context(|| scene.extender.log_tail())?;
    let after = scene.agents.epoch("node-00")?;
    ensure!(after > before, "{after} is no newer epoch than {before}");
    let lease = Api::<Lease>::namespaced(scene.plane.client(), NAMESPACE).get("kerf-extender").await?;
    ensure!(lease.spec.is_some_and(|spec| spec.lease_transitions == Some(1)));
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_its_lease_does_not_answer_until_it_leads_again() -> anyhow::Result<()> {
    let scene = Scene::start(1, &["H100-80GB"]).await?;
    scene.walk("before", SMALL).await?;
    let leases = Api::<Lease>::namespaced(scene.plane.client(), NAMESPACE);
    let thief = json!({"spec": {"holderIdentity": "thief", "leaseTransitions": 7}});
    leases.patch("kerf-extender", &PatchParams::default(), &Patch::Merge(thief)).await?;
    wait(TIMEOUT, "the old leader to notice", async || {
        Ok(scene.extender.log_tail().contains("the lease was taken by another"))
    })
    .await?;
    scene.create("during", SMALL).await?;
    scene.bound("during").await?;
    let epoch = scene.agents.epoch("node-00")?;
    ensure!(epoch == 9, "the thief's epoch was 8, and then {epoch}");
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_bound_without_two_pods_on_one_slice() -> anyhow::Result<()> {
    let scene = Scene::start(25, &["H100-80GB"; 8]).await?;
    scene.walk("warm-up", SMALL).await?;
    let began = Instant::now();
    let creating = (0..200).map(|n| {
        let scene = &scene;
        async move {
            let resource = [SMALL, "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"][n % 3];
            let name = format!("pod-{n:03}");
            let began = Instant::now();
            scene.create(&name, resource).await?;
            anyhow::Ok((name, began))
        }
    });
    let created = futures::stream::iter(creating).buffer_unordered(16).collect::<Vec<_>>().await;
    let mut times = Vec::new();
    let mut last = began;
    for created in created {
        let (name, began) = created?;
        let (_, at) = scene.bound(&name).await?;
        times.push(at - began);
        last = last.max(at);
    }
    let rate = 200.0 / (last - began).as_secs_f64();
    times.sort();
    let [half, most] = [50, 99].map(|percent| percentile(&times, percent).unwrap_or_default());
    println!("burst of 200: {rate:.0} a second, p50 {half:?}, p99 {most:?}");
    let mut reserved_pods = BTreeSet::new();
    for n in 0..25 {
        let node = format!("node-{n:02}");
        let reserved = scene.agents.reserved(&node)?;
        ensure!(reserved.len() == scene.agents.status(&node)?.slices.len(), "a slice of {node} is idle");
        for pod in reserved {
            ensure!(reserved_pods.insert(pod.clone()), "{pod} has two slices");
        }
    }
    ensure!(reserved_pods.len() == 201, "{} pods have slices", reserved_pods.len());
    scene.stop().await
}
