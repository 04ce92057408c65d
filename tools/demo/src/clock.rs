//! Records when each pod was first seen, bound and running, from one watch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_tests::pods::phase_of;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::task::AbortHandle;

/// The times of one pod.
#[derive(Debug, Clone)]
pub struct Way {
    /// The pod as it was last seen.
    pub pod: Pod,
    seen: Instant,
    bound: Option<Instant>,
    running: Option<Instant>,
}

impl Way {
    /// Time from the first sight to the Binding.
    pub fn to_bound(&self) -> Option<Duration> {
        Some(self.bound? - self.seen)
    }

    /// Time from the first sight to the phase Running.
    pub fn to_running(&self) -> Option<Duration> {
        Some(self.running? - self.seen)
    }

    fn phase(&self) -> &str {
        phase_of(&self.pod)
    }

    fn see(&mut self, pod: Pod) {
        let now = Instant::now();
        self.pod = pod;
        if self.pod.spec.as_ref().is_some_and(|s| s.node_name.is_some()) {
            self.bound.get_or_insert(now);
        }
        if self.phase() == "Running" {
            self.running.get_or_insert(now);
        }
    }
}

/// A watch of the pods of the namespace `default`.
pub struct PodClock {
    ways: Arc<Mutex<BTreeMap<String, Way>>>,
    watching: AbortHandle,
}

impl PodClock {
    pub fn start(pods: Api<Pod>) -> Self {
        let ways = Arc::new(Mutex::new(BTreeMap::new()));
        let seen = Arc::clone(&ways);
        let task = tokio::spawn(async move {
            let events = watcher(pods, watcher::Config::default()).default_backoff();
            let follow = events.try_for_each(|event| {
                note(&seen, event);
                futures::future::ready(Ok(()))
            });
            if let Err(error) = follow.await {
                tracing::error!(%error, "the watch of pods ended");
            }
        });
        Self { ways, watching: task.abort_handle() }
    }

    /// The times of all existing pods, by name.
    pub fn ways(&self) -> BTreeMap<String, Way> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until exactly `count` pods exist and all run.
    pub async fn all_running(&self, count: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let ways = self.ways();
            let waiting: Vec<_> = ways.values().filter(|w| w.phase() != "Running").collect();
            if ways.len() == count && waiting.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let texts: Vec<String> = waiting.iter().map(|w| describe(&w.pod)).collect();
                bail!("{} of {count} pods exist, and these do not run: {}", ways.len(), texts.join("; "));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn describe(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let reasons = status.conditions.unwrap_or_default().into_iter().filter_map(|c| c.message);
    let reasons: Vec<String> = status.message.into_iter().chain(reasons).collect();
    format!("{name} ({}: {})", status.phase.unwrap_or_default(), reasons.join(", "))
}

fn note(ways: &Mutex<BTreeMap<String, Way>>, event: watcher::Event<Pod>) {
    let mut ways = ways.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let new = Way { pod: pod.clone(), seen: Instant::now(), bound: None, running: None };
            ways.entry(name).or_insert(new).see(pod);
        }
        watcher::Event::Delete(pod) => {
            ways.remove(pod.metadata.name.as_deref().unwrap_or_default());
        }
        watcher::Event::Init | watcher::Event::InitDone => {}
    }
}

impl Drop for PodClock {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
