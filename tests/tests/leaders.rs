//! What happens to reservations and Bindings without an answer: of pods that the scheduler dropped, and of leaders that
//! vanished. Replicas of the extender run between a real API server and real kube-schedulers; the test plays webhook,
//! agents and kubelets.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::future::{join_all, try_join_all};
use http::StatusCode;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_core::contract::{GpuNodeStatus, RequestDocument, SliceReservation};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::ledger::Limits;
use kerf_core::packing::Refusal;
use kerf_core::resource::{PluginName, ResourceName};
use kerf_core::testing::{node_status, request, request_sized};
use kerf_core::units::SizeGb;
use kerf_tests::cluster::{NAMESPACE, root, unguarded, wait, write_tls};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::gpu_nodes::{Manner, NodeObject, Offer, SimulatedAgents};
use kerf_tests::leaders::{Gate, Leaders, SchedulerClient};
use kerf_tests::pods::{admitted, assignment_of};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(40);
const SMALL: &str = "nvidia.com/mig-1g.10gb";
/// How many of them an H100 has.
const SMALLS: usize = 7;
const WHOLE: &str = "nvidia.com/mig-7g.80gb";
const MANAGED: &str = "managed";
const STATIC: &str = "static";
const GPU: &str = "nvidia.com/gpu";
/// Only the guard of Bindings, because this test writes as an admin what the other programs write.
const FENCE: &str = "deploy/base/guard/bindings.yaml";
/// Part of the guard's refusal.
const FENCED: &str = "does not lead any more";
const LEASE: &str = "kerf-extender";
/// A short Lease, for tests in which the leader vanishes.
const VANISHES: &str = "--lease-duration=6s";

/// Reservations that end soon. A leader sends no Binding in the last ten seconds of one.
const SHORT: Limits = Limits {
    reservation: Duration::from_secs(13),
    request: Duration::from_secs(70),
    send: Duration::from_secs(10),
};

struct Scene {
    plane: ControlPlane,
    leaders: Leaders,
    pods: Api<Pod>,
    agents: SimulatedAgents,
}

impl Scene {
    /// A managed node with an H100 and a static node with one GPU, both with 64 cores.
    async fn start(flags: &[&str]) -> anyhow::Result<Self> {
        Self::with_limits(flags, Limits::default()).await
    }

    /// The same with an agent that keeps unconfirmed reservations no longer than these limits.
    async fn with_limits(flags: &[&str], limits: Limits) -> anyhow::Result<Self> {
        Self::with_gpus(flags, limits, 1).await
    }

    /// The same with so many GPUs on the managed node.
    async fn with_gpus(flags: &[&str], limits: Limits, gpus: usize) -> anyhow::Result<Self> {
        let mut plane = unguarded(ControlPlaneOptions::without_controller_manager()).await?;
        create_nodes(&plane, gpus).await?;
        let leaders = Leaders::start(&plane, flags).await?;
        let agents = leaders.simulate_agents(&plane, Manner { limits, ..Manner::default() });
        for replica in &leaders.replicas {
            replica.logs("agent connected", 0).await?;
        }
        leaders.start_scheduler(&mut plane, "kerf-scheduler").await?;
        let pods = Api::default_namespaced(plane.client());
        Ok(Self { plane, leaders, pods, agents })
    }

