use super::*;
use crate::contract::NodePolicy;
use crate::inventory::NodeInventory;
use crate::ledger::{Done, NodeState};
use crate::names::PodKey;
use crate::packing::{Fleet, fit};
use crate::testing::{SimulatedNode, request};
use std::time::Duration;

const EPOCH: u64 = 3;
const GATE: u64 = 9;
const LEASE: u64 = 100;
const DONE: Answer = Ok(Done { lifetime: Duration::from_mins(1) });

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn uid() -> PodUid {
    PodUid::new("uid-a")
}

fn proposal(node: &SimulatedNode) -> Proposal {
    let NodeState { status, .. } = node.state();
    let inventory = NodeInventory::from_spec(node.ledger.desired(), &status);
    let fit = fit(&inventory, &request("nvidia.com/mig-1g.10gb", 2), &Fleet::default()).unwrap();
    Proposal::from_fit(Owner { uid: uid(), key: PodKey::new("default", "a") }, fit)
}

fn node() -> SimulatedNode {
    SimulatedNode::new(&["H100-80GB"], NodePolicy::default(), Limits::default())
}

/// A bind and its node after the reservation, with nothing cut yet.
fn begun(gate: u64) -> (BindProgress, SimulatedNode) {
    let mut node = node();
    let mut bind = BindProgress::new(proposal(&node), EPOCH, 1, at(gate), Limits::default());
    let [Action::Send(order)] = &bind.handle(&Input::Opened, at(0), at(LEASE))[..] else {
        panic!("one order")
    };
    assert!(matches!(order.kind, OrderKind::Reserve(_)));
    assert_eq!(node.follow(order, at(0)), DONE);
    (bind, node)
}

fn show(bind: &mut BindProgress, node: &SimulatedNode, now: u64) -> Vec<Action> {
    let state = node.state();
    bind.handle(&Input::Shown(PodSlices::for_pod(&state.status, &uid())), at(now), at(LEASE))
}

fn answer(bind: &mut BindProgress, answer: &Answer, now: u64) -> Vec<Action> {
    bind.handle(&Input::Answered(answer), at(now), at(LEASE))
}

/// A bind whose mark was sent at second 1.
fn marking(gate: u64) -> (BindProgress, SimulatedNode) {
    let (mut bind, mut node) = begun(gate);
    answer(&mut bind, &DONE, 1);
    node.cut();
    assert_eq!(show(&mut bind, &node, 1), [mark()]);
    (bind, node)
}

fn send(kind: OrderKind) -> Action {
    Action::Send(Order { epoch: EPOCH, kind })
}

fn mark() -> Action {
    send(OrderKind::Mark { uid: uid(), attempt: 1 })
}

fn outcome(bound: bool) -> Action {
    send(OrderKind::Outcome { uid: uid(), attempt: 1, bound })
}

fn failed(failure: BindFailure) -> Action {
    Action::End(Err(failure))
}

#[test]
fn a_pod_is_bound_after_one_reservation_and_one_mark() {
    let (mut bind, mut node) = begun(GATE);
    assert_eq!(show(&mut bind, &node, 0), []);
    assert_eq!(answer(&mut bind, &DONE, 1), []);
    assert_eq!(show(&mut bind, &node, 1), [], "nothing is cut yet");
    node.cut();
    let mut half = node.state().status;
    half.slices[1].ready_for = None;
    let shown = Input::Shown(PodSlices::for_pod(&half, &uid()));
    assert_eq!(bind.handle(&shown, at(2), at(LEASE)), [], "one slice is not ready");
    assert_eq!(show(&mut bind, &node, 2), [mark()]);
    assert_eq!(show(&mut bind, &node, 2), [], "it is marked once");
    assert_eq!(answer(&mut bind, &DONE, 3), [Action::Post { attempt: 1 }]);
    assert_eq!(bind.handle(&Input::GateOver, at(9), at(LEASE)), [], "the Binding is under way");
    let end = bind.handle(&Input::Posted(Posted::Bound), at(9), at(LEASE));
    assert_eq!(end, [outcome(true), Action::End(Ok(()))]);
    assert_eq!(show(&mut bind, &node, 9), []);
}

