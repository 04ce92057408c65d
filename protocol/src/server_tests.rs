use crate::client;
use crate::convert::{Hello, write_answer, write_change, write_hello};
use crate::limits::{FROM_AGENT, NOT_GREETED, SLICES};
use crate::server::{Caller, Disconnected, NotSent, Reply};
use crate::stand_ins::{Event, Extender, Node, RawAgent, Received, done, hello, mark, slice, state, whole};
use crate::wire::from_agent::Message;
use crate::wire::{self, Role, to_agent};
use http::StatusCode;
use kerf_core::ledger::Change;
use kerf_core::names::NodeName;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const MOMENT: Duration = Duration::from_secs(1);

struct Pair {
    extender: Extender,
    node: Arc<Node>,
    received: Received,
    stop: CancellationToken,
}

impl Pair {
    fn start(window: u32) -> Self {
        let extender = Extender::start(Caller::Anyone);
        extender.server.lead(3);
        let (node, received) = Node::new(Hello { window, ..hello("n1") });
        let stop = CancellationToken::new();
        tokio::spawn(client::run(Arc::clone(&node), Arc::clone(&extender.network), stop.clone()));
        Self { extender, node, received, stop }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_says_hello_reports_changes_and_answers_orders() {
    let mut pair = Pair::start(64);
    let (connection, said, first) = pair.extender.connected().await;
    assert_eq!((said, first), (hello("n1"), Ok(whole(&state(vec![slice("s1", 1)])))));
    let role = pair.received.roles.recv().await.unwrap().unwrap();
    assert_eq!((role.leads, role.epoch, role.identity.as_str()), (true, 3, "e1"));

    pair.node.show(vec![slice("s2", 1)]);
    let change = pair.extender.changed().await;
    assert_eq!(change.slices, [slice("s2", 1)]);
    assert_eq!(change.gone.len(), 1);

    let reply = connection.slot().await.unwrap().send(&mark(3, 1)).unwrap();
    let (order, answer) = pair.received.orders.recv().await.unwrap();
    assert_eq!(order, mark(3, 1));
    answer.send(Ok(done(60))).unwrap();
    assert_eq!(reply.await, Ok(Ok(done(60))));

    pair.stop.cancel();
    assert_eq!(pair.extender.disconnected().await.0, connection.id());
    assert_eq!(pair.received.roles.recv().await, Some(None));
    assert_eq!(connection.slot().await.err(), Some(Disconnected));
}

/// Otherwise a proposal would end before the extender's copy has its reservation, and its place would look free in
/// between.
#[tokio::test(start_paused = true)]
async fn the_change_of_an_order_comes_before_its_answer() {
    let mut pair = Pair::start(64);
    let (connection, ..) = pair.extender.connected().await;
    for n in 0..50 {
        let mut replies = Vec::new();
        for attempt in 0..3 {
            replies.push(connection.slot().await.unwrap().send(&mark(3, attempt)).unwrap());
        }
        let node = Arc::clone(&pair.node);
        for attempt in 0..3 {
            let (_, answer) = pair.received.orders.recv().await.unwrap();
            node.show(vec![slice(&format!("s{n}-{attempt}"), 1)]);
            answer.send(Ok(done(attempt))).unwrap();
        }
        for reply in replies {
            reply.await.unwrap().unwrap();
        }
        let mut copy = state(Vec::new());
        while let Ok(event) = pair.extender.events.try_recv() {
            if let Event::Changed(change) = event {
                change.unwrap().apply(&mut copy);
            }
        }
        assert_eq!(copy.status.slices, [slice(&format!("s{n}-2"), 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_agents_window_limits_the_unanswered_orders() {
    let mut pair = Pair::start(2);
    let (connection, ..) = pair.extender.connected().await;
    let first = connection.slot().await.unwrap().send(&mark(3, 1)).unwrap();
    // Dropping the reply does not withdraw the order.
    drop(connection.slot().await.unwrap().send(&mark(3, 2)).unwrap());
    assert!(timeout(MOMENT, connection.slot()).await.is_err());

    let (order, answer) = pair.received.orders.recv().await.unwrap();
    assert_eq!(order, mark(3, 1));
    answer.send(Ok(done(1))).unwrap();
    assert_eq!(first.await, Ok(Ok(done(1))));
    // A slot that is dropped unused takes no place.
    drop(connection.slot().await.unwrap());
    let third = connection.slot().await.unwrap().send(&mark(3, 3)).unwrap();
    assert!(timeout(MOMENT, connection.slot()).await.is_err());
    let (second, second_answer) = pair.received.orders.recv().await.unwrap();
    let (order, answer) = pair.received.orders.recv().await.unwrap();
    assert_eq!((second, order), (mark(3, 2), mark(3, 3)));
    answer.send(Ok(done(3))).unwrap();
    let mut third = third;
    assert!(timeout(MOMENT, &mut third).await.is_err());
    second_answer.send(Ok(done(2))).unwrap();
    assert_eq!(third.await, Ok(Ok(done(3))));
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_fails_its_unanswered_orders() {
    let mut pair = Pair::start(64);
    let (old, ..) = pair.extender.connected().await;
    let reply = old.slot().await.unwrap().send(&mark(3, 1)).unwrap();
    let (_, late) = pair.received.orders.recv().await.unwrap();
    let kept = old.slot().await.unwrap();
    pair.node.show(vec![slice("s2", 1)]);
    pair.extender.changed().await;
    pair.extender.network.cut();

    assert_eq!(reply.await, Err(Disconnected));
    assert_eq!(pair.extender.disconnected().await.0, old.id());
    assert_eq!(kept.send(&mark(3, 2)).err(), Some(NotSent::Disconnected(Disconnected)));
    let (new, _, state_now) = pair.extender.connected().await;
    assert!(new.id() > old.id());
    assert_eq!(state_now, Ok(whole(&state(vec![slice("s2", 1)]))));
    let _ = late.send(Ok(done(1)));
    let reply = new.slot().await.unwrap().send(&mark(3, 7)).unwrap();
    let (order, answer) = pair.received.orders.recv().await.unwrap();
    assert_eq!(order, mark(3, 7));
    answer.send(Ok(done(7))).unwrap();
    assert_eq!(reply.await, Ok(Ok(done(7))));
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_peer_is_left_within_two_ping_intervals() {
    let mut pair = Pair::start(64);
    let (connection, ..) = pair.extender.connected().await;
    pair.received.roles.recv().await.unwrap();
    pair.extender.network.freeze();
    let began = Instant::now();
    assert_eq!(pair.received.roles.recv().await, Some(None));
    let agent = began.elapsed();
    assert_eq!(pair.extender.disconnected().await.0, connection.id());
    let extender = began.elapsed();
    for silent in [agent, extender] {
        assert!(silent > Duration::from_secs(4) && silent < Duration::from_secs(11), "{silent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_is_unanswered_from_when_it_is_sent_until_its_answer() {
    let mut pair = Pair::start(64);
    let (connection, ..) = pair.extender.connected().await;
    assert_eq!(connection.unanswered_since(), None);
    let first = Instant::now();
    let mut replies = Vec::new();
    for attempt in [1, 2] {
        replies.push(connection.slot().await.unwrap().send(&mark(3, attempt)).unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for (number, reply) in (0..).zip(replies) {
        assert_eq!(connection.unanswered_since(), Some(first + Duration::from_secs(number)));
        let (_, answer) = pair.received.orders.recv().await.unwrap();
        answer.send(Ok(done(1))).unwrap();
        reply.await.unwrap().unwrap();
    }
    assert_eq!(connection.unanswered_since(), None);
}

#[tokio::test(start_paused = true)]
async fn orders_are_sent_only_in_the_epoch_of_the_last_role() {
    let mut pair = Pair::start(64);
    let (connection, ..) = pair.extender.connected().await;
    let roles = &mut pair.received.roles;
    assert_eq!(roles.recv().await.unwrap().map(|role| (role.leads, role.epoch)), Some((true, 3)));
    pair.extender.server.follow();
    assert_eq!(connection.slot().await.unwrap().send(&mark(3, 1)).err(), Some(NotSent::NotLeading(3)));
    pair.extender.server.lead(5);
    assert_eq!(connection.slot().await.unwrap().send(&mark(3, 1)).err(), Some(NotSent::NotLeading(3)));
    let reply = connection.slot().await.unwrap().send(&mark(5, 1)).unwrap();
    let (_, answer) = pair.received.orders.recv().await.unwrap();
    // Roles and orders share one ordered connection, so both roles are here without waiting.
    let reported = [roles.try_recv().unwrap(), roles.try_recv().unwrap()];
    assert_eq!(
        reported.map(|role| role.map(|role| (role.leads, role.epoch))),
        [Some((false, 0)), Some((true, 5))]
    );
    answer.send(Ok(done(1))).unwrap();
    assert_eq!(reply.await, Ok(Ok(done(1))));
}

fn greeting() -> Message {
    Message::Hello(write_hello(hello("n1"), &Change::default()))
}

fn greeting_with(change: impl FnOnce(&mut wire::Hello)) -> Message {
    let mut hello = write_hello(hello("n1"), &Change::default());
    change(&mut hello);
    Message::Hello(hello)
}

fn change(number: u64, slices: usize) -> Message {
    let slices = (0..slices).map(|n| slice(&format!("s{n}"), 1)).collect();
    Message::Change(write_change(number, &Change { slices, ..Change::default() }))
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_breaks_the_protocol_is_refused_with_the_field() {
    let large = |change: &mut wire::Hello| {
        change.state.as_mut().unwrap().policy = Some(vec![b' '; FROM_AGENT]);
    };
    let too_many = |hello: &mut wire::Hello| {
        hello.state.as_mut().unwrap().gone = vec!["s".to_owned(); SLICES + 1];
    };
    let broken = "agent broke the protocol: ";
    for (messages, refusal) in [
        (vec![change(1, 1)], format!("{broken}hello is not the first message")),
        (vec![greeting(), greeting()], format!("{broken}hello came a second time")),
        (
            vec![greeting_with(|hello| hello.protocol = 2)],
            format!("{broken}hello.protocol is 2; this version speaks 1"),
        ),
        (vec![greeting_with(|hello| hello.node.clear())], format!("{broken}hello.node is missing")),
        (
            vec![greeting_with(|hello| hello.window = 0)],
            format!("{broken}hello.window is 0; no order could be sent"),
        ),
        (
            vec![greeting_with(too_many)],
            format!("{broken}hello.state.gone has 4097 entries; at most 4096 are read"),
        ),
        // The agent is still writing this message when the extender ends the connection, so it reads no reason.
        (vec![greeting_with(large)], "closed".to_owned()),
        (
            vec![greeting_with(|hello| hello.node = "n2".to_owned())],
            "hello.node is n2, but the token is of the agent of n1".to_owned(),
        ),
        (vec![greeting(), change(2, 1)], format!("{broken}change.number is 2; 1 was expected")),
        (vec![greeting(), change(1, 1), change(1, 1)], format!("{broken}change.number is 1; 2 was expected")),
        (
            vec![greeting(), change(1, SLICES + 1)],
            format!("{broken}change.slices has 4097 entries; at most 4096 are read"),
        ),
        // The recorder has a limit of its own for the slices of its copy.
        (vec![greeting(), change(1, 3)], format!("{broken}change.slices has 3; at most 2 are read")),
        (
            vec![greeting(), Message::Answer(write_answer(7, &Ok(done(1))))],
            format!("{broken}answer.number is 7, of no unanswered order"),
        ),
    ] {
        let extender = Extender::start(Caller::Node(NodeName::new("n1")));
        let agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
        for message in messages {
            agent.send(message);
        }
        assert_eq!(agent.refusal().await, refusal);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_is_authenticated_before_its_first_message_is_read() {
    let mut extender = Extender::start(Caller::Node(NodeName::new("n1")));
    let refused = RawAgent::dial(&extender.network, "forged").await.err().unwrap();
    assert_eq!(refused, (StatusCode::UNAUTHORIZED, "the token is unknown".to_owned()));
    let agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
    agent.send(greeting());
    assert_eq!(extender.connected().await.0.node(), &NodeName::new("n1"));
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_hello_ends_after_five_seconds() {
    let extender = Extender::start(Caller::Anyone);
    let agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
    let began = Instant::now();
    assert_eq!(agent.refusal().await, "agent sent no hello within 5 s");
    assert_eq!(began.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn connections_without_a_hello_are_limited() {
    let mut extender = Extender::start(Caller::Anyone);
    let mut open = Vec::new();
    for _ in 0..NOT_GREETED {
        open.push(RawAgent::dial(&extender.network, "secret").await.unwrap());
    }
    let refused = RawAgent::dial(&extender.network, "secret").await.err().unwrap();
    let full = "too many agents have not said hello yet".to_owned();
    assert_eq!(refused, (StatusCode::SERVICE_UNAVAILABLE, full));
    open[0].send(greeting());
    let _ = extender.connected().await;
    assert!(RawAgent::dial(&extender.network, "secret").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_newest_hello_of_a_node_is_served_after_the_one_before_has_ended() {
    let mut extender = Extender::start(Caller::Anyone);
    extender.server.lead(3);
    let mut last: Option<(u64, Reply, RawAgent)> = None;
    for n in 0..3 {
        let mut agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
        agent.send(greeting_with(|hello| hello.instance = format!("i{n}")));
        if let Some((id, reply, old)) = last.take() {
            let (ended, why) = extender.disconnected().await;
            assert_eq!((ended, why.as_str()), (id, "agent of the node has connected again"));
            assert_eq!(reply.await, Err(Disconnected));
            assert_eq!(old.refusal().await, "agent of the node has connected again");
        }
        let (connection, hello, _) = extender.connected().await;
        assert_eq!(hello.instance, format!("i{n}"));
        assert!(matches!(agent.message().await, to_agent::Message::Role(Role { leads: true, epoch: 3, .. })));
        let reply = connection.slot().await.unwrap().send(&mark(3, n)).unwrap();
        assert!(matches!(agent.message().await, to_agent::Message::Order(order) if order.number == 1));
        last = Some((connection.id(), reply, agent));
    }
    // Agents of other nodes do not affect this one.
    let other = RawAgent::dial(&extender.network, "secret").await.unwrap();
    other.send(greeting_with(|hello| hello.node = "n2".to_owned()));
    assert_eq!(extender.connected().await.0.node(), &NodeName::new("n2"));
    assert!(extender.events.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_state_of_another_version_is_reported_and_ends_no_connection() {
    let mut extender = Extender::start(Caller::Anyone);
    let mut agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
    let mut strange = write_change(0, &whole(&state(vec![slice("s1", 1)])));
    strange.slices[0].state = 17;
    agent.send(greeting_with(|hello| hello.state = Some(strange.clone())));
    let (_, _, unreadable) = extender.connected().await;
    assert_eq!(unreadable.unwrap_err().to_string(), "hello.state.slices[0].state has the unknown value 17");
    // A copy that lacks a slice cannot be updated by changes.
    agent.send(change(1, 1));
    assert!(matches!(agent.message().await, to_agent::Message::Role(_)));
    assert!(timeout(MOMENT, extender.events.recv()).await.is_err());

    let agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
    agent.send(greeting());
    extender.disconnected().await;
    let _ = extender.connected().await;
    agent.send(change(1, 1));
    extender.changed().await;
    agent.send(Message::Change(wire::Change { number: 2, ..strange }));
    let unreadable = extender.events.recv().await.unwrap();
    assert!(format!("{unreadable:?}").contains("change.slices[0].state"), "{unreadable:?}");
}

#[tokio::test(start_paused = true)]
async fn an_old_connection_ends_once_no_order_is_unanswered() {
    let mut extender = Extender::start(Caller::Anyone);
    extender.server.lead(3);
    let mut agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
    agent.send(greeting());
    let (connection, ..) = extender.connected().await;
    assert!(matches!(agent.message().await, to_agent::Message::Role(_)));
    let reply = connection.slot().await.unwrap().send(&mark(3, 1)).unwrap();
    assert!(matches!(agent.message().await, to_agent::Message::Order(_)));
    sleep(Duration::from_mins(71)).await;
    assert!(extender.events.try_recv().is_err());
    agent.send(Message::Answer(write_answer(1, &Ok(done(1)))));
    assert_eq!(reply.await, Ok(Ok(done(1))));
    let ended = timeout(2 * MOMENT, extender.disconnected()).await.unwrap();
    assert_eq!(ended.1, "connection reached its age limit");
    assert_eq!(connection.slot().await.err(), Some(Disconnected));
}

#[tokio::test(start_paused = true)]
async fn an_extender_that_stops_ends_its_connections() {
    let mut extender = Extender::start(Caller::Anyone);
    let agent = RawAgent::dial(&extender.network, "secret").await.unwrap();
    let silent = RawAgent::dial(&extender.network, "secret").await.unwrap();
    agent.send(greeting());
    let _ = extender.connected().await;
    extender.stop.cancel();
    assert_eq!(extender.disconnected().await.1, "extender stops");
    assert_eq!(agent.refusal().await, "extender stops");
    assert_eq!(silent.refusal().await, "extender stops");
}
