//! Two replicas of the extender. When the leader is gone, or comes back too late, the other leads, the Service selects
//! it alone, pods are bound, and no slice is given to two pods.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Service};
use kerf_core::keys;
use kerf_core::testing::{node_status, request};
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{
    BareCluster, BareOptions, NAMESPACE, NodeSpec, sized_pod, unguarded, wait, write_tls,
};
use kerf_tests::control_plane::ControlPlaneOptions;
use kerf_tests::gpu_nodes::{Manner, NodeObject};
use kerf_tests::kubelet::PodKey;
use kerf_tests::leaders::{Blow, Leaders, Rounds, SchedulerClient};
use kerf_tests::oracle::Truth;
use kerf_tests::pods::admitted;
use kerf_tests::services::may_serve;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use rustix::process::Signal;

const TIMEOUT: Duration = Duration::from_mins(2);
const EXTENDER: &str = "kerf-extender";
/// The nodes that the extender's replicas and kerf's other pods run on.
const HOSTS: [&str; 2] = ["cpu-a", "cpu-b"];

struct Scene {
    cluster: BareCluster,
}

impl Scene {
    async fn start() -> anyhow::Result<Self> {
        let mut nodes = vec![NodeSpec::new("h100", Model::H100, 2).left_to_kerf()];
        nodes.extend(HOSTS.map(NodeSpec::without_gpus));
        let cluster = BareCluster::start(BareOptions::new(nodes)).await?;
        cluster.install().await?;
        Ok(Self { cluster })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.plane().client(), NAMESPACE)
    }

    /// The holder of the Lease.
    async fn leader(&self) -> anyhow::Result<String> {
        let leases = Api::<Lease>::namespaced(self.cluster.plane().client(), NAMESPACE);
        let spec = leases.get(EXTENDER).await?.spec.context("the Lease is empty")?;
        Ok(spec.holder_identity.unwrap_or_default())
    }

    /// The pods that the extender's Service leads to.
    async fn served_by(&self) -> anyhow::Result<Vec<String>> {
        let services = Api::<Service>::namespaced(self.cluster.plane().client(), NAMESPACE);
        let selector = services.get(EXTENDER).await?.spec.and_then(|spec| spec.selector).unwrap_or_default();
        let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        self.names(&labels.join(","), true).await
    }

    async fn names(&self, labels: &str, ready: bool) -> anyhow::Result<Vec<String>> {
        let listed = self.pods().list(&ListParams::default().labels(labels)).await?;
        let pods = listed.items.into_iter().filter(|pod| !ready || may_serve(pod));
        Ok(pods.filter_map(|pod| pod.metadata.name).collect())
    }

    /// Waits until two replicas are ready and a replica other than `before` leads. The Service must select the leader,
    /// and only it may have the label.
    async fn settled_without(&self, before: &str) -> anyhow::Result<String> {
        let replicas = format!("app.kubernetes.io/name={EXTENDER}");
        let mut last = String::new();
        let settled = async || {
            let leader = self.leader().await?;
            let labelled = self.names(&format!("{}={}", keys::ROLE, keys::LEADER), false).await?;
            let (served_by, ready) = (self.served_by().await?, self.names(&replicas, true).await?);
            last = format!(
                "{leader} leads; label at {labelled:?}; Service leads to {served_by:?}; ready: {ready:?}"
            );
            let alone = [leader.clone()];
            Ok(leader != before && labelled == alone && served_by == alone && ready.len() == 2)
        };
        wait(TIMEOUT, "one leader, and the Service at it", settled).await.context(last)?;
        self.leader().await
    }

    fn signal(&self, replica: &str, signal: Signal) -> anyhow::Result<()> {
        let pod = PodKey::new(NAMESPACE, replica);
        let sent = HOSTS.iter().any(|host| {
            self.cluster.node(host).is_ok_and(|node| node.kubelet().signal(&pod, "extender", signal))
        });
        ensure!(sent, "{replica} runs nowhere");
        Ok(())
    }

    async fn create(&self, name: &str) -> anyhow::Result<()> {
        let asking = sized_pod(name, "10Gi", "hardware");
        self.cluster.pods().create(&asking).await.map(drop)
    }

    /// Waits until the pod runs, and checks that every pod has a slice of its own.
    async fn runs(&self, name: &str, since: Instant) -> anyhow::Result<()> {
        self.cluster.pods().running(name).await?;
        println!("{name}: ran after {:.1} s", since.elapsed().as_secs_f64());
        let truth = Truth::of_nodes(self.cluster.plane().client(), vec![self.cluster.node("h100")?]).await?;
        truth.ensure_no_violations()?;
        Ok(())
    }

    /// Creates a pod, which must run.
    async fn serves(&self, name: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        self.create(name).await?;
        self.runs(name, began).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_selects_only_the_leader() -> anyhow::Result<()> {
    let scene = Scene::start().await?;
    let first = scene.settled_without("").await?;
    scene.serves("first").await?;

    // The leader dies with its machine: it does not release the Lease, and its pod is gone.
    let began = Instant::now();
    scene.signal(&first, Signal::STOP)?;
    scene.pods().delete(&first, &DeleteParams::default().grace_period(0)).await?;
    scene.create("after-death").await?;
    scene.runs("after-death", began).await?;
    let second = scene.settled_without(&first).await?;

    // The leader is cut off for longer than its Lease, with the scheduler's connection to it, and comes back.
    let began = Instant::now();
    scene.signal(&second, Signal::STOP)?;
    scene.create("cut-off").await?;
    scene.runs("cut-off", began).await?;
    scene.signal(&second, Signal::CONT)?;
    let third = scene.settled_without(&second).await?;
    scene.serves("after-return").await?;

    let began = Instant::now();
    scene.signal(&third, Signal::KILL)?;
    scene.create("after-crash").await?;
    scene.runs("after-crash", began).await?;
    let fourth = scene.settled_without("").await?;

    // A rollout: each leader releases the Lease, so that no successor waits for its expiry.
    scene.cluster.plane().kubectl(&["rollout", "restart", "-n", NAMESPACE, "deployment", EXTENDER]).await?;
    scene.serves("during-rollout").await?;
    scene
        .cluster
        .plane()
        .kubectl(&["rollout", "status", "-n", NAMESPACE, "deployment", EXTENDER, "--timeout=2m"])
        .await?;
    scene.settled_without(&fourth).await?;
    scene.serves("after-rollout").await?;
    scene.cluster.stop().await
}

/// Agents have streams to both replicas. The new leader has all that the former one had, so it lists nothing, and
/// answers at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_over_without_listing() -> anyhow::Result<()> {
    const NODES: usize = 20;
    let plane = unguarded(ControlPlaneOptions::without_controller_manager()).await?;
    let names: Vec<String> = (0..NODES).map(|n| format!("node-{n:02}")).collect();
    for name in &names {
        NodeObject::new(name).create(&plane.client(), node_status(&["H100-80GB"])).await?;
    }
    let mut leaders = Leaders::start(&plane, &[]).await?;
    let _agents = leaders.simulate_agents(&plane, Manner::default());
    let tls = write_tls(&plane).await?;
    let offered: Vec<&str> = names.iter().map(String::as_str).collect();
    let pods = Api::<Pod>::default_namespaced(plane.client());
    let mut took = Vec::new();
    let mut from = [0; 2];
    for round in 0..3 {
        for (replica, from) in leaders.replicas.iter().zip(from) {
            replica.logs_times("agent connected", NODES, from).await?;
        }
        let before = leaders.leads_but(None).await?;
        let pod = small_pod(&pods, &format!("before-{round}")).await?;
        let scheduler = SchedulerClient::new(leaders.replicas[before].address(), &tls).await?;
        let fits = async || Ok(scheduler.filter(&pod, &offered).await.is_ok_and(|fits| !fits.is_empty()));
        wait(TIMEOUT, "the leader to answer", fits).await.with_context(|| leaders.log_tails())?;
        bind(&scheduler, &pod, &offered).await.with_context(|| leaders.log_tails())?;

        let next = 1 - before;
        let listed = leaders.replicas[next].link().entered().lists;
        ensure!(listed >= 4, "it has listed {listed} times before it leads");
        let pod = small_pod(&pods, &format!("after-{round}")).await?;
        let scheduler = SchedulerClient::new(leaders.replicas[next].address(), &tls).await?;
        let began = Instant::now();
        leaders.replicas[before].child().signal(Signal::TERM)?;
        while !scheduler.filter(&pod, &offered).await.is_ok_and(|fits| !fits.is_empty()) {
            ensure!(began.elapsed() < TIMEOUT, "no replica answers\n{}", leaders.log_tails());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        took.push(began.elapsed());
        bind(&scheduler, &pod, &offered).await.with_context(|| leaders.log_tails())?;
        let lists = leaders.replicas[next].link().entered().lists - listed;
        ensure!(lists == 0, "the new leader has listed {lists} times");
        from[before] = leaders.replicas[before].logged()?;
        leaders.replicas[before].child().restart()?;
    }
    println!("the next leader answered after {took:?}");
    plane.stop().await
}

async fn small_pod(pods: &Api<Pod>, name: &str) -> anyhow::Result<Pod> {
    let resource = "nvidia.com/mig-1g.10gb";
    let pod = admitted(name, "nobody", resource, &request(resource, 1));
    Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
}

async fn bind(scheduler: &SchedulerClient, pod: &Pod, offered: &[&str]) -> anyhow::Result<()> {
    let fits = scheduler.filter(pod, offered).await?;
    let error = scheduler.bind(pod, fits.first().context("no node fits")?).await?;
    ensure!(error.is_empty(), "not bound: {error}");
    Ok(())
}

/// Six rounds of `cargo xtask bench leaders`.
#[tokio::test(flavor = "multi_thread")]
async fn no_slice_is_lost_or_given_out_twice_however_a_leader_ends() -> anyhow::Result<()> {
    let mut rounds = Rounds::start(1).await?;
    for blow in Blow::ALL.into_iter().cycle().take(6) {
        let found = rounds.round(blow, Duration::from_secs(15)).await?;
        let wrongs: Vec<&String> = found.all().collect();
        ensure!(wrongs.is_empty(), "{blow:?}: {wrongs:?}\n{}", rounds.log_tails());
    }
    rounds.stop().await
}
