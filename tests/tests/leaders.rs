//! What becomes of reservations and Bindings that nobody answers for: of pods that the scheduler gave up, and of leaders that
//! vanished. Replicas of the extender between a real API server and real kube-schedulers; this test is webhook and agents.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, RequestDocument, SliceState};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::packing::Refusal;
use kerf_core::resource::ResourceName;
use kerf_core::static_node::PluginName;
use kerf_core::testing::{node_status, request, request_sized, slice_status};
use kerf_core::units::SizeGb;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::binaries;
use kerf_tests::cluster::{NAMESPACE, UNGUARDED, root, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::leaders::{Gate, Leaders, SchedulerClient};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(40);
const SMALL: &str = "nvidia.com/mig-1g.10gb";
/// How many of them an H100 has.
const SMALLS: usize = 7;
const WHOLE: &str = "nvidia.com/mig-7g.80gb";
const MANAGED: &str = "managed";
const STATIC: &str = "static";
const GPU: &str = "nvidia.com/gpu";
/// Only the guard of Bindings: this test writes what the other programs write, as an admin.
const FENCE: &str = "deploy/base/guard/bindings.yaml";
/// What the fence says.
const FENCED: &str = "does not lead any more";
const LEASE: &str = "kerf-extender";
/// A short Lease, for tests in which the leader vanishes.
const VANISHES: &str = "--lease-duration=6s";

/// How the agents answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agents {
    /// Not at all.
    Silent,
    /// Every slice is ready at once.
    Quick,
    /// Of one name only the first reservation is ready; the others wait for it, as if no two were worth the same.
    InOrder,
}

struct Scene {
    plane: ControlPlane,
    leaders: Leaders,
    pods: Api<Pod>,
    agents: watch::Sender<Agents>,
}

impl Scene {
    /// A managed node with an H100 and a static node with one GPU, both with 64 cores.
    async fn start(flags: &[&str]) -> anyhow::Result<Self> {
        let mut options = ControlPlaneOptions::without_controller_manager();
        options.scheduler = false;
        let mut plane = ControlPlane::start(options).await?;
        let manifests = root().join("deploy/local").display().to_string();
        plane.kubectl(&["apply", "--server-side", "-k", &manifests, UNGUARDED]).await?;
        plane.definitions_established().await?;
        create_nodes(&plane).await?;
        let agents = watch::Sender::new(Agents::Quick);
        tokio::spawn(play_agents(Api::all(plane.client()), agents.subscribe()));
        let leaders = Leaders::start(&plane, SocketAddr::from(([127, 0, 0, 1], 0)), flags).await?;
        start_scheduler(&mut plane, &leaders, "kerf-scheduler").await?;
        let pods = Api::default_namespaced(plane.client());
        Ok(Self { plane, leaders, pods, agents })
    }

