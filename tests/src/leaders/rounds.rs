//! Injects faults into the extender's leader under a churn of pods on managed and static nodes, and checks
//! the cluster after each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::Model;
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::{ListParams, PostParams};

use super::{Blow, Leaders};
use crate::churn::{Asks, Churn};
use crate::cluster::{Cluster, ClusterOptions, GpuServer, NodeSpec, sized_pod, wait};
use crate::oracle::{Truth, confirmed};
use crate::pods::{is_finished, node_of, resource_of};
use crate::random::Random;
use crate::static_node::StaticServer;

/// MIG serves the managed node, time-slicing replicas serve the static ones.
const POLICY: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: leaders}
spec:
  defaultIsolation: memory
  isolation: {hardware: [mig, whole], memory: [mps], none: [time-slicing]}
";
/// Another replica may take the Lease after three seconds. A cut-off leader's requests arrive after their
/// lifetime, so that the fence is tested too.
const FLAGS: [&str; 3] = ["--lease-duration=3s", "--reservation-lifetime=5s", "--request-lifetime=10s"];
const STATIC: [&str; 2] = ["static-a", "static-b"];
const GPU: &str = "nvidia.com/gpu";
/// Replicas of each static node's GPU.
const REPLICAS: u32 = 4;
const ASKS: Asks = &[("10Gi", "hardware"), ("20Gi", "hardware"), ("4Gi", "none"), ("5Gi", "none")];
/// The average number of pods.
const PODS: usize = 20;
/// Delay between two steps of the churn.
const STEP_DELAY: Duration = Duration::from_millis(150);
/// Reservations of a lost leader end after 15 s, the sum of the lifetimes above, and the scheduler's backoff
/// is 10 s.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Violations that were found after a fault.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Devices that two pods hold.
    pub double: Vec<String>,
    /// Nodes with more pods than devices, and pods that a kubelet rejected.
    pub overcommitted: Vec<String>,
    /// Reservations without a bound pod after their lifetime, and pods that are pending without a reason.
    pub left_behind: Vec<String>,
}

impl Found {
    pub fn all(&self) -> impl Iterator<Item = &String> {
        self.double.iter().chain(&self.overcommitted).chain(&self.left_behind)
    }

    /// Violations that no timeout excuses.
    fn broken(&self) -> Vec<String> {
        [self.double.clone(), self.overcommitted.clone()].concat()
    }
}

pub struct Rounds {
    cluster: Cluster,
    leaders: Leaders,
    statics: Vec<StaticServer>,
    churn: Churn,
    random: Random,
    known: BTreeSet<String>,
}

