use super::super::scene::{Scene, gpu_node};
use super::super::tests::{index, known, uid};
use super::*;
use crate::cluster_index::ClusterIndex;
use crate::cluster_index::NodeOrder;
use crate::cluster_index::Unreservable;
use kerf_core::ledger::Order;
use kerf_core::ledger::OrderKind;
use kerf_core::ledger::Proposal;
use kerf_core::ledger::{Answer, Moment, Rejection};
use kerf_core::names::PodKey;
use kerf_core::packing::Refusal;
use kerf_core::testing::node_status;
use serde_json::json;
use std::time::Instant;

fn name() -> NodeName {
    "n".into()
}

impl Scene {
    fn propose_for(&mut self, pod: &str) -> Result<Proposal, Unreservable> {
        self.show_pod(known(pod, None));
        self.reserving().propose(&uid(pod), &PodKey::new("default", pod), &name(), None)
    }

    fn reserve_for(&mut self, pod: &str) {
        self.show_pod(known(pod, None));
        self.reserve(&uid(pod), &PodKey::new("default", pod), &name(), None).unwrap();
    }

    /// Removes the pod, which its node's agent does not see.
    fn goes(&mut self, pod: &str) {
        let index: &mut ClusterIndex = self;
        index.pod_gone(&uid(pod));
    }

    /// Sends an order to the agent, which answers but does not report yet.
    fn send(&mut self, kind: OrderKind) -> Answer {
        self.agent("n").node.follow(&Order { epoch: 1, kind }, Moment::default())
    }

    fn place(&self, pod: &str) -> Option<&str> {
        self.place_of(&uid(pod)).map(NodeName::as_str)
    }
}

#[test]
fn places_of_unanswered_proposals_and_of_reservations_are_taken() {
    let mut scene = index();
    let first = scene.propose_for("a").unwrap();
    assert_eq!(scene.propose_for("a"), Ok(first.clone()), "it is proposed once");
    assert_eq!(scene.place("a"), Some("n"));
    let mut places = vec![first.places];
    for pod in ["b", "c", "d", "e", "f", "g"] {
        places.push(scene.propose_for(pod).unwrap().places);
    }
    for (n, place) in places.iter().enumerate() {
        assert!(places[..n].iter().all(|other| other[0].shape != place[0].shape), "{places:?}");
    }
    let full = scene.propose_for("h");
    assert!(matches!(full, Err(Unreservable::Refused(_))), "{full:?}");
    // One is rejected: the pod is assumed there until it is filtered again, or another pod takes its place.
    scene.reserving().reject(&uid("c"), &name(), 1, Instant::now());
    assert_eq!(scene.place("c"), None);
    assert_eq!(scene.scheduling().assumed_on(&uid("c")), Some(&name()));
    scene.propose_for("h").unwrap();
    assert_eq!(scene.propose_for("c"), full);
}

#[test]
fn an_accepted_proposal_becomes_the_reservation_of_the_copy() {
    let mut scene = index();
    scene.reserve_for("a");
    assert_eq!(scene.place("a"), Some("n"));
    let assignment = scene.reserving().assignment_of(&uid("a"), &name()).unwrap();
    assert_eq!(assignment.slices[0].id.as_str(), "s1");
    // Another bind of the pod renews its reservation.
    let renewal = scene.propose_for("a").unwrap();
    assert_eq!(renewal.places[0].source, kerf_core::packing::Source::Idle("s1".into()));
    // The agent releases the reservation: it has expired.
    let release = OrderKind::Release { uid: uid("a"), why: String::new() };
    scene.agent("n").node.follow(&Order { epoch: 1, kind: release }, Moment::default()).unwrap();
    scene.report("n");
    assert_eq!(scene.place("a"), None);
}

#[test]
fn a_node_without_a_connection_is_full_whatever_its_gpu_node_says() {
    let mut scene = index();
    scene.reserve_for("a");
    scene.propose_for("b").unwrap();
    scene.nodes().agents().disconnect(&name(), 7);
    assert_eq!(scene.place("a"), Some("n"), "another connection has ended");
    scene.nodes().agents().disconnect(&name(), 1);
    let away = Err(Unreservable::Refused(Refusal::NotConnected));
    assert_eq!((scene.place("a"), scene.place("b")), (None, None));
    let mut shown = gpu_node("n");
    for uid in ["object-n", "another object"] {
        shown.metadata.uid = Some(uid.to_owned());
        shown.status = Some(json!(node_status(&["H100-80GB"])));
        scene.nodes().show_gpu_node(&shown);
        assert_eq!(scene.propose_for("b"), away);
    }
    scene.connect();
    assert_eq!((scene.place("a"), scene.place("b")), (Some("n"), None));
    scene.propose_for("b").unwrap();
    // A late answer of the old connection changes nothing.
    scene.nodes().agents().answer(&uid("b"), &name(), 1);
    assert_eq!(scene.place("b"), Some("n"));
}

