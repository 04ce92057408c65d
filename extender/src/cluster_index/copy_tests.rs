use super::super::tests::{gpu_node, index, known, uid};
use super::*;
use crate::cluster_index::Unreservable;
use kerf_core::contract::NodePolicy;
use kerf_core::ledger::{Moment, difference};
use kerf_core::packing::Refusal;
use kerf_core::testing::{SimulatedNode, node_status};

/// An index with one node, its agent, and what the agent has reported over a connection.
struct Scene {
    index: ClusterIndex,
    node: SimulatedNode,
    shown: NodeState,
    connection: u64,
}

fn name() -> NodeName {
    "n".into()
}

impl Scene {
    fn new() -> Self {
        let node = SimulatedNode::new(&["H100-80GB"], NodePolicy::default(), Limits::default());
        let mut scene = Self { index: index(), node, shown: NodeState::default(), connection: 1 };
        scene.report();
        scene
    }

    fn report(&mut self) {
        let state = self.node.state();
        self.index.show_copy(&name(), self.connection, difference(&self.shown, &state));
        self.shown = state;
    }

    fn reconnect(&mut self) {
        self.connection += 1;
        self.shown = NodeState::default();
        self.report();
    }

    fn propose(&mut self, pod: &str) -> Result<Proposal, Unreservable> {
        self.index.show_pod(known(pod, None));
        self.index.propose(&uid(pod), &PodKey::new("default", pod), &name(), None)
    }

    /// Proposes and lets the agent accept, which reports it and then answers.
    fn reserve(&mut self, pod: &str) {
        let proposal = self.propose(pod).unwrap();
        let order = Order { epoch: 1, kind: OrderKind::Reserve(proposal) };
        self.node.follow(&order, Moment::default()).unwrap();
        self.report();
        self.index.answered(&uid(pod), &name(), self.connection);
    }

    fn place_of(&self, pod: &str) -> Option<&str> {
        self.index.place_of(&uid(pod)).map(NodeName::as_str)
    }
}

#[test]
fn places_of_unanswered_proposals_and_of_reservations_are_taken() {
    let mut scene = Scene::new();
    let first = scene.propose("a").unwrap();
    assert_eq!(scene.propose("a"), Ok(first.clone()), "it is proposed once");
    assert_eq!(scene.place_of("a"), Some("n"));
    let mut places = vec![first.places];
    for pod in ["b", "c", "d", "e", "f", "g"] {
        places.push(scene.propose(pod).unwrap().places);
    }
    for (n, place) in places.iter().enumerate() {
        assert!(places[..n].iter().all(|other| other[0].shape != place[0].shape), "{places:?}");
    }
    let full = scene.propose("h");
    assert!(matches!(full, Err(Unreservable::Refused(_))), "{full:?}");
    // One is rejected: the pod is expected there until it is fitted anew, or its place is another's.
    scene.index.rejected(&uid("c"), &name(), 1, Instant::now());
    assert_eq!((scene.place_of("c"), scene.index.expected_on(&uid("c"))), (None, Some(&name())));
    scene.propose("h").unwrap();
    assert_eq!(scene.propose("c"), full);
}

#[test]
fn an_accepted_proposal_becomes_the_reservation_of_the_copy() {
    let mut scene = Scene::new();
    scene.reserve("a");
    assert_eq!(scene.place_of("a"), Some("n"));
    let assignment = scene.index.assignment_of(&uid("a"), &name()).unwrap();
    assert_eq!(assignment.slices[0].id.as_str(), "s1");
    // Whoever binds it again renews what it has.
    let renewal = scene.propose("a").unwrap();
    assert_eq!(renewal.places[0].source, kerf_core::packing::Source::Idle("s1".into()));
    assert_eq!(scene.index.take_effects().unwritten, BTreeSet::new(), "no spec is written");
    // The agent takes it back: it has expired.
    let release = OrderKind::Release { uid: uid("a"), why: String::new() };
    scene.node.follow(&Order { epoch: 1, kind: release }, Moment::default()).unwrap();
    scene.report();
    assert_eq!(scene.place_of("a"), None);
}