    async fn create(&self, name: &str, request: &RequestDocument, more: Value) -> anyhow::Result<()> {
        let resource = match request.containers[0].resource {
            ResourceName::Plugin(..) => GPU.to_owned(),
            name => name.to_string(),
        };
        let mut pod = admitted(name, "kerf-scheduler", &resource, request);
        json_patch::merge(&mut pod, &more);
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// A pod that no kube-scheduler schedules.
    async fn create_unscheduled(&self, name: &str, request: &RequestDocument) -> anyhow::Result<Pod> {
        self.create(name, request, json!({"spec": {"schedulerName": "nobody"}})).await?;
        Ok(self.pods.get(name).await?)
    }

    /// A client that plays kube-scheduler towards this replica.
    async fn scheduler_client(&self, replica: usize) -> anyhow::Result<SchedulerClient> {
        SchedulerClient::new(self.leaders.replicas[replica].address(), &write_tls(&self.plane).await?).await
    }

    /// Waits until a leader's Binding is under way; the leader's link holds it back.
    async fn binding_sent(&self, leader: usize) -> anyhow::Result<()> {
        let sent = async || Ok(self.leaders.replicas[leader].link().entered().bindings > 0);
        wait(TIMEOUT, "the Binding to be sent", sent).await.with_context(|| self.leaders.log_tails())
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

    /// The API server's answer to a Binding of the extender with this Lease and epoch. Nothing is bound.
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

    /// Waits until the guard refuses Bindings of this Lease and epoch.
    async fn fence_refuses(&self, pod: &str, lead: &str) -> anyhow::Result<()> {
        let refused = async || Ok(self.dry_bind(pod, Some(lead)).await?.contains(FENCED));
        wait(TIMEOUT, &format!("the fence to refuse {lead}"), refused).await
    }

    /// Puts the guard in force with an unchanging copy of the Lease in place of the Lease itself.
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

    /// Checks that no two pods that are bound to the managed node have the same place, and that each has its
    /// reservation there. Returns how many are bound.
    async fn places_are_exclusive(&self, pods: &[Pod]) -> anyhow::Result<usize> {
        let (mut places, mut bound) = (BTreeSet::new(), BTreeSet::new());
        for pod in pods {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let pod = self.pods.get(&name).await?;
            if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
                continue;
            }
            for slice in assignment_of(&pod)?.slices {
                let place = (slice.gpu, slice.shape);
                ensure!(places.insert(place.clone()), "{place:?} of {name} is another pod's too");
            }
            bound.insert(name);
        }
        let is_reserved = async || {
            let reserved: BTreeSet<String> = self.agents.reserved(MANAGED)?.into_iter().collect();
            Ok(bound.is_subset(&reserved))
        };
        wait(TIMEOUT, &format!("{bound:?} to have their reservations"), is_reserved).await?;
        Ok(bound.len())
    }

    /// Waits until a pod is bound to this node.
    async fn bound(&self, name: &str, node: &str) -> anyhow::Result<()> {
        let bound = async || {
            let spec = self.pods.get(name).await?.spec.unwrap_or_default();
            Ok(spec.node_name.as_deref() == Some(node))
        };
        wait(TIMEOUT, &format!("{name} to be bound"), bound).await.with_context(|| self.leaders.log_tails())
    }

    /// Waits until kube-scheduler reports this text about a pod.
    async fn shown(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let shown = async || {
            let status = self.pods.get(name).await?.status.unwrap_or_default();
            let mut messages = status.conditions.into_iter().flatten().filter_map(|c| c.message);
            Ok(messages.any(|message| message.contains(text)))
        };
        wait(TIMEOUT, &format!("kube-scheduler to report {text:?} about {name}"), shown)
            .await
            .with_context(|| self.leaders.log_tails())
    }

    fn status(&self) -> anyhow::Result<GpuNodeStatus> {
        self.agents.status(MANAGED)
    }

    /// The reservation of a pod with one slice.
    fn reservation(&self, pod: &str) -> anyhow::Result<Option<SliceReservation>> {
        let mut all = self.status()?.slices.into_iter().filter_map(|slice| slice.reservation);
        Ok(all.find(|reservation| reservation.pod == pod))
    }

    /// Waits until the agent offers this many slices.
    async fn until_ready(&self, count: usize) -> anyhow::Result<()> {
        let is_ready = async || {
            let slices = self.status()?.slices;
            Ok(slices.iter().filter(|slice| slice.ready_for.is_some()).count() == count)
        };
        wait(TIMEOUT, &format!("{count} slices to be ready"), is_ready).await
    }

    async fn until_reserved(&self, pods: &[&str]) -> anyhow::Result<()> {
        let reserved = async || Ok(self.agents.reserved(MANAGED)? == pods);
        wait(TIMEOUT, &format!("reservations of {pods:?}"), reserved)
            .await
            .with_context(|| self.leaders.log_tails())
    }

    /// Changes a node's labels or its allocatable.
    async fn change_node(&self, node: &str, patch: Value) -> anyhow::Result<()> {
        let api = Api::<Node>::all(self.plane.client());
        api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.leaders.stop()?;
        self.plane.stop().await
    }
}

async fn create_nodes(plane: &ControlPlane, gpus: usize) -> anyhow::Result<()> {
    let mut managed = NodeObject::new(MANAGED);
    managed.labels.insert("zone".to_owned(), "a".to_owned());
    managed.create(&plane.client(), node_status(&vec!["H100-80GB"; gpus])).await?;
    let mut fixed = NodeObject::new(STATIC);
    fixed.devices.insert(GPU.to_owned(), 1);
    let plugin = [
        ("product", "NVIDIA-A100-SXM4-80GB"),
        ("memory", "81920"),
        ("count", "1"),
        ("replicas", "1"),
        ("sharing-strategy", "none"),
    ];
    fixed.labels.extend(plugin.map(|(key, value)| (format!("nvidia.com/gpu.{key}"), value.to_owned())));
    fixed.create_node(&plane.client()).await
}

/// What this replica answers to all binds at once.
async fn bind_all(scheduler: &SchedulerClient, pods: &[Pod]) -> Vec<anyhow::Result<String>> {
    join_all(pods.iter().map(|pod| scheduler.bind(pod, MANAGED))).await
}

/// E1: a bind times out while its slice is cut. Then other pods fill the node's CPU, and the scheduler does not ask for
/// the pod again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_the_scheduler_does_not_use_is_released() -> anyhow::Result<()> {
    let scene = Scene::with_limits(&["--bind-timeout=1s"], SHORT).await?;
    scene.agents.set_offer(Offer::Nothing);
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
    scene.agents.set_offer(Offer::All);
    scene.create("other", &request(WHOLE, 1), json!({})).await?;
    scene.bound("other", MANAGED).await?;
    scene.stop().await
}

