use crate::client;
use crate::convert::{read_change, write_order};
use crate::limits::{FROM_AGENT, PROTOCOL, SLICES, TO_AGENT, WINDOW};
use crate::socket::{self, Incoming};
use crate::stand_ins::{EXTENDER, Memory, Node, Received, done, hello, mark, slice, state};
use crate::wire::to_agent::Message;
use crate::wire::{self, FromAgent, Role, ToAgent, from_agent};
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kerf_core::ledger::{NodeState, OrderKind, Rejection};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;

/// An extender that sends whatever a test asks for, valid or not, and reads only on request.
fn raw_extender(connections: mpsc::UnboundedSender<Accepted>) -> Router {
    let connect = async move |request: Request<Body>| {
        assert_eq!(request.headers()["authorization"], "Bearer secret");
        let accepted = async move |socket| {
            let (sink, incoming) = socket::split(socket);
            let (messages, outgoing) = mpsc::unbounded_channel::<ToAgent>();
            let _ = connections.send(Accepted { incoming, messages });
            let frames = UnboundedReceiverStream::new(outgoing).map(|message| socket::frame(&message));
            // The agent may have left. That is no failure here, because tests make it leave.
            let _ = socket::send_all(frames, sink).await;
        };
        socket::accept(request, FROM_AGENT, accepted).unwrap()
    };
    Router::new().route(socket::PATH, get(connect))
}

struct Accepted {
    incoming: Incoming<TokioIo<Upgraded>, FromAgent>,
    messages: mpsc::UnboundedSender<ToAgent>,
}

impl Accepted {
    fn send(&self, message: Message) {
        let _ = self.messages.send(ToAgent { message: Some(message) });
    }

    fn send_role(&self, leads: bool, epoch: u64) {
        let identity = "e1".to_owned();
        self.send(Message::Role(Role { protocol: PROTOCOL, leads, epoch, identity }));
    }

    /// The agent's next message; `None` if it has closed the connection.
    async fn next(&mut self) -> Option<from_agent::Message> {
        self.incoming.message().await.ok().flatten().and_then(|message| message.message)
    }

    /// Reads everything from now on, because only an end that reads answers pings.
    fn read_on(mut self) -> mpsc::UnboundedSender<ToAgent> {
        tokio::spawn(async move { self.incoming.ended().await });
        self.messages
    }

    async fn answer(&mut self) -> wire::Answer {
        match self.next().await.unwrap() {
            from_agent::Message::Answer(answer) => answer,
            message => panic!("{message:?}"),
        }
    }
}

struct Scene {
    node: Arc<Node>,
    received: Received,
    network: Arc<Memory>,
    accepted: mpsc::UnboundedReceiver<Accepted>,
    stop: CancellationToken,
}

impl Scene {
    fn start() -> Self {
        let (sender, accepted) = mpsc::unbounded_channel();
        let network = Memory::serving(raw_extender(sender));
        let (node, received) = Node::new(hello("n1"));
        let stop = CancellationToken::new();
        tokio::spawn(client::run(Arc::clone(&node), Arc::clone(&network), stop.clone()));
        Self { node, received, network, accepted, stop }
    }

    async fn greeted(&mut self) -> Accepted {
        let mut accepted = self.accepted.recv().await.unwrap();
        assert!(matches!(accepted.next().await, Some(from_agent::Message::Hello(_))));
        accepted
    }

    /// Like [`Self::greeted`], but the extender leads in epoch 3.
    async fn led(&mut self) -> Accepted {
        let accepted = self.greeted().await;
        accepted.send_role(true, 3);
        // Earlier connections may have ended, which reports no role.
        while self.received.roles.recv().await.unwrap().is_none() {}
        accepted
    }
}

fn order(number: u64, epoch: u64) -> Message {
    Message::Order(write_order(number, &mark(epoch, number)))
}

