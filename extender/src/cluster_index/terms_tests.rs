use super::super::scene::{Agent, gpu_node};
use super::super::tests::{index, known, reserve, uid};
use super::*;
use crate::cluster_index::Effects;
use kerf_core::ledger::{Moment, Order, OrderKind};
use kerf_core::names::NodeName;
use kerf_core::names::PodKey;
use kerf_core::packing::Refusal;
use kerf_core::packing::Terms;
use kerf_core::static_node::Devices;
use kerf_core::testing::{node_status, static_node};
use std::time::Instant;

fn name() -> NodeName {
    "n".into()
}

/// A follower that has listed a cluster of one H100 node whose agent is not connected.
fn follower() -> ClusterIndex {
    let mut index = ClusterIndex::following(Terms::default());
    index.nodes().begin_gpu_node_list();
    index.nodes().show_gpu_node(&gpu_node("n"));
    index.nodes().end_gpu_node_list();
    index.begin_pod_list();
    index.end_pod_list();
    index
}

fn connect(index: &mut ClusterIndex) -> Agent {
    let mut agent = Agent::of("n", node_status(&["H100-80GB"]));
    agent.report(index);
    agent
}

#[test]
fn a_new_leader_answers_at_once_and_lists_nothing() {
    let mut index = follower();
    connect(&mut index);
    index.lead(1);
    assert!(index.can_answer());
    index.take_over();
    index.show_pod(known("a", None));
    index.reserving().propose(&uid("a"), &PodKey::new("default", "a"), &name(), None).unwrap();
}

#[test]
fn a_leader_answers_only_after_all_lists() {
    let mut index = ClusterIndex::following(Terms::default());
    index.lead(1);
    assert!(!index.can_answer());
    index.nodes().end_gpu_node_list();
    assert!(!index.can_answer());
    index.end_pod_list();
    assert!(index.can_answer());
}

#[test]
fn static_nodes_are_closed_until_nodes_and_pods_were_listed_in_the_term() {
    let mut index = ClusterIndex::following(Terms::default());
    index.nodes().show_static(&"s".into(), Some(static_node(&[], &[("gpu", 8)])));
    index.nodes().end_gpu_node_list();
    index.end_pod_list();
    let refusal =
        |index: &mut ClusterIndex| index.scheduling().plain_fit("s", &uid("p"), &Devices::new()).err();
    assert_eq!(refusal(&mut index), None);
    index.lead(1);
    assert!(!index.can_answer());
    assert_eq!(refusal(&mut index), Some(Refusal::LeaderChanged));
    assert!(
        !index.nodes().static_nodes().close(&"s".into()),
        "a pod may be on it that the watch has not shown"
    );
    index.take_effects();
    index.nodes().set_static_nodes_read();
    assert!(index.can_answer());
    assert_eq!(refusal(&mut index), None);
    assert!(index.take_effects().changed.contains("s"), "pending binds check again");
}

#[test]
fn a_leaders_epoch_is_above_every_epoch_that_its_replica_has_seen() {
    let mut index = follower();
    index.leadership_mut().see_epoch(9);
    assert!(!index.take_effects().deposed, "a follower is none anyway");
    index.lead(3);
    assert_eq!(index.leadership().epoch(), 10);
    index.leadership_mut().see_epoch(12);
    assert_eq!(index.leadership().epoch(), 13, "nothing was answered in this epoch yet");
    index.take_over();
    index.leadership_mut().see_epoch(13);
    assert!(!index.take_effects().deposed, "it is its own");
    index.leadership_mut().see_epoch(20);
    assert!(index.take_effects().deposed);
    index.follow();
    index.lead(14);
    assert_eq!((index.leadership().epoch(), index.leadership().highest_epoch()), (21, 20));
    index.leadership_mut().see_epoch(u64::MAX);
    assert_eq!(index.leadership().epoch(), u64::MAX);
}

