//! Who is evicted for whom, and who is not.

use super::tests::{HALF, SMALL, WHOLE, bound, cluster, pod, run};
use super::{Candidate, filter};
use crate::cluster_index::ClusterIndex;
use crate::pod::KnownPod;
use std::time::{Duration, Instant};

const H100: &[&str] = &["H100-80GB"];
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A listed cluster of nodes with an H100 each and these pods, each with what it asks for, its node, and whether it may be
/// moved.
fn running(pods: &[(&str, &str, &str, bool)], now: Instant) -> ClusterIndex {
    let mut index = cluster(&NODES.map(|name| (name, H100)));
    index.nodes_listed();
    index.pods_listed();
    for (name, resource, node, movable) in pods {
        let pod = pod(name, resource);
        filter(&mut index, &pod, &[node], now);
        run(&mut index, &pod, node, *movable);
    }
    index.take_effects();
    index
}

/// Asks for a place on all nodes, and names who is evicted for the pod.
fn evicted_for(index: &mut ClusterIndex, pod: &Candidate, now: Instant) -> Vec<String> {
    filter(index, pod, &NODES, now);
    index.take_effects().evictions.into_iter().map(|eviction| eviction.pod.name).collect()
}

fn deleting(pod: &Candidate, node: &str) -> KnownPod {
    KnownPod { deleting: true, ..bound(pod, node, true) }
}

#[test]
fn an_eviction_whose_answer_was_lost_was_made_if_the_pod_is_seen_to_leave() {
    let now = Instant::now();
    let pods = [("a", SMALL, "n1", true), ("b", SMALL, "n2", true), ("half", HALF, "n3", false)];
    let mut index = running(&pods, now);
    let whole = pod("whole", WHOLE);
    assert_eq!(evicted_for(&mut index, &whole, now), ["a"]);
    index.eviction_refused(&whole.uid);
    index.show_pod(deleting(&pod("a", SMALL), "n1"));
    for seconds in [50, 100, 150] {
        let later = now + Duration::from_secs(seconds);
        assert!(evicted_for(&mut index, &whole, later).is_empty(), "its grace period is long");
        assert_eq!(index.expected_on(&whole.uid), Some(&"n1".into()));
    }
}