#[tokio::test(start_paused = true)]
async fn an_agent_leaves_an_extender_that_breaks_the_protocol() {
    let role = |protocol| Message::Role(Role { protocol, leads: true, epoch: 3, identity: "e1".to_owned() });
    let large = || {
        let mut order = write_order(1, &mark(3, 1));
        let why = "y".repeat(TO_AGENT);
        order.order = Some(wire::order::Order::Release(wire::Release { uid: "u".to_owned(), why }));
        Message::Order(order)
    };
    let long = || {
        let mut order = write_order(1, &mark(3, 1));
        order.order = Some(wire::order::Order::Mark(wire::Mark { uid: "u".repeat(254), attempt: 1 }));
        Message::Order(order)
    };
    let many = (1..=u64::from(WINDOW) + 1).map(|number| order(number, 3));
    for (n, (messages, orders)) in [
        (vec![order(1, 3)], 0),
        (vec![role(2)], 0),
        (vec![role(1), order(2, 3)], 0),
        (vec![role(1), order(1, 3), order(1, 3)], 1),
        (vec![role(1), large()], 0),
        (vec![role(1), long()], 0),
        ([role(1)].into_iter().chain(many).collect(), 64),
        (vec![role(1), order(1, 3), role(0)], 1),
    ]
    .into_iter()
    .enumerate()
    {
        let mut scene = Scene::start();
        let mut accepted = scene.greeted().await;
        for message in messages {
            accepted.send(message);
        }
        let next = timeout(Duration::from_secs(1), accepted.next()).await;
        assert!(matches!(next, Ok(None)), "{n}: {next:?}");
        let mut received = 0;
        while scene.received.orders.try_recv().is_ok() {
            received += 1;
        }
        assert_eq!(received, orders, "{n}");
        scene.greeted().await;
        scene.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_leaves_an_extender_without_a_role_after_ten_seconds() {
    let mut scene = Scene::start();
    let mut accepted = scene.greeted().await;
    let began = Instant::now();
    assert!(accepted.next().await.is_none());
    assert_eq!(began.elapsed().as_secs(), 10);
    assert_eq!(scene.received.roles.recv().await, Some(None));
}

#[tokio::test(start_paused = true)]
async fn an_order_of_an_unknown_kind_is_answered_as_unreadable() {
    let mut scene = Scene::start();
    let mut accepted = scene.led().await;
    accepted.send(Message::Order(wire::Order { number: 1, epoch: 3, order: None }));
    let mut strange = write_order(2, &mark(3, 1));
    strange.order = Some(wire::order::Order::Mark(wire::Mark { uid: String::new(), attempt: 1 }));
    accepted.send(Message::Order(strange));
    for (number, text) in
        [(1, "order.order is missing or of an unknown kind"), (2, "order.mark.uid is missing")]
    {
        let answer = accepted.answer().await;
        let refused = wire::Refused { reason: wire::Reason::Unreadable.into(), text: text.to_owned() };
        assert_eq!(answer, wire::Answer { number, answer: Some(wire::answer::Answer::Refused(refused)) });
    }
    accepted.send(order(3, 3));
    let (_, answer) = scene.received.orders.recv().await.unwrap();
    answer.send(Ok(done(1))).unwrap();
    assert_eq!(accepted.answer().await.number, 3);
}

#[tokio::test(start_paused = true)]
async fn an_agent_hangs_up_on_a_leader_that_it_does_not_obey() {
    let refused = |answer: &wire::Answer| match &answer.answer {
        Some(wire::answer::Answer::Refused(refused)) => refused.reason == i32::from(wire::Reason::OldEpoch),
        _ => false,
    };
    // The replica's own role shows that it does not lead in this epoch.
    for (leads, epoch) in [(false, 0), (true, 4)] {
        let mut scene = Scene::start();
        let mut accepted = scene.greeted().await;
        accepted.send_role(leads, epoch);
        accepted.send(order(1, 3));
        accepted.send(order(2, 3));
        assert!(refused(&accepted.answer().await));
        assert!(accepted.next().await.is_none());
        assert!(scene.received.orders.try_recv().is_err());
        scene.greeted().await;
    }
    // The agent has received a higher epoch from another replica.
    let mut scene = Scene::start();
    let mut accepted = scene.led().await;
    accepted.send(order(1, 3));
    let (_, answer) = scene.received.orders.recv().await.unwrap();
    answer.send(Err(Rejection::OldEpoch)).unwrap();
    assert!(refused(&accepted.answer().await));
    assert!(accepted.next().await.is_none());
}

/// This holds even while an order is unanswered and the extender reads nothing.
#[tokio::test(start_paused = true)]
async fn an_agent_that_stops_ends_its_connections() {
    let mut scene = Scene::start();
    let mut accepted = scene.led().await;
    accepted.send(order(1, 3));
    let _unanswered = scene.received.orders.recv().await.unwrap();
    for n in 0..5000 {
        scene.node.show(vec![slice("s1", n + 1)]);
        tokio::task::yield_now().await;
    }
    scene.stop.cancel();
    assert_eq!(scene.received.roles.recv().await, Some(None));
    let ended = async { while accepted.next().await.is_some() {} };
    assert!(timeout(Duration::from_secs(1), ended).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_drops_an_answer_ends_the_connection() {
    let mut scene = Scene::start();
    let mut accepted = scene.led().await;
    accepted.send(order(1, 3));
    drop(scene.received.orders.recv().await.unwrap());
    assert!(accepted.next().await.is_none());
    scene.greeted().await;
}

/// A slow extender gets fewer and larger changes, and has the node's state in the end.
#[tokio::test(start_paused = true)]
async fn changes_are_computed_when_the_connection_takes_one() {
    const WRITES: u32 = 20_000;
    let mut scene = Scene::start();
    let mut accepted = scene.led().await;
    let write = |n: u32| scene.node.show(vec![slice("s1", n + 1), slice("s2", 1)]);
    for n in 0..WRITES {
        write(n);
        tokio::task::yield_now().await;
    }
    let mut copy = state(vec![slice("s1", 1)]);
    let mut changes = 0;
    let newest = state(vec![slice("s1", WRITES), slice("s2", 1)]);
    while sorted(&copy) != sorted(&newest) {
        let Some(from_agent::Message::Change(change)) = accepted.next().await else { panic!("no change") };
        changes += 1;
        assert_eq!(change.number, changes);
        assert!(change.slices.len() <= 2);
        read_change(change).unwrap().apply(&mut copy);
    }
    // The connection's buffers have room for a part of the writes only; the others are joined into later changes.
    assert!(changes > 1 && changes < u64::from(WRITES) / 4, "{changes} changes for {WRITES} writes");
    assert!(timeout(Duration::from_secs(1), accepted.next()).await.is_err());
    assert!(newest.status.slices.len() < SLICES);
}

fn sorted(state: &NodeState) -> Vec<String> {
    let mut slices: Vec<String> = state.status.slices.iter().map(|slice| format!("{slice:?}")).collect();
    slices.sort();
    slices
}

#[tokio::test(start_paused = true)]
async fn an_address_is_dialled_again_after_pauses_up_to_five_seconds() {
    let network = Memory::refusing();
    let (node, _received) = Node::new(hello("n1"));
    let stop = CancellationToken::new();
    let dialling = tokio::spawn(client::run(node, Arc::clone(&network), stop.clone()));
    sleep(Duration::from_secs(2)).await;
    let at_first = network.dials.lock().unwrap().len();
    sleep(Duration::from_secs(1000)).await;
    let dials = network.dials.lock().unwrap().len() - at_first;
    // The pauses are 2.5 s on average.
    assert!((300..=500).contains(&dials), "{dials} dials");
    assert!((2..60).contains(&at_first), "{at_first} dials at first");
    stop.cancel();
    dialling.await.unwrap();
    let ended = network.dials.lock().unwrap().len();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(network.dials.lock().unwrap().len(), ended);
}

#[tokio::test(start_paused = true)]
async fn each_listed_address_has_one_connection_and_is_not_dialled_once_it_is_unlisted() {
    let mut scene = Scene::start();
    let first = scene.led().await.read_on();
    scene.network.list(&[EXTENDER, "10.0.0.2:9445"]);
    let second = scene.led().await.read_on();
    sleep(Duration::from_mins(1)).await;
    assert!(scene.accepted.try_recv().is_err());

    // The connection lives on although its address is no longer listed.
    scene.network.list(&["10.0.0.2:9445"]);
    sleep(Duration::from_mins(1)).await;
    first.send(ToAgent { message: Some(order(1, 3)) }).unwrap();
    let (received, _answer) = scene.received.orders.recv().await.unwrap();
    assert_eq!(received.kind, OrderKind::Mark { uid: "p1".into(), attempt: 1 });
    drop((first, second));
    scene.network.cut();
    let dials = scene.network.dials.lock().unwrap().len();
    scene.led().await;
    let again = scene.network.dials.lock().unwrap()[dials..].to_vec();
    assert!(!again.is_empty() && again.iter().all(|address| address.to_string() != EXTENDER), "{again:?}");
}