/// E1: a bind times out while its slice is cut. Then the pod passes kerf's filter again and again and no bind follows,
/// as if a second extender or a plugin refused the pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_is_filtered_and_never_bound_is_released() -> anyhow::Result<()> {
    let scene = Scene::with_limits(&["--bind-timeout=1s"], SHORT).await?;
    scene.agents.set_offer(Offer::Nothing);
    let leader = scene.leaders.leads_but(None).await?;
    let scheduler = scene.scheduler_client(leader).await?;
    let pod = scene.create_unscheduled("given-up", &request(WHOLE, 1)).await?;
    let answer = scheduler.bind(&pod, MANAGED).await?;
    ensure!(answer.contains("reservation stays"), "{answer}");
    ensure!(scene.agents.reserved(MANAGED)? == ["given-up"]);
    let released = async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let feasible = scheduler.filter(&pod, &[MANAGED]).await?;
        ensure!(feasible == [MANAGED], "the filter refuses the pod");
        Ok(scene.agents.reserved(MANAGED)?.is_empty())
    };
    wait(TIMEOUT / 2, "the reservation to end", released).await.with_context(|| scene.leaders.log_tails())?;
    scene.agents.set_offer(Offer::All);
    scene.create("other", &request(WHOLE, 1), json!({})).await?;
    scene.bound("other", MANAGED).await?;
    scene.stop().await
}

