use super::*;
use crate::contract::{GpuRule, NodePolicy, SliceState, SliceStatus, WantedSlice};
use crate::packing::{Fleet, Placed, Source, fit};
use crate::planner::ObservedInstance;
use crate::testing::{SimulatedNode, gpu_uuid, h100_shape, request, wanted};
use std::collections::BTreeSet;

const EPOCH: u64 = 7;

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn uid(pod: &str) -> PodUid {
    PodUid::new(format!("uid-{pod}"))
}

fn owner(pod: &str) -> Owner {
    Owner { uid: uid(pod), key: PodKey::new("default", pod) }
}

fn node() -> SimulatedNode {
    SimulatedNode::new(&["H100-80GB"], NodePolicy::default(), Limits::default())
}

/// The leader's proposal for a pod, from the node's report.
fn proposal(node: &SimulatedNode, pod: &str, resource: &str, count: u32) -> Proposal {
    let state = node.state();
    let inventory = crate::inventory::NodeInventory::from_spec(&state.desired(), &state.status);
    let fit = fit(&inventory, &request(resource, count), &Fleet::default()).unwrap();
    Proposal::from_fit(owner(pod), fit)
}

fn order(epoch: u64, kind: OrderKind) -> Order {
    Order { epoch, kind }
}

fn reserve(node: &mut SimulatedNode, pod: &str, now: u64) -> Result<Done, Rejection> {
    let proposal = proposal(node, pod, "nvidia.com/mig-1g.10gb", 1);
    node.follow(&order(EPOCH, OrderKind::Reserve(proposal)), at(now))
}

fn mark(node: &mut SimulatedNode, pod: &str, attempt: u64, now: u64) -> Result<Done, Rejection> {
    node.follow(&order(EPOCH, OrderKind::Mark { uid: uid(pod), attempt }), at(now))
}

fn outcome(node: &mut SimulatedNode, pod: &str, attempt: u64, bound: bool, now: u64) {
    let order = order(EPOCH, OrderKind::Outcome { uid: uid(pod), attempt, bound });
    assert!(node.follow(&order, at(now)).is_ok());
}

fn watch(pods: &[(&str, BoundPod)]) -> BTreeMap<PodUid, BoundPod> {
    pods.iter().map(|(pod, state)| (uid(pod), *state)).collect()
}

/// The state of pod `a`'s reservation.
fn stands(node: &SimulatedNode) -> &'static str {
    let (ledger, uid) = (&node.ledger, uid("a"));
    let Some(entry) = ledger.entries.get(&uid) else {
        assert_eq!(reserved(ledger.desired(), &uid).count(), 0);
        return "nothing";
    };
    assert_eq!(reserved(ledger.desired(), &uid).count(), 1);
    match (entry.open.len(), entry.bound, ledger.is_ready(&uid, &node.state().status)) {
        (0, false, false) => "reserved",
        (0, false, true) => "ready",
        (0, true, _) => "held",
        (1, false, _) => "binding",
        (1, true, _) => "bound",
        (2, ..) => "2 open",
        _ => "more",
    }
}

/// A node with pod `a`'s reservation in this state, at second 10.
fn standing(state: &str) -> SimulatedNode {
    let mut node = node();
    assert!(node.ledger.hear(EPOCH));
    if state == "nothing" {
        return node;
    }
    reserve(&mut node, "a", 10).unwrap();
    if state == "reserved" {
        return node;
    }
    node.cut();
    if state == "ready" {
        return node;
    }
    mark(&mut node, "a", 1, 10).unwrap();
    match state {
        "binding" => {}
        "bound" => outcome(&mut node, "a", 1, true, 10),
        "held" => assert_eq!(node.ledger.pods(&watch(&[("a", BoundPod::Alive)]), at(10)), []),
        other => panic!("{other}"),
    }
    node
}

/// The agent's report with this slice failed.
fn failing(node: &SimulatedNode, id: &SliceId) -> GpuNodeStatus {
    let mut status = node.state().status;
    let slice = status.slices.iter_mut().find(|slice| slice.id.as_ref() == Some(id)).unwrap();
    (slice.state, slice.message) = (SliceState::Failed, Some("no room".to_owned()));
    status
}