/// A place that another pod's proposal counts on stays the pod's until the agent reports otherwise.
#[test]
fn a_pod_renews_all_its_places_whatever_is_proposed_for_other_pods() {
    let mut scene = index();
    scene.reserve_for("a");
    scene.propose_for("b").unwrap();
    let its = scene.propose_for("a").unwrap().places;
    assert_eq!(its.len(), 1);
    let places = its.clone();
    scene.nodes().update_copy(&name(), |copy| copy.first_proposal_mut().places = places);
    let owner = kerf_core::ledger::Owner { uid: uid("a"), key: PodKey::new("default", "a") };
    assert_eq!(scene.reserving().renewal(owner, &name()).places, its);
}

#[test]
fn a_copy_outlives_its_gpu_node_and_may_come_before_it() {
    let mut scene = index();
    scene.reserve_for("a");
    scene.nodes().remove_gpu_node(&name());
    assert_eq!(scene.place("a"), None);
    // Another leader makes a reservation while the GpuNode is deleted.
    let mut other = ClusterIndex::new(1, kerf_core::packing::Terms::default());
    let mut agent = scene.agent("n").clone();
    other.nodes().show_gpu_node(&gpu_node("n"));
    agent.reconnect(&mut other);
    other.show_pod(known("b", None));
    agent.reserve(&mut other, &uid("b"), &PodKey::new("default", "b"), None).unwrap();
    scene.agent("n").node = agent.node;
    scene.report("n");
    scene.nodes().show_gpu_node(&gpu_node("n"));
    assert_eq!((scene.place("a"), scene.place("b")), (Some("n"), Some("n")));
}

#[test]
fn an_unreadable_or_closed_node_is_full() {
    let mut scene = index();
    scene.agent("n").node.closed = Some("pods are not listed".to_owned());
    scene.report("n");
    let not_ready = Err(Unreservable::Refused(Refusal::AgentNotReady));
    assert_eq!(scene.propose_for("a"), not_ready);
    scene.agent("n").node.closed = None;
    scene.report("n");
    scene.propose_for("a").unwrap();
    scene.nodes().agents().report_unreadable(&name(), 1);
    assert_eq!(scene.propose_for("b"), Err(Unreservable::Refused(Refusal::UnreadableStatus)));
}

#[test]
fn no_pod_gets_a_slice_before_the_agent_answers_its_release() {
    let mut scene = index();
    for pod in ["a", "b", "c", "d", "e", "f", "g"] {
        scene.reserve_for(pod);
    }
    scene.take_effects();
    assert!(scene.reserving().give_up(&uid("a")));
    let orders = scene.take_effects().orders;
    let [NodeOrder { connection: 1, order, .. }] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((order.epoch, scene.place("a")), (1, None));
    assert!(matches!(scene.propose_for("h"), Err(Unreservable::Refused(_))), "the agent has not answered");
    // The agent rejects the release, because it has a mark for a Binding.
    scene.nodes().agents().answer_release(&uid("a"), &name(), 1);
    assert_eq!(scene.place("a"), Some("n"));
    assert!(scene.reserving().give_up(&uid("a")));
    scene.agent("n").node.follow(order, Moment::default()).unwrap();
    scene.report("n");
    scene.nodes().agents().answer_release(&uid("a"), &name(), 1);
    assert_eq!(scene.place("a"), None);
    scene.propose_for("h").unwrap();
}

