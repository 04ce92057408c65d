//! The pod that was refused first is called first, in whatever order the scheduler tries pods meanwhile.

use super::tests::{SMALL, cluster, pod, unbound};
use super::*;
use crate::cluster_index::scene::{Scene, filter};
use crate::objects::pod::KnownPod;
use jiff::Timestamp;
use kerf_core::testing::request;
use proptest::prelude::*;

/// Each takes the whole GPU, so that one pod after the other has it.
const REQUESTS: [(&str, u32); 2] = [("nvidia.com/mig-7g.80gb", 1), ("nvidia.com/mig-3g.40gb", 2)];

#[derive(Debug, Clone)]
enum Step {
    /// A pod is created, and the scheduler tries it.
    Create { request: usize },
    /// The scheduler tries a pod again that has no place.
    Retry { pod: usize },
    /// The pod that has the GPU ends.
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..REQUESTS.len()).prop_map(|request| Step::Create { request }),
        4 => (0_usize..64).prop_map(|pod| Step::Retry { pod }),
        1 => Just(Step::End),
    ]
}

struct Queue {
    index: Scene,
    now: Instant,
    /// Those without a place, in the order in which they were created.
    pending: Vec<Candidate>,
    running: Option<PodUid>,
    created: usize,
}

impl Queue {
    fn new() -> Self {
        let mut index = cluster(&[("n", &["H100-80GB"])]);
        index.begin();
        Self { index, now: Instant::now(), pending: Vec::new(), running: None, created: 0 }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Create { request: number } => {
                let (resource, count) = REQUESTS[*number];
                let name = format!("p{}", self.created);
                let ask = Ask::read(Some(&request(resource, count).to_json()));
                self.created += 1;
                self.pending.push(Candidate { ask, ..pod(&name, resource) });
                self.schedule(self.pending.len() - 1);
            }
            Step::Retry { pod } if !self.pending.is_empty() => self.schedule(pod % self.pending.len()),
            Step::Retry { .. } => {}
            Step::End => self.end(),
        }
    }

    /// A scheduling cycle, and the bind if there is room.
    fn schedule(&mut self, pending: usize) {
        let pod = self.pending[pending].clone();
        if !filter(&mut self.index, &pod, &["n"], self.now).fitting.is_empty() {
            self.index.reserve(&pod.uid, &pod.key, &"n".into(), pod.ask.ok()).unwrap();
            self.index.cut("n", true);
            self.running = Some(pod.uid);
            self.pending.remove(pending);
        }
    }

    fn end(&mut self) {
        let Some(uid) = self.running.take() else { return };
        self.index.pod_gone(&uid);
        let woken: Vec<PodUid> = self.index.requeue(self.now).into_iter().map(|(uid, _)| uid).collect();
        let first: Vec<PodUid> = self.pending.first().map(|pod| pod.uid.clone()).into_iter().collect();
        assert_eq!(woken, first, "only the longest pending pod is requeued");
        if let Some(uid) = first.first() {
            self.index.scheduling().unschedulable().was_called(uid);
            self.schedule(0);
            assert_eq!(self.running.as_ref(), Some(uid), "the requeued pod has room");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// So a pod waits for no more pods to end than came before it.
    #[test]
    fn no_pod_loses_its_turn_however_often_it_is_tried(steps in prop::collection::vec(step(), 1..60)) {
        let mut queue = Queue::new();
        for step in &steps {
            queue.take(step);
        }
    }
}

#[test]
fn a_new_leader_requeues_pods_in_the_order_of_their_creation() {
    let mut index = cluster(&[("n", &["H100-80GB"])]);
    let pods: Vec<Candidate> = (0..7).rev().map(|n| pod(&format!("p{n}"), SMALL)).collect();
    for (second, pod) in (0..).zip(&pods) {
        let created = Timestamp::from_second(second).ok();
        index.show_pod(KnownPod { created, ..unbound(pod) });
    }
    index.begin();
    let woken: Vec<PodUid> = index.requeue(Instant::now()).into_iter().map(|(uid, _)| uid).collect();
    assert_eq!(woken, pods.into_iter().map(|pod| pod.uid).collect::<Vec<_>>());
}
