//! A burst of pods that prefer a kind with too little capacity, through three replicas of the webhook and two
//! of the extender. It shows which pods get which kind, and what that adds to their creation.
//!
//! Bursts alternate with bursts of the same pods with an unrelated annotation: no webhook is called for
//! those, and the default scheduler binds them to the same nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args as ClapArgs;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, resource_of, wait};
use kerf_tests::leaders::Leaders;
use kerf_tests::oracle::Truth;
use kerf_tests::pods::{kind_of, phase_of};
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::report::{Figure, Latency, print, print_figures};

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
const NEUTRAL: &str = "kerf.dev/gpu-2gb";

const POLICY: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: burst}
spec:
  defaultIsolation: none
  isolation: {none: [mig, mps]}
";

/// What to measure.
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
    /// Pairs of bursts.
    #[arg(long, default_value_t = 2)]
    pairs: u32,
    /// The longest that a burst may take to be bound and to run, in seconds.
    #[arg(long, default_value_t = 600)]
    patience: u64,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.room <= args.pods, "--room is of --pods");
    let folder = tempfile::tempdir()?;
    let mut scene = Scene::start(&folder, args).await?;
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    let (mut wrong, mut waiting) = (0, 0);
    for pair in 0..args.pairs {
        let mut turns = [true, false];
        turns.rotate_left(usize::try_from(pair)? % 2);
        for is_ours in turns {
            if is_ours {
                let (took, kinds, waits) = scene.burst(args).await?;
                let by_first = kinds.get(&Kind::Mig).copied().unwrap_or_default();
                wrong += by_first.abs_diff(usize::try_from(args.room)?);
                waiting += waits;
                ours.extend(took);
            } else {
                others.extend(scene.plain_burst(args).await?);
            }
        }
    }
    scene.stop().await?;
    let (ours, others) = (Latency::of(ours), Latency::of(others));
    for (name, latency) in [("with kerf", &ours), ("without the webhook", &others)] {
        print(&format!(
            "creation {name:<20} n {:>6}   p50 {:>8.1} ms   p99 {:>8.1} ms   max {:>8.1} ms",
            latency.count, latency.p50_ms, latency.p99_ms, latency.max_ms
        ));
    }
    let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    print_figures(&[
        Figure::at_most("creation, p99, with kerf over without", ours.p99_ms / others.p99_ms, BAR),
        Figure::at_most("pods of the first kind, off its room", count(wrong), 0.0),
        Figure::at_most("pods waiting", count(waiting), 0.0),
    ]);
    Ok(())
}

