use super::*;
use crate::ask::Ask;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, Holder, SliceState, SliceStatus};
use kerf_core::names::PodKey;
use kerf_core::packing::Terms;
use kerf_core::static_node::Devices;
use kerf_core::testing::{node_status, request, slice_status};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

const SMALL: &str = "nvidia.com/mig-1g.10gb";

pub(super) fn gpu_node(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> GpuNode {
    let mut node = GpuNode::new(&"n".into());
    node.metadata.uid = Some("object".into());
    node.spec = Some(json!(spec));
    node.status = Some(json!(status));
    node
}

/// A listed cluster with one H100 node.
pub(super) fn index() -> ClusterIndex {
    let mut index = ClusterIndex::new(1, Terms::default());
    index.nodes_listing();
    index.show_node(&gpu_node(&GpuNodeSpec::default(), &node_status(&["H100-80GB"])));
    index.nodes_listed();
    index.pods_listing();
    index.pods_listed();
    index.take_effects();
    index
}

pub(super) fn uid(pod: &str) -> PodUid {
    PodUid::new(format!("uid-{pod}"))
}

pub(super) fn known(pod: &str, node: Option<&str>) -> KnownPod {
    KnownPod {
        devices: Devices::new(),
        has_slices: false,
        asks_for_nothing: false,
        uid: uid(pod),
        key: PodKey::new("default", pod),
        node: node.map(NodeName::new),
        ended: false,
        compute: crate::compute::Compute::default(),
        deleting: false,
        gated: false,
        movable_to: None,
        pending_to: None,
        request: Some(request(SMALL, 1).to_json().into()),
        policy: None,
        facts: Arc::default(),
        counted: crate::pod::Counted::default(),
    }
}

pub(super) fn reserve(index: &mut ClusterIndex, pod: &str) -> Promise {
    index.show_pod(known(pod, None));
    index.reserve(&uid(pod), &PodKey::new("default", pod), &"n".into(), None).unwrap()
}

/// Does the writer's work.
pub(super) fn write(index: &mut ClusterIndex) -> Option<GpuNodeSpec> {
    let (before, next) = index.begin_write(&"n".into())?;
    assert_eq!(next.revision, before + 1);
    index.wrote(&"n".into(), next.revision);
    Some(next)
}

/// Shows the spec back with a status in which all its slices are ready, or held by those whose pod `holds`.
fn agent_answers(index: &mut ClusterIndex, spec: &GpuNodeSpec, holds: bool) {
    let mut status = node_status(&["H100-80GB"]);
    status.slices = spec.slices.iter().map(|s| slice_status(s, holds)).collect();
    status.observed_revision = spec.revision;
    index.show_node(&gpu_node(spec, &status));
}

#[test]
fn a_promise_is_written_then_cut_then_ready() {
    let mut index = index();
    let promise = reserve(&mut index, "a");
    assert_eq!((promise.slices.len(), promise.cut.len(), promise.kept), (1, 1, false));
    let effects = index.take_effects();
    assert!(effects.unwritten.contains("n"));
    assert_eq!(index.progress(&uid("a"), &"n".into()), Progress::Writing);
    let spec = write(&mut index).unwrap();
    assert_eq!(spec.epoch, 1);
    assert!(index.take_effects().changed.contains("n"));
    assert_eq!(index.progress(&uid("a"), &"n".into()), Progress::Cutting { revision: 1 });
    agent_answers(&mut index, &spec, false);
    let Progress::Ready(assignment) = index.progress(&uid("a"), &"n".into()) else { panic!("not ready") };
    assert_eq!((assignment.slices[0].id.as_str(), assignment.slices[0].container.as_str()), ("s1", "main"));
}

#[test]
fn a_pod_whose_request_is_unknown_must_be_asked_for() {
    let mut index = index();
    let key = PodKey::new("default", "a");
    let unknown = index.reserve(&uid("a"), &key, &"n".into(), None);
    assert_eq!(unknown, Err(Unreservable::UnknownPod));
    let ask = Ask::read(Some(&request(SMALL, 1).to_json())).unwrap();
    assert!(index.reserve(&uid("a"), &key, &"n".into(), Some(ask)).is_ok());
}

#[test]
fn an_idle_slice_is_promised_without_a_cut() {
    let mut index = index();
    reserve(&mut index, "a");
    let spec = write(&mut index).unwrap();
    agent_answers(&mut index, &spec, false);
    index.pod_gone(&uid("a"));
    let spec = write(&mut index).unwrap();
    agent_answers(&mut index, &spec, false);
    let promise = reserve(&mut index, "b");
    assert!(promise.cut.is_empty() && !promise.kept);
}

/// Asks for a slice of `profile`; whether it is promised.
fn finds_room(index: &mut ClusterIndex, pod: &str, profile: &str) -> bool {
    let ask = Ask::read(Some(&request(&format!("nvidia.com/mig-{profile}"), 1).to_json())).unwrap();
    let key = PodKey::new("default", pod);
    index.reserve(&uid(pod), &key, &"n".into(), Some(ask)).is_ok()
}

#[test]
fn a_released_slice_is_nobodys_only_once_the_agent_says_so() {
    let mut index = index();
    assert!(finds_room(&mut index, "a", "3g.40gb") && finds_room(&mut index, "b", "3g.40gb"));
    let spec = write(&mut index).unwrap();
    agent_answers(&mut index, &spec, false);
    // The kubelet may give to b what was promised to a, and nobody has told yet.
    index.pod_gone(&uid("a"));
    let spec = write(&mut index).unwrap();
    assert!(!finds_room(&mut index, "c", "1g.10gb"));
    agent_answers(&mut index, &spec, false);
    assert!(finds_room(&mut index, "c", "1g.10gb"));
}

#[test]
fn a_released_slice_is_promised_again_at_once_and_promises_follow_who_has_it() {
    let mut index = index();
    assert!(finds_room(&mut index, "a", "3g.40gb") && finds_room(&mut index, "b", "3g.40gb"));
    let spec = write(&mut index).unwrap();
    agent_answers(&mut index, &spec, false);
    index.bound(&uid("b"), &PodKey::new("default", "b"), &"n".into());
    index.pod_gone(&uid("a"));
    assert!(finds_room(&mut index, "c", "3g.40gb"));
    let spec = write(&mut index).unwrap();
    let promised = |spec: &GpuNodeSpec| -> Vec<_> {
        spec.slices.iter().map(|s| (s.id.to_string(), s.reservation.as_ref().unwrap().pod.clone())).collect()
    };
    assert_eq!(promised(&spec), [("s2".into(), "b".into()), ("s1".into(), "c".into())]);
    // The kubelet gave to b what was promised to a.
    let mut status = node_status(&["H100-80GB"]);
    status.slices = spec.slices.iter().map(|s| slice_status(s, false)).collect();
    status.slices[1].holder = slice_status(&spec.slices[0], true).holder;
    index.show_node(&gpu_node(&spec, &status));
    let spec = write(&mut index).unwrap();
    assert_eq!(promised(&spec), [("s2".into(), "c".into()), ("s1".into(), "b".into())]);
}

#[test]
fn what_the_agent_said_before_a_promise_does_not_count_after_it() {
    let mut index = index();
    assert!(finds_room(&mut index, "other", "3g.40gb") && finds_room(&mut index, "a", "3g.40gb"));
    let spec = write(&mut index).unwrap();
    agent_answers(&mut index, &spec, false);
    index.pod_gone(&uid("a"));
    let idle = write(&mut index).unwrap();
    agent_answers(&mut index, &idle, false);
    // Promised and given back before the agent has said anything of either.
    assert!(finds_room(&mut index, "b", "3g.40gb"));
    write(&mut index).unwrap();
    index.pod_gone(&uid("b"));
    let spec = write(&mut index).unwrap();
    assert!(!finds_room(&mut index, "c", "1g.10gb"));
    agent_answers(&mut index, &idle, false);
    assert!(!finds_room(&mut index, "c", "1g.10gb"), "an old report that came late");
    agent_answers(&mut index, &spec, false);
    assert!(finds_room(&mut index, "c", "1g.10gb"));
}

/// The node with this policy, on which every slice of `spec` is in the given state.
fn show_policy(index: &mut ClusterIndex, spec: &GpuNodeSpec, policy: &str, are: &[SliceState]) {
    let policy = serde_json::from_str(policy).unwrap();
    let mut status = node_status(&["H100-80GB"]);
    let slices = spec.slices.iter().zip(are);
    status.slices =
        slices.map(|(s, state)| SliceStatus { state: *state, ..slice_status(s, false) }).collect();
    status.observed_revision = spec.revision;
    index.show_node(&gpu_node(&GpuNodeSpec { policy, ..spec.clone() }, &status));
}

#[test]
fn a_policy_counts_from_the_moment_it_is_shown() {
    let mut index = index();
    let ask = Ask::read(Some(&request(SMALL, 1).to_json())).unwrap();
    assert!(index.place("n", &uid("a"), &ask).is_ok());
    let shares_only = r#"{"gpus": [{"kinds": ["mps", "time-slicing"]}]}"#;
    show_policy(&mut index, &GpuNodeSpec::default(), shares_only, &[]);
    assert_eq!(index.place("n", &uid("a"), &ask), Err(Refusal::NeverFits));
    show_policy(&mut index, &GpuNodeSpec::default(), "{}", &[]);
    assert!(index.place("n", &uid("a"), &ask).is_ok());
}

#[test]
fn idle_slices_that_policy_allows_no_longer_are_taken_out() {
    let mut index = index();
    reserve(&mut index, "a");
    reserve(&mut index, "b");
    index.pod_gone(&uid("a"));
    let spec = write(&mut index).unwrap();
    let states =
        spec.slices.iter().map(|s| if s.reservation.is_some() { SliceState::Held } else { SliceState::Idle });
    let shares_only = r#"{"gpus": [{"kinds": ["mps"]}]}"#;
    show_policy(&mut index, &spec, shares_only, &states.collect::<Vec<_>>());
    let left = write(&mut index).unwrap().slices;
    assert_eq!(left.iter().map(|s| s.reservation.as_ref().unwrap().pod.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn idle_slices_are_kept_ready_and_what_fails_is_not_cut_again_at_once() {
    let mut index = index();
    let warm = r#"{"warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 2}]}"#;
    show_policy(&mut index, &GpuNodeSpec::default(), warm, &[]);
    let spec = write(&mut index).unwrap();
    assert_eq!(spec.slices.len(), 2);
    show_policy(&mut index, &spec, warm, &[SliceState::Idle, SliceState::Failed]);
    let spec = write(&mut index).unwrap();
    assert_eq!(spec.slices.len(), 1);
    show_policy(&mut index, &spec, warm, &[SliceState::Idle]);
    assert_eq!(write(&mut index), None);
    index.resync(Instant::now());
    assert_eq!(write(&mut index).unwrap().slices.len(), 2);
    let promise = reserve(&mut index, "a");
    assert!(promise.cut.is_empty());
    assert_eq!(write(&mut index).unwrap().slices.len(), 3, "another takes its place");
}

#[test]
fn promises_to_pods_that_have_ended_or_run_elsewhere_are_given_back() {
    for (change, why) in [
        ((|pod: &mut KnownPod| pod.ended = true) as fn(&mut KnownPod), Why::Ended),
        (|pod| pod.node = Some("other".into()), Why::BoundElsewhere),
    ] {
        let mut index = index();
        reserve(&mut index, "a");
        write(&mut index);
        index.take_effects();
        let mut pod = known("a", None);
        change(&mut pod);
        index.show_pod(pod);
        let effects = index.take_effects();
        let pod = PodKey::new("default", "a");
        assert_eq!(effects.released, [Released { uid: uid("a"), pod, node: "n".into(), why }]);
        let spec = write(&mut index).unwrap();
        assert!(spec.slices[0].reservation.is_none(), "the slice stays as idle capacity");
        assert_eq!(index.place_of(&uid("a")), None);
    }
}

#[test]
fn the_slices_of_a_pod_that_is_only_being_deleted_stay_its_own() {
    let mut index = index();
    reserve(&mut index, "a");
    write(&mut index);
    index.take_effects();
    index.show_pod(KnownPod { deleting: true, ..known("a", Some("n")) });
    assert!(write(&mut index).is_none());
    index.hide_pod(&KnownPod { deleting: true, ..known("a", Some("n")) });
    assert_eq!(index.take_effects().released[0].why, Why::Gone);
}

#[test]
fn a_pod_that_leaves_the_watch_alive_is_looked_up_before_its_slices_are_given_back() {
    let mut index = index();
    reserve(&mut index, "a");
    write(&mut index);
    index.take_effects();
    index.hide_pod(&known("a", Some("n")));
    let effects = index.take_effects();
    assert!(effects.released.is_empty() && effects.unconfirmed.contains(&uid("a")));
    assert_eq!(index.promised_pod(&uid("a")), Some(PodKey::new("default", "a")));
    // It runs on without its label, and is looked up again at each resync.
    index.show_stray(known("a", Some("n")));
    index.resync(Instant::now());
    assert!(index.take_effects().unconfirmed.contains(&uid("a")));
    index.pod_gone(&uid("a"));
    assert_eq!(index.take_effects().released.len(), 1);
}

#[test]
fn promises_to_pods_that_vanished_while_nobody_looked_are_looked_up() {
    let mut index = index();
    reserve(&mut index, "a");
    reserve(&mut index, "b");
    index.take_effects();
    index.pods_listing();
    index.show_pod(known("b", None));
    index.pods_listed();
    assert_eq!(index.take_effects().unconfirmed.into_iter().collect::<Vec<_>>(), [uid("a")]);
}

#[test]
fn a_slice_that_could_not_be_made_is_taken_out_and_its_bind_told() {
    let mut index = index();
    reserve(&mut index, "a");
    let spec = write(&mut index).unwrap();
    let mut status = node_status(&["H100-80GB"]);
    status.slices = spec.slices.iter().map(|s| slice_status(s, false)).collect();
    status.slices[0].state = SliceState::Failed;
    status.slices[0].message = Some("the driver said no".into());
    index.show_node(&gpu_node(&spec, &status));
    let Progress::Failed(reason) = index.progress(&uid("a"), &"n".into()) else { panic!("not failed") };
    assert_eq!(reason, "slice s1 (1g.10gb at 6:1) could not be made: the driver said no");
    assert_eq!(write(&mut index).unwrap().slices, []);
    assert_eq!(index.progress(&uid("a"), &"n".into()), Progress::Lost);
}

#[test]
fn promises_follow_what_the_kubelet_did() {
    let mut index = index();
    reserve(&mut index, "a");
    reserve(&mut index, "b");
    let spec = write(&mut index).unwrap();
    for pod in ["a", "b"] {
        index.bound(&uid(pod), &PodKey::new("default", pod), &"n".into());
    }
    let mut status = node_status(&["H100-80GB"]);
    status.slices = spec.slices.iter().map(|s| slice_status(s, true)).collect();
    let holder =
        |pod: &str| Some(Holder { namespace: "default".into(), pod: pod.into(), container: "main".into() });
    (status.slices[0].holder, status.slices[1].holder) = (holder("b"), None);
    index.show_node(&gpu_node(&spec, &status));
    let next = write(&mut index).unwrap();
    let pods: Vec<_> = next.slices.iter().map(|s| s.reservation.as_ref().unwrap().pod.as_str()).collect();
    assert_eq!(pods, ["b", "a"]);
}

#[test]
fn a_leader_that_sees_a_newer_epoch_is_none_any_more() {
    let mut index = index();
    reserve(&mut index, "a");
    let newer = GpuNodeSpec { revision: 1, epoch: 2, ..GpuNodeSpec::default() };
    index.show_node(&gpu_node(&newer, &node_status(&["H100-80GB"])));
    assert!(index.take_effects().deposed);
    assert!(index.begin_write(&"n".into()).is_none(), "it writes no more");
    assert_eq!(index.reread(&gpu_node(&newer, &node_status(&["H100-80GB"]))), Reread::Deposed);
}

#[test]
fn a_leader_whose_lease_was_lost_rises_over_the_epochs_that_it_finds() {
    let mut index = ClusterIndex::new(1, Terms::default());
    let old = GpuNodeSpec { revision: 7, epoch: 5, ..GpuNodeSpec::default() };
    index.show_node(&gpu_node(&old, &node_status(&["H100-80GB"])));
    index.nodes_listed();
    assert_eq!(index.epoch(), 6);
    assert!(!index.take_effects().deposed);
}

#[test]
fn an_agent_that_has_seen_a_newer_epoch_than_the_spec_has_is_written_to_in_one_that_it_hears() {
    // After an etcd restore the spec is of epoch 1 again.
    let status = GpuNodeStatus { observed_epoch: 5, ..node_status(&["H100-80GB"]) };
    let mut index = index();
    reserve(&mut index, "a");
    let promised = write(&mut index).unwrap();
    index.show_node(&gpu_node(&promised, &status));
    assert!(index.take_effects().deposed, "this leader is not heard");
    assert!(index.begin_write(&"n".into()).is_none());
    let mut index = ClusterIndex::new(2, Terms::default());
    index.show_node(&gpu_node(&promised, &status));
    index.nodes_listed();
    assert!(index.take_effects().unwritten.contains(&NodeName::new("n")));
    let (before, next) = index.begin_write(&"n".into()).unwrap();
    assert_eq!((before, next.revision, next.epoch), (promised.revision, promised.revision + 1, 6));
    assert_eq!(next.slices, promised.slices);
    index.wrote(&"n".into(), next.revision);
    assert!(index.begin_write(&"n".into()).is_none(), "once");
    assert!(!index.is_pending(&"n".into()));
}

#[test]
fn a_spec_that_the_api_server_never_takes_is_given_up_and_its_bind_told() {
    let mut index = index();
    reserve(&mut index, "a");
    index.begin_write(&"n".into()).unwrap();
    index.abandon(&"n".into(), "forbidden");
    let progress = index.progress(&uid("a"), &"n".into());
    assert_eq!(progress, Progress::Failed("failed to write the GpuNode n: forbidden".into()));
    assert!(index.begin_write(&"n".into()).is_none());
}

#[test]
fn a_gpu_node_made_anew_starts_from_nothing() {
    let mut index = index();
    reserve(&mut index, "a");
    write(&mut index);
    let mut again = gpu_node(&GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
    again.metadata.uid = Some("another".into());
    index.show_node(&again);
    assert_eq!(index.place_of(&uid("a")), None);
    assert_eq!(index.node(&"n".into()).unwrap().working(), Some(&GpuNodeSpec::default()));
}

#[test]
fn a_node_that_a_new_listing_does_not_show_is_gone() {
    let mut index = index();
    reserve(&mut index, "a");
    index.nodes_listing();
    index.nodes_listed();
    assert!(index.node(&"n".into()).is_none());
    assert_eq!(index.progress(&uid("a"), &"n".into()), Progress::Failed("no kerf agent on the node".into()));
    assert_eq!(index.place_of(&uid("a")), None);
}

#[test]
fn promises_are_counted_by_how_far_they_are() {
    let mut index = index();
    reserve(&mut index, "a");
    write(&mut index);
    reserve(&mut index, "b");
    let counts: Vec<usize> = index.promise_counts().into_iter().map(|(_, count)| count).collect();
    assert_eq!(counts, [0, 1, 1]);
}

#[test]
fn a_pod_that_ended_before_its_promise_is_looked_up_when_its_binding_is_refused() {
    let mut index = index();
    let key = PodKey::new("default", "brief");
    let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
    index.reserve(&uid("brief"), &key, &"n".into(), Some(ask)).unwrap();
    let until = Instant::now();
    index.begin_post(&uid("brief"), &key, until);
    index.take_effects();
    index.post_refused(&uid("brief"), until);
    assert!(index.take_effects().unconfirmed.contains(&uid("brief")));
    index.pod_gone(&uid("brief"));
    assert_eq!(index.place_of(&uid("brief")), None, "its slice is free again");
}