#[test]
fn a_pod_is_marked_once_all_its_slices_are_ready() {
    let mut node = node();
    let two = proposal(&node, "a", "nvidia.com/mig-1g.10gb", 2);
    node.follow(&order(EPOCH, OrderKind::Reserve(two)), at(1)).unwrap();
    for (slice, _) in node.missing() {
        assert_eq!(mark(&mut node, "a", 1, 1), Err(Rejection::NotReady));
        node.cut_slice(&slice);
    }
    let (state, gone) = (node.state(), node.ledger.desired().slices[0].id.clone());
    assert!(node.ledger.is_ready(&uid("a"), &state.status));
    let mut half = state.status;
    half.slices.retain(|slice| slice.id.as_ref() != Some(&gone));
    assert!(!node.ledger.is_ready(&uid("a"), &half), "the agent does not report one of them");
    assert!(mark(&mut node, "a", 1, 1).is_ok());
}

#[test]
fn a_pod_that_is_found_unbound_after_its_only_binding_is_not_bound() {
    let mut node = standing("bound");
    assert_eq!(node.ledger.looked_up(&uid("a"), at(100), Found::Unbound), None);
    assert_eq!(stands(&node), "ready");
}

#[test]
fn a_failed_slice_ends_the_pods_reservation_unless_a_binding_may_be_made() {
    let mut node = node();
    let two = proposal(&node, "a", "nvidia.com/mig-1g.10gb", 2);
    node.follow(&order(EPOCH, OrderKind::Reserve(two)), at(1)).unwrap();
    node.cut();
    let WantedSlice { id, shape, .. } = node.ledger.desired().slices[0].clone();
    let status = failing(&node, &id);
    let mut resting = BTreeSet::new();

    let mut marked = node.clone();
    mark(&mut marked, "a", 1, 1).unwrap();
    let desired = marked.ledger.desired().clone();
    assert_eq!(marked.ledger.upkeep(&status, |_| None, &mut resting).lost, []);
    assert_eq!(marked.ledger.desired(), &desired, "its Binding may be made");
    outcome(&mut marked, "a", 1, false, 2);
    assert_eq!(marked.ledger.upkeep(&status, |_| None, &mut resting).lost.len(), 1);

    let Upkeep { has_changed, lost } = node.ledger.upkeep(&status, |_| None, &mut resting);
    assert!(has_changed);
    assert_eq!(lost, [(owner("a"), format!("slice {id} ({shape}) could not be made: no room"))]);
    assert_eq!(stands(&node), "nothing");
    assert_eq!(node.ledger.desired().slices.len(), 1, "the other one is idle capacity");
    assert_eq!(mark(&mut node, "a", 1, 1), Err(Rejection::UnknownReservation));
    assert_eq!(resting, BTreeSet::new(), "the next pod may have better luck there");
}

