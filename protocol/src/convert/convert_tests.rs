use super::*;
use crate::limits::{GPUS, PLACES, PROTOCOL, SLICES, WINDOW};
use crate::wire::{self, FromAgent, from_agent};
use kerf_core::contract::{
    Condition, ConditionStatus, GpuNodeStatus, Holder, MigPart, NodePolicy, Shape, SliceReservation,
    SliceState, SliceStatus,
};
use kerf_core::ledger::{
    Answer, Change, Done, NodeState, Order, OrderKind, Owner, Proposal, Rejection, difference,
};
use kerf_core::mig::ComputeInstance;
use kerf_core::names::{DeviceId, GpuUuid, NodeName, PodKey, PodUid, SliceId};
use kerf_core::packing::{Placed, Source};
use kerf_core::resource::ResourceName;
use kerf_core::testing::{h100_shape, node_status};
use kerf_core::units::{ComputePercent, MemoryMib, SizeGb};
use proptest::prelude::*;
use prost::Message;
use std::time::Duration;

fn word() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,20}"
}

fn shape() -> impl Strategy<Value = Shape> {
    let profile = prop::sample::select(vec!["1g.10gb", "1g.10gb+me", "3g.40gb", "7g.80gb", "1g.24gb-me"]);
    let part = prop_oneof![
        Just(MigPart::Whole),
        (0..8_u8, 1..8_u8).prop_map(|(start, compute)| MigPart::Compute(ComputeInstance { start, compute })),
        any::<u8>().prop_map(|replica| MigPart::Replica { replica }),
    ];
    let mig = (profile, 0..8_u8, 1..9_u8, part).prop_map(|(profile, start, size, part)| Shape::Mig {
        profile: profile.parse().unwrap(),
        start,
        size,
        part,
    });
    let size = || (1..300_u32).prop_map(SizeGb);
    prop_oneof![
        mig,
        size().prop_map(|size_gb| Shape::Whole { size_gb }),
        (size(), prop::option::of(1..=100_u8)).prop_map(|(size_gb, percent)| Shape::Mps {
            size_gb,
            compute: percent.and_then(ComputePercent::new)
        }),
        size().prop_map(|size_gb| Shape::TimeSlicing { size_gb }),
    ]
}

fn resource() -> impl Strategy<Value = ResourceName> {
    let names = [
        "nvidia.com/gpu",
        "nvidia.com/gpu=mps",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpu-10gb",
        "nvidia.com/gpu-10gb.shared",
        "nvidia.com/mig-1g.10gb.me",
        "nvidia.com/mig-1c.3g.40gb",
        "nvidia.com/mig-3g.40gb.shared",
        "kerf.dev/gpu-10gb",
    ];
    let read = |name: &str| ResourceName::try_from(name.to_owned()).unwrap();
    prop::sample::select(names.map(read).to_vec())
}

fn reservation() -> impl Strategy<Value = SliceReservation> {
    let names = (word(), word(), word(), word());
    let made = |((uid, namespace, pod, container), resource, alone, binding): (
        (String, String, String, String),
        _,
        _,
        _,
    )| SliceReservation {
        uid: PodUid::new(uid),
        namespace,
        pod,
        container,
        resource,
        alone,
        binding,
    };
    (names, resource(), any::<bool>(), any::<bool>()).prop_map(made)
}

fn slice() -> impl Strategy<Value = SliceStatus> {
    let state = prop::sample::select(vec![
        SliceState::Preparing,
        SliceState::Waiting,
        SliceState::Ready,
        SliceState::Held,
        SliceState::Idle,
        SliceState::Failed,
    ]);
    let what = (prop::option::of(word()), word(), shape(), state, any::<u64>());
    let optional = || prop::option::of(word());
    // A holder that the API server has not shown yet has no namespace.
    let namespace = prop_oneof![3 => word(), 1 => Just(String::new())];
    let holder = (namespace, word(), word()).prop_map(|(namespace, pod, container)| Holder {
        namespace,
        pod,
        container,
    });
    let who = (
        optional(),
        prop::option::of(resource()),
        optional(),
        prop::option::of(holder),
        optional(),
        prop::option::of(reservation()),
        any::<bool>(),
    );
    (what, who).prop_map(|((id, gpu, shape, state, memory), who)| {
        let (device, resource, ready_for, holder, message, reservation, leaving) = who;
        SliceStatus {
            id: id.map(SliceId::new),
            gpu: GpuUuid::new(gpu),
            shape,
            state,
            memory: MemoryMib(memory),
            device: device.map(DeviceId::new),
            resource,
            ready_for: ready_for.map(PodUid::new),
            holder,
            message,
            reservation,
            leaving,
        }
    })
}