#[test]
fn a_node_without_a_connection_is_full_whatever_its_gpu_node_says() {
    let mut scene = Scene::new();
    scene.reserve("a");
    scene.propose("b").unwrap();
    scene.index.end_copy(&name(), 7);
    assert_eq!(scene.place_of("a"), Some("n"), "another connection has ended");
    scene.index.end_copy(&name(), 1);
    let not_ready = Err(Unreservable::Refused(Refusal::AgentNotReady));
    assert_eq!((scene.place_of("a"), scene.place_of("b")), (None, None));
    for status in [node_status(&["H100-80GB"]), node_status(&["H100-80GB", "T4-16GB"])] {
        scene.index.show_node(&gpu_node(&GpuNodeSpec::default(), &status));
        assert_eq!(scene.propose("b"), not_ready);
    }
    let mut anew = gpu_node(&GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
    anew.metadata.uid = Some("another object".into());
    scene.index.show_node(&anew);
    assert_eq!(scene.propose("b"), not_ready);
    scene.reconnect();
    assert_eq!((scene.place_of("a"), scene.place_of("b")), (Some("n"), None));
    scene.propose("b").unwrap();
    // What of the old connection comes late says nothing.
    scene.index.answered(&uid("b"), &name(), 1);
    assert_eq!(scene.place_of("b"), Some("n"));
}

#[test]
fn a_copy_outlives_its_gpu_node_and_may_come_before_it() {
    let mut scene = Scene::new();
    scene.reserve("a");
    scene.index.remove_node(&name());
    assert_eq!(scene.place_of("a"), None);
    scene.reserve_without_node();
    scene.index.show_node(&gpu_node(&GpuNodeSpec::default(), &GpuNodeStatus::default()));
    assert_eq!((scene.place_of("a"), scene.place_of("b")), (Some("n"), Some("n")));
}

impl Scene {
    /// Another leader's reservation, while the GpuNode is gone.
    fn reserve_without_node(&mut self) {
        let mut other = Self { index: index(), ..Self::new() };
        other.node = self.node.clone();
        other.reconnect();
        let proposal = other.propose("b").unwrap();
        let order = Order { epoch: 1, kind: OrderKind::Reserve(proposal) };
        self.node.follow(&order, Moment::default()).unwrap();
        self.report();
    }
}

#[test]
fn what_is_unreadable_or_closed_is_full() {
    let mut scene = Scene::new();
    scene.node.closed = Some("pods are not listed".to_owned());
    scene.report();
    let not_ready = Err(Unreservable::Refused(Refusal::AgentNotReady));
    assert_eq!(scene.propose("a"), not_ready);
    scene.node.closed = None;
    scene.report();
    scene.propose("a").unwrap();
    scene.index.show_unreadable_copy(&name(), 1);
    assert_eq!(scene.propose("b"), not_ready);
}

#[test]
fn a_reservation_is_released_by_an_order_and_nobody_gets_its_slice_before_the_answer() {
    let mut scene = Scene::new();
    for pod in ["a", "b", "c", "d", "e", "f", "g"] {
        scene.reserve(pod);
    }
    scene.index.take_effects();
    assert!(scene.index.give_up(&uid("a")));
    let orders = scene.index.take_effects().orders;
    let [NodeOrder { connection: 1, order, .. }] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((order.epoch, scene.place_of("a")), (1, None));
    assert!(matches!(scene.propose("h"), Err(Unreservable::Refused(_))), "the agent has not answered");
    // The agent rejects it: it knows of a Binding.
    scene.index.answered(&uid("a"), &name(), 1);
    assert_eq!(scene.place_of("a"), Some("n"));
    assert!(scene.index.give_up(&uid("a")));
    scene.node.follow(order, Moment::default()).unwrap();
    scene.report();
    scene.index.answered(&uid("a"), &name(), 1);
    assert_eq!(scene.place_of("a"), None);
    scene.propose("h").unwrap();
}

#[test]
fn an_agent_that_obeys_a_higher_epoch_ends_the_term() {
    let mut scene = Scene::new();
    scene.index.hear_epoch(1);
    assert!(!scene.index.take_effects().deposed);
    scene.index.hear_epoch(2);
    assert!(scene.index.take_effects().deposed);
    let mut listing = ClusterIndex::new(1, kerf_core::packing::Terms::default());
    listing.hear_epoch(4);
    assert_eq!(listing.epoch(), 5);
}
