//! Kills a random program of kerf every few seconds during a churn of pods. No slice may be held twice, no running pod
//! may be harmed, and no pod may be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args as ClapArgs;
use k8s_openapi::api::core::v1::Pod;
use kerf_tests::churn::Churn;
use kerf_tests::cluster::{Cluster, ClusterOptions};
use kerf_tests::oracle::{Truth, confirmed};
use kerf_tests::pods::phase_of;
use kerf_tests::random::Random;
use kube::ResourceExt as _;

use crate::report::{Figure, count, print, print_figures};

/// The delay between two steps of the churn.
const STEP_DELAY: Duration = Duration::from_millis(30);

/// The interval between two observations of the cluster.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long the cluster may take to come to rest after the last kill. A Binding without an answer keeps its slices for
/// 80 s, and the scheduler's backoff is 10 s.
const REST_TIMEOUT: Duration = Duration::from_mins(3);

/// How many pods, and how many kills.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Pods to create.
    #[arg(long, default_value_t = 10_000)]
    pods: u64,
    /// Seconds between two kills.
    #[arg(long, default_value_t = 5)]
    every: u64,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Default)]
struct Findings {
    /// Slices that are held twice, gone, or not what is reserved.
    broken: BTreeSet<String>,
    /// Pods that stopped running although the churn did not delete them.
    harmed: BTreeSet<String>,
    /// Pods that a kubelet rejected.
    rejected: BTreeSet<String>,
    /// The names of the pods that were seen running, by UID.
    ran: BTreeMap<String, String>,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let nodes = ClusterOptions::demo_nodes();
    let mut cluster = Cluster::start(ClusterOptions::new(nodes), |step| print(&format!("# {step}"))).await?;
    let mut churn = Churn::new(args.seed);
    let mut random = Random::new(args.seed.wrapping_add(1));
    let mut findings = Findings::default();
    let (mut kills, mut refused, mut reported) = (BTreeMap::<String, u32>::new(), 0_u32, 0);
    let (begun, mut killed, mut looked) = (Instant::now(), Instant::now(), Instant::now());
    while churn.created() < args.pods {
        // The webhook answers nothing while it is dead, so pods that ask for a GPU cannot be created then.
        refused += u32::from(churn.step(&cluster.pods()).await.is_err());
        if killed.elapsed() >= Duration::from_secs(args.every) {
            let mut programs = cluster.programs();
            let at = random.below(programs.len());
            programs[at].restart()?;
            *kills.entry(programs[at].name().to_owned()).or_default() += 1;
            killed = Instant::now();
        }
        if looked.elapsed() >= POLL_INTERVAL {
            findings.look(&cluster, &churn).await?;
            looked = Instant::now();
        }
        if churn.created() >= reported + 500 {
            reported = churn.created();
            let (ran, took) = (findings.ran.len(), begun.elapsed().as_secs());
            print(&format!("# {} pods in {took} s, {ran} of them seen running", churn.created()));
        }
        tokio::time::sleep(STEP_DELAY).await;
    }
    let lost = rest(&cluster, &churn, &mut findings).await?;
    let all: u32 = kills.values().sum();
    print(&format!("kills: {all} in {} s: {kills:?}", begun.elapsed().as_secs()));
    print(&format!("{}; {refused} requests failed", churn.tally()));
    print(&format!("{} pods were seen running, {} rejected", findings.ran.len(), findings.rejected.len()));
    let figures = [
        Figure::at_most("slices held twice, gone or not as reserved", count(findings.broken.len()), 0.0),
        Figure::at_most("running pods harmed", count(findings.harmed.len()), 0.0),
        Figure::at_most("pods lost", count(lost.len()), 0.0),
    ];
    for text in &lost {
        print(text);
    }
    print_figures(&figures);
    cluster.stop().await?;
    ensure!(figures.iter().all(Figure::is_met), "seed {}: a bar is missed", args.seed);
    Ok(())
}

/// Waits until the cluster is at rest. Returns the lost pods: those that are gone although the churn did not delete
/// them, those that are pending although there is room for them, and those that are half-way.
async fn rest(cluster: &Cluster, churn: &Churn, findings: &mut Findings) -> anyhow::Result<Vec<String>> {
    let begun = Instant::now();
    loop {
        let truth = findings.look(cluster, churn).await?;
        let there: BTreeSet<String> = truth.pods().iter().map(Pod::name_any).collect();
        let gone = churn.alive().iter().filter(|name| !there.contains(*name));
        let mut lost: Vec<String> = gone.map(|name| format!("{name} is gone")).collect();
        lost.extend(truth.unexplained());
        lost.extend((!truth.is_settled()).then(|| "pods are half-way".to_owned()));
        if lost.is_empty() || begun.elapsed() > REST_TIMEOUT {
            print(&format!("# at rest after {} s", begun.elapsed().as_secs()));
            return Ok(lost);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

impl Findings {
    async fn look(&mut self, cluster: &Cluster, churn: &Churn) -> anyhow::Result<Truth> {
        let truth = Truth::observe(cluster).await?;
        let found: Vec<String> =
            truth.harm().into_iter().filter(|text| !self.broken.contains(text)).collect();
        for text in confirmed(found, async || Ok(Truth::observe(cluster).await?.harm())).await? {
            print(&text);
            self.broken.insert(text);
        }
        for text in truth.rejected() {
            if self.rejected.insert(text.clone()) {
                print(&format!("# {text}"));
            }
        }
        let shown: BTreeMap<&str, &Pod> =
            truth.pods().iter().filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod))).collect();
        let alive: BTreeSet<&String> = churn.alive().iter().collect();
        for (uid, name) in self.ran.iter().filter(|(_, name)| alive.contains(name)) {
            let phase = shown.get(uid.as_str()).map_or("gone", |pod| phase_of(pod));
            if phase != "Running" && self.harmed.insert(name.clone()) {
                print(&format!("{name} ran and is {phase}"));
            }
        }
        let running = shown.iter().filter(|(_, pod)| phase_of(pod) == "Running");
        self.ran.extend(running.map(|(uid, pod)| ((*uid).to_owned(), pod.name_any())));
        Ok(truth)
    }
}