    async fn create(&self, name: &str, request: &RequestDocument, more: Value) -> anyhow::Result<()> {
        let resource = match request.containers[0].resource {
            ResourceName::Plugin(..) => GPU.to_owned(),
            name => name.to_string(),
        };
        let mut pod = json!({
            "metadata": {
                "name": name,
                "labels": {keys::SLICED: "true"},
                "annotations": {keys::REQUEST: request.to_json()},
            },
            "spec": {
                "schedulerName": "kerf-scheduler",
                "containers": [{"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}],
            },
        });
        json_patch::merge(&mut pod, &more);
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// A pod that no kube-scheduler schedules.
    async fn create_unscheduled(&self, name: &str, request: &RequestDocument) -> anyhow::Result<Pod> {
        self.create(name, request, json!({"spec": {"schedulerName": "nobody"}})).await?;
        Ok(self.pods.get(name).await?)
    }

    /// kube-scheduler's part, for this replica.
    async fn scheduler_client(&self, replica: usize) -> anyhow::Result<SchedulerClient> {
        SchedulerClient::new(self.leaders.replicas[replica].address(), &tls_folder(&self.plane)).await
    }

    /// Waits until a leader's Binding is under way, which its link holds back.
    async fn binding_sent(&self, leader: usize) -> anyhow::Result<()> {
        let sent = async || Ok(self.leaders.replicas[leader].link().entered().bindings > 0);
        wait(PATIENCE, "the Binding to be sent", sent).await.with_context(|| self.leaders.log_tails())
    }

    async fn lease(&self) -> anyhow::Result<Lease> {
        Ok(Api::namespaced(self.plane.client(), NAMESPACE).get(LEASE).await?)
    }

    /// The epoch of the leader that holds the Lease.
    async fn epoch(&self) -> anyhow::Result<i32> {
        Ok(self.lease().await?.spec.and_then(|spec| spec.lease_transitions).context("no transitions")? + 1)
    }

    async fn lease_uid(&self) -> anyhow::Result<String> {
        self.lease().await?.metadata.uid.context("the Lease has no UID")
    }

    /// What the API server answers to a Binding of the extender with this Lease and epoch. Nothing is bound.
    async fn dry_bind(&self, pod: &str, lead: Option<&str>) -> anyhow::Result<String> {
        let account = self.plane.kubeconfig_for_service_account(NAMESPACE, "kerf-extender").await?;
        let extender = self.plane.client_as(&account).await?;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod, "annotations": lead.map(|lead| json!({keys::EPOCH: lead}))},
            "target": {"apiVersion": "v1", "kind": "Node", "name": MANAGED},
        });
        let path = format!("/api/v1/namespaces/default/pods/{pod}/binding?dryRun=All");
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(binding.to_string().into_bytes())?;
        Ok(match extender.request_text(request).await {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        })
    }

    /// Waits until the fence refuses Bindings of this Lease and epoch.
    async fn fence_refuses(&self, pod: &str, lead: &str) -> anyhow::Result<()> {
        let refused = async || Ok(self.dry_bind(pod, Some(lead)).await?.contains(FENCED));
        wait(PATIENCE, &format!("the fence to refuse {lead}"), refused).await
    }

    /// Puts the fence in force with a copy of the Lease that stays as it is, and stands for the Lease itself.
    async fn freeze_fence(&self) -> anyhow::Result<()> {
        let uid = self.lease_uid().await?;
        let mut copy = self.lease().await?;
        copy.metadata = ObjectMeta { name: Some("frozen".to_owned()), ..ObjectMeta::default() };
        let leases = Api::<Lease>::namespaced(self.plane.client(), NAMESPACE);
        leases.create(&PostParams::default(), &copy).await?;
        let mut fence = std::fs::read_to_string(root().join(FENCE))?;
        for (from, to) in [
            ("paramRef: {name: kerf-extender,", "paramRef: {name: frozen,"),
            ("string(params.metadata.uid)", &format!("'{uid}'")),
        ] {
            ensure!(fence.matches(from).count() == 1, "{FENCE} does not have {from:?} once");
            fence = fence.replace(from, to);
        }
        let path = self.plane.dir().join("frozen-fence.yaml");
        std::fs::write(&path, fence)?;
        self.plane.kubectl(&["apply", "-f", &path.display().to_string()]).await?;
        self.fence_refuses("any", &format!("{uid}/0")).await
    }

    /// Waits until a pod is on this node.
    async fn bound(&self, name: &str, node: &str) -> anyhow::Result<()> {
        let bound = async || {
            let spec = self.pods.get(name).await?.spec.unwrap_or_default();
            Ok(spec.node_name.as_deref() == Some(node))
        };
        wait(PATIENCE, &format!("{name} to be bound"), bound).await.with_context(|| self.leaders.log_tails())
    }

    /// Waits until kube-scheduler says this of a pod.
    async fn told(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let told = async || {
            let status = self.pods.get(name).await?.status.unwrap_or_default();
            let mut messages = status.conditions.into_iter().flatten().filter_map(|c| c.message);
            Ok(messages.any(|message| message.contains(text)))
        };
        wait(PATIENCE, &format!("{name} to be told {text:?}"), told)
            .await
            .with_context(|| self.leaders.log_tails())
    }

    /// For whom slices are reserved.
    async fn reserved(&self) -> anyhow::Result<Vec<String>> {
        let spec: GpuNodeSpec = Api::<GpuNode>::all(self.plane.client()).get(MANAGED).await?.read_spec()?;
        Ok(spec.slices.into_iter().filter_map(|slice| Some(slice.reservation?.pod)).collect())
    }