#[test]
fn idle_slices_follow_the_policy_except_on_a_resting_gpu() {
    let mut node = node();
    let warm = r#"{"warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 2}]}"#;
    node.ledger.set_policy(serde_json::from_str(warm).unwrap());
    let mut resting = BTreeSet::new();
    let status = node.state().status;
    let changed = Upkeep { has_changed: true, lost: vec![] };
    assert_eq!(node.ledger.upkeep(&status, |_| None, &mut resting), changed);
    assert_eq!(node.ledger.desired().slices.len(), 2);
    assert_eq!(node.ledger.desired().slices.iter().filter(|s| s.reservation.is_some()).count(), 0);
    let status = node.state().status;
    assert_eq!(node.ledger.upkeep(&status, |_| None, &mut resting), Upkeep::default(), "all is there");

    let failed = node.ledger.desired().slices[0].id.clone();
    let status = failing(&node, &failed);
    assert_eq!(node.ledger.upkeep(&status, |_| None, &mut resting), changed);
    assert_eq!(node.ledger.desired().slices.len(), 1);
    assert_eq!(resting, BTreeSet::from([gpu_uuid(0)]));
    let status = node.state().status;
    assert_eq!(node.ledger.upkeep(&status, |_| None, &mut resting), Upkeep::default(), "it would fail again");

    node.cut();
    node.ledger.set_policy(serde_json::from_str(r#"{"gpus": [{"kinds": ["whole"]}]}"#).unwrap());
    let status = node.state().status;
    assert_eq!(node.ledger.upkeep(&status, |_| None, &mut resting), changed);
    assert_eq!(node.ledger.desired().slices, []);
}

#[test]
fn reservations_of_bound_pods_follow_the_kubelets_choice_between_equal_slices() {
    for (state, its_pod, my_pod) in [("held", "a", "b"), ("ready", "b", "a")] {
        let mut node = standing(state);
        reserve(&mut node, "b", 10).unwrap();
        node.cut();
        let slices = node.ledger.desired().slices.clone();
        let of =
            |pod: &str| slices.iter().find(|s| s.reservation.as_ref().is_some_and(|r| r.pod == pod)).unwrap();
        let (mine, its) = (of("a").id.clone(), of("b").id.clone());
        let mut status = node.state().status;
        let slice = status.slices.iter_mut().find(|slice| slice.id.as_ref() == Some(&its)).unwrap();
        let container = of("a").reservation.as_ref().unwrap().container.clone();
        slice.holder =
            Some(crate::contract::Holder { namespace: "default".into(), pod: "a".into(), container });
        node.ledger.upkeep(&status, |_| None, &mut BTreeSet::new());
        let holder = &node.ledger.reservation(&its).unwrap().pod;
        assert_eq!(holder, "b", "{state}: the holder may be a namesake of the pod");
        let a = &of("a").reservation.as_ref().unwrap().uid;
        let owner = |shown: &SliceStatus| (shown.id.as_ref() == Some(&its)).then_some(a);
        node.ledger.upkeep(&status, owner, &mut BTreeSet::new());
        assert_eq!(node.ledger.reservation(&its).unwrap().pod, its_pod, "{state}");
        assert_eq!(node.ledger.reservation(&mine).unwrap().pod, my_pod, "{state}");
    }
}

#[test]
fn a_reservation_that_is_not_on_disk_is_taken_back_unless_a_binding_may_be_made() {
    for (before, after) in [
        ("nothing", "nothing"),
        ("reserved", "nothing"),
        ("ready", "nothing"),
        ("binding", "binding"),
        ("held", "held"),
    ] {
        let mut node = standing(before);
        node.ledger.retract(&uid("a"));
        assert_eq!(stands(&node), after, "{before}");
    }
}

#[test]
fn each_order_in_each_state_has_its_answer() {
    let kinds = |node: &SimulatedNode| {
        let uid = uid("a");
        [
            OrderKind::Reserve(proposal(node, "a", "nvidia.com/mig-1g.10gb", 1)),
            OrderKind::Mark { uid: uid.clone(), attempt: 1 },
            OrderKind::Mark { uid: uid.clone(), attempt: 2 },
            OrderKind::Outcome { uid: uid.clone(), attempt: 1, bound: false },
            OrderKind::Outcome { uid: uid.clone(), attempt: 2, bound: false },
            OrderKind::Outcome { uid: uid.clone(), attempt: 1, bound: true },
            OrderKind::Release { uid, why: "test".to_owned() },
        ]
    };
    let table = [
        (
            "nothing",
            [
                "60 reserved",
                "unknown nothing",
                "unknown nothing",
                "0 nothing",
                "0 nothing",
                "0 nothing",
                "0 nothing",
            ],
        ),
        (
            "reserved",
            [
                "60 reserved",
                "unready reserved",
                "unready reserved",
                "0 reserved",
                "0 reserved",
                "0 bound",
                "0 nothing",
            ],
        ),
        ("ready", ["60 ready", "0 binding", "0 binding", "0 ready", "0 ready", "0 bound", "0 nothing"]),
        (
            "binding",
            ["60 binding", "0 binding", "0 2 open", "0 ready", "0 binding", "0 bound", "open binding"],
        ),
        ("bound", ["60 bound", "0 bound", "0 2 open", "0 held", "0 bound", "0 bound", "open bound"]),
        ("held", ["60 held", "0 bound", "0 bound", "0 held", "0 held", "0 held", "open bound"]),
    ];
    for (state, answers) in table {
        for (place, expected) in answers.iter().enumerate() {
            let mut node = standing(state);
            let kind = kinds(&node)[place].clone();
            let answer = match node.follow(&order(EPOCH, kind.clone()), at(20)) {
                Ok(done) => done.lifetime.as_secs().to_string(),
                Err(Rejection::UnknownReservation) => "unknown".to_owned(),
                Err(Rejection::NotReady) => "unready".to_owned(),
                Err(Rejection::BindingOpen) => "open".to_owned(),
                Err(other) => other.to_string(),
            };
            assert_eq!(format!("{answer} {}", stands(&node)), *expected, "{state}: {kind:?}");
            // A leader of a lower epoch changes nothing, and one of a higher epoch is obeyed.
            let mut node = standing(state);
            let before = node.ledger.clone();
            assert_eq!(node.follow(&order(EPOCH - 1, kind.clone()), at(20)), Err(Rejection::OldEpoch));
            assert_eq!(format!("{before:?}"), format!("{:?}", node.ledger), "{state}: {kind:?}");
            assert_ne!(node.follow(&order(EPOCH + 1, kind), at(20)), Err(Rejection::OldEpoch));
            assert!(!node.ledger.hear(EPOCH));
        }
    }
}

#[test]
fn a_closed_node_renews_and_releases_but_neither_adds_nor_marks() {
    let why = Err(Rejection::Closed("the pods are not listed".to_owned()));
    for (state, marked) in
        [("nothing", Err(Rejection::UnknownReservation)), ("reserved", why.clone()), ("ready", why.clone())]
    {
        let mut node = standing(state);
        node.closed = Some("the pods are not listed".to_owned());
        assert_eq!(mark(&mut node, "a", 1, 20), marked, "{state}");
        let renewed = reserve(&mut node, "a", 20);
        if state == "nothing" {
            assert_eq!(renewed, why);
        } else {
            assert_eq!(renewed, Ok(Done { lifetime: Duration::from_mins(1) }));
        }
        let release = OrderKind::Release { uid: uid("a"), why: String::new() };
        assert!(node.follow(&order(EPOCH, release), at(20)).is_ok());
        assert_eq!(stands(&node), "nothing");
    }
}

#[test]
fn a_reservation_lives_for_a_minute_after_it_was_renewed() {
    let mut node = standing("reserved");
    assert_eq!(node.ledger.due(at(69)), Due { next: Some(at(70)), ..Due::default() });
    reserve(&mut node, "a", 60).unwrap();
    assert_eq!(node.ledger.due(at(119)), Due { next: Some(at(120)), ..Due::default() });
    assert_eq!(node.ledger.due(at(120)), Due { released: vec![owner("a")], ..Due::default() });
    assert_eq!(stands(&node), "nothing");
    assert_eq!(node.ledger.desired().slices.len(), 1, "the slice stays as idle capacity");
}

#[test]
fn an_open_binding_is_looked_up_at_growing_intervals_once_it_is_over() {
    let mut node = standing("binding");
    assert_eq!(node.ledger.due(at(89)), Due { next: Some(at(90)), ..Due::default() });
    let (mut now, mut waits) = (at(90), Vec::new());
    for _ in 0..8 {
        let due = node.ledger.due(now);
        assert_eq!((due.released, due.look_up), (vec![], vec![uid("a")]));
        assert_eq!(node.ledger.looked_up(&uid("a"), now, Found::Unknown), None);
        let next = due.next.unwrap();
        waits.push(next.0.checked_sub(now.0).unwrap().as_secs());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(stands(&node), "binding", "an error ends nothing");
}

#[test]
fn the_earliest_of_several_moments_is_the_next() {
    let mut node = standing("binding");
    mark(&mut node, "a", 2, 20).unwrap();
    assert_eq!(node.ledger.due(at(89)), Due { next: Some(at(90)), ..Due::default() });
    assert_eq!(node.ledger.due(at(90)).look_up, [uid("a")], "the first Binding is over");

    let mut node = standing("reserved");
    reserve(&mut node, "b", 20).unwrap();
    assert_eq!(node.ledger.due(at(20)).next, Some(at(70)), "pod a's reservation expires first");
}

#[test]
fn a_pod_found_here_is_not_looked_up_early_for_a_repeated_mark() {
    let mut node = standing("ready");
    let disk = node.ledger.saved();
    node.restart(disk, at(30));
    node.ledger.pods(&watch(&[]), at(31));
    assert_eq!(node.ledger.looked_up(&uid("a"), at(31), Found::Here), None);
    mark(&mut node, "a", 2, 40).unwrap();
    assert_eq!(node.ledger.due(at(119)).look_up, []);
    assert_eq!(node.ledger.due(at(120)).look_up, [uid("a")]);
}

#[test]
fn a_reservation_is_reported_with_whether_a_binding_is_open() {
    for (state, binding) in [("reserved", false), ("ready", false), ("binding", true), ("held", false)] {
        let node = standing(state);
        let slice = &node.ledger.desired().slices[0];
        assert_eq!(node.ledger.reservation(&slice.id).unwrap().binding, binding, "{state}");
        // Leaders need no epoch of a reservation, so the report has none.
        let mut reported = slice.clone();
        reported.reservation.as_mut().unwrap().epoch = 0;
        assert_eq!(node.state().desired().slices, [reported]);
    }
}

#[test]
fn a_look_up_ends_bindings_that_were_over_when_it_was_asked() {
    for (found, asked, expected) in [
        (Found::Unbound, 89, "2 open"),
        (Found::Unbound, 90, "binding"),
        (Found::Unbound, 100, "ready"),
        (Found::Here, 20, "held"),
        (Found::Gone, 20, "nothing"),
        (Found::Elsewhere, 20, "nothing"),
        (Found::Unknown, 100, "2 open"),
    ] {
        let mut node = standing("binding");
        mark(&mut node, "a", 2, 20).unwrap();
        let released = node.ledger.looked_up(&uid("a"), at(asked), found);
        assert_eq!(stands(&node), expected, "{found:?} asked at {asked}");
        assert_eq!(released.is_some(), expected == "nothing");
    }
}

#[test]
fn after_a_restart_every_reservation_may_have_a_binding() {
    for state in ["reserved", "ready", "binding", "bound", "held"] {
        let mut node = standing(state);
        let disk = node.ledger.saved();
        node.restart(disk, at(30));
        assert_eq!(stands(&node), "binding", "{state}");
        assert!(!node.ledger.hear(EPOCH - 1), "the epoch is on disk");
        outcome(&mut node, "a", 1, false, 31);
        assert_eq!(stands(&node), "binding", "the leader's word ends its own marks alone");
        assert_eq!(node.ledger.due(at(109)).look_up, []);
        assert_eq!(node.ledger.due(at(110)).look_up, [uid("a")]);
        assert_eq!(node.ledger.looked_up(&uid("a"), at(110), Found::Unbound), None);
        assert_eq!(node.ledger.due(at(111)).released, [owner("a")], "it was renewed at the restart last");
    }
}

#[test]
fn a_pod_that_the_watch_does_not_show_after_a_restart_is_looked_up_at_once() {
    let mut node = standing("ready");
    let disk = node.ledger.saved();
    let restart = |node: &mut SimulatedNode, shown: &[(&str, BoundPod)]| {
        node.restart(disk.clone(), at(30));
        let before = Due { next: Some(at(110)), ..Due::default() };
        assert_eq!(node.ledger.due(at(30)), before, "the watch is asked first");
        node.ledger.pods(&watch(shown), at(31));
    };
    let once = |again| Due { look_up: vec![uid("a")], next: Some(at(again)), ..Due::default() };
    restart(&mut node, &[]);
    assert_eq!(node.ledger.due(at(31)), once(32));
    assert_eq!(node.ledger.looked_up(&uid("a"), at(31), Found::Unknown), None);
    assert_eq!(stands(&node), "binding", "an error ends nothing");
    assert_eq!(node.ledger.due(at(32)), once(34));
    assert_eq!(node.ledger.looked_up(&uid("a"), at(32), Found::Gone), Some(owner("a")));

    restart(&mut node, &[]);
    assert_eq!(node.ledger.due(at(31)), once(32));
    assert_eq!(node.ledger.looked_up(&uid("a"), at(31), Found::Unbound), None);
    node.ledger.pods(&watch(&[]), at(32));
    for second in [32, 60, 109] {
        assert_eq!(node.ledger.due(at(second)), Due { next: Some(at(110)), ..Due::default() });
        assert_eq!(stands(&node), "binding", "a Binding may be made yet");
    }
    assert_eq!(node.ledger.due(at(110)).look_up, [uid("a")]);

    restart(&mut node, &[]);
    assert_eq!(node.ledger.due(at(31)), once(32));
    assert_eq!(node.ledger.looked_up(&uid("a"), at(31), Found::Here), None);
    assert_eq!(stands(&node), "held");

    restart(&mut node, &[("a", BoundPod::Alive)]);
    assert_eq!(node.ledger.due(at(31)), Due::default(), "the watch has shown the pod");
}

#[test]
fn the_nodes_own_watch_releases_pods_that_it_has_shown() {
    let mut node = standing("binding");
    assert_eq!(node.ledger.pods(&watch(&[]), at(11)), [], "it may be behind");
    assert_eq!(stands(&node), "binding");
    assert_eq!(node.ledger.due(at(11)).look_up, [], "only a restored reservation is looked up early");
    node.ledger.pods(&watch(&[("a", BoundPod::Alive)]), at(12));
    assert_eq!(node.ledger.due(at(10_000)), Due::default(), "a bound pod needs no renewal");
    // A new list of pods does not contain it.
    assert_eq!(node.ledger.pods(&watch(&[]), at(10_001)), []);
    let due = node.ledger.due(at(10_001));
    assert_eq!((due.look_up, due.next), (vec![uid("a")], Some(at(10_002))));
    node.ledger.looked_up(&uid("a"), at(10_001), Found::Here);
    assert_eq!(stands(&node), "held");
    assert_eq!(node.ledger.pods(&watch(&[("a", BoundPod::Ended)]), at(10_003)), [owner("a")]);
    assert_eq!(stands(&node), "nothing");
}

#[test]
fn a_pod_that_is_gone_before_the_watch_has_shown_it_is_looked_up() {
    let mut node = standing("bound");
    assert_eq!(node.ledger.due(at(90)).look_up, [uid("a")]);
    assert_eq!(node.ledger.looked_up(&uid("a"), at(90), Found::Gone), Some(owner("a")));
    // The same holds if the agent has the Binding only from the leader's outcome.
    let mut node = standing("reserved");
    outcome(&mut node, "a", 1, true, 20);
    assert_eq!(node.ledger.due(at(20)).look_up, [uid("a")]);
}

#[test]
fn a_bound_pod_that_the_watch_does_not_show_is_looked_up_at_growing_intervals() {
    let mut node = standing("bound");
    for (second, next) in [(90, 91), (91, 93), (93, 97)] {
        assert_eq!(node.ledger.due(at(second)).look_up, [uid("a")]);
        node.ledger.looked_up(&uid("a"), at(second), Found::Here);
        node.ledger.pods(&watch(&[]), at(second));
        let due = node.ledger.due(at(second));
        assert_eq!((due.look_up, due.next), (vec![], Some(at(next))));
    }
    node.ledger.pods(&watch(&[("a", BoundPod::Alive)]), at(94));
    assert_eq!(node.ledger.due(at(10_000)), Due::default(), "the watch has shown it");
}

#[test]
fn a_late_answer_to_a_look_up_unbinds_no_pod() {
    let mut node = standing("binding");
    assert_eq!(node.ledger.due(at(90)).look_up, [uid("a")]);
    node.ledger.pods(&watch(&[("a", BoundPod::Alive)]), at(91));
    node.ledger.looked_up(&uid("a"), at(90), Found::Unbound);
    assert_eq!(stands(&node), "held");
}

#[test]
fn each_leader_ends_its_own_binding() {
    let mut node = standing("binding");
    let of = |epoch, bound| order(epoch, OrderKind::Outcome { uid: uid("a"), attempt: 1, bound });
    let mark = order(EPOCH + 1, OrderKind::Mark { uid: uid("a"), attempt: 1 });
    node.follow(&mark, at(20)).unwrap();
    assert_eq!(stands(&node), "2 open");
    node.follow(&of(EPOCH + 1, false), at(21)).unwrap();
    assert_eq!(stands(&node), "binding", "that of the leader before is still open");
    assert_eq!(node.follow(&of(EPOCH, false), at(22)), Err(Rejection::OldEpoch));
    assert_eq!(stands(&node), "binding");
}

#[test]
fn a_proposal_from_an_outdated_copy_is_rejected() {
    let place = |shape, source| Placed {
        container: "main".to_owned(),
        resource: "nvidia.com/mig-1g.10gb".parse().unwrap(),
        alone: false,
        gpu: gpu_uuid(0),
        shape,
        source,
    };
    let (idle, cut) = (
        |id: &str| Source::Idle(id.into()),
        |ids: &[&str]| Source::Cut(ids.iter().map(|id| SliceId::new(*id)).collect()),
    );
    let small = |start| h100_shape("1g.10gb", start);
    // s1 at 6 is pod a's and ready; s2 at 5 is idle.
    let mut node = standing("ready");
    let other = place(small(5), cut(&[]));
    let of_b = Proposal { owner: owner("b"), places: vec![other] };
    node.follow(&order(EPOCH, OrderKind::Reserve(of_b)), at(10)).unwrap();
    node.cut();
    let release = OrderKind::Release { uid: uid("b"), why: String::new() };
    node.follow(&order(EPOCH, release), at(10)).unwrap();
    let elsewhere = Placed { gpu: gpu_uuid(1), ..place(small(0), cut(&[])) };
    for (places, expected) in [
        (vec![], "the proposal names no place"),
        (vec![place(small(6), idle("s1"))], "slice s1 is in use"),
        (
            vec![place(small(6), cut(&[]))],
            "slice s3 cannot be made: it cannot exist beside the other slices: memory slices 6:1 are taken",
        ),
        (vec![place(h100_shape("2g.20gb", 4), cut(&["s1"]))], "slice s1 is in use"),
        (vec![place(small(5), idle("s9"))], "slice s9 is gone"),
        (vec![place(small(4), idle("s2"))], "slice s2 is 1g.10gb at 5:1 of GPU-0"),
        (vec![place(small(5), idle("s2")), place(small(5), idle("s2"))], "slice s2 is named twice"),
        (
            vec![place(h100_shape("2g.20gb", 4), cut(&[]))],
            "slice s3 cannot be made: it cannot exist beside the other slices: memory slices 4:2 are taken",
        ),
        (
            vec![place(small(0), cut(&[])), place(small(0), cut(&[]))],
            "slice s4 cannot be made: it cannot exist beside the other slices: memory slices 0:1 are taken",
        ),
        (vec![place(small(5), idle("s2")), elsewhere], "slice s3 cannot be made: the node has no GPU GPU-1"),
    ] {
        let before = node.ledger.saved();
        let reserve = OrderKind::Reserve(Proposal { owner: owner("c"), places });
        assert_eq!(node.follow(&order(EPOCH, reserve), at(11)).unwrap_err().to_string(), expected);
        assert_eq!(node.ledger.saved(), before, "all or nothing");
    }
    let taken = vec![place(small(5), idle("s2")), place(small(0), cut(&[]))];
    let reserve = OrderKind::Reserve(Proposal { owner: owner("c"), places: taken });
    assert!(node.follow(&order(EPOCH, reserve), at(11)).is_ok());
}

#[test]
fn an_idle_slice_that_was_never_made_is_dropped_for_a_new_one() {
    let mut node = standing("nothing");
    let stale = proposal(&node, "b", "nvidia.com/mig-1g.10gb", 1);
    reserve(&mut node, "a", 10).unwrap();
    let release = OrderKind::Release { uid: uid("a"), why: String::new() };
    node.follow(&order(EPOCH, release), at(10)).unwrap();
    node.follow(&order(EPOCH, OrderKind::Reserve(stale)), at(10)).unwrap();
    let ids = |node: &SimulatedNode| {
        node.ledger.desired().slices.iter().map(|s| s.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&node), ["s2"], "s1 is at the same place");
    let release = OrderKind::Release { uid: uid("b"), why: String::new() };
    node.follow(&order(EPOCH, release), at(10)).unwrap();
    let mut elsewhere = proposal(&node, "c", "nvidia.com/mig-1g.10gb", 1);
    (elsewhere.places[0].shape, elsewhere.places[0].source) = (h100_shape("1g.10gb", 0), Source::Cut(vec![]));
    node.follow(&order(EPOCH, OrderKind::Reserve(elsewhere)), at(10)).unwrap();
    assert_eq!(ids(&node), ["s3", "s2"], "s2 can still be made");
}

#[test]
fn an_instance_that_a_gone_pod_still_holds_goes_to_no_other_pod() {
    let mut node = standing("nothing");
    // The leader has not read yet that there is a slice.
    let stale = order(EPOCH, OrderKind::Reserve(proposal(&node, "b", "nvidia.com/mig-1g.10gb", 1)));
    reserve(&mut node, "a", 10).unwrap();
    node.cut();
    node.allocate(&uid("a"));
    let release = OrderKind::Release { uid: uid("a"), why: String::new() };
    node.follow(&order(EPOCH, release), at(10)).unwrap();
    let answer = node.follow(&stale, at(10));
    let in_use = Err(Rejection::Taken("slice s1 is in use".to_owned()));
    assert_eq!(answer, in_use);
    let OrderKind::Reserve(mut reuse) = stale.kind.clone() else { unreachable!() };
    for source in [Source::Idle("s1".into()), Source::Cut(vec!["s1".into()])] {
        reuse.places[0].source = source;
        assert_eq!(node.follow(&order(EPOCH, OrderKind::Reserve(reuse.clone())), at(10)), in_use);
    }
    node.free("a");
    assert!(node.follow(&stale, at(11)).is_ok(), "once its containers have ended");
}

/// An instance in use that no slice asks for.
fn strange(profile: &str, start: u8) -> ObservedInstance {
    let instance = h100_shape(profile, start).instance().unwrap();
    ObservedInstance { instance, held: true, parts: vec![], replicas: vec![] }
}

#[test]
fn a_gpu_with_a_reservation_that_cannot_be_cut_accepts_no_new_one() {
    let mut node = standing("reserved");
    let mut of_b = proposal(&node, "b", "nvidia.com/mig-1g.10gb", 1);
    of_b.places[0].shape = h100_shape("1g.10gb", 0);
    let of_b = order(EPOCH, OrderKind::Reserve(of_b));
    let (mut observed, status) = (node.observed(), node.state().status);
    // An instance that no slice asks for is at the place of pod a, memory slice 6.
    observed.gpus[0].instances.push(strange("3g.40gb", 4));
    let seen = Seen { closed: None, observed: &observed, status: &status };
    let text = node.ledger.follow(&of_b, seen, at(11)).unwrap_err().to_string();
    assert_eq!(text, "slice s1 cannot be made: slices in use are in its way");
    let seen = Seen { closed: None, observed: &node.observed(), status: &status };
    assert!(node.ledger.follow(&of_b, seen, at(11)).is_ok(), "once it is gone");
}

#[test]
fn an_idle_slice_of_another_gpu_stays_while_it_cannot_be_made() {
    let models = ["H100-80GB", "H100-80GB"];
    let mut node = SimulatedNode::new(&models, NodePolicy::default(), Limits::default());
    reserve(&mut node, "a", 10).unwrap();
    let release = OrderKind::Release { uid: uid("a"), why: String::new() };
    node.follow(&order(EPOCH, release), at(10)).unwrap();
    let idle = node.ledger.desired().slices[0].gpu.clone();
    let mut of_b = proposal(&node, "b", "nvidia.com/mig-1g.10gb", 1);
    of_b.places[0].source = Source::Cut(vec![]);
    let (mut observed, status) = (node.observed(), node.state().status);
    of_b.places[0].gpu = observed.gpus.iter().find(|gpu| gpu.uuid != idle).unwrap().uuid.clone();
    // An instance that no slice asks for takes all of the other GPU.
    observed.gpus.iter_mut().find(|gpu| gpu.uuid == idle).unwrap().instances.push(strange("7g.80gb", 0));
    let seen = Seen { closed: None, observed: &observed, status: &status };
    node.ledger.follow(&order(EPOCH, OrderKind::Reserve(of_b)), seen, at(11)).unwrap();
    let ids: BTreeSet<_> = node.ledger.desired().slices.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(ids, BTreeSet::from(["s1", "s2"]));
}

#[test]
fn a_compute_instance_that_exists_goes_to_one_pod() {
    let rule = GpuRule { compute_instances: true, ..GpuRule::default() };
    let policy = NodePolicy { gpus: vec![rule], ..NodePolicy::default() };
    let mut node = SimulatedNode::new(&["H100-80GB"], policy, Limits::default());
    let of_a = proposal(&node, "a", "nvidia.com/mig-1c.3g.40gb", 1);
    let stale = |pod: &str| Proposal { owner: owner(pod), ..of_a.clone() };
    let twice = [of_a.places.clone(), of_a.places.clone()].concat();
    let twice = OrderKind::Reserve(Proposal { places: twice, ..of_a.clone() });
    let text = "its compute instance is that of slice s2".to_owned();
    assert_eq!(node.follow(&order(EPOCH, twice), at(1)), Err(Rejection::Taken(text)));
    node.follow(&order(EPOCH, OrderKind::Reserve(of_a.clone())), at(1)).unwrap();
    node.cut();
    for idle in [false, true] {
        let answer = node.follow(&order(EPOCH, OrderKind::Reserve(stale("b"))), at(2));
        let text = "its compute instance is that of slice s1".to_owned();
        assert_eq!(answer, Err(Rejection::Taken(text)), "idle: {idle}");
        let release = OrderKind::Release { uid: uid("a"), why: String::new() };
        node.follow(&order(EPOCH, release), at(2)).unwrap();
    }
    let fresh = proposal(&node, "b", "nvidia.com/mig-1c.3g.40gb", 1);
    assert!(matches!(fresh.places[0].source, Source::Idle(_)));
    node.follow(&order(EPOCH, OrderKind::Reserve(fresh)), at(3)).unwrap();
}

#[test]
fn a_pod_is_adopted_once_and_with_all_its_slices_or_not_at_all() {
    let mut node = node();
    let slices = wanted(&[h100_shape("1g.10gb", 0), h100_shape("1g.10gb", 1)]);
    let mut adopt = |pod: &str, slices: &[WantedSlice]| {
        node.ledger.adopt(&owner(pod), slices, at(0));
        (node.ledger.entries.len(), node.ledger.desired().slices.len())
    };
    assert_eq!(adopt("a", &[]), (0, 0));
    assert_eq!(adopt("a", &slices[..1]), (1, 1));
    assert_eq!(adopt("a", &slices[1..]), (1, 1), "its reservation is here already");
    assert_eq!(adopt("b", &slices), (1, 1), "another pod has one of the slices");
    assert_eq!(adopt("b", &slices[1..]), (2, 2));
    assert_eq!(node.ledger.due(at(10_000)), Due::default(), "they are bound, so nothing expires");
}

#[test]
fn a_new_slice_has_no_id_of_an_adopted_one() {
    let mut node = node();
    let slice =
        |id: &&str| WantedSlice { id: SliceId::new(*id), ..wanted(&[h100_shape("1g.10gb", 0)]).remove(0) };
    for (pod, ids, highest) in [("a", &["s7"][..], 7), ("b", &["s3"], 7), ("c", &["s4", "s9", "s8"], 9)] {
        let slices: Vec<_> = ids.iter().map(slice).collect();
        node.ledger.adopt(&owner(pod), &slices, at(0));
        assert_eq!(node.ledger.desired().next_slice, highest, "{ids:?}");
    }
}
