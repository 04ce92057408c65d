use super::scene::{Scene, gpu_node};
use super::*;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use crate::objects::template::Template;
use kerf_core::contract::NodePolicy;
use kerf_core::ledger::Proposal;
use kerf_core::names::PodKey;
use kerf_core::packing::Refusal;
use kerf_core::packing::Source;
use kerf_core::testing::request;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const SMALL: &str = "nvidia.com/mig-1g.10gb";

/// A listed cluster with one H100 node.
pub(super) fn index() -> Scene {
    Scene::leading(&[("n", &["H100-80GB"])])
}

pub(super) fn uid(pod: &str) -> PodUid {
    PodUid::new(format!("uid-{pod}"))
}

pub(super) fn known(pod: &str, node: Option<&str>) -> KnownPod {
    let request = Some(request(SMALL, 1).to_json().into());
    let template = Template { request, ..Template::default() };
    KnownPod {
        node: node.map(NodeName::new),
        ..KnownPod::new(uid(pod), PodKey::new("default", pod), template)
    }
}

pub(super) fn reserve(index: &mut Scene, pod: &str) -> Proposal {
    index.show_pod(known(pod, None));
    index.reserve(&uid(pod), &PodKey::new("default", pod), &"n".into(), None).unwrap()
}

#[test]
fn a_pod_whose_request_is_unknown_must_be_looked_up() {
    let mut index = index();
    let key = PodKey::new("default", "a");
    let unknown = index.reserve(&uid("a"), &key, &"n".into(), None);
    assert_eq!(unknown, Err(Unreservable::UnknownPod));
    let ask = Ask::read(Some(&request(SMALL, 1).to_json())).unwrap();
    assert!(index.reserve(&uid("a"), &key, &"n".into(), Some(ask)).is_ok());
}

#[test]
fn an_idle_slice_is_reserved_without_a_cut() {
    let mut index = index();
    let first = reserve(&mut index, "a");
    assert!(matches!(first.places[0].source, Source::Cut(_)));
    index.cut("n", false);
    index.pod_gone(&uid("a"));
    assert_eq!(reserve(&mut index, "b").places[0].source, Source::Idle("s1".into()));
}

/// Asks for a slice of `profile`, and returns whether it is reserved.
fn finds_room(index: &mut Scene, pod: &str, profile: &str) -> bool {
    let ask = Ask::read(Some(&request(&format!("nvidia.com/mig-{profile}"), 1).to_json())).unwrap();
    let key = PodKey::new("default", pod);
    index.reserve(&uid(pod), &key, &"n".into(), Some(ask)).is_ok()
}

#[test]
fn a_released_slice_is_free_only_after_the_agent_reports_it() {
    let mut index = index();
    assert!(finds_room(&mut index, "a", "3g.40gb") && finds_room(&mut index, "b", "3g.40gb"));
    index.cut("n", false);
    ClusterIndex::pod_gone(&mut index, &uid("a"));
    assert!(!finds_room(&mut index, "c", "1g.10gb"), "the agent has not answered");
    index.obey();
    assert!(finds_room(&mut index, "c", "1g.10gb"));
}

#[test]
fn a_policy_counts_once_the_agent_reports_it_in_force() {
    let mut index = index();
    let ask = Ask::read(Some(&request(SMALL, 1).to_json())).unwrap();
    assert!(index.scheduling().place("n", &uid("a"), &ask).is_ok());
    let shares_only = r#"{"gpus": [{"kinds": ["mps", "time-slicing"]}]}"#;
    let mut written = gpu_node("n");
    written.spec =
        Some(serde_json::json!({"policy": serde_json::from_str::<serde_json::Value>(shares_only).unwrap()}));
    index.nodes().show_gpu_node(&written);
    assert!(index.scheduling().place("n", &uid("a"), &ask).is_ok(), "it is written and not in force");
    index.set_policy("n", serde_json::from_str(shares_only).unwrap());
    assert_eq!(index.scheduling().place("n", &uid("a"), &ask), Err(Refusal::NeverFits));
    index.set_policy("n", NodePolicy::default());
    assert!(index.scheduling().place("n", &uid("a"), &ask).is_ok());
}

