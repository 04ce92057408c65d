//! Measures the node agent alone: how soon a reserved slice is ready, and what an idle agent costs.
//!
//! A slice's time runs from the order to reserve it until the agent's stream reports it Ready for its pod. An
//! idle agent's writes are those that the API server counts; its memory and CPU are those that Linux reports.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args as ClapArgs;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{GpuNodeStatus, MigPart, Shape, SliceState, WantedSlice};
use kerf_core::ledger::NodeState;
use kerf_core::names::{PodUid, SliceId};
use kerf_nvml_mock::{MigMode, MockConfig, MockFiles, Model};
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::{agent_program, unguarded, unscheduled_pod, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::kubelet::{KubeletOptions, NodeTemplate, StandInKubelet};
use kerf_tests::pods::bind;
use kerf_tests::process::Child;
use kerf_tests::stand_in_leader::{StandInLeader, reservation};
use kube::Api;
use kube::api::PostParams;

use crate::process::{cpu_ticks, resident_mib};
use crate::report::{Figure, Latency, print, print_figures};

const NODE: &str = "n";
const ONE: &str = "nvidia.com/mig-1g.10gb";

const SLICE_MS: f64 = 40.0;
const WRITES_A_MINUTE: f64 = 1.0;
const CORE_PERCENT: f64 = 0.5;

/// The limit of its resident memory, in MiB. A node of one or two GPUs has a lower one.
fn resident_bar(gpus: u32) -> f64 {
    if gpus <= 2 { 16.0 } else { 24.0 }
}

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// GPUs of the node, H100 in MIG mode.
    #[arg(long, default_value_t = 8)]
    gpus: u32,
    /// Slices that are cut one at a time; at most seven a GPU.
    #[arg(long, default_value_t = 50)]
    slices: usize,
    /// Seconds at rest.
    #[arg(long, default_value_t = 120)]
    rest: u64,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let mut scene = Scene::start(args.gpus).await?;
    let times = scene.cut(args.slices).await?;
    let latency = Latency::from_samples(times);
    print(&format!(
        "ordered → Ready seen             n {:>3}   p50 {:>6.1} ms   p99 {:>6.1} ms   max {:>6.1} ms",
        latency.count, latency.p50_ms, latency.p99_ms, latency.max_ms
    ));
    let rest = scene.rest(Duration::from_secs(args.rest)).await?;
    print_figures(&[
        Figure::at_most("new slice on an idle GPU, p50, ms", latency.p50_ms, SLICE_MS),
        Figure::at_most("at rest: API writes a minute", rest.writes_a_minute, WRITES_A_MINUTE),
        Figure::at_most("at rest: resident, MiB", rest.resident_mib, resident_bar(args.gpus)),
        Figure::at_most("at rest: % of a core", rest.core_percent, CORE_PERCENT),
    ]);
    scene.stop().await
}

struct Scene {
    plane: ControlPlane,
    kubelet: StandInKubelet,
    leader: StandInLeader,
    agent: Child,
    gpu_nodes: Api<GpuNode>,
}

/// The cost of an idle agent.
struct Rest {
    writes_a_minute: f64,
    resident_mib: f64,
    core_percent: f64,
}

impl Scene {
    async fn start(gpus: u32) -> anyhow::Result<Self> {
        let plane = unguarded(ControlPlaneOptions::without_controller_manager()).await?;
        let dir = plane.dir().join(NODE);
        std::fs::create_dir_all(&dir)?;
        let files = MockFiles::in_folder(&dir);
        MockConfig::new().seed(NODE).gpus(Model::H100, gpus, MigMode::Enabled).write(&files.config)?;
        let kubelet = StandInKubelet::start(KubeletOptions {
            register_node: Some(NodeTemplate::default()),
            ..KubeletOptions::new(NODE, plane.client(), &dir)
        })
        .await?;
        let leader = StandInLeader::start(&plane).await?;
        let agent = spawn(&plane, &dir, &files, &leader).await?;
        let gpu_nodes: Api<GpuNode> = Api::all(plane.client());
        wait(Duration::from_secs(20), "the agent to serve", async || {
            let object = gpu_nodes.get_opt(NODE).await?;
            Ok(object.and_then(|o| o.read_status().ok().flatten()).is_some_and(|s| s.is_ready()))
        })
        .await
        .with_context(|| agent.log_tail())?;
        Ok(Self { plane, kubelet, leader, agent, gpu_nodes })
    }

