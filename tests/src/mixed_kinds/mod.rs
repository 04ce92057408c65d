//! Pods request slices of one node by the same neutral names, while some of its GPUs are in MIG mode.
//! Whatever kind serves a pod, it must hold what its assignment says. A seed decides when pods are created
//! and deleted; containers and the agent are killed.
//!
//! The same play runs on a real node (`single_node test`) and on one with the stand-in kubelet.

mod account;
mod ask;
mod devices;
mod given;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::MockState;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{Api, DeleteParams, ListParams};

use crate::cluster::wait;
use crate::pods::{Pods, assignment_of, phase_of, resource_of, state_of};
use crate::random::Random;

use ask::{BEGIN, Class, END, LARGEST_GB};
use devices::Devices;
use given::{Given, Slice, Verdict, compare};

pub use account::Account;
pub use ask::{Ask, MAIN, POD_VARIABLE};

/// The largest number of pods at a time, for which the node has not enough capacity.
const PODS_LIMIT: usize = 24;

/// The largest number of pods that a burst creates or deletes.
const BURST: usize = 4;

/// The longest pause between two bursts, in milliseconds.
const PAUSE_MS: usize = 400;

/// One burst in this many deletes all pods first, so that whole GPUs become free again.
const EBB: usize = 40;

/// One container in this many is killed once.
const KILLED: usize = 6;

/// How often the agent is killed, spread over the play.
const AGENT_RESTARTS: usize = 3;

/// If no pod begins to run for this long, the play counts as stuck.
const STALL_TIMEOUT: Duration = Duration::from_secs(90);

/// How long the agent may take to write an exchange of equivalent slices into the GpuNode.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(30);

/// The only node of a cluster. Some of its simulated GPUs are in MIG mode, and at least three are not.
#[tonic::async_trait(?Send)]
pub trait MixedNode {
    fn name(&self) -> &str;

    /// A client with an administrator's rights.
    fn client(&self) -> kube::Client;

    fn pod_resources(&self) -> PathBuf;

    /// The GPUs' slices, as the simulated NVML reports them.
    fn nvml(&self) -> anyhow::Result<MockState>;

    /// The pod of an ask, as it can run on this node.
    fn pod(&self, ask: &Ask) -> anyhow::Result<Pod>;

    /// The output of a container's run. Runs count from 0.
    fn output(&self, pod: &Pod, container: &str, run: i32) -> String;

    /// Kills the processes of the pod's container [`MAIN`].
    fn kill(&self, pod: &str) -> anyhow::Result<()>;

    async fn restart_agent(&mut self) -> anyhow::Result<()>;
}

/// A pod of the play that has not been deleted.
struct Alive {
    ask: Ask,
    /// The last run of its main container that was judged; `None` before the first.
    seen: Option<i32>,
    /// What it holds, once it runs.
    slices: Vec<Slice>,
}

struct Play<'n, N> {
    node: &'n mut N,
    pods: Pods,
    random: Random,
    alive: BTreeMap<String, Alive>,
    created: usize,
    account: Account,
}

/// Plays until `pods` pods have run. The account has what they held; an error means that the play failed.
/// Remaining pods are not deleted.
pub async fn play(node: &mut impl MixedNode, pods: usize, seed: u64) -> anyhow::Result<Account> {
    let client = node.client();
    let mut play = Play {
        node,
        pods: Pods::new(client),
        random: Random::new(seed),
        alive: BTreeMap::new(),
        created: 0,
        account: Account::default(),
    };
    play.open().await?;
    let (mut last, mut before) = (Instant::now(), play.account.ran);
    while play.account.ran < pods {
        play.burst().await?;
        let pause = play.random.below(PAUSE_MS);
        tokio::time::sleep(Duration::from_millis(u64::try_from(pause)?)).await;
        play.look().await?;
        let restarts = play.account.agent_restarts;
        if restarts < AGENT_RESTARTS && play.account.ran * (AGENT_RESTARTS + 1) >= pods * (restarts + 1) {
            play.node.restart_agent().await?;
            play.account.agent_restarts += 1;
        }
        if play.account.ran > before {
            (last, before) = (Instant::now(), play.account.ran);
        }
        if last.elapsed() > STALL_TIMEOUT {
            bail!("no pod has begun to run for {STALL_TIMEOUT:?}: {}", play.state_of().await?);
        }
    }
    play.follows().await?;
    Ok(play.account)
}

