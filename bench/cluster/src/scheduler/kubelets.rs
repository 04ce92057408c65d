//! Simulates the kubelets of all nodes: lets bound pods run, and shows them to the agents.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kerf_tests::gpu_nodes::SimulatedAgents;
use kerf_tests::pods::{is_unschedulable, node_of, phase_of};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::bound::Bound;

/// Concurrent writers of pod status. Real nodes have a kubelet each; more writers here would only fill the
/// API server's queue.
const WRITERS: usize = 32;

#[derive(Debug, Default)]
pub struct Pods {
    pub all: BTreeSet<String>,
    pub running: BTreeSet<String>,
    /// Pods that the scheduler found no node for, at least once.
    pub refused: BTreeSet<String>,
}

/// The state of the pods, shared with the watch.
pub type Known = Arc<Mutex<Pods>>;

/// Watches the pods, lets bound ones run, and shows them to the agents.
pub fn start(pods: &Api<Pod>, agents: Option<Arc<SimulatedAgents>>) -> (Bound, Known) {
    let known = Known::default();
    let (queue, waiting) = unbounded_channel();
    tokio::spawn(run_pods(pods.clone(), waiting));
    let (seen, mut begun) = (Arc::clone(&known), BTreeSet::new());
    let hook = move |event: &Event<Pod>| {
        if let Some(agents) = &agents {
            agents.see_pod(event);
        }
        let mut known = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                see(&mut known, pod);
                if node_of(pod).is_some() && begun.insert(uid(pod)) {
                    // The receiver lives as long as the process.
                    let _ = queue.send(name(pod));
                }
            }
            Event::Delete(pod) => forget(&mut known, pod),
            Event::Init | Event::InitDone => {}
        }
    };
    (Bound::watch(pods.clone(), hook), known)
}

fn see(known: &mut Pods, pod: &Pod) {
    known.all.insert(name(pod));
    if phase_of(pod) == "Running" {
        known.running.insert(name(pod));
    }
    if is_unschedulable(pod) {
        known.refused.insert(name(pod));
    }
}

fn forget(known: &mut Pods, pod: &Pod) {
    let name = name(pod);
    known.all.remove(&name);
    known.running.remove(&name);
    known.refused.remove(&name);
}

async fn run_pods(pods: Api<Pod>, mut waiting: UnboundedReceiver<String>) {
    let writers = Arc::new(tokio::sync::Semaphore::new(WRITERS));
    while let Some(name) = waiting.recv().await {
        let Ok(permit) = Arc::clone(&writers).acquire_owned().await else { return };
        let pods = pods.clone();
        tokio::spawn(async move {
            let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [
                {"type": "Ready", "status": "True"},
            ]}});
            // The write fails if the pod was deleted meanwhile.
            let patched = pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await;
            if let Err(error) = patched {
                tracing::debug!(%name, %error, "failed to let a pod run");
            }
            drop(permit);
        });
    }
}

fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}