/// The index finds once a second which nodes' policies are due, and each such GpuNode is then read from the API server.
#[test]
fn the_gpu_node_decides_whether_a_policy_is_due_without_its_agent() {
    let mut index = index();
    let policy = serde_json::json!({"overUse": "evict"});
    let rules = kerf_core::policy::NodeRules {
        name: "p".to_owned(),
        nodes: kerf_core::selector::NodeMatch::default(),
        rule: kerf_core::policy::NodeRule::Managed(serde_json::from_value(policy.clone()).unwrap()),
    };
    index
        .nodes()
        .set_policies(&Arc::new(kerf_core::policy::Policies { nodes: vec![rules], ..Default::default() }));
    index.nodes().objects().set_labels("n".into(), Some(BTreeMap::new()));
    assert_eq!(index.node_policies().unfilled_nodes(), [NodeName::new("n")]);
    let mut filled = gpu_node("n");
    filled.metadata.annotations = Some([(kerf_core::keys::NODE_POLICY.to_owned(), "p".to_owned())].into());
    filled.spec = Some(serde_json::json!({"policy": policy}));
    index.nodes().show_gpu_node(&filled);
    assert_eq!(
        index.node_policies().unfilled_nodes(),
        [""; 0].map(NodeName::new),
        "the agent takes its time"
    );
    index.disconnect("n");
    assert_eq!(index.node_policies().unfilled_nodes(), [""; 0].map(NodeName::new));
    filled.spec = Some(serde_json::json!({"policy": "?"}));
    index.nodes().show_gpu_node(&filled);
    assert_eq!(index.node_policies().unfilled_nodes(), [""; 0].map(NodeName::new), "nothing is known of it");
}

#[test]
fn reservations_of_pods_that_ended_or_run_elsewhere_are_released() {
    for (change, reason) in [
        ((|pod: &mut KnownPod| pod.ended = true) as fn(&mut KnownPod), ReleaseReason::Ended),
        (|pod| pod.node = Some("other".into()), ReleaseReason::BoundElsewhere),
    ] {
        let mut index = index();
        reserve(&mut index, "a");
        let mut pod = known("a", None);
        change(&mut pod);
        index.show_pod(pod);
        index.obey();
        let pod = PodKey::new("default", "a");
        assert_eq!(
            index.take_effects().released,
            [Released { uid: uid("a"), pod, node: "n".into(), reason }]
        );
        assert_eq!(index.desired("n"), [("s1".to_owned(), None)], "the slice stays as idle capacity");
        assert_eq!(index.place_of(&uid("a")), None);
    }
}

#[test]
fn the_slices_of_a_pod_that_is_only_being_deleted_stay_its_own() {
    let mut index = index();
    reserve(&mut index, "a");
    index.show_pod(KnownPod { deleting: true, ..known("a", Some("n")) });
    assert!(index.take_effects().orders.is_empty());
    index.hide_pod(&KnownPod { deleting: true, ..known("a", Some("n")) });
    assert_eq!(index.take_effects().released[0].reason, ReleaseReason::Gone);
}

#[test]
fn a_pod_that_leaves_the_watch_alive_is_looked_up_before_its_slices_are_released() {
    let mut index = index();
    reserve(&mut index, "a");
    index.take_effects();
    index.hide_pod(&known("a", Some("n")));
    let effects = index.take_effects();
    assert!(effects.released.is_empty() && effects.unconfirmed.contains(&uid("a")));
    assert_eq!(index.reserving().reserved_pod(&uid("a")), Some(PodKey::new("default", "a")));
    // It runs on without its label, and is looked up again at each resync.
    index.show_stray(known("a", Some("n")));
    index.resync(Instant::now());
    assert!(index.take_effects().unconfirmed.contains(&uid("a")));
    index.pod_gone(&uid("a"));
    assert_eq!(index.take_effects().released.len(), 1);
}

#[test]
fn pods_with_a_reservation_that_a_new_list_omits_are_looked_up() {
    let mut index = index();
    reserve(&mut index, "a");
    reserve(&mut index, "b");
    index.take_effects();
    index.begin_pod_list();
    index.show_pod(known("b", None));
    index.end_pod_list();
    assert_eq!(index.take_effects().unconfirmed.into_iter().collect::<Vec<_>>(), [uid("a")]);
}

#[test]
fn a_node_that_a_new_listing_does_not_show_is_gone() {
    let mut index = index();
    reserve(&mut index, "a");
    index.nodes().begin_gpu_node_list();
    index.nodes().end_gpu_node_list();
    assert!(index.managed().get(&"n".into()).is_none());
    assert_eq!(index.place_of(&uid("a")), None);
}

#[test]
fn reservations_are_counted_by_their_state() {
    let mut index = index();
    reserve(&mut index, "a");
    index.show_pod(known("b", None));
    index.reserving().propose(&uid("b"), &PodKey::new("default", "b"), &"n".into(), None).unwrap();
    let counts: Vec<usize> =
        index.statistics().reservation_counts().into_iter().map(|(_, count)| count).collect();
    assert_eq!(counts, [0, 1, 1]);
}

#[test]
fn a_pod_that_ended_before_its_reservation_is_looked_up_when_its_binding_is_refused() {
    let mut index = index();
    let key = PodKey::new("default", "brief");
    let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
    index.reserve(&uid("brief"), &key, &"n".into(), Some(ask)).unwrap();
    let until = Instant::now();
    index.bindings().send(&uid("brief"), &key, until);
    index.take_effects();
    index.reserving().refuse_binding(&uid("brief"), until);
    assert!(index.take_effects().unconfirmed.contains(&uid("brief")));
    index.pod_gone(&uid("brief"));
    assert_eq!(index.place_of(&uid("brief")), None, "its slice is free again");
}
