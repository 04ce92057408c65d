use super::*;
use crate::cluster_index::tests::{index, known, reserve, uid};

const STEP: Duration = Duration::from_secs(1);

#[test]
fn each_stage_ends_when_its_end_is_first_seen() {
    let (mut index, start) = (index(), Instant::now());
    reserve(&mut index, "a");
    index.reserving().stages().start_stages(&uid("a"), start);
    // The first bind ends before the slices are cut.
    for bind in 0..2 {
        index.reserving().stages().set_accepted(&uid("a"), start + (2 + bind) * STEP);
        index.reserving().stages().set_ready(&uid("a"), start + (5 + bind) * STEP);
    }
    let stages = index.reserving().stages().end_stages(&uid("a"), start + 9 * STEP);
    let expected = Stages { accepted: Some(2 * STEP), ready: Some(3 * STEP), bound: Some(4 * STEP) };
    assert_eq!(stages, expected);
    assert_eq!(
        index.reserving().stages().end_stages(&uid("a"), start),
        Stages::default(),
        "it is counted once"
    );
}

#[test]
fn only_pods_with_a_reservation_have_stages() {
    let (mut index, start) = (index(), Instant::now());
    index.reserving().stages().start_stages(&uid("a"), start);
    assert!(!index.reserving().stages().has_stages(), "it has no reservation");
    reserve(&mut index, "a");
    index.reserving().stages().start_stages(&uid("a"), start);
    index.pod_gone(&uid("a"));
    assert!(!index.reserving().stages().has_stages());
    index.show_pod(known("b", None));
    reserve(&mut index, "b");
    index.reserving().stages().start_stages(&uid("b"), start);
    index.nodes().remove_gpu_node(&"n".into());
    assert!(!index.reserving().stages().has_stages());
}