/// E2: a pod in the scheduler's backoff has the first reservation of its name, and another pod's slice is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_in_backoff_blocks_no_ready_slice() -> anyhow::Result<()> {
    let scene = Scene::start(&["--bind-timeout=2s"]).await?;
    scene.agents.set_offer(Offer::Nothing);
    let leader = scene.leaders.leads_but(None).await?;
    scene.create("in-backoff", &request(SMALL, 1), json!({"spec": {"nodeSelector": {"zone": "a"}}})).await?;
    scene.until_reserved(&["in-backoff"]).await?;
    scene.change_node(MANAGED, json!({"metadata": {"labels": {"zone": "b"}}})).await?;
    scene.leaders.replicas[leader].logs("not bound", 0).await?;
    scene.agents.set_offer(Offer::FirstOfName);
    scene.create("next", &request(SMALL, 1), json!({})).await?;
    scene.bound("next", MANAGED).await?;
    scene.agents.set_offer(Offer::All);
    scene.change_node(MANAGED, json!({"metadata": {"labels": {"zone": "a"}}})).await?;
    scene.bound("in-backoff", MANAGED).await?;
    scene.stop().await
}

fn whole_gpu() -> RequestDocument {
    request_sized(ResourceName::Plugin(PluginName::Gpu, Kind::Whole), SizeGb(80), 1)
}

/// E3: the leader dies while its Binding to a static node is under way. The Binding arrives after another leads, and
/// the API server accepts it: the guard is in force, but its view of the Lease is stale. The new leader binds no other
/// pod to that GPU.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_waits_for_a_dead_leaders_binding_on_static_nodes() -> anyhow::Result<()> {
    let mut scene = Scene::start(&[VANISHES, "--request-lifetime=20s"]).await?;
    // It is there before the leader dies: starting it takes a good part of the request's lifetime.
    scene.leaders.start_scheduler(&mut scene.plane, "second").await?;
    scene.freeze_fence().await?;
    let leader = scene.leaders.leads_but(None).await?;
    scene.leaders.replicas[leader].link().set(Gate::WithoutBindings);
    scene.create("early", &whole_gpu(), json!({})).await?;
    scene.binding_sent(leader).await?;
    scene.leaders.replicas[leader].child().kill()?;
    // Without this scheduler the pod is not scheduled again.
    scene.plane.child("kerf-scheduler")?.kill()?;
    scene.leaders.leads_but(Some(leader)).await?;
    scene.create("late", &whole_gpu(), json!({"spec": {"schedulerName": "second"}})).await?;
    scene.shown("late", &Refusal::LeaderChanged.to_string()).await?;
    // Only static nodes must wait for the former leader; managed nodes take pods at once.
    let second = json!({"spec": {"schedulerName": "second"}});
    scene.create("elsewhere", &request(SMALL, 1), second).await?;
    scene.bound("elsewhere", MANAGED).await?;
    scene.leaders.replicas[leader].link().set(Gate::Open);
    scene.bound("early", STATIC).await?;
    let successor = scene.leaders.leads_but(Some(leader)).await?;
    scene.leaders.replicas[successor].logs("pods come to static nodes again", 0).await?;
    scene.create("third", &whole_gpu(), json!({"spec": {"schedulerName": "second"}})).await?;
    scene.shown("third", &Refusal::NoRoom.to_string()).await?;
    ensure!(scene.pods.get("late").await?.spec.is_some_and(|spec| spec.node_name.is_none()));
    scene.stop().await
}

/// E3, the second defence: the API server refuses the Binding of a leader that another has followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_rejects_a_binding_of_a_replaced_leader() -> anyhow::Result<()> {
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
    // A Lease that was deleted and recreated counts from the beginning, and the API server may still cache the old one.
    let led = format!("{uid}/{epoch}");
    for lead in [Some(led.as_str()), Some("another/1"), Some("1"), None] {
        let answer = scene.dry_bind("early", lead).await?;
        ensure!(answer == "taken", "{lead:?}: {answer}");
    }
    scene.leaders.replicas[leader].link().set(Gate::Open);
    scene.create("next", &request(SMALL, 1), json!({"spec": {"schedulerName": "second"}})).await?;
    scene.leaders.start_scheduler(&mut scene.plane, "second").await?;
    scene.bound("next", MANAGED).await?;
    ensure!(scene.pods.get("early").await?.spec.is_some_and(|spec| spec.node_name.is_none()), "it was bound");
    scene.stop().await
}

