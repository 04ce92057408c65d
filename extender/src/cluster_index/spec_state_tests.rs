use super::*;
use crate::ask::Ask;
use kerf_core::ledger::release;
use kerf_core::testing::{node_status, promisee, request};

fn reserve(pod: &str, resource: &str) -> Change {
    let ask = Ask::read(Some(&request(resource, 1).to_json())).unwrap();
    Change::Reserve { pod: promisee(pod), ask, plan: kerf_core::packing::KindPlan::default() }
}

fn pods(spec: &GpuNodeSpec) -> Vec<&str> {
    spec.slices.iter().filter_map(|s| Some(s.reservation.as_ref()?.pod.as_str())).collect()
}

const SMALL: &str = "nvidia.com/mig-1g.10gb";
const WHOLE: &str = "nvidia.com/mig-7g.80gb";

#[test]
fn changes_that_gather_during_a_write_go_into_one_next_write() {
    let status = node_status(&["H100-80GB"]);
    let mut state = SpecState::default();
    assert_eq!(state.push(reserve("a", SMALL), Some(&status), &Fleet::default()), Ok(true));
    let first = state.begin(3, false).unwrap().clone();
    assert_eq!((first.revision, first.epoch, pods(&first)), (1, 3, vec!["a"]));
    state.push(reserve("b", SMALL), Some(&status), &Fleet::default()).unwrap();
    state.push(reserve("c", SMALL), Some(&status), &Fleet::default()).unwrap();
    assert!(state.begin(3, false).is_none(), "one write at a time");
    assert!(!state.is_committed(&promisee("a").uid));
    state.written(1);
    assert!(state.is_committed(&promisee("a").uid) && !state.is_committed(&promisee("b").uid));
    let second = state.begin(3, false).unwrap().clone();
    assert_eq!((second.revision, pods(&second)), (2, vec!["a", "b", "c"]));
}

#[test]
fn changes_that_cancel_each_other_are_not_written() {
    let status = node_status(&["H100-80GB"]);
    let mut state = SpecState::default();
    state.push(reserve("a", SMALL), Some(&status), &Fleet::default()).unwrap();
    assert_eq!(state.push(reserve("a", SMALL), Some(&status), &Fleet::default()), Ok(false));
    state.begin(1, false).unwrap();
    state.written(1);
    state.push(Change::Release(promisee("a").uid), Some(&status), &Fleet::default()).unwrap();
    state.push(reserve("a", SMALL), Some(&status), &Fleet::default()).unwrap();
    assert!(state.begin(1, false).is_none());
    assert!(state.is_committed(&promisee("a").uid) && !state.is_pending());
}

#[test]
fn a_write_whose_reply_was_lost_is_known_by_its_content() {
    let status = node_status(&["H100-80GB"]);
    let mut state = SpecState::default();
    state.push(reserve("a", SMALL), Some(&status), &Fleet::default()).unwrap();
    let next = state.begin(1, false).unwrap().clone();
    assert_eq!(state.show(next.clone(), Some(&status), &Fleet::default()), Shown::Ours);
    assert!(state.is_committed(&promisee("a").uid));
    // The reply comes after all, and the watch shows the same again.
    state.written(1);
    assert_eq!(state.show(next, Some(&status), &Fleet::default()), Shown::Known);
    assert_eq!(state.committed().revision, 1);
}

#[test]
fn pending_changes_are_applied_anew_to_what_somebody_else_wrote() {
    let status = node_status(&["H100-80GB"]);
    let mut other = SpecState::default();
    other.push(reserve("x", SMALL), Some(&status), &Fleet::default()).unwrap();
    let foreign = other.begin(9, false).unwrap().clone();

    let mut state = SpecState::default();
    state.push(reserve("a", SMALL), Some(&status), &Fleet::default()).unwrap();
    let mine = state.begin(1, false).unwrap().clone();
    assert_eq!(mine.slices[0].shape, foreign.slices[0].shape, "both took the same place");
    state.push(reserve("b", SMALL), Some(&status), &Fleet::default()).unwrap();
    assert_eq!(state.show(foreign, Some(&status), &Fleet::default()), Shown::Foreign);
    let again = state.begin(1, false).unwrap();
    assert_eq!((again.revision, pods(again)), (2, vec!["x", "a", "b"]));
    assert_ne!(again.slices[0].shape, again.slices[1].shape);
}

#[test]
fn a_promise_that_has_no_place_any_more_is_dropped() {
    let status = node_status(&["H100-80GB"]);
    let mut other = SpecState::default();
    other.push(reserve("x", SMALL), Some(&status), &Fleet::default()).unwrap();
    let foreign = other.begin(1, false).unwrap().clone();
    let mut state = SpecState::default();
    state.push(reserve("a", WHOLE), Some(&status), &Fleet::default()).unwrap();
    state.begin(1, false).unwrap();
    state.rebase(foreign.clone(), Some(&status), &Fleet::default());
    assert_eq!(state.working(), &foreign);
    assert!(state.begin(1, false).is_none() && !state.is_pending());
}

#[test]
fn an_abandoned_change_leaves_no_trace() {
    let status = node_status(&["H100-80GB"]);
    let mut state = SpecState::default();
    state.push(reserve("a", SMALL), Some(&status), &Fleet::default()).unwrap();
    state.begin(1, false).unwrap();
    state.push(reserve("b", SMALL), Some(&status), &Fleet::default()).unwrap();
    state.abandon();
    assert_eq!(state.working(), state.committed());
    assert!(pods(state.working()).is_empty() && !state.is_pending());
}

#[test]
fn a_policy_is_taken_from_what_is_shown_whatever_is_being_written() {
    let status = node_status(&["H100-80GB"]);
    let policy = NodePolicy { remove_rejected_pods: true, ..NodePolicy::default() };
    let mut state = SpecState::default();
    state.push(reserve("a", SMALL), Some(&status), &Fleet::default()).unwrap();
    let mine = state.begin(1, false).unwrap().clone();
    let before = GpuNodeSpec { policy: policy.clone(), ..GpuNodeSpec::default() };
    assert_eq!(state.show(before, Some(&status), &Fleet::default()), Shown::Known);
    assert_eq!((&state.working().policy, &state.committed().policy), (&policy, &policy));
    let written = GpuNodeSpec { policy: policy.clone(), ..mine };
    assert_eq!(state.show(written.clone(), Some(&status), &Fleet::default()), Shown::Ours);
    assert_eq!(state.committed(), &written);
    let reset = GpuNodeSpec { policy: NodePolicy::default(), ..written };
    assert_eq!(state.show(reset.clone(), Some(&status), &Fleet::default()), Shown::Known);
    assert_eq!((state.working(), state.committed()), (&reset, &reset));
}

#[test]
fn nothing_is_promised_on_a_node_whose_status_cannot_be_read() {
    let mut state = SpecState::default();
    assert_eq!(state.push(reserve("a", SMALL), None, &Fleet::default()), Err(Refusal::UnreadableStatus));
    let status = node_status(&["H100-80GB"]);
    state.push(reserve("a", SMALL), Some(&status), &Fleet::default()).unwrap();
    assert_eq!(state.push(Change::Release(promisee("a").uid), None, &Fleet::default()), Ok(true));
    assert_eq!(release(state.working(), &promisee("a").uid), None);
}
