use super::super::scene::{Scene, filter};
use super::super::tests::{index, known, reserve, uid};
use super::*;
use crate::cluster_index::ClusterIndex;
use crate::scheduling::filter::Candidate;
use kerf_core::names::PodKey;
use kerf_core::static_node::Devices;
use std::time::Duration;

const LIFETIME: Duration = Duration::from_mins(1);

fn key() -> PodKey {
    PodKey::new("default", "a")
}

fn released(index: &mut Scene) -> Vec<ReleaseReason> {
    index.take_effects().released.into_iter().map(|released| released.reason).collect()
}

#[test]
fn an_unused_reservation_is_released_after_its_lifetime() {
    let (mut index, start) = (index(), Instant::now());
    reserve(&mut index, "a");
    index.tick(start);
    index.tick(start + LIFETIME.mul_f32(0.99));
    assert_eq!(released(&mut index), []);
    index.tick(start + LIFETIME);
    assert_eq!(released(&mut index), [ReleaseReason::Expired]);
    assert_eq!(index.place_of(&uid("a")), None);
}

#[test]
fn only_a_bind_renews_the_lifetime() {
    let (mut index, start) = (index(), Instant::now());
    reserve(&mut index, "a");
    index.tick(start);
    index.bindings().begin(&uid("a"));
    index.bindings().begin(&uid("a"));
    index.reserving().end_bind(&uid("a"), &"n".into(), start + LIFETIME);
    index.tick(start + LIFETIME * 3);
    assert_eq!(released(&mut index), [], "a bind is open");
    index.reserving().end_bind(&uid("a"), &"n".into(), start + LIFETIME * 3);
    index.tick(start + LIFETIME.mul_f32(3.9));
    assert_eq!(released(&mut index), []);
    index.tick(start + LIFETIME * 4);
    assert_eq!(released(&mut index), [ReleaseReason::Expired]);
}

#[test]
fn a_filter_does_not_renew_the_lifetime() {
    let (mut index, start) = (index(), Instant::now());
    let ask = known("a", None).ask();
    let pod = Candidate {
        uid: uid("a"),
        key: key(),
        ask,
        devices: Devices::new(),
        tolerations: Vec::new(),
        nominated: None,
    };
    reserve(&mut index, "a");
    index.tick(start);
    for quarter in 1..4 {
        let now = start + LIFETIME / 4 * quarter;
        assert_eq!(filter(&mut index, &pod, &["n"], now).fitting, ["n"]);
        index.tick(now);
    }
    assert_eq!(released(&mut index), []);
    index.tick(start + LIFETIME);
    index.obey();
    assert_eq!(released(&mut index), [ReleaseReason::Expired]);
    // A bind that follows the last filter makes a new reservation.
    reserve(&mut index, "a");
    assert_eq!(index.place_of(&uid("a")), Some(&"n".into()));
}

#[test]
fn a_reservation_of_a_pod_that_is_bound_or_may_be_does_not_expire() {
    type Step = fn(&mut ClusterIndex);
    let keeps: [Step; 4] = [
        |index| index.show_pod(known("a", Some("n"))),
        |index| {
            index.bound(&uid("a"), &key(), &"n".into());
            // The watch lags behind the answer to the Binding: an older event must not undo the bind.
            index.show_pod(known("a", None));
        },
        |index| index.bindings().send(&uid("a"), &key(), Instant::now()),
        // Its label was removed, so it may have been bound since.
        |index| index.hide_pod(&known("a", None)),
    ];
    for (number, keep) in keeps.into_iter().enumerate() {
        let (mut index, start) = (index(), Instant::now());
        reserve(&mut index, "a");
        keep(&mut index);
        index.tick(start);
        index.tick(start + LIFETIME * 2);
        assert_eq!(released(&mut index), [], "{number}");
    }
}
