//! Creates pods in dry-run mode at a steady rate, however slowly earlier ones are answered.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kube::Api;
use kube::api::PostParams;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::cluster::pod;

/// The measurement of one admission.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Time from the request to the answer.
    pub took: Duration,
    /// The API server's error, or a request document where none is expected, or none where one is.
    pub error: Option<String>,
}

/// A pod that asks for a slice of 10 GiB.
#[must_use]
pub fn asking() -> Pod {
    pod("asking", &[(keys::GPU_MEMORY, "10Gi")])
}

/// The same pod with an unrelated annotation: the API server parses as much, but does not call the webhook.
#[must_use]
pub fn plain() -> Pod {
    pod("plain", &[("kerf.example/gpu-memory", "10Gi")])
}

/// Creates pods at a steady rate.
#[derive(Clone)]
pub struct Load {
    pub pods: Api<Pod>,
    /// Pods per second.
    pub rate: u32,
}

impl Load {
    /// Creates `pod` with `dryRun` until `done`, and awaits all answers. With `admitted`, an answer without a
    /// request document counts as failed, because the API server then skipped the webhook.
    pub async fn run(&self, pod: &Pod, admitted: bool, mut done: impl FnMut() -> bool) -> Vec<Sample> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / self.rate);
        // Bursting makes up for late ticks, so that the mean rate holds.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (mut running, mut samples) = (JoinSet::new(), Vec::new());
        while !done() {
            ticks.tick().await;
            let (pods, pod) = (self.pods.clone(), pod.clone());
            running.spawn(async move { create(&pods, &pod, admitted).await });
            // Finished tasks are collected at once, so that the set stays small.
            while let Some(ended) = running.try_join_next() {
                samples.extend(ended);
            }
        }
        // Open requests are awaited too, because the slow ones matter most.
        samples.extend(running.join_all().await);
        samples
    }

    pub async fn run_for(&self, pod: &Pod, admitted: bool, time: Duration) -> Vec<Sample> {
        let end = Instant::now() + time;
        self.run(pod, admitted, || Instant::now() >= end).await
    }
}

async fn create(pods: &Api<Pod>, pod: &Pod, admitted: bool) -> Sample {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let begun = Instant::now();
    let answer = pods.create(&dry_run, pod).await;
    let took = begun.elapsed();
    let error = match answer {
        Err(error) => Some(error.to_string()),
        Ok(pod) => {
            let carries = pod.metadata.annotations.is_some_and(|a| a.contains_key(keys::REQUEST));
            (admitted != carries).then(|| format!("carries a request: {carries}"))
        }
    };
    Sample { took, error }
}

/// Each distinct error with its count.
#[must_use]
pub fn failures(samples: &[Sample]) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for error in samples.iter().filter_map(|sample| sample.error.clone()) {
        *counts.entry(error).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}