#[test]
fn slices_that_were_ready_before_the_answer_are_marked_at_once() {
    let (mut bind, mut node) = begun(GATE);
    node.cut();
    assert_eq!(show(&mut bind, &node, 0), []);
    assert_eq!(answer(&mut bind, &DONE, 1), [mark()]);
}

#[test]
fn only_the_pods_own_slices_count() {
    let (mut bind, mut node) = begun(GATE);
    answer(&mut bind, &DONE, 1);
    node.cut();
    let mut status = node.state().status;
    let mut others = status.slices[0].clone();
    (others.state, others.ready_for) = (SliceState::Failed, None);
    let idle = SliceStatus { reservation: None, ..others.clone() };
    others.reservation.as_mut().unwrap().uid = PodUid::new("uid-b");
    status.slices.extend([others, idle]);
    let shown = Input::Shown(PodSlices::for_pod(&status, &uid()));
    assert_eq!(bind.handle(&shown, at(1), at(LEASE)), [mark()]);
}

#[test]
fn a_reservation_that_is_not_shown_yet_is_not_lost() {
    let (mut bind, mut node) = begun(GATE);
    assert_eq!(bind.handle(&Input::Shown(PodSlices::default()), at(0), at(LEASE)), []);
    assert_eq!(answer(&mut bind, &DONE, 1), []);
    node.cut();
    assert_eq!(show(&mut bind, &node, 1), [mark()]);
}

#[test]
fn a_slice_that_fails_or_goes_ends_the_bind() {
    let (mut bind, node) = begun(GATE);
    answer(&mut bind, &DONE, 1);
    let mut status = node.state().status;
    status.slices[1].state = SliceState::Failed;
    status.slices[1].message = Some("no room".to_owned());
    let shown = Input::Shown(PodSlices::for_pod(&status, &uid()));
    assert_eq!(
        bind.handle(&shown, at(1), at(LEASE)),
        [failed(BindFailure::SliceFailed("no room".to_owned()))]
    );
    let (mut bind, _) = begun(GATE);
    answer(&mut bind, &DONE, 1);
    let gone = bind.handle(&Input::Shown(PodSlices::default()), at(1), at(LEASE));
    assert_eq!(gone, [failed(BindFailure::Released)]);
}

#[test]
fn a_rejection_ends_the_bind_and_says_whether_to_fit_anew() {
    for (rejection, stale) in [
        (Rejection::Taken("gone".to_owned()), true),
        (Rejection::UnknownReservation, true),
        (Rejection::OldEpoch, false),
        (Rejection::Closed("no pods".to_owned()), false),
        (Rejection::Disk("no room".to_owned()), false),
    ] {
        let failure = BindFailure::Rejected(rejection.clone());
        assert_eq!(failure.is_stale_proposal(), stale);
        let rejected = Err(rejection);
        assert_eq!(answer(&mut begun(GATE).0, &rejected, 2), [failed(failure.clone())]);
        assert_eq!(answer(&mut marking(GATE).0, &rejected, 2), [outcome(false), failed(failure)]);
    }
}

#[test]
fn slices_that_are_not_ready_are_marked_again_once_shown_ready() {
    let (mut bind, node) = marking(GATE);
    assert_eq!(answer(&mut bind, &Err(Rejection::NotReady), 2), [], "the copy is behind");
    assert_eq!(show(&mut bind, &node, 2), [mark()]);
    assert_eq!(show(&mut bind, &node, 3), []);
    assert_eq!(answer(&mut bind, &Err(Rejection::NotReady), 3), [mark()], "they were shown meanwhile");
    assert_eq!(answer(&mut bind, &DONE, 3), [Action::Post { attempt: 1 }]);
}

