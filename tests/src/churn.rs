//! Creates and deletes random pods, and waits until the cluster has settled.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::cluster::{Cluster, sized_pod};
use crate::oracle::{Truth, confirmed};
use crate::random::Random;

/// The requests of pods: amount and isolation class.
pub type Asks = &'static [(&'static str, &'static str)];

/// There are sizes for every GPU of the demo, some larger than what is usually free.
const ASKS: Asks = &[
    ("5Gi", "hardware"),
    ("10Gi", "hardware"),
    ("10Gi", "memory"),
    ("20Gi", "hardware"),
    ("40Gi", "hardware"),
    ("80Gi", "hardware"),
    ("3Gi", "none"),
    ("7Gi", "none"),
    ("4Gi", "none"),
    ("12Gi", "none"),
];

/// The average number of pods. It fills the nodes of the demo about half of the time.
const PODS: usize = 12;

/// kube-scheduler retries a pod within its longest backoff, 10 s, and the cut takes time on top.
const TIMEOUT: Duration = Duration::from_secs(25);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// Every invariant holds, and no pod is pending without a reason.
    Sound,
    /// These pods are pending although there is capacity for them.
    Unexplained(Vec<String>),
    /// Invariants that two readings in a row found violated.
    Broken(Vec<String>),
}

#[derive(Debug)]
pub struct Churn {
    asks: Asks,
    /// The average number of pods.
    pods: usize,
    random: Random,
    next: u64,
    alive: Vec<String>,
    created: u64,
    deleted: u64,
    pending: u64,
}

impl Churn {
    /// Pods for the nodes of the demo, in a sequence that depends on `seed` only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_asks(seed, ASKS, PODS)
    }

    /// The same with these requests, and with this average number of pods.
    #[must_use]
    pub fn with_asks(seed: u64, asks: Asks, pods: usize) -> Self {
        let random = Random::new(seed);
        Self { asks, pods, random, next: 0, alive: Vec::new(), created: 0, deleted: 0, pending: 0 }
    }

    /// Counts of what was done so far.
    #[must_use]
    pub fn tally(&self) -> String {
        format!(
            "{} pods created, {} deleted, {} round ends with a pod waiting for room",
            self.created, self.deleted, self.pending
        )
    }

    /// Creates or deletes up to four pods, and waits until all pods run or are pending for a reason.
    pub async fn round(&mut self, cluster: &Cluster) -> anyhow::Result<Settled> {
        for _ in 0..=self.random.below(4) {
            self.step(&cluster.pods()).await?;
        }
        self.settle(cluster).await
    }

    /// Creates or deletes a pod.
    pub async fn step(&mut self, pods: &Api<Pod>) -> anyhow::Result<()> {
        // The probability of a deletion grows with the number of pods, so that it stays near its average.
        if self.random.below(2 * self.pods) >= self.alive.len() {
            return self.create(pods).await;
        }
        let at = self.random.below(self.alive.len());
        let name = self.alive.swap_remove(at);
        self.deleted += 1;
        pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// The number of pods created so far.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.created
    }

    /// The names of the pods that were created and not deleted.
    #[must_use]
    pub fn alive(&self) -> &[String] {
        &self.alive
    }

    async fn create(&mut self, pods: &Api<Pod>) -> anyhow::Result<()> {
        self.next += 1;
        let name = format!("churn-{}", self.next);
        let (amount, class) = self.asks[self.random.below(self.asks.len())];
        pods.create(&PostParams::default(), &sized_pod(&name, amount, class)).await?;
        self.alive.push(name);
        self.created += 1;
        Ok(())
    }

    async fn settle(&mut self, cluster: &Cluster) -> anyhow::Result<Settled> {
        let begun = Instant::now();
        loop {
            let truth = Truth::observe(cluster).await?;
            let violations = truth.violations();
            let is_clean = violations.is_empty();
            let broken =
                confirmed(violations, async || Ok(Truth::observe(cluster).await?.violations())).await?;
            if !broken.is_empty() {
                return Ok(Settled::Broken(broken));
            }
            let unexplained = truth.unexplained();
            // Violations that the second reading did not confirm may be real ones that change, so they are read again.
            if is_clean && truth.is_settled() && unexplained.is_empty() {
                self.pending += u64::from(truth.count("Pending") > 0);
                return Ok(Settled::Sound);
            }
            if begun.elapsed() > TIMEOUT {
                let half_way =
                    if unexplained.is_empty() { vec!["pods are half-way".to_owned()] } else { unexplained };
                return Ok(Settled::Unexplained(half_way));
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Deletes all remaining pods, without waiting for their end.
    pub async fn clear(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        self.alive.clear();
        cluster
            .pods()
            .delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default())
            .await?;
        Ok(())
    }
}
