use super::super::tests::{gpu_node, index, known, reserve, uid, write};
use super::*;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::testing::{node_status, slice_status};

const STEP: Duration = Duration::from_secs(1);

/// The agent has read this spec, and offers its slices or does not.
fn agent(index: &mut ClusterIndex, spec: &GpuNodeSpec, offers: bool, now: Instant) {
    let mut status = node_status(&["H100-80GB"]);
    status.observed_revision = spec.revision;
    if offers {
        status.slices = spec.slices.iter().map(|slice| slice_status(slice, false)).collect();
    }
    index.show_node(&gpu_node(spec, &status));
    index.note_stages(&"n".into(), now);
}

#[test]
fn each_stage_ends_where_it_is_seen_to() {
    let (mut index, start) = (index(), Instant::now());
    reserve(&mut index, "a");
    index.set_out(&uid("a"), start);
    let spec = write(&mut index).unwrap();
    index.note_stages(&"n".into(), start + STEP);
    agent(&mut index, &spec, false, start + 2 * STEP);
    agent(&mut index, &spec, false, start + 3 * STEP);
    agent(&mut index, &spec, true, start + 5 * STEP);
    agent(&mut index, &spec, true, start + 6 * STEP);
    let stages = index.arrive(&uid("a"), start + 9 * STEP);
    let expected = Stages { accepted: Some(2 * STEP), ready: Some(3 * STEP), bound: Some(4 * STEP) };
    assert_eq!(stages, expected);
    assert_eq!(index.arrive(&uid("a"), start), Stages::default(), "it is counted once");
}

#[test]
fn an_agent_that_has_read_an_older_spec_has_not_accepted() {
    let (mut index, start) = (index(), Instant::now());
    let before = GpuNodeSpec::default();
    reserve(&mut index, "a");
    index.set_out(&uid("a"), start);
    agent(&mut index, &before, false, start + STEP);
    let spec = write(&mut index).unwrap();
    assert!(spec.revision > before.revision);
    index.note_stages(&"n".into(), start + STEP);
    assert_eq!(index.arrive(&uid("a"), start + STEP), Stages::default());
}

#[test]
fn what_was_not_seen_is_not_counted_and_nothing_is_kept_of_a_pod_that_left() {
    let (mut index, start) = (index(), Instant::now());
    index.set_out(&uid("a"), start);
    assert!(index.journeys.is_empty(), "it has no reservation");
    reserve(&mut index, "a");
    index.set_out(&uid("a"), start);
    index.pod_gone(&uid("a"));
    assert!(index.journeys.is_empty());
    index.show_pod(known("b", None));
    reserve(&mut index, "b");
    index.set_out(&uid("b"), start);
    index.remove_node(&"n".into());
    assert!(index.journeys.is_empty());
}