/// E4: a frozen leader gets bind requests. It reads them when it wakes up, after another has followed it, and sends
/// nothing. Whether a bind or the Lease's timer comes first then is chance; in the extender's `app::tests` the bind is
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_resumes_without_its_lease_binds_no_pod() -> anyhow::Result<()> {
    let mut scene = Scene::start(&[VANISHES, "--bind-timeout=1s"]).await?;
    scene.agents.set_offer(Offer::Nothing);
    let leader = scene.leaders.leads_but(None).await?;
    let scheduler = scene.scheduler_client(leader).await?;
    let mut pods = Vec::new();
    for number in 0..SMALLS {
        pods.push(scene.create_unscheduled(&format!("pod-{number}"), &request(SMALL, 1)).await?);
    }
    // These binds only open connections and reserve slices: no slice is ready, so no pod is bound.
    for answer in bind_all(&scheduler, &pods).await {
        let answer = answer?;
        ensure!(answer.contains("reservation stays"), "{answer}");
    }
    scene.agents.set_offer(Offer::All);
    scene.until_ready(SMALLS).await?;
    let before = scene.leaders.replicas[leader].logged()?;
    scene.leaders.replicas[leader].child().signal(Signal::STOP)?;
    let next = scene.leaders.leads_but(Some(leader)).await?;
    let sent = scene.leaders.replicas[leader].link().entered();
    let reported = scene.status()?;
    let wake_up = async {
        // The leader must find the requests when it resumes, and they are in its sockets by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.leaders.replicas[leader].child().signal(Signal::CONT)
    };
    let (answers, woken) = tokio::join!(bind_all(&scheduler, &pods), wake_up);
    woken?;
    // Either outcome is right: the former leader rejects the bind, or closes the connection.
    ensure!(!answers.iter().flatten().any(String::is_empty), "a pod was bound: {answers:?}");
    scene.leaders.replicas[leader].logs("leader::lease", before).await?;
    let now = scene.leaders.replicas[leader].link().entered();
    ensure!(now == sent, "{now:?} after {sent:?}: {answers:?}");
    ensure!(scene.status()? == reported, "{:?} after {reported:?}", scene.status()?);
    let successor = scene.scheduler_client(next).await?;
    for answer in bind_all(&successor, &pods).await {
        ensure!(answer?.is_empty(), "not bound: {}", scene.leaders.log_tails());
    }
    scene.places_are_exclusive(&pods).await?;
    let places =
        |status: &GpuNodeStatus| status.slices.iter().map(|s| (s.id.clone(), s.shape)).collect::<Vec<_>>();
    ensure!(places(&scene.status()?) == places(&reported));
    scene.stop().await
}