    /// Reserves one slice after the other, each for its own pod.
    async fn cut(&self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let gpus = self.status().await?.gpus;
        let (mut slices, mut times) = (Vec::new(), Vec::new());
        // The count is limited, because an H100 has seven places for `1g.10gb`.
        for n in 0..count.min(gpus.len() * 7) {
            let id = SliceId::new(format!("s{}", n + 1));
            let pod = self.create(&format!("p{n}")).await?;
            let shape = Shape::Mig {
                profile: "1g.10gb".parse()?,
                start: u8::try_from(n % 7)?,
                size: 1,
                part: MigPart::Whole,
            };
            let reservation = Some(reservation(&pod, ONE)?);
            slices.push(WantedSlice { id: id.clone(), gpu: gpus[n / 7].uuid.clone(), shape, reservation });
            let begun = Instant::now();
            self.leader.want(&slices).await?;
            let is_ready = |node: &NodeState| {
                node.status.slice(&id).is_some_and(|slice| slice.state == SliceState::Ready)
            };
            self.leader.until("the slice to be ready", is_ready).await?;
            times.push(begun.elapsed());
            self.bind(&pod, &id).await?;
        }
        Ok(times)
    }

    async fn status(&self) -> anyhow::Result<GpuNodeStatus> {
        Ok(self.gpu_nodes.get(NODE).await?.read_status()?.unwrap_or_default())
    }

    async fn create(&self, name: &str) -> anyhow::Result<Pod> {
        let pods: Api<Pod> = Api::default_namespaced(self.plane.client());
        Ok(pods.create(&PostParams::default(), &unscheduled_pod(name, ONE)).await?)
    }

    /// Binds the pod and waits until it runs, so that the agent has nothing under way when the next slice is
    /// ordered.
    async fn bind(&self, pod: &Pod, id: &SliceId) -> anyhow::Result<()> {
        let name = pod.metadata.name.as_deref().context("the pod has no name")?;
        let uid = PodUid::new(pod.metadata.uid.clone().context("the pod has no UID")?);
        let pods: Api<Pod> = Api::default_namespaced(self.plane.client());
        self.leader.mark(&uid).await?;
        bind(&pods, name, NODE).await?;
        self.leader.bound(&uid).await?;
        let is_held =
            |node: &NodeState| node.status.slice(id).is_some_and(|slice| slice.state == SliceState::Held);
        self.leader.until(&format!("{name} to hold its slice"), is_held).await.map(drop)
    }

    /// Measures the agent while nothing happens.
    async fn rest(&mut self, time: Duration) -> anyhow::Result<Rest> {
        print(&format!("at rest for {} s", time.as_secs()));
        // The last pod's status and events settle before the measurement begins.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (pid, begun) = (self.agent.id(), Instant::now());
        let (writes, ticks) = (self.writes().await?, cpu_ticks(pid)?);
        tokio::time::sleep(time).await;
        let seconds = begun.elapsed().as_secs_f64();
        let writes = self.writes().await?.saturating_sub(writes);
        let used = f64::from(u32::try_from(cpu_ticks(pid)?.saturating_sub(ticks))?);
        Ok(Rest {
            writes_a_minute: f64::from(u32::try_from(writes)?) * 60.0 / seconds,
            resident_mib: resident_mib(pid)?,
            // Linux counts in hundredths of a second (`USER_HZ`), so ticks over seconds are percent of a
            // core.
            core_percent: used / seconds,
        })
    }

    /// Counts the API server's writes of the objects that the agent writes: its GpuNode, its Node's labels,
    /// Events. Status updates of the Node are left out, because the kubelet writes them too.
    async fn writes(&self) -> anyhow::Result<u64> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.plane.client().request_text(request).await?;
        let is_write = |line: &&str| {
            let written = ["verb=\"PATCH\"", "verb=\"PUT\"", "verb=\"POST\"", "verb=\"APPLY\""];
            let of_agent = line.contains("resource=\"gpunodes\"")
                || line.contains("resource=\"events\"")
                || line.contains("resource=\"nodes\"") && line.contains("subresource=\"\"");
            line.starts_with("apiserver_request_total{")
                && of_agent
                && written.iter().any(|v| line.contains(v))
        };
        let counts =
            text.lines().filter(is_write).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        Ok(counts.sum())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.agent.terminate(Duration::from_secs(5))?;
        self.kubelet.stop().await;
        self.plane.stop().await
    }
}

async fn spawn(
    plane: &ControlPlane,
    dir: &Path,
    files: &MockFiles,
    leader: &StandInLeader,
) -> anyhow::Result<Child> {
    let program = agent_program(plane, NODE, dir, files).await?.args(leader.agent_flags());
    // The chart's DaemonSet sets this too, so the memory is that of a real agent.
    Ok(program.env("MALLOC_ARENA_MAX", "1").spawn()?)
}
