use super::super::scene::Scene;
use super::super::tests::{index, reserve, uid};
use super::*;
use kerf_core::names::PodKey;
use std::time::Instant;

/// Two pods whose slices have one name but different worth. The agent offers the first pod's slice.
fn two() -> Scene {
    let mut index = index();
    for pod in ["a", "b"] {
        reserve(&mut index, pod);
        index.bindings().begin(&uid(pod));
    }
    index.cut("n", false);
    index.show_slice("n", 1, |slice| (slice.state, slice.ready_for) = (SliceState::Waiting, None));
    index.take_effects();
    index
}

fn released(index: &mut Scene) -> Vec<ReleaseReason> {
    index.reserving().shown_slices(&uid("b"), &"n".into());
    index.take_effects().released.into_iter().map(|released| released.reason).collect()
}

#[test]
fn a_pod_in_backoff_makes_way_for_one_that_is_being_bound() {
    let mut index = two();
    assert_eq!(released(&mut index), [], "both are being bound");
    index.reserving().end_bind(&uid("a"), &"n".into(), Instant::now());
    assert!(index.take_effects().changed.contains("n"), "pending binds check again");
    assert_eq!(released(&mut index), [ReleaseReason::Blocking]);
    assert!(index.place_of(&uid("a")).is_none() && index.place_of(&uid("b")).is_some());
}

#[test]
fn a_pod_whose_binding_may_be_made_keeps_its_reservation() {
    let mut index = two();
    let until = Instant::now();
    index.bindings().send(&uid("a"), &PodKey::new("default", "a"), until);
    index.reserving().end_bind(&uid("a"), &"n".into(), Instant::now());
    assert_eq!(released(&mut index), []);
    index.reserving().refuse_binding(&uid("a"), until);
    assert_eq!(released(&mut index), [ReleaseReason::Blocking]);
}