fn state() -> impl Strategy<Value = NodeState> {
    let models = prop::sample::subsequence(vec!["H100-80GB", "A100-40GB", "T4-16GB"], 0..=3);
    let size = prop::option::of((1..300_u32).prop_map(SizeGb));
    let closed = prop::option::of(word());
    let parts = (models, prop::collection::vec(slice(), 0..6), size, closed, any::<bool>());
    parts.prop_map(|(models, slices, neutral_up_to, closed, is_default)| NodeState {
        status: GpuNodeStatus { slices, neutral_up_to, ..node_status(&models) },
        policy: if is_default { NodePolicy::default() } else { policy() },
        closed,
    })
}

fn policy() -> NodePolicy {
    serde_json::from_value(serde_json::json!({"gpus": [{"kinds": ["mps"]}]})).unwrap()
}

fn kind() -> impl Strategy<Value = OrderKind> {
    let ids = || prop::collection::vec(word().prop_map(SliceId::new), 0..4);
    let source =
        prop_oneof![word().prop_map(|id| Source::Idle(SliceId::new(id))), ids().prop_map(Source::Cut),];
    let place = (word(), resource(), any::<bool>(), word(), shape(), source).prop_map(
        |(container, resource, alone, gpu, shape, source)| Placed {
            container,
            resource,
            alone,
            gpu: GpuUuid::new(gpu),
            shape,
            source,
        },
    );
    let owner = (word(), word(), word()).prop_map(|(uid, namespace, name)| Owner {
        uid: PodUid::new(uid),
        key: PodKey::new(namespace, name),
    });
    let reserve = (owner, prop::collection::vec(place, 0..4))
        .prop_map(|(owner, places)| OrderKind::Reserve(Proposal { owner, places }));
    let uid = || word().prop_map(PodUid::new);
    prop_oneof![
        reserve,
        (uid(), any::<u64>()).prop_map(|(uid, attempt)| OrderKind::Mark { uid, attempt }),
        (uid(), any::<u64>(), any::<bool>()).prop_map(|(uid, attempt, bound)| OrderKind::Outcome {
            uid,
            attempt,
            bound
        }),
        (uid(), word()).prop_map(|(uid, why)| OrderKind::Release { uid, why }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let rejection = |kind: u8, text: String| match kind {
        0 => Rejection::OldEpoch,
        1 => Rejection::Closed(text),
        2 => Rejection::Taken(text),
        3 => Rejection::Disk(text),
        4 => Rejection::UnknownReservation,
        5 => Rejection::NotReady,
        6 => Rejection::BindingOpen,
        7 => Rejection::Unreadable(text),
        _ => Rejection::Limit(text),
    };
    prop_oneof![
        any::<u32>().prop_map(|ms| Ok(Done { lifetime: Duration::from_millis(ms.into()) })),
        (0..9_u8, word()).prop_map(move |(kind, text)| Err(rejection(kind, text))),
    ]
}

fn sent<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn hello() -> Hello {
    Hello {
        node: NodeName::new("n1"),
        node_uid: "u1".to_owned(),
        boot_id: "b1".to_owned(),
        version: "0.1.0".to_owned(),
        instance: "i1".to_owned(),
        epoch: 7,
        window: WINDOW,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_change_is_read_as_it_was_written(from in state(), to in state()) {
        let change = difference(&from, &to);
        let written = write_change(3, &change);
        prop_assert_eq!(written.number, 3);
        prop_assert_eq!(read_change(sent(&written)), Ok(change));
    }

    #[test]
    fn a_hello_is_read_as_it_was_written(state in state()) {
        let whole = difference(&NodeState::default(), &state);
        let read = read_hello(sent(&write_hello(hello(), &whole)));
        prop_assert_eq!(read, Ok((hello(), Ok(whole))));
    }

    #[test]
    fn an_order_is_read_as_it_was_written(kind in kind(), epoch in any::<u64>()) {
        let order = Order { epoch, kind };
        prop_assert_eq!(read_order(sent(&write_order(1, &order))), Ok(order));
    }

    #[test]
    fn an_answer_is_read_as_it_was_written(answer in answer(), number in any::<u64>()) {
        prop_assert_eq!(read_answer(sent(&write_answer(number, &answer))), Ok((number, answer)));
    }

    /// Any bytes of a broken agent are parsed or rejected, and nothing panics.
    #[test]
    fn any_bytes_are_read_or_refused(state in state(), changes in prop::collection::vec(any::<(u16, u8)>(), 0..8)) {
        let change = write_change(1, &difference(&NodeState::default(), &state));
        let message = FromAgent { message: Some(from_agent::Message::Change(change)) };
        let mut bytes = message.encode_to_vec();
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[usize::from(at) % length] = byte;
        }
        if let Ok(FromAgent { message: Some(from_agent::Message::Change(change)) }) = FromAgent::decode(bytes.as_slice()) {
            let _ = read_change(change);
        }
    }
}

fn whole_slice() -> wire::Slice {
    let slice = SliceStatus {
        id: Some(SliceId::new("s1")),
        gpu: GpuUuid::new("GPU-0"),
        shape: h100_shape("1g.10gb", 0),
        state: SliceState::Idle,
        memory: MemoryMib(9856),
        device: None,
        resource: None,
        ready_for: None,
        holder: None,
        message: None,
        reservation: Some(SliceReservation {
            uid: PodUid::new("u"),
            namespace: "d".to_owned(),
            pod: "p".to_owned(),
            container: "c".to_owned(),
            resource: ResourceName::Whole,
            alone: false,
            binding: false,
        }),
        leaving: false,
    };
    write_change(0, &Change { slices: vec![slice], ..Change::default() }).slices.remove(0)
}

fn mig(change: impl FnOnce(&mut wire::Mig)) -> wire::Shape {
    let mut shape = whole_slice().shape.unwrap();
    if let Some(wire::shape::Shape::Mig(mig)) = &mut shape.shape {
        change(mig);
    }
    shape
}

#[test]
fn a_change_is_refused_with_the_field_that_cannot_be_read() {
    let long = || "x".repeat(254);
    let slice = |change: fn(&mut wire::Slice)| {
        let mut slice = whole_slice();
        change(&mut slice);
        wire::Change { slices: vec![whole_slice(), slice], ..wire::Change::default() }
    };
    let gpus = |count: usize| serde_json::to_vec(&node_status(&vec!["T4-16GB"; count])).unwrap();
    let json = |text: &str| Some(text.as_bytes().to_vec());
    let default = wire::Change::default;
    for (change, refusal) in [
        (slice(|s| s.state = 0), "slices[1].state has the unknown value 0"),
        (slice(|s| s.state = 17), "slices[1].state has the unknown value 17"),
        (slice(|s| s.shape = None), "slices[1].shape is missing or of an unknown kind"),
        (
            slice(|s| s.shape = Some(wire::Shape { shape: None })),
            "slices[1].shape is missing or of an unknown kind",
        ),
        (
            slice(|s| s.shape = Some(mig(|mig| mig.profile = "2q".to_owned()))),
            "slices[1].shape.mig.profile is unreadable: \"2q\" is no MIG profile; write it like 1g.10gb or 1g.10gb+me",
        ),
        (
            slice(|s| s.shape = Some(mig(|mig| mig.start = 256))),
            "slices[1].shape.mig.start is 256; at most 255 can be",
        ),
        (
            slice(|s| {
                let mps = wire::Mps { size_gb: 1, compute_percent: Some(101) };
                s.shape = Some(wire::Shape { shape: Some(wire::shape::Shape::Mps(mps)) });
            }),
            "slices[1].shape.mps.compute_percent is 101; 1 to 100 can be",
        ),
        (slice(|s| s.gpu.clear()), "slices[1].gpu is missing"),
        (slice(|s| s.key = "s2".to_owned()), "slices[1].key is \"s2\"; \"s1 1g.10gb at 0:1\" was expected"),
        (
            slice(|s| s.reservation.as_mut().unwrap().resource = "cpu".to_owned()),
            "slices[1].reservation.resource is unreadable: ",
        ),
        (
            slice(|s| s.reservation.as_mut().unwrap().container = None),
            "slices[1].reservation.container is missing or of an unknown kind",
        ),
        (slice(|s| s.device = Some("x".repeat(254))), "slices[1].device has 254 bytes; at most 253 are read"),
        (
            slice(|s| s.message = Some("x".repeat(1025))),
            "slices[1].message has 1025 bytes; at most 1024 are read",
        ),
        (
            wire::Change { slices: vec![whole_slice(); SLICES + 1], ..default() },
            "slices has 4097 entries; at most 4096 are read",
        ),
        (
            wire::Change { gone: vec!["s".to_owned(); SLICES + 1], ..default() },
            "gone has 4097 entries; at most 4096 are read",
        ),
        (wire::Change { gone: vec![long()], ..default() }, "gone[0] has 254 bytes; at most 253 are read"),
        (
            wire::Change { gpus: Some(gpus(GPUS + 1)), ..default() },
            "gpus has 65 entries; at most 64 are read",
        ),
        (wire::Change { gpus: json("{"), ..default() }, "gpus is unreadable: "),
        (
            wire::Change { policy: json("{\"gpuz\": []}"), ..default() },
            "policy is unreadable: unknown field `gpuz`",
        ),
        (wire::Change { conditions: json("[{}]"), ..default() }, "conditions is unreadable: missing field"),
    ] {
        let refused = read_change(change).unwrap_err();
        assert!(refused.to_string().starts_with(refusal), "{refused} is not {refusal}");
        assert_eq!(refused.is_over_limit(), refusal.contains("are read"), "{refusal}");
    }
    assert!(read_change(wire::Change { gpus: Some(gpus(GPUS)), ..default() }).is_ok());
}

#[test]
fn a_hello_is_refused_with_the_field_that_cannot_be_read() {
    let changed = |change: fn(&mut wire::Hello)| {
        let mut hello = write_hello(hello(), &Change::default());
        change(&mut hello);
        read_hello(hello)
    };
    for (read, refusal) in [
        (changed(|h| h.protocol = 0), "hello.protocol is 0; this version speaks 1"),
        (changed(|h| h.protocol = 2), "hello.protocol is 2; this version speaks 1"),
        (changed(|h| h.node = "n".repeat(254)), "hello.node has 254 bytes; at most 253 are read"),
        (changed(|h| h.instance.clear()), "hello.instance is missing"),
        (changed(|h| h.state = None), "hello.state is missing or of an unknown kind"),
        (changed(|h| h.window = 0), "hello.window is 0; no order could be sent"),
    ] {
        assert_eq!(read.unwrap_err().to_string(), refusal);
    }
    let (read, _) = changed(|h| h.window = 1000).unwrap();
    assert_eq!(read.window, WINDOW);
    let (_, state) = changed(|h| h.state.as_mut().unwrap().gone = vec![String::new()]).unwrap();
    assert_eq!(state.unwrap_err().to_string(), "hello.state.gone[0] is missing");
}

#[test]
fn an_order_is_refused_with_the_field_that_cannot_be_read() {
    use wire::order::Order as Kind;
    let order = |kind: Kind| wire::Order { number: 1, epoch: 1, order: Some(kind) };
    let place = || wire::Place {
        container: "c".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        alone: false,
        gpu: "GPU-0".to_owned(),
        shape: whole_slice().shape,
        source: Some(wire::place::Source::Cut(wire::Cut { destroys: Vec::new() })),
    };
    let places = |places: Vec<wire::Place>| {
        let (uid, namespace, pod) = ("u".to_owned(), "d".to_owned(), "p".to_owned());
        order(Kind::Reserve(wire::Reserve { uid, namespace, pod, places }))
    };
    let destroys = vec!["s".to_owned(); PLACES + 1];
    let of_many = Some(wire::place::Source::Cut(wire::Cut { destroys }));
    for (order, refusal) in [
        (wire::Order { order: None, ..wire::Order::default() }, "order is missing or of an unknown kind"),
        (places(vec![place(); PLACES + 1]), "reserve.places has 65 entries; at most 64 are read"),
        (
            places(vec![place(), wire::Place { source: None, ..place() }]),
            "reserve.places[1].source is missing or of an unknown kind",
        ),
        (
            places(vec![wire::Place { source: of_many, ..place() }]),
            "reserve.places[0].cut.destroys has 65 entries; at most 64 are read",
        ),
        (places(vec![wire::Place { gpu: String::new(), ..place() }]), "reserve.places[0].gpu is missing"),
        (order(Kind::Mark(wire::Mark { uid: String::new(), attempt: 1 })), "mark.uid is missing"),
        (
            order(Kind::Release(wire::Release { uid: "u".to_owned(), why: "y".repeat(1025) })),
            "release.why has 1025 bytes; at most 1024 are read",
        ),
    ] {
        assert_eq!(read_order(order).unwrap_err().to_string(), refusal);
    }
}

#[test]
fn a_refusal_for_an_unknown_reason_is_unreadable() {
    let refused = |reason| {
        let refused = wire::Refused { reason, text: "too hot".to_owned() };
        let answer = wire::Answer { number: 4, answer: Some(wire::answer::Answer::Refused(refused)) };
        read_answer(answer).unwrap().1.unwrap_err()
    };
    for reason in [0, 99] {
        let text = format!("answer.refused.reason has the unknown value {reason}: too hot");
        assert_eq!(refused(reason), Rejection::Unreadable(text));
    }
    let unknown = read_answer(wire::Answer { number: 4, answer: None }).unwrap_err();
    assert_eq!(unknown.to_string(), "answer.answer is missing or of an unknown kind");
}

#[test]
fn a_role_of_another_protocol_is_refused() {
    let role = wire::Role { protocol: PROTOCOL, leads: true, epoch: 3, identity: "e".to_owned() };
    let read = Role { leads: true, epoch: 3, identity: "e".to_owned() };
    assert_eq!(read_role(role.clone()), Ok(read));
    let refused = read_role(wire::Role { protocol: 2, ..role }).unwrap_err();
    assert_eq!(refused.to_string(), "role.protocol is 2; this version speaks 1");
}

#[test]
fn a_text_for_people_is_cut_between_two_letters() {
    let long = "ä".repeat(600);
    let change = write_change(1, &Change { closed: Some(format!("x{long}")), ..Change::default() });
    assert_eq!(read_change(change).unwrap().closed.unwrap().len(), 1023);
}

/// The JSON is that of the documents in a GpuNode, and no other form.
#[test]
fn gpus_and_conditions_have_the_form_of_a_gpu_node() {
    let state = NodeState { status: node_status(&["H100-80GB", "H100-80GB"]), ..NodeState::default() };
    let change = write_change(0, &difference(&NodeState::default(), &state));
    let document = serde_json::json!(state.status);
    let json = |bytes: Option<Vec<u8>>| serde_json::from_slice::<serde_json::Value>(&bytes.unwrap()).unwrap();
    assert_eq!(
        json(change.gpus),
        serde_json::json!({"models": document["models"], "gpus": document["gpus"]})
    );
    assert_eq!(json(change.conditions), document["conditions"]);
    let status = state.status.condition(Condition::READY).map(|ready| ready.status);
    assert_eq!(status, Some(ConditionStatus::True));
}