/// A leader that is cut off from the API server continues for as long as its Lease lasts, although another has taken
/// it: because of a wrong clock, or by an admin. Both ask the same agent for all its slices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_leaders_never_use_the_same_place() -> anyhow::Result<()> {
    const EARLY: usize = 3;
    let scene = Scene::start(&["--lease-duration=60s"]).await?;
    let former = scene.leaders.leads_but(None).await?;
    let mut pods = Vec::new();
    for number in 0..EARLY + 2 * SMALLS {
        pods.push(scene.create_unscheduled(&format!("pod-{number:02}"), &request(SMALL, 1)).await?);
    }
    let (early, late) = pods.split_at(EARLY);
    let (of_former, of_next) = late.split_at(SMALLS);
    let former_client = scene.scheduler_client(former).await?;
    // Some of its Bindings stay under way for as long as the link holds them.
    scene.leaders.replicas[former].link().set(Gate::WithoutBindings);
    for answer in bind_all(&former_client, early).await {
        ensure!(!answer?.is_empty(), "a Binding has passed");
    }
    ensure!(scene.leaders.replicas[former].link().entered().bindings == EARLY);
    scene.leaders.replicas[former].link().set(Gate::Cut);
    let over = json!({"spec": {"leaseDurationSeconds": 1}});
    let leases = Api::<Lease>::namespaced(scene.plane.client(), NAMESPACE);
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(over)).await?;
    let next = scene.leaders.leads_but(Some(former)).await?;
    let next_client = scene.scheduler_client(next).await?;
    let heard = scene.agents.epoch(MANAGED)?;
    let learns = async || Ok(scene.agents.epoch(MANAGED)? > heard);
    wait(TIMEOUT, "the agent to receive the next leader's epoch", learns).await?;
    let (of_former, of_next) =
        tokio::join!(bind_all(&former_client, of_former), bind_all(&next_client, of_next));
    // The former leader believes that it leads, but the agent has received a higher epoch, so every bind must fail.
    ensure!(!of_former.iter().flatten().any(String::is_empty), "the former leader binds: {of_former:?}");
    // The agent hangs up at once, and each bind gets the error that it sees first.
    scene.leaders.replicas[former].logs("a leader of a higher epoch is obeyed", 0).await?;
    let bound = of_next.iter().flatten().filter(|answer| answer.is_empty()).count();
    ensure!(bound == SMALLS - EARLY, "{of_next:?}\n{}", scene.leaders.log_tails());
    scene.leaders.replicas[former].link().set(Gate::Open);
    for pod in early {
        scene.bound(pod.metadata.name.as_deref().unwrap_or_default(), MANAGED).await?;
    }
    let bound = scene.places_are_exclusive(&pods).await?;
    ensure!(bound == SMALLS, "{bound} pods are bound");
    scene.stop().await
}