    /// Waits until the agent offers so many slices.
    async fn until_ready(&self, count: usize) -> anyhow::Result<()> {
        let nodes = Api::<GpuNode>::all(self.plane.client());
        let ready = async || {
            let slices = nodes.get(MANAGED).await?.read_status()?.unwrap_or_default().slices;
            Ok(slices.iter().filter(|slice| slice.ready_for.is_some()).count() == count)
        };
        wait(PATIENCE, &format!("{count} slices to be ready"), ready).await
    }

    async fn until_reserved(&self, pods: &[&str]) -> anyhow::Result<()> {
        let reserved = async || Ok(self.reserved().await? == pods);
        wait(PATIENCE, &format!("reservations of {pods:?}"), reserved)
            .await
            .with_context(|| self.leaders.log_tails())
    }

    /// A node's allocatable, or its labels, as they are to be.
    async fn change_node(&self, node: &str, patch: Value) -> anyhow::Result<()> {
        let api = Api::<Node>::all(self.plane.client());
        api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        for replica in &mut self.leaders.replicas {
            replica.child().terminate(Duration::from_secs(10))?;
        }
        self.plane.stop().await
    }
}

async fn create_nodes(plane: &ControlPlane) -> anyhow::Result<()> {
    let plugin = json!({
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none",
    });
    for (name, labels, gpus) in [(MANAGED, json!({"zone": "a"}), "0"), (STATIC, plugin, "1")] {
        let room = json!({"cpu": "64", "memory": "512Gi", "pods": "250", GPU: gpus});
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": room, "allocatable": room},
        });
        json_patch::merge(&mut node, &json!({"metadata": {"labels": labels}}));
        let api = Api::<Node>::all(plane.client());
        api.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    }
    let api = Api::<GpuNode>::all(plane.client());
    api.create(&PostParams::default(), &GpuNode::new(&NodeName::new(MANAGED))).await?;
    let status = json!({"status": node_status(&["H100-80GB"])});
    api.patch_status(MANAGED, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// The extender's Secret as files.
fn tls_folder(plane: &ControlPlane) -> PathBuf {
    plane.dir().join("extender-tls")
}

/// One more kube-scheduler, for the pods that name it.
async fn start_scheduler(plane: &mut ControlPlane, leaders: &Leaders, name: &str) -> anyhow::Result<()> {
    let secret = Api::<Secret>::namespaced(plane.client(), NAMESPACE).get("kerf-extender-tls").await?;
    let tls = tls_folder(plane);
    std::fs::create_dir_all(&tls)?;
    let data = secret.data.unwrap_or_default();
    for key in ["ca.crt", "client.crt", "client.key"] {
        std::fs::write(tls.join(key), &data.get(key).with_context(|| format!("no {key} in the Secret"))?.0)?;
    }
    let output = Command::new(binaries::ours("kerf")?)
        .arg("scheduler-config")
        .arg(format!("--extender-url=https://{}/scheduler", leaders.address()))
        .arg(format!("--tls-dir={}", tls.display()))
        .output()?;
    ensure!(output.status.success(), "kerf scheduler-config: {}", String::from_utf8_lossy(&output.stderr));
    let path = plane.dir().join(format!("{name}-config.yaml"));
    let text = String::from_utf8(output.stdout)?
        .replace("schedulerName: kerf-scheduler", &format!("schedulerName: {name}"));
    std::fs::write(&path, text)?;
    plane.start_scheduler(name, &path).await
}

async fn play_agents(api: Api<GpuNode>, mut how: watch::Receiver<Agents>) {
    let mut nodes =
        Box::pin(watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects());
    let mut node = None;
    loop {
        tokio::select! {
            Some(event) = nodes.next() => node = event.ok().or(node),
            changed = how.changed() => if changed.is_err() { return },
        }
        let how = *how.borrow_and_update();
        let Some(node) = node.as_ref().filter(|_| how != Agents::Silent) else { continue };
        let (Ok(spec), Ok(Some(status))) = (node.read_spec(), node.read_status()) else { continue };
        let next =
            GpuNodeStatus { slices: answers(&spec, how), observed_revision: spec.revision, ..status.clone() };
        if next == status || spec.revision == 0 {
            continue;
        }
        let patch = Patch::Merge(json!({"status": next}));
        if let Err(error) = api.patch_status(MANAGED, &PatchParams::default(), &patch).await {
            eprintln!("failed to write the status: {error}");
        }
    }
}

fn answers(spec: &GpuNodeSpec, how: Agents) -> Vec<kerf_core::contract::SliceStatus> {
    let mut first = None;
    let each = spec.slices.iter().map(|slice| {
        let mut status = slice_status(slice, false);
        let pod = slice.reservation.as_ref().map(|reservation| &reservation.uid);
        if pod.is_some() && *first.get_or_insert(pod) != pod && how == Agents::InOrder {
            (status.state, status.ready_for) = (SliceState::Waiting, None);
        }
        status
    });
    each.collect()
}

/// E1: a bind times out while its slice is cut; then other pods fill the node's CPU, and the scheduler asks nobody any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_the_scheduler_has_no_use_for_is_released() -> anyhow::Result<()> {
    let scene = Scene::start(&["--reservation-lifetime=3s", "--bind-timeout=1s"]).await?;
    scene.agents.send_replace(Agents::Silent);
    let leader = scene.leaders.leads_but(None).await?;
    let large = json!({"spec": {"nodeSelector": {"zone": "a"}, "containers": [
        {"name": "main", "image": "none", "resources": {"limits": {WHOLE: "1"}, "requests": {"cpu": "60"}}}
    ]}});
    scene.create("given-up", &request(WHOLE, 1), large).await?;
    scene.until_reserved(&["given-up"]).await?;
    let filler = json!({
        "metadata": {"name": "filler"},
        "spec": {"nodeName": MANAGED, "containers": [
            {"name": "main", "image": "none", "resources": {"requests": {"cpu": "32"}}}
        ]},
    });
    scene.pods.create(&PostParams::default(), &serde_json::from_value(filler)?).await?;
    scene.leaders.replicas[leader].logs("not bound", 0).await?;
    scene.until_reserved(&[]).await?;
    scene.agents.send_replace(Agents::Quick);
    scene.create("other", &request(WHOLE, 1), json!({})).await?;
    scene.bound("other", MANAGED).await?;
    scene.stop().await
}