impl<N: MixedNode> Play<'_, N> {
    /// Creates one pod of each kind under the largest name on an empty node. Each takes a GPU, so that a
    /// later one cannot get a better kind.
    async fn open(&mut self) -> anyhow::Result<()> {
        let gpus = self.node.nvml()?.gpus;
        let in_mig_mode = gpus.iter().filter(|gpu| gpu.mig.current).count();
        ensure!(
            in_mig_mode > 0 && gpus.len() >= in_mig_mode + 3,
            "{in_mig_mode} of {} GPUs are in MIG mode: the play takes one, and three others",
            gpus.len()
        );
        let hardware = std::iter::repeat_n(Class::Hardware, in_mig_mode + 1);
        for class in hardware.chain([Class::Memory, Class::None]) {
            let name = self.name();
            self.create(Ask::one(name, LARGEST_GB, class)).await?;
            let begun = Instant::now();
            while self.account.ran < self.created {
                self.look().await?;
                if begun.elapsed() > STALL_TIMEOUT {
                    bail!("the node has no room for one pod of each kind: {}", self.state_of().await?);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        format!("mixed-{}", self.created)
    }

    async fn create(&mut self, ask: Ask) -> anyhow::Result<()> {
        let pod = self.pods.create(&self.node.pod(&ask)?).await;
        let pod = pod.with_context(|| format!("failed to create {}", ask.name))?;
        let (given, expected) = (resource_of(&pod)?, ask.resource()?);
        ensure!(given == expected, "{} asks for {given}, which is not the neutral {expected}", ask.name);
        self.created += 1;
        self.alive.insert(ask.name.clone(), Alive { ask, seen: None, slices: Vec::new() });
        Ok(())
    }

    async fn delete(&mut self, name: &str) -> anyhow::Result<()> {
        self.pods.api().delete(name, &DeleteParams::default()).await?;
        let alive = self.alive.remove(name);
        self.account.withdrawn += usize::from(alive.is_some_and(|alive| alive.seen.is_none()));
        Ok(())
    }

    /// Creates and deletes some pods, all at once.
    async fn burst(&mut self) -> anyhow::Result<()> {
        if self.random.below(EBB) == 0 {
            for name in self.alive.keys().cloned().collect::<Vec<_>>() {
                self.delete(&name).await?;
            }
        }
        for _ in 0..=self.random.below(BURST) {
            // The probability of a deletion grows with the number of pods, so that it stays near its average.
            if self.random.below(PODS_LIMIT) >= self.alive.len() {
                let ask = Ask::draw(self.name(), &mut self.random);
                self.create(ask).await?;
                continue;
            }
            let at = self.random.below(self.alive.len());
            // Mostly spares pods that have not run yet, because pods that ran are counted.
            let spared = self.random.below(4) > 0;
            let Some((name, alive)) = self.alive.iter().nth(at) else { continue };
            if alive.seen.is_some() || !spared {
                let name = name.clone();
                self.delete(&name).await?;
            }
        }
        Ok(())
    }

    /// Judges each pod that has begun to run since the last look, and each whose container has restarted.
    async fn look(&mut self) -> anyhow::Result<()> {
        let mut started = Vec::new();
        for pod in self.pods.api().list(&ListParams::default()).await?.items {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let Some(alive) = self.alive.get(&name) else { continue };
            if phase_of(&pod) == "Failed" {
                self.account.refused.push(format!("{name}: {}", state_of(&pod)));
                self.alive.remove(&name);
                self.pods.api().delete(&name, &DeleteParams::default()).await?;
            } else if run(&pod).is_some_and(|run| alive.seen.is_none_or(|seen| seen < run)) {
                started.push(pod);
            }
        }
        if started.is_empty() {
            return Ok(());
        }
        // Devices are read after the pods, because a running pod already holds its devices.
        let devices = Devices::held(self.node.pod_resources()).await?;
        self.account.otherwise.extend(devices.held_twice());
        let nvml = self.node.nvml()?;
        for pod in started {
            self.judge(&pod, &devices, &nvml)?;
        }
        Ok(())
    }

    fn judge(&mut self, pod: &Pod, devices: &Devices, nvml: &MockState) -> anyhow::Result<()> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let (Some(alive), Some(run)) = (self.alive.get_mut(&name), run(pod)) else { return Ok(()) };
        let assignment = assignment_of(pod)?;
        let (mut slices, mut wrong) = (Vec::new(), Vec::new());
        for container in alive.ask.names() {
            let its_run = if container == MAIN { run } else { 0 };
            // The container may not have printed everything yet; the next look judges it.
            let Some(environment) = environment(&self.node.output(pod, container, its_run)) else {
                return Ok(());
            };
            let given = Given { devices: devices.of_container(&name, container), environment };
            match given.slices(nvml) {
                Ok(given) => slices.extend(given),
                Err(why) => wrong.push(format!("{container} of {name} {why}")),
            }
        }
        let is_first = alive.seen.replace(run).is_none();
        match compare(&slices, &assignment) {
            Verdict::AsAssigned => {}
            Verdict::Equal => self.account.equal += usize::from(is_first),
            Verdict::Otherwise(why) => wrong.push(format!("{name} {why}")),
        }
        self.account.otherwise.extend(wrong);
        alive.slices = slices;
        if !is_first {
            self.account.restarted += 1;
            return Ok(());
        }
        let resource = alive.ask.resource()?;
        self.account.has_run(&resource, assignment.slices.iter().map(|slice| slice.shape.kind()));
        if self.random.below(KILLED) == 0 {
            self.node.kill(&name)?;
        }
        Ok(())
    }

    /// Waits until the GpuNode has each pod's reservation on the slices that the pod holds, because the agent
    /// exchanges equivalent ones.
    async fn follows(&self) -> anyhow::Result<()> {
        let nodes = Api::<GpuNode>::all(self.node.client());
        let mut wrong = Vec::new();
        let follows = async || {
            let spec = nodes.get(self.node.name()).await?.read_desired()?;
            let reserved = |pod: &str| -> BTreeSet<String> {
                let of_pod =
                    spec.slices.iter().filter(|s| s.reservation.as_ref().is_some_and(|r| r.pod == pod));
                of_pod.map(|slice| slice.id.to_string()).collect()
            };
            let run = self.alive.iter().filter(|(_, alive)| alive.seen.is_some());
            let differ = run.filter_map(|(name, alive)| {
                let held: BTreeSet<String> = alive.slices.iter().map(|slice| slice.id.clone()).collect();
                let reserved = reserved(name);
                (held != reserved).then(|| format!("{name} holds {held:?}, and {reserved:?} are reserved"))
            });
            wrong = differ.collect();
            Ok(wrong.is_empty())
        };
        let followed = wait(FOLLOW_TIMEOUT, "the reservations to follow what is held", follows).await;
        followed.with_context(|| wrong.join("; "))
    }

    /// The pods that do not run, with their Events.
    async fn state_of(&self) -> anyhow::Result<String> {
        let mut all = vec![self.account.to_string()];
        for (name, _) in self.alive.iter().filter(|(_, alive)| alive.seen.is_none()) {
            let events = self.pods.events(name).await?;
            all.push(format!("{name}: {}; {}", state_of(&self.pods.get(name).await?), events.join("; ")));
        }
        Ok(all.join("\n"))
    }
}

/// The run number of the main container, if all containers of the pod run.
fn run(pod: &Pod) -> Option<i32> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let running = |state: &k8s_openapi::api::core::v1::ContainerState| state.running.is_some();
    let all = statuses.iter().all(|status| status.state.as_ref().is_some_and(running));
    let main = statuses.iter().find(|status| status.name == MAIN)?;
    (all && phase_of(pod) == "Running").then_some(main.restart_count)
}

/// The environment that a container has printed; `None` until it is complete.
fn environment(output: &str) -> Option<BTreeMap<String, String>> {
    let (_, text) = output.split_once(BEGIN)?;
    let (text, _) = text.split_once(END)?;
    let variables = text.lines().filter_map(|line| line.split_once('='));
    Some(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}
