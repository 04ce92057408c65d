//! A burst of pods that prefer a kind with too little capacity, through three replicas of the webhook and two
//! of the extender. It shows which pods get which kind, and what that adds to their creation.
//!
//! Bursts through the webhook alternate with two controls. In the first, the pods arrive as the webhook would have
//! changed them, and the webhook is not called: what differs is the webhook alone. In the second, the pods have an
//! unrelated annotation, and the default scheduler binds them to the same nodes: what differs is all of kerf, whose
//! other requests take their part of the API server's CPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args as ClapArgs;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::admission::{match_condition, set_match_condition};
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, resource_of, wait};
use kerf_tests::leaders::Leaders;
use kerf_tests::oracle::Truth;
use kerf_tests::pods::{kind_of, node_of, phase_of};
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::report::{Figure, Latency, count, print, print_figures};

/// The bar of issue 23, which aims at 2.
const BAR: f64 = 3.0;
/// Instances of `1g.10gb` that fit on an H100.
const PLACES: u32 = 7;
/// GPUs of a MIG node.
const GPUS: u32 = 8;
/// Pods that a kubelet accepts.
const PODS: u32 = 110;
/// The label that selects a pod's webhook replica. A Service would spread connections, but one API server has
/// only one connection.
const LANE: &str = "lane";
const LANES: [&str; 3] = ["a", "b", "c"];
const BURST: &str = "burst";
const NEUTRAL: &str = "kerf.dev/gpu-2gb";

const POLICY: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: burst}
spec:
  defaultIsolation: none
  isolation: {none: [mig, mps]}
";

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Pods of a burst.
    #[arg(long, default_value_t = 1000)]
    pods: u32,
    /// How many of them the first kind has room for.
    #[arg(long, default_value_t = 614)]
    room: u32,
    /// Creations that are under way at once.
    #[arg(long, default_value_t = 100)]
    at_once: usize,
    /// Rounds, each with one burst of every manner.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The longest that a burst may take to be bound and to run, in seconds.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

/// How the pods of a burst arrive at the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Undecided,
    Decided,
    Plain,
}

impl Manner {
    const ALL: [Self; 3] = [Self::Undecided, Self::Decided, Self::Plain];

    fn name(self) -> &'static str {
        match self {
            Self::Undecided => "through the webhook",
            Self::Decided => "without the webhook",
            Self::Plain => "without kerf",
        }
    }
}

/// What became of a burst.
struct Outcome {
    took: Vec<Duration>,
    /// By how many pods the first kind's share differs from its capacity.
    off_room: usize,
    waiting: usize,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.room <= args.pods, "--room is of --pods");
    let folder = tempfile::tempdir()?;
    let mut scene = Scene::start(&folder, args).await?;
    // The first burst cuts GPUs that are empty, and all later ones find slices. It counts for no latency.
    let first = scene.burst(args, Manner::Undecided).await?;
    let (mut wrong, mut waiting) = (first.off_room, first.waiting);
    let mut took = Manner::ALL.map(|_| Vec::new());
    for round in 0..args.rounds {
        let mut turns = [0, 1, 2];
        turns.rotate_left(usize::try_from(round)? % 3);
        for turn in turns {
            let outcome = scene.burst(args, Manner::ALL[turn]).await?;
            wrong += outcome.off_room;
            waiting += outcome.waiting;
            took[turn].extend(outcome.took);
        }
    }
    scene.stop().await?;
    let [ours, decided, plain] = took.map(Latency::from_samples);
    for (manner, latency) in Manner::ALL.iter().zip([&ours, &decided, &plain]) {
        let name = manner.name();
        print(&format!(
            "creation {name:<20} n {:>6}   p50 {:>8.1} ms   p99 {:>8.1} ms   max {:>8.1} ms",
            latency.count, latency.p50_ms, latency.p99_ms, latency.max_ms
        ));
    }
    print_figures(&[
        Figure::at_most("creation, p99, over without the webhook", ours.p99_ms / decided.p99_ms, BAR),
        Figure::at_most("creation, p99, over without kerf", ours.p99_ms / plain.p99_ms, BAR),
        Figure::at_most("pods of the first kind, off its room", count(wrong), 0.0),
        Figure::at_most("pods waiting", count(waiting), 0.0),
    ]);
    Ok(())
}

