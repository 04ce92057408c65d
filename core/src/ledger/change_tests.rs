use super::*;
use crate::contract::{Holder, SliceState};
use crate::kind::Kind;
use crate::names::{DeviceId, PodUid, SliceId};
use crate::testing::{h100_shape, node_status, slice_status, wanted};
use crate::units::MemoryMib;
use proptest::prelude::*;

/// A slice with one of few names, GPUs and shapes, so that two states often share some.
fn slice() -> impl Strategy<Value = SliceStatus> {
    let named = (0_u8..6, any::<bool>(), any::<bool>());
    let more = (prop::option::of(0_u8..2), any::<bool>(), any::<bool>());
    (named, 0_u8..3, 0_usize..3, more).prop_map(
        |((number, has_id, has_device), start, state, (pod, held, leaving))| {
            let reservation = pod.map(|pod| SliceReservation {
                uid: PodUid::new(format!("uid-{pod}")),
                namespace: "default".to_owned(),
                pod: format!("pod-{pod}"),
                container: "main".to_owned(),
                resource: "nvidia.com/mig-1g.10gb".parse().unwrap(),
                alone: held,
                binding: leaving,
            });
            SliceStatus {
                id: has_id.then(|| SliceId::new(format!("s{number}"))),
                gpu: crate::testing::gpu_uuid(0),
                shape: h100_shape("1g.10gb", start),
                state: [SliceState::Preparing, SliceState::Ready, SliceState::Held][state],
                memory: MemoryMib(1),
                device: has_device.then(|| DeviceId::new(format!("device-{number}"))),
                resource: reservation.as_ref().map(|r| r.resource),
                ready_for: reservation.as_ref().filter(|_| state > 0).map(|r| r.uid.clone()),
                holder: held.then(|| Holder {
                    namespace: "default".to_owned(),
                    pod: "p".to_owned(),
                    container: "main".to_owned(),
                }),
                message: None,
                reservation: reservation.filter(|_| has_id && !leaving),
                leaving,
            }
        },
    )
}

fn state() -> impl Strategy<Value = NodeState> {
    let others = (0_usize..3, 0_usize..2, prop::option::of(1_u32..3), any::<bool>(), any::<bool>());
    (prop::collection::vec(slice(), 0..8), others).prop_map(
        |(slices, (gpus, conditions, neutral, is_closed, has_policy))| {
            let mut status = node_status(&["H100-80GB", "T4-16GB"][..gpus]);
            status.conditions.truncate(conditions);
            status.neutral_up_to = neutral.map(SizeGb);
            // Each key occurs once, as in agents' reports.
            status.slices = by_key(&GpuNodeStatus { slices, ..GpuNodeStatus::default() })
                .into_values()
                .cloned()
                .collect();
            let policy = NodePolicy { remove_rejected_pods: has_policy, ..NodePolicy::default() };
            NodeState { status, policy, closed: is_closed.then(|| "no pods".to_owned()) }
        },
    )
}

fn sorted(mut state: NodeState) -> NodeState {
    state.status.slices.sort_by_key(SliceKey::from_slice);
    state
}

proptest! {
    #[test]
    fn a_copy_equals_the_node_after_the_difference(from in state(), to in state()) {
        let change = difference(&from, &to);
        prop_assert_eq!(change.is_empty(), sorted(from.clone()) == sorted(to.clone()));
        let mut copy = from.clone();
        change.clone().apply(&mut copy);
        prop_assert_eq!(sorted(copy.clone()), sorted(to.clone()));
        prop_assert!(difference(&copy, &to).is_empty());
        // A repeated change has no effect, and unchanged parts are not sent.
        change.clone().apply(&mut copy);
        prop_assert_eq!(sorted(copy), sorted(to.clone()));
        let known: Vec<_> = from.status.slices.iter().collect();
        prop_assert!(change.slices.iter().all(|slice| !known.contains(&slice)));
        let mut first = NodeState::default();
        difference(&NodeState::default(), &to).apply(&mut first);
        prop_assert_eq!(sorted(first), sorted(to));
    }
}

/// An agent reports each slice once. A sender that repeats one must not lengthen the copy or create capacity.
#[test]
fn a_slice_that_is_sent_twice_exists_once() {
    let known = slice_status(&wanted(&[h100_shape("1g.10gb", 0)])[0], false);
    let slice = |state| SliceStatus { state, ..known.clone() };
    let twice = vec![slice(SliceState::Ready), slice(SliceState::Held)];
    let also_gone = vec![SliceKey::from_slice(&twice[0])];
    let mut copy = NodeState::default();
    for gone in [Vec::new(), also_gone] {
        Change { slices: twice.clone(), gone, ..Change::default() }.apply(&mut copy);
        assert_eq!(copy.status.slices, [slice(SliceState::Held)]);
    }
}

#[test]
fn a_copy_keeps_the_pod_for_which_a_slice_is_ready_if_another_has_reserved_it() {
    let mut slice = slice_status(&wanted(&[h100_shape("1g.10gb", 0)])[0], false);
    slice.ready_for = Some(PodUid::new("uid-a"));
    slice.reservation = Some(SliceReservation {
        uid: PodUid::new("uid-b"),
        namespace: "default".to_owned(),
        pod: "b".to_owned(),
        container: "main".to_owned(),
        resource: "nvidia.com/mig-1g.10gb".parse().unwrap(),
        alone: false,
        binding: false,
    });
    let mut copy = NodeState::default();
    Change { slices: vec![slice.clone()], ..Change::default() }.apply(&mut copy);
    assert_eq!(copy.status.slices, [slice]);
}

#[test]
fn a_leaving_or_unnamed_slice_is_not_desired() {
    use crate::testing::SimulatedNode;
    let mut node = SimulatedNode::new(&["T4-16GB"], NodePolicy::default(), crate::ledger::Limits::default());
    let mut saved = node.ledger.saved();
    let id = |number: u32| SliceId::new(format!("s{number}"));
    let slice = |number| WantedSlice {
        id: id(number),
        gpu: crate::testing::gpu_uuid(0),
        shape: crate::contract::Shape::share(Kind::Mps, SizeGb(4)).unwrap(),
        reservation: None,
    };
    saved.desired.slices = vec![slice(2), slice(11), slice(3)];
    saved.desired.next_slice = 11;
    node.ledger = crate::ledger::Ledger::restore(
        saved.clone(),
        crate::ledger::Limits::default(),
        crate::ledger::Moment::default(),
    );
    let mut state = node.state();
    assert_eq!(state.desired(), saved.desired);
    state.status.slices[0].leaving = true;
    state.status.slices[2].id = None;
    assert_eq!(state.desired().slices, [slice(11)]);
    state.status.slices[1].leaving = true;
    assert_eq!(
        (state.desired().slices, state.desired().next_slice),
        (vec![], 11),
        "its name is not given anew"
    );
}