struct Scene {
    cluster: Cluster,
    leaders: Leaders,
    patience: Duration,
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
        // The API server's queues would dominate the measurement.
        options.control_plane.priority_and_fairness = false;
        options.policy = Some(policy);
        let mut cluster = Cluster::start(options, |step| print(&format!("# {step}"))).await?;
        for lane in &LANES[1..] {
            cluster.add_webhook((LANE, lane)).await?;
        }
        let leaders = Leaders::take_over(&mut cluster, &[]).await?;
        let scene = Self { cluster, leaders, patience: Duration::from_secs(args.patience) };
        scene.fill(args).await?;
        Ok(scene)
    }

    /// Fills the MIG instances beyond `--room`, after the webhooks know both kinds.
    async fn fill(&self, args: &Args) -> anyhow::Result<()> {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let pods = self.cluster.pods();
        for number in 0..u32::try_from(LANES.len())? {
            let probe = small("probe", keys::GPU_MEMORY, number);
            let is_neutral = async || Ok(resource_of(&pods.create(&dry_run, &probe).await?)? == NEUTRAL);
            wait(Duration::from_mins(1), "the webhooks to know both kinds", is_neutral).await?;
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
    async fn create(&self, args: &Args, name: &str, key: &str) -> anyhow::Result<Vec<Duration>> {
        let pods = self.cluster.pods();
        let create = async |number: u32| {
            let pod = small(name, key, number);
            let begun = Instant::now();
            pods.create(&PostParams::default(), &pod).await?;
            anyhow::Ok(begun.elapsed())
        };
        stream::iter(0..args.pods).map(create).buffer_unordered(args.at_once).try_collect().await
    }

    /// Returns how long each creation took, how many pods have each kind, and how many are pending.
    async fn burst(&mut self, args: &Args) -> anyhow::Result<(Vec<Duration>, BTreeMap<Kind, usize>, usize)> {
        let begun = Instant::now();
        let took = self.create(args, "burst", keys::GPU_MEMORY).await?;
        let created = begun.elapsed().as_secs_f64();
        let waits = self.all_run("burst", args).await?;
        let run = begun.elapsed().as_secs_f64();
        let mut kinds = BTreeMap::new();
        for pod in self.pods("burst").await?.iter().filter(|pod| node_of(pod).is_some()) {
            *kinds.entry(kind_of(pod)?).or_insert(0) += 1;
        }
        print(&format!(
            "# burst: created in {created:.1} s, all run after {run:.1} s: {kinds:?}, {waits} wait"
        ));
        let violations = Truth::observe(&self.cluster).await?.violations();
        ensure!(violations.is_empty(), "{}", violations.join("\n"));
        self.end("burst").await?;
        Ok((took, kinds, waits))
    }

    async fn plain_burst(&self, args: &Args) -> anyhow::Result<Vec<Duration>> {
        let begun = Instant::now();
        let took = self.create(args, "plain", "kerf.example/gpu-memory").await?;
        let created = begun.elapsed().as_secs_f64();
        let waits = self.all_run("plain", args).await?;
        ensure!(waits == 0, "{waits} plain pods do not run");
        let run = begun.elapsed().as_secs_f64();
        print(&format!("# without the webhook: created in {created:.1} s, all run after {run:.1} s"));
        self.end("plain").await?;
        Ok(took)
    }

    async fn pods(&self, name: &str) -> anyhow::Result<Vec<Pod>> {
        let mut pods = self.cluster.pods().list(&ListParams::default()).await?.items;
        pods.retain(|pod| pod.metadata.name.as_deref().is_some_and(|of| of.starts_with(name)));
        Ok(pods)
    }

    /// Waits until all pods run or the timeout ends, and returns how many do not run.
    async fn all_run(&self, name: &str, args: &Args) -> anyhow::Result<usize> {
        let begun = Instant::now();
        let pods = usize::try_from(args.pods)?;
        loop {
            let found = self.pods(name).await?;
            let run = found.iter().filter(|pod| phase_of(pod) == "Running").count();
            if run == pods || begun.elapsed() > self.patience {
                return Ok(pods - run);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Deletes the burst, and waits until only fillers have slices.
    async fn end(&self, name: &str) -> anyhow::Result<()> {
        let pods = self.cluster.pods();
        let at_once = DeleteParams::default().grace_period(0);
        for lane in LANES {
            let of_lane = ListParams::default().labels(&format!("{LANE}={lane}"));
            let ours = pods.list(&of_lane).await?.items.into_iter().filter_map(|pod| pod.metadata.name);
            let ours: Vec<String> = ours.filter(|of| of.starts_with(name)).collect();
            let delete = async |name: String| pods.delete(&name, &at_once).await.map(drop);
            stream::iter(ours).map(delete).buffer_unordered(16).try_collect::<()>().await?;
        }
        wait(self.patience, "all slices to be given back", async || {
            for node in self.cluster.nodes() {
                let node = self.cluster.gpu_node(node.name()).await?;
                let status = node.read_status()?.unwrap_or_default();
                let promised = status.slices.iter().filter_map(|s| s.reservation.as_ref()).map(|r| &r.pod);
                let held = status.slices.iter().filter_map(|s| s.holder.as_ref()).map(|h| &h.pod);
                if promised.chain(held).any(|pod| pod.starts_with(name)) {
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

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}
