use super::super::tests::uid;
use super::*;
use crate::leader::Former;
use kerf_core::packing::{Refusal, Terms};
use kerf_core::static_node::Devices;
use kerf_core::testing::static_node;
use std::time::Duration;
use std::time::Instant;

const LIFE: Duration = super::super::REQUEST_LIMIT;

/// A new leader with a static node. Its predecessor ended like this at `start`; `told` is the epoch in the ConfigMap,
/// if there is one.
fn successor(former: Former, start: Instant, reported: Option<u64>) -> ClusterIndex {
    let mut index = ClusterIndex::new(5, Terms::default());
    index.leadership_mut().await_former_epoch();
    index.nodes().static_nodes().succeed(former, start);
    index.nodes().end_gpu_node_list();
    index.end_pod_list();
    index.nodes().show_static(&"s".into(), Some(static_node(&[], &[("gpu", 8)])));
    index.rise_over(reported);
    index
}

fn refusal(index: &mut ClusterIndex) -> Option<Refusal> {
    index.scheduling().plain_fit("s", &uid("p"), &Devices::new()).err()
}

#[test]
fn static_nodes_stay_closed_until_no_request_of_a_vanished_leader_can_live() {
    for (former, reported, waits) in [
        (Former::Vanished, None, true),
        (Former::GaveBack, Some(4), false),
        (Former::Unknown, None, false),
        (Former::Unknown, Some(4), true),
    ] {
        let start = Instant::now();
        let mut index = successor(former, start, reported);
        let expected = waits.then_some(Refusal::LeaderChanged);
        assert_eq!(refusal(&mut index), expected, "{former:?}, {reported:?}");
        assert_eq!(index.leaves_nothing_under_way(), !waits);
        index.tick(start + LIFE.mul_f32(0.99));
        assert_eq!(refusal(&mut index), expected);
        index.take_effects();
        index.tick(start + LIFE);
        assert_eq!(refusal(&mut index), None);
        assert_eq!(index.take_effects().changed.contains("s"), waits, "pending binds check again");
        assert!(index.leaves_nothing_under_way());
    }
}

#[test]
fn a_vanished_leader_leaves_nothing_under_way_without_static_nodes() {
    let mut index = ClusterIndex::new(5, Terms::default());
    index.nodes().static_nodes().succeed(Former::Vanished, Instant::now());
    assert!(!index.leaves_nothing_under_way(), "nodes are not listed");
    index.nodes().end_gpu_node_list();
    index.end_pod_list();
    assert!(index.leaves_nothing_under_way());
    index.nodes().show_static(&"s".into(), Some(static_node(&[], &[("gpu", 8)])));
    assert!(!index.leaves_nothing_under_way());
}