impl Rounds {
    /// Starts the cluster. Random choices depend on `seed` only.
    pub async fn start(seed: u64) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, POLICY)?;
        let nodes = vec![NodeSpec::new("h100", Model::H100, 2)];
        let mut options = ClusterOptions::without_controller_manager(nodes);
        options.two_extenders = true;
        options.policy = Some(policy);
        let mut cluster = Cluster::start(options, |_| ()).await?;
        let mut statics = Vec::new();
        for name in STATIC {
            let mut node = StaticServer::start(cluster.plane(), name, labels()).await?;
            node.serve(GPU, REPLICAS).await?;
            statics.push(node);
        }
        let leaders = Leaders::take_over(&mut cluster, &FLAGS).await?;
        let churn = Churn::with_asks(seed, ASKS, PODS);
        let random = Random::new(seed.wrapping_add(1));
        let rounds = Self { cluster, leaders, statics, churn, random, known: BTreeSet::new() };
        rounds.static_nodes_are_known().await?;
        Ok(rounds)
    }

    async fn static_nodes_are_known(&self) -> anyhow::Result<()> {
        let asks = sized_pod("probe", "4Gi", "none");
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        wait(TIMEOUT, "the webhook to read the static nodes", async || {
            Ok(resource_of(&self.cluster.pods().create(&dry_run, &asks).await?)? == GPU)
        })
        .await
    }

    /// Injects one fault under the churn. Then it waits until nothing is under way, and returns the
    /// violations.
    pub async fn round(&mut self, blow: Blow, lasts: Duration) -> anyhow::Result<Found> {
        let pods = self.cluster.pods();
        let Self { leaders, churn, random, .. } = self;
        let before = Duration::from_millis(u64::try_from(random.below(1500))?);
        let (done, mut is_done) = tokio::sync::oneshot::channel::<()>();
        let strike = async {
            tokio::time::sleep(before).await;
            let struck = leaders.strike(blow, lasts).await;
            drop(done);
            struck
        };
        let churning = async {
            while is_done.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
                churn.step(&pods).await?;
                tokio::time::sleep(STEP_DELAY).await;
            }
            anyhow::Ok(())
        };
        let (struck, churned) = tokio::join!(strike, churning);
        struck?;
        churned?;
        self.settle().await
    }

    async fn settle(&mut self) -> anyhow::Result<Found> {
        let began = Instant::now();
        loop {
            let mut found = self.look().await?;
            let broken = confirmed(found.broken(), async || Ok(self.look().await?.broken())).await?;
            found.double.retain(|text| broken.contains(text));
            found.overcommitted.retain(|text| broken.contains(text));
            let is_broken = !broken.is_empty();
            if is_broken || found.left_behind.is_empty() || began.elapsed() > TIMEOUT {
                if is_broken {
                    found.left_behind.clear();
                }
                self.known.extend(found.all().cloned());
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The current violations; `left_behind` may still resolve.
    async fn look(&self) -> anyhow::Result<Found> {
        let client = self.cluster.plane().client();
        let truth = Truth::of_nodes(client.clone(), self.cluster.nodes().iter().map(GpuServer::node)).await?;
        let violations = truth.violations().into_iter().filter(|text| !self.known.contains(text));
        let (double, overcommitted) = violations.partition(|text| text.contains(" is held by "));
        let mut found = Found { double, overcommitted, left_behind: truth.unexplained() };
        let pods = Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await?.items;
        self.look_at_statics(&pods, &mut found);
        let bound: BTreeSet<&str> = pods
            .iter()
            .filter(|pod| node_of(pod).is_some())
            .filter_map(|pod| pod.metadata.uid.as_deref())
            .collect();
        for node in Api::<GpuNode>::all(client).list(&ListParams::default()).await? {
            let slices = node.read_status()?.unwrap_or_default().slices;
            let reserved = slices.into_iter().filter_map(|slice| slice.reservation);
            let unbound = reserved.filter(|reservation| !bound.contains(reservation.uid.as_str()));
            found
                .left_behind
                .extend(unbound.map(|r| format!("{} on {} for {}", r.resource, node.name(), r.pod)));
        }
        if !truth.is_settled() && found.left_behind.is_empty() {
            found.left_behind.push("pods are half-way".to_owned());
        }
        Ok(found)
    }

    fn look_at_statics(&self, pods: &[Pod], found: &mut Found) {
        let asks = |pod: &&Pod| resource_of(pod).is_ok_and(|resource| resource == GPU);
        let pending = pods.iter().filter(asks).filter(|pod| node_of(pod).is_none());
        let pending: Vec<&str> = pending.filter_map(|pod| pod.metadata.name.as_deref()).collect();
        for server in &self.statics {
            let here = pods
                .iter()
                .filter(asks)
                .filter(|pod| node_of(pod) == Some(server.name()) && !is_finished(pod));
            let (here, all) = (here.count(), REPLICAS as usize);
            if here > all {
                found.overcommitted.push(format!("{here} pods on {} with {all} replicas", server.name()));
            }
            let refused = server.kubelet().failed_admissions();
            let refused =
                refused.iter().map(|f| format!("{}: {:?} failed: {}", server.name(), f.pod, f.message));
            found.overcommitted.extend(refused.filter(|text| !self.known.contains(text)));
            let mut held = BTreeSet::new();
            let devices =
                server.kubelet().allocations().into_values().filter_map(|mut held| held.remove(GPU));
            for device in devices.flatten() {
                if !held.insert(device.clone()) {
                    found.double.push(format!("{device} on {} is held by two pods", server.name()));
                }
            }
            if here < all && !pending.is_empty() {
                found.left_behind.push(format!("{here} pods on {}, and {} waits", server.name(), pending[0]));
            }
        }
    }

    /// The ends of the replicas' logs.
    #[must_use]
    pub fn log_tails(&self) -> String {
        self.leaders.log_tails()
    }

    /// Ends the replicas before the cluster, because they call its API server.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.leaders.stop()?;
        self.cluster.stop().await
    }
}

fn labels() -> Vec<(String, String)> {
    let labels = [
        ("gpu.product", "NVIDIA-A10G-SHARED"),
        ("gpu.memory", "23028"),
        ("gpu.count", "1"),
        ("gpu.replicas", "4"),
        ("gpu.sharing-strategy", "time-slicing"),
    ];
    labels.map(|(key, value)| (format!("nvidia.com/{key}"), value.to_owned())).into()
}
