//! Records when pods are created, bound and running, as a watch of the API server shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_tests::kubelet::locked;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    created: Option<Instant>,
    bound: Option<Instant>,
    running: Option<Instant>,
}

/// Watches until it is dropped.
pub struct Clock {
    moments: Arc<Mutex<BTreeMap<String, Moments>>>,
    watching: JoinHandle<()>,
}

impl Clock {
    pub fn start(pods: Api<Pod>) -> Self {
        let moments = Arc::<Mutex<BTreeMap<String, Moments>>>::default();
        let seen = Arc::clone(&moments);
        let watching = tokio::spawn(async move {
            let changes = watcher(pods, watcher::Config::default()).default_backoff().applied_objects();
            changes.for_each(async |pod| note(&seen, pod)).await;
        });
        Self { moments, watching }
    }

    /// Records the time of creation. The caller calls it just before the API call.
    pub fn created(&self, name: &str) {
        locked(&self.moments).entry(name.to_owned()).or_default().created = Some(Instant::now());
    }

    /// Sorted times from creation to binding, of the pods whose names have this prefix.
    pub fn bound(&self, prefix: &str) -> Vec<Duration> {
        self.took(prefix, |moments| moments.bound)
    }

    /// Sorted times from creation to a running container.
    pub fn running(&self, prefix: &str) -> Vec<Duration> {
        self.took(prefix, |moments| moments.running)
    }

    fn took(&self, prefix: &str, end: fn(&Moments) -> Option<Instant>) -> Vec<Duration> {
        let all = locked(&self.moments);
        let ours = all.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, moments)| moments);
        let mut took: Vec<Duration> = ours.filter_map(|m| Some(end(m)?.duration_since(m.created?))).collect();
        took.sort();
        took
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn note(moments: &Mutex<BTreeMap<String, Moments>>, pod: kube::runtime::watcher::Result<Pod>) {
    // An error is skipped, because the watcher restarts a broken watch by itself.
    let Ok(pod) = pod else { return };
    let now = Instant::now();
    let mut all = locked(moments);
    let of_pod = all.entry(pod.metadata.name.clone().unwrap_or_default()).or_default();
    if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
        of_pod.bound.get_or_insert(now);
    }
    let mut containers =
        pod.status.into_iter().flat_map(|status| status.container_statuses.unwrap_or_default());
    if containers.any(|container| container.state.is_some_and(|state| state.running.is_some())) {
        of_pod.running.get_or_insert(now);
    }
}