#[test]
fn a_binding_without_a_definite_answer_stays_open() {
    for (posted, expected) in [
        (Posted::Refused, vec![outcome(false), failed(BindFailure::Refused)]),
        (Posted::Unknown, vec![failed(BindFailure::Unknown)]),
    ] {
        let (mut bind, _) = marking(GATE);
        answer(&mut bind, &DONE, 2);
        assert_eq!(bind.handle(&Input::Disconnected, at(2), at(LEASE)), []);
        assert_eq!(bind.handle(&Input::Posted(posted), at(3), at(LEASE)), expected);
    }
    let (mut bind, _) = marking(GATE);
    answer(&mut bind, &DONE, 2);
    let after_the_lease = bind.handle(&Input::Posted(Posted::Bound), at(LEASE), at(LEASE));
    assert_eq!(after_the_lease, [Action::End(Ok(()))]);
}

#[test]
fn the_gate_ends_a_bind_without_a_binding_under_way() {
    let new = BindProgress::new(proposal(&node()), EPOCH, 1, at(GATE), Limits::default());
    let cutting = || {
        let (mut bind, _) = begun(GATE);
        answer(&mut bind, &DONE, 1);
        bind
    };
    for (bind, expected) in [
        (new, vec![failed(BindFailure::NoAnswer)]),
        (begun(GATE).0, vec![failed(BindFailure::NoAnswer)]),
        (cutting(), vec![failed(BindFailure::NotReady)]),
        (marking(GATE).0, vec![outcome(false), failed(BindFailure::NoAnswer)]),
    ] {
        assert_eq!(bind.clone().handle(&Input::GateOver, at(GATE), at(LEASE)), expected);
        // The timeout counts even if no `GateOver` came, and an answer after it is too late.
        let late = if bind.attempt == 1 { Input::Answered(&DONE) } else { Input::Opened };
        assert_eq!(bind.clone().handle(&late, at(GATE), at(LEASE)), expected);
    }
}

#[test]
fn a_lost_connection_and_a_lost_lease_end_all_but_a_binding_under_way() {
    for ((bind, _), reported) in [(begun(GATE), vec![]), (marking(GATE), vec![outcome(false)])] {
        let ends = |failure| [reported.clone(), vec![failed(failure)]].concat();
        for (input, failure) in
            [(Input::Disconnected, BindFailure::Disconnected), (Input::Closing, BindFailure::Deposed)]
        {
            assert_eq!(bind.clone().handle(&input, at(1), at(LEASE)), ends(failure));
        }
        for input in [Input::Opened, Input::Answered(&DONE), Input::GateOver, Input::Closing] {
            let end = bind.clone().handle(&input, at(2), at(2));
            assert_eq!(end, [failed(BindFailure::Deposed)], "nothing is sent after the Lease");
        }
    }
    let (mut binding, _) = marking(GATE);
    answer(&mut binding, &DONE, 2);
    assert_eq!(binding.handle(&Input::Closing, at(2), at(LEASE)), []);
}

#[test]
fn a_reservation_that_may_end_first_is_not_bound() {
    // The answer to Reserve allows 15 s, so no mark is sent 5 s after it.
    let short: Answer = Ok(Done { lifetime: Duration::from_secs(15) });
    for (now, expected) in [(4, vec![mark()]), (5, vec![failed(BindFailure::Expiring)])] {
        let (mut bind, mut node) = begun(GATE);
        assert_eq!(answer(&mut bind, &short, 1), []);
        node.cut();
        assert_eq!(show(&mut bind, &node, now), expected);
    }
    for (now, expected) in
        [(4, vec![Action::Post { attempt: 1 }]), (5, vec![outcome(false), failed(BindFailure::Expiring)])]
    {
        let (mut bind, mut node) = begun(GATE);
        node.cut();
        show(&mut bind, &node, 1);
        assert_eq!(answer(&mut bind, &short, 1), [mark()]);
        assert_eq!(answer(&mut bind, &DONE, now), expected);
    }
    // An answer to a mark must come in time, however long the bind's timeout is.
    for (now, expected) in
        [(10, vec![Action::Post { attempt: 1 }]), (11, vec![outcome(false), failed(BindFailure::Expiring)])]
    {
        let (mut bind, _) = marking(40);
        assert_eq!(answer(&mut bind, &DONE, now), expected);
    }
}
