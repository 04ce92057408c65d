//! A steady load: pods come at one pace, and each goes once it is bound.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::testing::request;
use kerf_tests::kubelet::locked;
use kerf_tests::pods::admitted;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::task::AbortHandle;

const SLICE: &str = "nvidia.com/mig-1g.10gb";
/// The interval at which pods are created.
const POD_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Default)]
struct State {
    /// Pods that were created and not seen bound.
    waiting: BTreeSet<String>,
    /// When each of the others was seen bound.
    bound: Vec<Instant>,
}

/// The load, until it is stopped or dropped.
pub struct Load {
    state: Arc<Mutex<State>>,
    creating: AbortHandle,
    watching: AbortHandle,
}

impl Load {
    pub fn start(client: &Client) -> Self {
        let pods = Api::<Pod>::default_namespaced(client.clone());
        let state = Arc::new(Mutex::new(State::default()));
        let creating = tokio::spawn(create(pods.clone(), Arc::clone(&state))).abort_handle();
        let watching = tokio::spawn(watch(pods, Arc::clone(&state))).abort_handle();
        Self { state, creating, watching }
    }

    /// Creates no further pods; those that exist are still counted and deleted once they are bound.
    pub fn stop(&self) {
        self.creating.abort();
    }

    /// How many pods are not bound.
    pub fn waiting(&self) -> usize {
        locked(&self.state).waiting.len()
    }

    /// The longest time without a bound pod since a moment, until now.
    pub fn longest_gap(&self, since: Instant) -> Duration {
        let state = locked(&self.state);
        let mut moments = vec![since];
        moments.extend(state.bound.iter().filter(|at| **at > since));
        moments.push(Instant::now());
        moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.creating.abort();
        self.watching.abort();
    }
}

async fn create(pods: Api<Pod>, state: Arc<Mutex<State>>) {
    let mut ticks = tokio::time::interval(POD_INTERVAL);
    // Pods that were not created while the API server stalled are not made up for, so that the pace stays the same.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0_u64.. {
        ticks.tick().await;
        let name = format!("load-{number}");
        let pod = admitted(&name, "kerf-scheduler", SLICE, &request(SLICE, 1));
        let Ok(pod) = serde_json::from_value(pod) else { return };
        // The pod is listed before its creation, because it may be bound before the creation is answered.
        locked(&state).waiting.insert(name.clone());
        if let Err(error) = pods.create(&PostParams::default(), &pod).await {
            tracing::warn!(%error, name, "not created");
            locked(&state).waiting.remove(&name);
        }
    }
}

async fn watch(pods: Api<Pod>, state: Arc<Mutex<State>>) {
    let stream = watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects();
    let mut stream = Box::pin(stream);
    while let Some(event) = stream.next().await {
        let Ok(pod) = event else { continue };
        let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let name = pod.metadata.name.unwrap_or_default();
        if !is_bound {
            continue;
        }
        let at = Instant::now();
        let is_first = {
            let mut state = locked(&state);
            let is_first = state.waiting.remove(&name);
            if is_first {
                state.bound.push(at);
            }
            is_first
        };
        if is_first {
            let pods = pods.clone();
            tokio::spawn(async move { pods.delete(&name, &DeleteParams::default().grace_period(0)).await });
        }
    }
}