#[test]
fn the_end_of_a_term_drops_all_state_of_a_leader() {
    let mut index = follower();
    connect(&mut index);
    index.nodes().show_static(&"s".into(), Some(static_node(&[], &[("gpu", 8)])));
    index.lead(1);
    index.nodes().set_static_nodes_read();
    index.take_over();
    let key = |pod: &str| PodKey::new("default", pod);
    for pod in ["proposed", "expected", "waits"] {
        index.show_pod(known(pod, None));
    }
    index.reserving().propose(&uid("proposed"), &key("proposed"), &name(), None).unwrap();
    index.bindings().send(&uid("proposed"), &key("proposed"), Instant::now());
    let ask = known("expected", None).ask().unwrap();
    let owner = kerf_core::ledger::OwnerInEpoch { uid: uid("expected"), key: key("expected"), epoch: 1 };
    index.scheduling().assume(
        owner,
        ask.clone(),
        crate::assumed::KindChoice::default(),
        &name(),
        Instant::now(),
    );
    index.scheduling().unschedulable().refused(&uid("waits"), &key("waits"), &ask, &["n"], false);
    let devices = Devices::from([("nvidia.com/gpu".parse().unwrap(), 8)]);
    let plain = known("plain", None)
        .with(|template| (template.request, template.devices) = (None, std::sync::Arc::new(devices)));
    index.reserving().reserve_plain(&plain, &"s".into()).unwrap();
    index.follow();
    for pod in ["proposed", "expected", "plain"] {
        assert_eq!(index.place_of(&uid(pod)), None, "{pod}");
        assert_eq!(index.scheduling().assumed_on(&uid(pod)), None, "{pod}");
    }
    assert!(!index.bindings().is_pending(&uid("proposed")));
    assert_eq!(index.take_effects(), Effects::default());
    assert_eq!(index.managed().connection_of(&name()), Some(1), "the agent stays connected");
    index.lead(2);
    index.nodes().set_static_nodes_read();
    index.take_over();
    index.reserving().reserve_plain(&plain, &"s".into()).unwrap();
    for pod in 0..7 {
        let pod = pod.to_string();
        index.show_pod(known(&pod, None));
        index.reserving().propose(&uid(&pod), &key(&pod), &name(), None).unwrap();
    }
}

#[test]
fn a_follower_sends_no_orders() {
    let mut leader = follower();
    let mut agent = connect(&mut leader);
    leader.lead(1);
    leader.take_over();
    leader.show_pod(known("a", None));
    agent.reserve(&mut leader, &uid("a"), &PodKey::new("default", "a"), None).unwrap();
    let mut index = follower();
    agent.reconnect(&mut index);
    assert_eq!(index.place_of(&uid("a")), Some(&name()));
    index.show_pod(known("a", None));
    let mut deleted = known("a", None);
    deleted.deleting = true;
    index.hide_pod(&deleted);
    assert!(index.take_effects().orders.is_empty());
    index.lead(2);
    index.take_over();
    assert!(index.take_effects().unconfirmed.contains(&uid("a")), "the leader asks for it");
    index.pod_gone(&uid("a"));
    assert_eq!(index.take_effects().orders.len(), 1);
}

#[test]
fn a_follower_keeps_the_newer_place_of_a_pod_that_a_leader_sends_to_another_node() {
    let proposal = reserve(&mut index(), "a");
    let mut index = follower();
    let mut agents = ["n", "m"].map(|name| Agent::connected(&mut index, name));
    index.show_pod(known("a", None));
    let [first, second] = &mut agents;
    for agent in [&mut *first, &mut *second] {
        let order = Order { epoch: 1, kind: OrderKind::Reserve(proposal.clone()) };
        agent.node.follow(&order, Moment::default()).unwrap();
        agent.report(&mut index);
    }
    assert_eq!(index.place_of(&uid("a")), Some(&"m".into()));
    // The old place is released after the new one is reported.
    let release = OrderKind::Release { uid: uid("a"), why: String::new() };
    first.node.follow(&Order { epoch: 1, kind: release }, Moment::default()).unwrap();
    first.report(&mut index);
    assert_eq!(index.place_of(&uid("a")), Some(&"m".into()));
    assert!(index.take_effects().orders.is_empty(), "only a leader orders");
}
