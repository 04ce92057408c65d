use super::super::tests::{gpu_node, index, uid, write};
use super::*;
use crate::ask::Ask;
use crate::cluster_index::Progress;
use kerf_core::names::PodKey;
use kerf_core::testing::{node_status, request, slice_status};
use std::time::Instant;

/// Two pods whose slices have one name and are not worth the same; the agent offers the first one's.
fn two() -> ClusterIndex {
    let mut index = index();
    for pod in ["a", "b"] {
        let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
        index.show_pod(super::super::tests::known(pod, None));
        index.reserve(&uid(pod), &PodKey::new("default", pod), &"n".into(), Some(ask)).unwrap();
        index.begin_bind(&uid(pod));
    }
    let spec = write(&mut index).unwrap();
    let mut status = node_status(&["H100-80GB"]);
    status.slices = spec.slices.iter().map(|s| slice_status(s, false)).collect();
    status.slices[1].state = SliceState::Waiting;
    status.slices[1].ready_for = None;
    status.observed_revision = spec.revision;
    index.show_node(&gpu_node(&spec, &status));
    index.take_effects();
    index
}

fn released(index: &mut ClusterIndex) -> Vec<Why> {
    let progress = index.progress(&uid("b"), &"n".into());
    assert!(matches!(progress, Progress::Cutting { .. } | Progress::Writing), "{progress:?}");
    index.take_effects().released.into_iter().map(|released| released.why).collect()
}

#[test]
fn a_pod_in_backoff_makes_way_for_one_that_is_being_bound() {
    let mut index = two();
    assert_eq!(released(&mut index), [], "both are being bound");
    index.end_bind(&uid("a"), &"n".into(), Instant::now());
    assert!(index.take_effects().changed.contains("n"), "who waits looks again");
    assert_eq!(released(&mut index), [Why::Blocking]);
    assert!(index.place_of(&uid("a")).is_none() && index.place_of(&uid("b")).is_some());
}

#[test]
fn one_whose_binding_may_be_made_makes_no_way() {
    let mut index = two();
    let until = Instant::now();
    index.begin_post(&uid("a"), &PodKey::new("default", "a"), until);
    index.end_bind(&uid("a"), &"n".into(), Instant::now());
    assert_eq!(released(&mut index), []);
    index.post_refused(&uid("a"), until);
    assert_eq!(released(&mut index), [Why::Blocking]);
}