/// E1: a bind times out while its slice is cut. Then the pod passes kerf's filter again and again and no bind follows, as where a second
/// extender or a plugin refuses the pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_is_filtered_and_never_bound_is_released() -> anyhow::Result<()> {
    let scene = Scene::start(&["--reservation-lifetime=3s", "--bind-timeout=1s"]).await?;
    scene.agents.send_replace(Agents::Silent);
    let leader = scene.leaders.leads_but(None).await?;
    let scheduler = scene.scheduler_client(leader).await?;
    let pod = scene.create_unscheduled("given-up", &request(WHOLE, 1)).await?;
    let answer = scheduler.bind(&pod, MANAGED).await?;
    ensure!(answer.contains("reservation stays"), "{answer}");
    ensure!(scene.reserved().await? == ["given-up"]);
    let released = async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let feasible = scheduler.filter(&pod, &[MANAGED]).await?;
        ensure!(feasible == [MANAGED], "the filter refuses the pod");
        Ok(scene.reserved().await?.is_empty())
    };
    // After 30 s the agent counts as gone, which would end it too.
    wait(PATIENCE / 2, "the reservation to end", released)
        .await
        .with_context(|| scene.leaders.log_tails())?;
    scene.agents.send_replace(Agents::Quick);
    scene.create("other", &request(WHOLE, 1), json!({})).await?;
    scene.bound("other", MANAGED).await?;
    scene.stop().await
}