struct Scene {
    cluster: Cluster,
    leaders: Leaders,
    timeout: Duration,
    /// The expression by which the API server calls the webhook.
    condition: String,
}

/// Nodes of H100 in MIG mode, and nodes of shared H200 with capacity for all other pods.
fn nodes(args: &Args) -> Vec<NodeSpec> {
    let first = args.room.div_ceil(PLACES);
    let of_first = (0..first.div_ceil(GPUS)).map(|node| {
        let here = GPUS.min(first - node * GPUS);
        NodeSpec::new(&format!("mig-{node}"), Model::H100, here)
    });
    // A node's pods put at most forty shares on a GPU, which is below the limit of MPS clients.
    let shared = (args.pods - args.room).div_ceil(PODS) + 1;
    let of_rest = (0..shared).map(|node| {
        let name = format!("mps-{node}");
        let gpus = MockConfig::new().seed(&name).gpus(Model::H200, 3, MigMode::Disabled);
        NodeSpec { gpus, ..NodeSpec::new(&name, Model::T4, 0) }
    });
    of_first.chain(of_rest).collect()
}

/// A decided pod under the name and in the lane of another number.
fn renamed(decided: &Pod, number: u32) -> Pod {
    let Pod { metadata, spec, .. } = decided.clone();
    let mut pod = small(BURST, keys::GPU_MEMORY, number);
    let lane = pod.metadata.labels.take().unwrap_or_default();
    let labels = metadata.labels.unwrap_or_default().into_iter().chain(lane).collect();
    pod.metadata.labels = Some(labels);
    pod.metadata.annotations = metadata.annotations;
    Pod { spec, ..pod }
}

fn small(name: &str, key: &str, number: u32) -> Pod {
    let mut pod = pod(&format!("{name}-{number}"), &[(key, "2Gi")]);
    let lane = LANES[usize::try_from(number).unwrap_or(0) % LANES.len()];
    pod.metadata.labels = Some([(LANE.to_owned(), lane.to_owned())].into());
    pod
}

