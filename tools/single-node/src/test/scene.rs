//! Shared by all scenes: starts pods on the node, reads their output, and deletes them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::real_node::Process;
use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::kind::Kind;
use kerf_core::names::GpuUuid;
use kerf_core::resource::SHARE_SIZES;
use kerf_tests::cluster::wait;
use kerf_tests::control_plane;
use kerf_tests::pods::{Pods, assignment_of, phase_of, state_of};

use super::node::Node;
use super::users::servers;
use crate::args::Args;
use crate::clock::Clock;
use crate::container_log;
use crate::job::{Ask, CONTAINER, Job};
use crate::running_node::RunningNode;
use crate::seen::{Expected, Seen};

/// Timeout for a line of a container's output.
const TIMEOUT: Duration = Duration::from_secs(40);

/// How many lines of a pod's output an error shows.
const LINES: usize = 20;

/// The node, and clients for its pods and its GpuNode.
pub struct Scene<'a> {
    pub args: &'a Args,
    pub pods: Pods,
    pub node: Node,
    pub clock: Clock,
    /// The memory of each of the node's GPUs, and the part of it that shares can use.
    pub gpu_mib: u64,
    pub usable_mib: u64,
    /// How many GPUs the node has. All are alike.
    pub gpus: usize,
}

impl<'a> Scene<'a> {
    /// Opens a node that is up.
    pub async fn open(args: &'a Args) -> anyhow::Result<Self> {
        let client = control_plane::client(&RunningNode::read(args)?.kubeconfig).await?;
        let node = Node::new(&args.name, client.clone());
        let pods = Pods::new(client);
        let clock = Clock::start(pods.api().clone());
        let gpus = node.gpus().await?;
        let (gpu_mib, beside) = (gpus[0].memory.0, gpus[0].beside_shares().0);
        ensure!(gpus.iter().all(|gpu| gpu.memory.0 == gpu_mib), "the node's GPUs differ: {gpus:?}");
        Ok(Self {
            args,
            gpu_mib,
            usable_mib: gpu_mib.saturating_sub(beside),
            gpus: gpus.len(),
            pods,
            node,
            clock,
        })
    }

    /// How many shares of `gib` GiB fit on all GPUs together.
    pub fn room_for(&self, gib: u64) -> usize {
        let of_one = self.usable_mib / (gib * 1024);
        usize::try_from(of_one).unwrap_or(usize::MAX).saturating_mul(self.gpus)
    }

    /// One job for each GPU. Each share is clearly more than half of a GPU, so no GPU stays free.
    pub fn one_a_gpu(&self, name: &str) -> anyhow::Result<Vec<Job>> {
        let half = self.gpu_mib * 11 / 20;
        let size = SHARE_SIZES.into_iter().find(|size| size.share_memory().0 > half);
        let gib = size.context("no share is so large")?.share_memory().0 / 1024;
        Ok((0..self.gpus).map(|n| Job::new(format!("{name}-{n}"), Ask::Share(gib))).collect())
    }

    /// The one GPU that these jobs hold slices of.
    pub async fn gpu_of(&self, jobs: &[Job]) -> anyhow::Result<GpuUuid> {
        self.held_by(jobs).await?;
        let mut gpus = BTreeSet::new();
        for job in jobs {
            gpus.extend(self.node.gpus_of(&job.name).await?);
        }
        let one = gpus.pop_first().context("the pods hold nothing")?;
        ensure!(gpus.is_empty(), "the pods are on {one} and {gpus:?}");
        Ok(one)
    }

    /// The MPS servers of the GPU that these jobs hold slices of.
    pub async fn servers_of(&self, jobs: &[Job]) -> anyhow::Result<Vec<Process>> {
        Ok(servers(self.args, &self.gpu_of(jobs).await?))
    }

    /// Whether the GPUs are real.
    pub fn is_real(&self) -> bool {
        !self.args.simulated
    }

    pub async fn create(&self, job: &Job) -> anyhow::Result<()> {
        self.clock.created(&job.name);
        self.pods
            .create(&job.pod(self.args)?)
            .await
            .map(drop)
            .with_context(|| format!("failed to create {}", job.name))
    }

    /// Creates the jobs' pods without a GPU, and waits until they run.
    pub async fn run_controls(&self, jobs: &[Job]) -> anyhow::Result<()> {
        for job in jobs {
            self.clock.created(&job.name);
            self.pods.create(&job.control(self.args)?).await?;
        }
        for job in jobs {
            self.pods.running(&job.name).await?;
        }
        Ok(())
    }