/// The agent's disk may hang, for example. It may still carry out the orders that it has.
#[test]
fn a_node_whose_agent_does_not_answer_is_full_and_its_pods_may_go_elsewhere() {
    for accepts in [true, false] {
        let mut scene = index();
        let proposal = scene.propose_for("a").unwrap();
        assert_eq!(scene.nodes().agents().set_unresponsive(&[name()].into()), [(name(), true)]);
        assert_eq!(scene.nodes().agents().set_unresponsive(&[name()].into()), []);
        assert_eq!(scene.propose_for("b"), Err(Unreservable::Refused(Refusal::AgentNotReady)));
        scene.take_effects();
        assert!(scene.reserving().give_up(&uid("a")));
        assert_eq!(scene.place("a"), None, "it is free to go elsewhere");
        let orders = scene.take_effects().orders;
        let [NodeOrder { order: release, .. }] = &orders[..] else { panic!("{orders:?}") };

        if accepts {
            scene.send(OrderKind::Reserve(proposal)).unwrap();
            scene.report("n");
            scene.nodes().agents().answer(&uid("a"), &name(), 1);
        } else {
            scene.reserving().reject(&uid("a"), &name(), 1, Instant::now());
        }
        assert_eq!(scene.place("a"), None, "{accepts}");
        assert_eq!(scene.scheduling().assumed_on(&uid("a")), None, "{accepts}");
        scene.send(release.kind.clone()).unwrap();
        scene.report("n");
        scene.nodes().agents().answer_release(&uid("a"), &name(), 1);
        assert_eq!(scene.nodes().agents().set_unresponsive(&[].into()), [(name(), false)]);
        assert_eq!(scene.desired("n").len(), usize::from(accepts));
        assert_eq!(scene.propose_for("b").unwrap().places.len(), 1);
    }
}

/// The API server refuses the Binding of a pod that was just deleted. It reports the pod as gone before the agent has
/// reported that the reservation may be released.
#[test]
fn a_gone_pods_reservation_is_released_once_its_binding_is_refused() {
    let mut scene = cut_for("a");
    scene.send(OrderKind::Mark { uid: uid("a"), attempt: 1 }).unwrap();
    scene.report("n");
    scene.goes("a");
    assert_eq!(scene.take_effects().orders, [], "the Binding may yet be made");
    scene.send(OrderKind::Outcome { uid: uid("a"), attempt: 1, bound: false }).unwrap();
    scene.report("n");
    assert_eq!(scene.effects.orders.len(), 1, "it is asked once");
    scene.obey();
    assert_eq!(scene.desired("n"), [("s1".to_owned(), None)]);
}

/// The release arrives at the agent between the mark and the Binding's outcome. Its answer comes after both were
/// reported.
#[test]
fn a_release_that_was_rejected_for_a_binding_is_ordered_again_after_its_outcome() {
    let mut scene = cut_for("a");
    scene.goes("a");
    let [NodeOrder { order, .. }] = &scene.take_effects().orders[..] else { panic!("no release") };
    scene.send(OrderKind::Mark { uid: uid("a"), attempt: 1 }).unwrap();
    assert_eq!(scene.send(order.kind.clone()).err(), Some(Rejection::BindingOpen));
    scene.send(OrderKind::Outcome { uid: uid("a"), attempt: 1, bound: false }).unwrap();
    scene.report("n");
    assert_eq!(scene.effects.orders, [], "the answer is still to come");
    scene.nodes().agents().reject_release(&uid("a"), &name(), 1);
    scene.obey();
    assert_eq!(scene.desired("n"), [("s1".to_owned(), None)]);
}

#[test]
fn reservations_of_pods_that_left_are_released_when_their_agent_connects() {
    for is_bound_elsewhere in [false, true] {
        let mut scene = cut_for("a");
        scene.disconnect("n");
        assert_eq!(scene.reserving().assignment_of(&uid("a"), &name()), None);
        if is_bound_elsewhere {
            scene.show_pod(known("a", Some("m")));
        } else {
            scene.goes("a");
        }
        scene.connect();
        if !is_bound_elsewhere {
            assert_eq!(scene.take_effects().unconfirmed, [uid("a")].into(), "no event reports it");
            scene.goes("a");
        }
        scene.obey();
        assert_eq!(scene.desired("n"), [("s1".to_owned(), None)], "{is_bound_elsewhere}");
        assert_eq!(scene.place("a"), None);
    }
}

/// A node where a slice was cut for a pod that takes it only when it is bound.
fn cut_for(pod: &str) -> Scene {
    let mut scene = index();
    scene.reserve_for(pod);
    scene.cut("n", false);
    scene.take_effects();
    scene
}

#[test]
fn an_agent_that_obeys_a_higher_epoch_ends_the_term() {
    let mut scene = index();
    scene.leadership_mut().see_epoch(1);
    assert!(!scene.take_effects().deposed);
    scene.leadership_mut().see_epoch(2);
    assert!(scene.take_effects().deposed);
    let mut listing = ClusterIndex::new(1, kerf_core::packing::Terms::default());
    listing.leadership_mut().see_epoch(4);
    assert_eq!(listing.leadership().epoch(), 5);
}