impl Scene {
    async fn start(folder: &tempfile::TempDir, args: &Args) -> anyhow::Result<Self> {
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, POLICY)?;
        let mut options = ClusterOptions::new(nodes(args));
        options.two_extenders = true;
        options.control_plane.controller_manager = false;
        options.policy = Some(policy);
        let mut cluster = Cluster::start(options, |step| print(&format!("# {step}"))).await?;
        for lane in &LANES[1..] {
            cluster.add_webhook((LANE, lane)).await?;
        }
        let leaders = Leaders::take_over(&mut cluster, &[]).await?;
        let condition = match_condition(&cluster.plane().client()).await?;
        let scene = Self { cluster, leaders, timeout: Duration::from_secs(args.timeout), condition };
        scene.fill(args).await?;
        Ok(scene)
    }

    /// Fills the MIG instances beyond `--room`, after the webhooks have observed both kinds.
    async fn fill(&self, args: &Args) -> anyhow::Result<()> {
        for number in 0..u32::try_from(LANES.len())? {
            let is_neutral = async || Ok(resource_of(&self.decided(number).await?)? == NEUTRAL);
            wait(Duration::from_mins(1), "the webhooks to observe both kinds", is_neutral).await?;
        }
        for number in 0..args.room.next_multiple_of(PLACES) - args.room {
            let filler = small("filler", keys::GPU_MEMORY, number);
            let name = filler.metadata.name.clone().unwrap_or_default();
            self.cluster.create(&filler).await?;
            let kind = kind_of(&self.cluster.running(&name).await?)?;
            ensure!(kind == Kind::Mig, "{name} has a slice by {kind}");
        }
        Ok(())
    }

    /// Creates the pods, and returns how long each creation took.
    async fn create(&self, args: &Args, manner: Manner) -> anyhow::Result<Vec<Duration>> {
        let pods = self.cluster.pods();
        let decided = self.decided(0).await?;
        if manner == Manner::Decided {
            self.call_webhook(false).await?;
        }
        let create = async |number: u32| {
            let pod = match manner {
                Manner::Undecided => small(BURST, keys::GPU_MEMORY, number),
                Manner::Decided => renamed(&decided, number),
                Manner::Plain => small(BURST, "kerf.example/gpu-memory", number),
            };
            let begun = Instant::now();
            pods.create(&PostParams::default(), &pod).await?;
            anyhow::Ok(begun.elapsed())
        };
        stream::iter(0..args.pods).map(create).buffer_unordered(args.at_once).try_collect().await
    }

    /// A pod like those of the burst, as the webhook changes it.
    async fn decided(&self, number: u32) -> anyhow::Result<Pod> {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        Ok(self.cluster.pods().create(&dry_run, &small("probe", keys::GPU_MEMORY, number)).await?)
    }

    /// Makes the API server call the webhook, or skip it.
    async fn call_webhook(&self, is_called: bool) -> anyhow::Result<()> {
        let condition = if is_called { &self.condition } else { "false" };
        set_match_condition(&self.cluster.plane().client(), condition).await?;
        let probe = small("probe", keys::GPU_MEMORY, 0);
        // The guard refuses a pod on which the webhook was not asked.
        let is_done = async || Ok(self.cluster.dry_run_refusal(&probe).await?.is_none() == is_called);
        wait(Duration::from_mins(1), "the API server to follow the match condition", is_done).await
    }

    async fn burst(&mut self, args: &Args, manner: Manner) -> anyhow::Result<Outcome> {
        let begun = Instant::now();
        let took = self.create(args, manner).await?;
        let created = begun.elapsed().as_secs_f64();
        let waiting = self.all_run(args).await?;
        let run = begun.elapsed().as_secs_f64();
        let (mut kinds, mut off_room) = (BTreeMap::new(), 0);
        if manner != Manner::Plain {
            kinds = self.by_kind().await?;
            let by_first = kinds.get(&Kind::Mig).copied().unwrap_or_default();
            off_room = by_first.abs_diff(usize::try_from(args.room)?);
        }
        let name = manner.name();
        print(&format!(
            "# {name}: created in {created:.1} s, all run after {run:.1} s: {kinds:?}, {waiting} wait"
        ));
        Truth::ensure_sound(&self.cluster).await?;
        self.end().await?;
        if manner == Manner::Decided {
            self.call_webhook(true).await?;
        }
        Ok(Outcome { took, off_room, waiting })
    }

    async fn by_kind(&self) -> anyhow::Result<BTreeMap<Kind, usize>> {
        let mut kinds = BTreeMap::new();
        for pod in self.pods().await?.iter().filter(|pod| node_of(pod).is_some()) {
            *kinds.entry(kind_of(pod)?).or_insert(0) += 1;
        }
        Ok(kinds)
    }

    /// The pods of the burst.
    async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let mut pods = self.cluster.pods().list(&ListParams::default()).await?.items;
        pods.retain(|pod| pod.metadata.name.as_deref().is_some_and(|name| name.starts_with(BURST)));
        Ok(pods)
    }

    /// Waits until all pods run or the timeout ends, and returns how many do not run.
    async fn all_run(&self, args: &Args) -> anyhow::Result<usize> {
        let begun = Instant::now();
        let pods = usize::try_from(args.pods)?;
        loop {
            let found = self.pods().await?;
            let run = found.iter().filter(|pod| phase_of(pod) == "Running").count();
            if run == pods || begun.elapsed() > self.timeout {
                return Ok(pods - run);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Deletes the burst, and waits until only fillers have slices.
    async fn end(&self) -> anyhow::Result<()> {
        let pods = self.cluster.pods();
        let at_once = DeleteParams::default().grace_period(0);
        for lane in LANES {
            let of_lane = ListParams::default().labels(&format!("{LANE}={lane}"));
            let ours = pods.list(&of_lane).await?.items.into_iter().filter_map(|pod| pod.metadata.name);
            let ours: Vec<String> = ours.filter(|of| of.starts_with(BURST)).collect();
            let delete = async |name: String| pods.delete(&name, &at_once).await.map(drop);
            stream::iter(ours).map(delete).buffer_unordered(16).try_collect::<()>().await?;
        }
        wait(self.timeout, "all slices to be given back", async || {
            for node in self.cluster.nodes() {
                let node = self.cluster.gpu_node(node.name()).await?;
                let status = node.read_status()?.unwrap_or_default();
                let reserved = status.slices.iter().filter_map(|s| s.reservation.as_ref()).map(|r| &r.pod);
                let held = status.slices.iter().filter_map(|s| s.holder.as_ref()).map(|h| &h.pod);
                if reserved.chain(held).any(|pod| pod.starts_with(BURST)) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.leaders.stop()?;
        self.cluster.stop().await
    }
}
