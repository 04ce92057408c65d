use super::*;
use crate::api_stand_in::{self, Asked};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const DCGM: &str = "nvidia.com/gpu.deploy.dcgm";
const GFD: &str = "nvidia.com/gpu.deploy.gpu-feature-discovery";
const NVSM: &str = "nvidia.com/gpu.deploy.nvsm";

/// More pods than end before the timeout.
const MANY: usize = 100;

/// A Node and its pods; one pod ends with each poll.
#[derive(Clone, Default)]
struct Cluster(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    labels: BTreeMap<String, String>,
    pods: usize,
    /// Writes that fail because another client was faster.
    conflicts: usize,
    queries: Vec<String>,
}

impl Cluster {
    fn with_labels(labels: &[(&str, &str)], pods: usize) -> Self {
        let cluster = Self::default();
        cluster.0.lock().unwrap().pods = pods;
        for (key, value) in labels {
            cluster.set(key, value);
        }
        cluster
    }

    fn set(&self, key: &str, value: &str) {
        self.0.lock().unwrap().labels.insert(key.to_owned(), value.to_owned());
    }

    fn get(&self, key: &str) -> Option<String> {
        self.0.lock().unwrap().labels.get(key).cloned()
    }

    fn answer(&self, asked: &Asked) -> (u16, Value) {
        let mut state = self.0.lock().unwrap();
        if asked.path.ends_with("/pods") {
            state.queries.push(asked.query.clone());
            let pods: Vec<Value> =
                (0..state.pods).map(|n| json!({"metadata": {"name": format!("p{n}")}})).collect();
            state.pods = state.pods.saturating_sub(1);
            return (
                200,
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": pods}),
            );
        }
        if asked.method == "PATCH" {
            assert_eq!(asked.body["metadata"]["resourceVersion"], "7", "against what was read");
            if state.conflicts > 0 {
                state.conflicts -= 1;
                return api_stand_in::refusal(409);
            }
            let changes = asked.body["metadata"]["labels"].as_object().unwrap();
            let changes =
                changes.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()));
            state.labels.extend(changes);
        }
        (200, json!({"metadata": {"name": "n1", "resourceVersion": "7", "labels": state.labels}}))
    }

    fn pause(&self) -> DcgmPause {
        let cluster = self.clone();
        let (client, _) = api_stand_in::client(move |asked| cluster.answer(asked));
        DcgmPause::new(client, NodeName::new("n1"))
    }
}

fn labels(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|label| (*label).to_owned()).collect()
}

fn order(number: u64, of: &[&str]) -> Pause {
    Pause { number, labels: labels(of) }
}

async fn reported(queue: &mut tokio::sync::mpsc::UnboundedReceiver<Event>) -> (BTreeSet<String>, u64) {
    match queue.recv().await {
        Some(Event::Paused(labels, number)) => (labels, number),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn deployed_programs_are_paused_and_their_labels_restored() {
    let cluster = Cluster::with_labels(&[(DCGM, "true"), (GFD, "false"), ("other", "true")], 3);
    let (orders, to_do) = watch::channel(Pause::default());
    let (events, mut queue) = Events::channel();
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(keep(cluster.pause(), BTreeSet::new(), to_do, events, stop.clone()));
    assert_eq!(reported(&mut queue).await, (BTreeSet::new(), 0));
    cluster.0.lock().unwrap().conflicts = 2;
    orders.send_replace(order(1, &[DCGM, GFD]));
    assert_eq!(reported(&mut queue).await, (labels(&[DCGM, GFD]), 1));
    let get = |key| cluster.get(key);
    assert_eq!(get(DCGM).as_deref(), Some("paused-for-mig-change"));
    assert_eq!(get(GFD).as_deref(), Some("false"), "an admin keeps it off the node");
    let queries = cluster.0.lock().unwrap().queries.clone();
    assert_eq!(queries.len(), 4, "until none is left");
    assert!(
        queries[0].contains("spec.nodeName%3Dn1") && queries[0].contains("nvidia-dcgm"),
        "{}",
        queries[0]
    );
    orders.send_replace(order(1, &[]));
    assert_eq!(reported(&mut queue).await, (BTreeSet::new(), 1));
    let now = [DCGM, GFD, NVSM, "other"].map(|key| get(key).unwrap_or_default());
    assert_eq!(now, ["true", "false", "", "true"]);
    stop.cancel();
    keeping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_paused_pods_has_a_timeout() {
    let cluster = Cluster::with_labels(&[(DCGM, "true")], MANY);
    let (_orders, to_do) = watch::channel(order(1, &[DCGM]));
    let (events, mut queue) = Events::channel();
    tokio::spawn(keep(cluster.pause(), BTreeSet::new(), to_do, events, CancellationToken::new()));
    assert_eq!(reported(&mut queue).await, (labels(&[DCGM]), 1));
}

#[tokio::test(start_paused = true)]
async fn only_labels_that_an_earlier_process_paused_are_restored_at_the_start() {
    let paused = "paused-for-mig-change";
    let cluster = Cluster::with_labels(&[(DCGM, paused), (GFD, "false"), (NVSM, paused)], 0);
    let (_orders, to_do) = watch::channel(Pause::default());
    let (events, mut queue) = Events::channel();
    tokio::spawn(keep(cluster.pause(), labels(&[DCGM, GFD]), to_do, events, CancellationToken::new()));
    assert_eq!(reported(&mut queue).await, (BTreeSet::new(), 0));
    assert_eq!([DCGM, GFD, NVSM].map(|key| cluster.get(key).unwrap()), ["true", "false", paused]);
}

#[tokio::test(start_paused = true)]
async fn a_label_that_the_driver_manager_has_changed_is_restored_once_it_changes_back() {
    let cluster = Cluster::with_labels(&[(DCGM, "paused-for-mig-change_paused-for-driver-upgrade")], 0);
    let pause = cluster.pause();
    let mut paused = labels(&[DCGM]);
    let putting_back = pause.put_back(&mut paused);
    tokio::pin!(putting_back);
    assert!(tokio::time::timeout(INTERVAL * 30, &mut putting_back).await.is_err(), "it is not kerf's now");
    cluster.set(DCGM, "paused-for-mig-change");
    putting_back.await;
    assert_eq!(cluster.get(DCGM).as_deref(), Some("true"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_restores_the_labels_that_it_paused() {
    let cluster = Cluster::with_labels(&[(DCGM, "true")], MANY);
    let (_orders, to_do) = watch::channel(order(1, &[DCGM]));
    let (events, stop) = (Events::channel().0, CancellationToken::new());
    let keeping = tokio::spawn(keep(cluster.pause(), BTreeSet::new(), to_do, events, stop.clone()));
    while cluster.0.lock().unwrap().queries.is_empty() {
        tokio::time::sleep(INTERVAL).await;
    }
    stop.cancel();
    keeping.await.unwrap();
    assert_eq!(cluster.get(DCGM).as_deref(), Some("true"));
}