/// A leader dies after it has marked a pod for its Binding, which never arrives. The pod keeps its place until the
/// Binding can no longer arrive and the agent has looked the pod up. The reservation of an existing, unbound pod then
/// ends after its lifetime; that of a gone pod ends at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_that_is_lost_keeps_its_place_until_it_cannot_arrive() -> anyhow::Result<()> {
    // Twenty seconds pass from a mark to the lookup. A reservation without a mark would have ended earlier.
    let limits = Limits { reservation: Duration::from_secs(11), request: Duration::from_secs(10), ..SHORT };
    let mut scene = Scene::with_limits(&["--lease-duration=2s"], limits).await?;
    let leader = scene.leaders.leads_but(None).await?;
    scene.leaders.replicas[leader].link().set(Gate::WithoutBindings);
    let scheduler = scene.scheduler_client(leader).await?;
    let mut pods = Vec::new();
    for name in ["stays", "goes"] {
        pods.push(scene.create_unscheduled(name, &request(SMALL, 1)).await?);
    }
    // No answer comes: the link holds both Bindings back, and ends with the test.
    let began = Instant::now();
    let (answers, sent) = tokio::join!(bind_all(&scheduler, &pods), async {
        let sent = async || Ok(scene.leaders.replicas[leader].link().entered().bindings == 2);
        wait(TIMEOUT, "both Bindings to be sent", sent).await
    });
    sent?;
    ensure!(!answers.iter().flatten().any(String::is_empty), "a pod was bound: {answers:?}");
    scene.leaders.replicas[leader].child().kill()?;
    scene.leaders.leads_but(Some(leader)).await?;
    scene.pods.delete("goes", &DeleteParams::default().grace_period(0)).await?;
    let binding = |scene: &Scene, pod| Ok(scene.reservation(pod)?.map(|reservation| reservation.binding));
    while began.elapsed() < limits.binding() {
        for pod in ["stays", "goes"] {
            let binding: anyhow::Result<_> = binding(&scene, pod);
            ensure!(binding? == Some(true), "{pod} has lost its place after {:?}", began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scene.until_reserved(&[]).await?;
    ensure!(scene.pods.get("stays").await?.spec.is_some_and(|spec| spec.node_name.is_none()));
    scene.create("whole", &request(WHOLE, 1), json!({})).await?;
    scene.bound("whole", MANAGED).await?;
    scene.stop().await
}

/// A leader that ends in order waits for its last Binding, and its successor starts at once on static nodes too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_cleanly_leaves_no_open_binding() -> anyhow::Result<()> {
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
    // A request's lifetime of 70 s is longer than the timeout here.
    scene.leaders.leads_but(Some(leader)).await?;
    scene.create("at-once", &whole_gpu(), json!({})).await?;
    scene.bound("at-once", STATIC).await?;
    scene.stop().await
}

/// A burst comes while the API server has too much to do for Bindings: it refuses them at once in two ways, then it
/// answers none. The leader sends fewer at a time, tries no pod again and again, and gives no place away twice, though
/// the Bindings that were given up arrive at last beside those that are sent anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_in_an_overload_is_bound_after_it_and_causes_no_storm() -> anyhow::Result<()> {
    const WAVE: usize = 34;
    /// Twice the lowest limit. Were it as high as at the start, all pods would have a Binding under way in the last
    /// wave.
    const MOST_OPEN: usize = 16;
    /// The scheduler's backoff doubles from one second: four tries in the twelve seconds of the overload, and some
    /// after it.
    const MOST_TRIES: usize = 7;
    let waves = [
        (Gate::Overloaded(StatusCode::TOO_MANY_REQUESTS), Duration::from_secs(3)),
        (Gate::Overloaded(StatusCode::SERVICE_UNAVAILABLE), Duration::from_secs(3)),
        (Gate::WithoutBindings, Duration::from_secs(6)),
    ];
    let scene = Scene::with_gpus(&[], Limits::default(), (waves.len() * WAVE).div_ceil(SMALLS)).await?;
    let leader = scene.leaders.leads_but(None).await?;
    let link = scene.leaders.replicas[leader].link();
    let (mut names, mut entered) = (Vec::new(), 0);
    for (gate, lasts) in waves {
        link.set(gate);
        let wave: Vec<String> = (0..WAVE).map(|number| format!("pod-{}", names.len() + number)).collect();
        let asks = request(SMALL, 1);
        try_join_all(wave.iter().map(|name| scene.create(name, &asks, json!({})))).await?;
        names.extend(wave);
        tokio::time::sleep(lasts).await;
        let before = std::mem::replace(&mut entered, link.entered().bindings);
        ensure!(entered > before, "no Binding was tried under {gate:?}");
        println!("{gate:?}: {} Bindings, of which {} at once", entered - before, link.most_open());
    }
    let open = link.most_open();
    ensure!(open <= MOST_OPEN, "{open} Bindings were under way at once when none was answered");
    link.set(Gate::Open);
    for name in &names {
        scene.bound(name, MANAGED).await?;
    }
    let tries = link.tries();
    println!(
        "Bindings tried: {} for {} pods, at most {:?} a pod",
        tries.iter().sum::<usize>(),
        names.len(),
        tries.iter().max()
    );
    ensure!(tries.len() == names.len(), "Bindings of {} pods were tried", tries.len());
    ensure!(tries.iter().all(|count| *count <= MOST_TRIES), "tries of each pod: {tries:?}");
    let pods = try_join_all(names.iter().map(|name| scene.pods.get(name))).await?;
    let bound = scene.places_are_exclusive(&pods).await?;
    ensure!(bound == names.len(), "{bound} pods are bound");
    scene.stop().await
}

/// The API server answers no request for three seconds, repeatedly, as with a slow disk below etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_stalls_for_seconds_changes_no_leader() -> anyhow::Result<()> {
    let mut scene = Scene::start(&[]).await?;
    let leader = scene.leaders.leads_but(None).await?;
    let epoch = scene.epoch().await?;
    for stall in 1..=4 {
        scene.plane.child("kube-apiserver")?.signal(Signal::STOP)?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        scene.plane.child("kube-apiserver")?.signal(Signal::CONT)?;
        let name = format!("after-{stall}");
        scene.create(&name, &request(SMALL, 1), json!({})).await?;
        scene.bound(&name, MANAGED).await?;
        let leads = (scene.leaders.leader().await?, scene.epoch().await?);
        ensure!(leads == (Some(leader), epoch), "after {stall} stalls: {leads:?}, {leader} led in {epoch}");
    }
    scene.stop().await
}