/// E2: a pod in the scheduler's backoff has the first reservation of its name, and another pod's slice is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_in_backoff_blocks_no_ready_slice() -> anyhow::Result<()> {
    let scene = Scene::start(&["--bind-timeout=2s"]).await?;
    scene.agents.send_replace(Agents::Silent);
    let leader = scene.leaders.leads_but(None).await?;
    scene.create("in-backoff", &request(SMALL, 1), json!({"spec": {"nodeSelector": {"zone": "a"}}})).await?;
    scene.until_reserved(&["in-backoff"]).await?;
    scene.change_node(MANAGED, json!({"metadata": {"labels": {"zone": "b"}}})).await?;
    scene.leaders.replicas[leader].logs("not bound", 0).await?;
    scene.agents.send_replace(Agents::InOrder);
    scene.create("next", &request(SMALL, 1), json!({})).await?;
    scene.bound("next", MANAGED).await?;
    // The one that made way finds its slice again.
    scene.agents.send_replace(Agents::Quick);
    scene.change_node(MANAGED, json!({"metadata": {"labels": {"zone": "a"}}})).await?;
    scene.bound("in-backoff", MANAGED).await?;
    scene.stop().await
}

fn whole_gpu() -> RequestDocument {
    request_sized(ResourceName::Plugin(PluginName::Gpu, Kind::Whole), SizeGb(80), 1)
}

/// E3: the leader dies when its Binding to a static node is under way. The Binding arrives after another leads, and the API server takes
/// it: the fence is in force, and its view of the Lease is stale. The new leader binds no other pod to that GPU.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_of_a_dead_leader_is_waited_out_on_static_nodes() -> anyhow::Result<()> {
    let mut scene = Scene::start(&[VANISHES, "--request-lifetime=20s"]).await?;
    // It is there before the leader dies: starting it takes a good part of the request's lifetime.
    start_scheduler(&mut scene.plane, &scene.leaders, "second").await?;
    scene.freeze_fence().await?;
    let leader = scene.leaders.leads_but(None).await?;
    scene.leaders.replicas[leader].link().set(Gate::WithoutBindings);
    scene.create("early", &whole_gpu(), json!({})).await?;
    scene.binding_sent(leader).await?;
    scene.leaders.replicas[leader].child().kill()?;
    // Nobody schedules it again.
    scene.plane.child("kerf-scheduler")?.kill()?;
    scene.leaders.leads_but(Some(leader)).await?;
    scene.create("late", &whole_gpu(), json!({"spec": {"schedulerName": "second"}})).await?;
    scene.told("late", &Refusal::LeaderChanged.to_string()).await?;
    // Managed nodes take pods at once.
    let second = json!({"spec": {"schedulerName": "second"}});
    scene.create("elsewhere", &request(SMALL, 1), second).await?;
    scene.bound("elsewhere", MANAGED).await?;
    scene.leaders.replicas[leader].link().set(Gate::Open);
    scene.bound("early", STATIC).await?;
    let successor = scene.leaders.leads_but(Some(leader)).await?;
    scene.leaders.replicas[successor].logs("pods come to static nodes again", 0).await?;
    scene.create("third", &whole_gpu(), json!({"spec": {"schedulerName": "second"}})).await?;
    scene.told("third", &Refusal::NoRoom.to_string()).await?;
    ensure!(scene.pods.get("late").await?.spec.is_some_and(|spec| spec.node_name.is_none()));
    scene.stop().await
}

/// E3, the second defence: the API server refuses the Binding of a leader that another has followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_refuses_a_binding_of_a_leader_that_was_followed() -> anyhow::Result<()> {
    let mut scene = Scene::start(&[VANISHES]).await?;
    let fence = root().join(FENCE).display().to_string();
    scene.plane.kubectl(&["apply", "-f", &fence]).await?;
    let leader = scene.leaders.leads_but(None).await?;
    scene.leaders.replicas[leader].link().set(Gate::WithoutBindings);
    scene.create("early", &request(SMALL, 1), json!({})).await?;
    scene.binding_sent(leader).await?;
    let dead = format!("{}/{}", scene.lease_uid().await?, scene.epoch().await?);
    scene.leaders.replicas[leader].child().kill()?;
    scene.plane.child("kerf-scheduler")?.kill()?;
    scene.leaders.leads_but(Some(leader)).await?;
    let (uid, epoch) = (scene.lease_uid().await?, scene.epoch().await?);
    scene.fence_refuses("early", &dead).await?;
    for epoch in ["0", "-3", "x"] {
        let answer = scene.dry_bind("early", Some(&format!("{uid}/{epoch}"))).await?;
        ensure!(answer.contains(FENCED), "{epoch:?}: {answer}");
    }
    // A Lease that was deleted and made anew counts from the beginning, and the API server may go on knowing the old one.
    let led = format!("{uid}/{epoch}");
    for lead in [Some(led.as_str()), Some("another/1"), Some("1"), None] {
        let answer = scene.dry_bind("early", lead).await?;
        ensure!(answer == "taken", "{lead:?}: {answer}");
    }
    // The delayed one arrives, and changes nothing; one of the new leader does.
    scene.leaders.replicas[leader].link().set(Gate::Open);
    scene.create("next", &request(SMALL, 1), json!({"spec": {"schedulerName": "second"}})).await?;
    start_scheduler(&mut scene.plane, &scene.leaders, "second").await?;
    scene.bound("next", MANAGED).await?;
    ensure!(scene.pods.get("early").await?.spec.is_some_and(|spec| spec.node_name.is_none()), "it was bound");
    scene.stop().await
}

