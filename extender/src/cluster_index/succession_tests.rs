use super::super::tests::{index, known, reserve, uid, write};
use super::*;
use kerf_core::packing::{Refusal, Terms};
use kerf_core::static_node::Devices;
use kerf_core::testing::static_node;
use std::time::Duration;

const LIFE: Duration = super::super::UNCERTAIN;

/// The leader after one that ended like that at `start`, with a static node; and whether anything else tells of a former leader.
fn successor(former: Former, start: Instant, told: Option<u64>) -> ClusterIndex {
    let mut index = ClusterIndex::new(5, Terms::default());
    index.await_former_epoch();
    index.succeed(former, start);
    index.nodes_listed();
    index.pods_listed();
    index.show_static("s".into(), Some(static_node(&[], &[("gpu", 8)])));
    index.rise_over(told);
    index
}

fn refusal(index: &ClusterIndex) -> Option<Refusal> {
    index.plain_fit("s", &uid("p"), &Devices::new()).err()
}

#[test]
fn after_a_leader_that_vanished_nobody_comes_to_static_nodes_until_its_requests_cannot_live() {
    for (former, told, waits) in [
        (Former::Vanished, None, true),
        (Former::GaveBack, Some(4), false),
        (Former::Unknown, None, false),
        (Former::Unknown, Some(4), true),
    ] {
        let start = Instant::now();
        let mut index = successor(former, start, told);
        let expected = waits.then_some(Refusal::LeaderChanged);
        assert_eq!(refusal(&index), expected, "{former:?}, {told:?}");
        assert_eq!(index.leaves_nothing_under_way(), !waits);
        index.tick(start + LIFE.mul_f32(0.99));
        assert_eq!(refusal(&index), expected);
        index.take_effects();
        index.tick(start + LIFE);
        assert_eq!(refusal(&index), None);
        assert_eq!(index.take_effects().changed.contains("s"), waits, "who waits looks again");
        assert!(index.leaves_nothing_under_way());
    }
}

#[test]
fn what_a_vanished_leader_reserved_is_kept_until_it_is_known_not_to_be_bound() {
    let start = Instant::now();
    for (former, kept) in [(Former::Vanished, true), (Former::GaveBack, false)] {
        let mut index = index();
        index.succeed(former, start);
        reserve(&mut index, "a");
        write(&mut index);
        index.inherit();
        assert_eq!(index.give_up(&uid("a")), !kept, "{former:?}");
        if kept {
            index.tick(start + LIFE);
            assert_eq!(index.take_effects().unconfirmed, [uid("a")].into());
            index.looked_up(known("a", None), start + LIFE);
            assert!(index.give_up(&uid("a")));
        }
    }
}

#[test]
fn a_refused_binding_leaves_the_one_of_the_vanished_leader_open() {
    let start = Instant::now();
    let mut index = index();
    index.succeed(Former::Vanished, start);
    reserve(&mut index, "a");
    write(&mut index);
    index.inherit();
    index.begin_post(&uid("a"), &PodKey::new("default", "a"), start + LIFE / 2);
    index.post_refused(&uid("a"), start + LIFE / 2);
    assert!(!index.give_up(&uid("a")));
}