    /// Creates the pods, and waits until each has reported what is expected.
    pub async fn run(&self, jobs: &[Job]) -> anyhow::Result<Vec<Seen>> {
        // All pods are created before any is awaited, so that they run at the same time.
        for job in jobs {
            self.create(job).await?;
        }
        let mut all = Vec::new();
        for job in jobs {
            all.push(self.expect(job).await?);
        }
        Ok(all)
    }

    /// Waits for the pod's report, and compares it with what is expected.
    pub async fn expect(&self, job: &Job) -> anyhow::Result<Seen> {
        let name = &job.name;
        let pod = self.pods.running(name).await?;
        let slices = assignment_of(&pod)?.slices;
        let kinds: BTreeSet<Kind> = slices.iter().map(|slice| slice.shape.kind()).collect();
        ensure!(kinds == [job.ask.kind()].into(), "{name}: expected {}, saw {kinds:?}", job.ask.kind());
        unprivileged(&pod)?;
        let shown = self.line(&pod, "SEES ", TIMEOUT).await?;
        let seen: Seen = serde_json::from_str(&shown).with_context(|| format!("{name} printed {shown}"))?;
        let expected = Expected { ask: job.ask, tries: job.tries, of_mib: self.gpu_mib, gpu: self.is_real() };
        let wrong = expected.compare(&seen);
        ensure!(wrong.is_empty(), "{name}: {}", wrong.join("; "));
        Ok(seen)
    }

    /// Waits for a line that begins with `word`, and returns the rest of it.
    pub async fn line(&self, pod: &Pod, word: &str, timeout: Duration) -> anyhow::Result<String> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let begun = Instant::now();
        loop {
            let lines = self.lines(pod);
            if let Some(shown) = lines.iter().find_map(|line| line.strip_prefix(word)) {
                return Ok(shown.to_owned());
            }
            let pod = self.pods.get(name).await?;
            if phase_of(&pod) != "Running" || begun.elapsed() > timeout {
                let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n");
                bail!("{name} printed no {word:?}: {}; it printed:\n{last}", state_of(&pod));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The output of the container's first run.
    pub fn lines(&self, pod: &Pod) -> Vec<String> {
        container_log::lines(&self.args.places(), pod, CONTAINER, 0)
    }

    /// Waits until each of these pods has worked for two more turns, in its container's first run.
    pub async fn work_on(&self, jobs: &[Job]) -> anyhow::Result<()> {
        for job in jobs {
            let pod = self.pods.get(&job.name).await?;
            ensure!(phase_of(&pod) == "Running", "{} does not run any more: {}", job.name, state_of(&pod));
            ensure!(restarts(&pod) == 0, "the container of {} was restarted", job.name);
            let before = self.lines(&pod).len();
            let goes_on = async || Ok(self.lines(&pod).len() >= before + 2);
            wait(TIMEOUT, &format!("{} to go on", job.name), goes_on).await?;
        }
        Ok(())
    }

    /// Waits until the agent reports exactly these pods as holders.
    pub async fn held_by(&self, jobs: &[Job]) -> anyhow::Result<()> {
        let mut names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
        names.sort();
        let all = async || Ok(self.node.holders().await? == names);
        let reported = wait(Duration::from_secs(20), "the agent to report the holders", all).await;
        let seen = self.node.holders().await?;
        reported.with_context(|| format!("expected {names:?} as holders, saw {seen:?}"))
    }

    /// Deletes all pods, and waits until the agent reports no holder.
    pub async fn clear(&self) -> anyhow::Result<()> {
        self.pods.end_all().await?;
        self.held_by(&[]).await
    }
}

/// How often the pod's containers were restarted.
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|container| container.restart_count).sum()
}

/// Checks that a share needs no privilege on the machine.
fn unprivileged(pod: &Pod) -> anyhow::Result<()> {
    let spec = pod.spec.as_ref().context("a pod has a spec")?;
    ensure!(spec.host_ipc != Some(true), "the pod has hostIPC");
    let contexts = spec.containers.iter().filter_map(|container| container.security_context.as_ref());
    let privileged = contexts.into_iter().any(|context| context.privileged == Some(true));
    ensure!(!privileged, "the pod is privileged");
    Ok(())
}