/// E4: a leader that is frozen is asked for binds. It reads them when it wakes up, after another has followed it, and sends nothing.
/// Chance decides whether a bind or the Lease's timer is first then; the extender's `app::tests` have the bind first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_frozen_sends_nothing_any_more() -> anyhow::Result<()> {
    let mut scene = Scene::start(&[VANISHES, "--bind-timeout=1s"]).await?;
    scene.agents.send_replace(Agents::Silent);
    let leader = scene.leaders.leads_but(None).await?;
    let scheduler = scene.scheduler_client(leader).await?;
    let mut pods = Vec::new();
    for number in 0..SMALLS {
        pods.push(scene.create_unscheduled(&format!("pod-{number}"), &request(SMALL, 1)).await?);
    }
    let bind_all = || join_all(pods.iter().map(|pod| scheduler.bind(pod, MANAGED)));
    // Each bind opens a connection, and reserves a slice.
    for answer in bind_all().await {
        let answer = answer?;
        ensure!(answer.contains("reservation stays"), "{answer}");
    }
    scene.agents.send_replace(Agents::Quick);
    scene.until_ready(SMALLS).await?;
    let before = scene.leaders.replicas[leader].logged()?;
    scene.leaders.replicas[leader].child().signal(Signal::STOP)?;
    scene.leaders.leads_but(Some(leader)).await?;
    let sent = scene.leaders.replicas[leader].link().entered();
    let wake_up = async {
        // The requests are in the sockets by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.leaders.replicas[leader].child().signal(Signal::CONT)
    };
    let (answers, woken) = tokio::join!(bind_all(), wake_up);
    woken?;
    // It refuses the bind, or ends the connection.
    ensure!(!answers.iter().flatten().any(String::is_empty), "a pod was bound: {answers:?}");
    scene.leaders.replicas[leader].logs("leader::lease", before).await?;
    let now = scene.leaders.replicas[leader].link().entered();
    ensure!(now == sent, "{now:?} after {sent:?}: {answers:?}");
    scene.stop().await
}

/// A leader that ends in order waits for its last Binding, and its successor goes on at once on static nodes too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_ends_in_order_leaves_nothing_to_wait_for() -> anyhow::Result<()> {
    let mut scene = Scene::start(&[]).await?;
    let leader = scene.leaders.leads_but(None).await?;
    scene.leaders.replicas[leader].link().set(Gate::WithoutBindings);
    scene.create("last", &request(SMALL, 1), json!({})).await?;
    scene.binding_sent(leader).await?;
    scene.leaders.replicas[leader].child().signal(Signal::TERM)?;
    scene.leaders.replicas[leader].logs("stopping", 0).await?;
    scene.leaders.replicas[leader].link().set(Gate::Open);
    scene.leaders.replicas[leader].logs("lease released", 0).await?;
    scene.bound("last", MANAGED).await?;
    // Its lifetime of 70 s is longer than the patience here.
    scene.leaders.leads_but(Some(leader)).await?;
    scene.create("at-once", &whole_gpu(), json!({})).await?;
    scene.bound("at-once", STATIC).await?;
    scene.stop().await
}
