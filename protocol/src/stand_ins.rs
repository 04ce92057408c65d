//! For tests: an agent and an extender that record what they receive, and an in-memory network that can be cut and
//! frozen.

use crate::client::{Agent, Network};
use crate::convert::{Hello, Role, Unreadable};
use crate::limits::{PING_INTERVAL, TO_AGENT, WINDOW};
use crate::server::{Agents, Caller, Connection, Denied, End, Server};
use crate::socket::{self, Broken, Incoming};
use crate::wire::{FromAgent, ToAgent, from_agent, to_agent};
use axum::Router;
use http::{HeaderMap, StatusCode};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use kerf_core::contract::{Shape, SliceState, SliceStatus};
use kerf_core::ledger::{Answer, Change, Done, NodeState, Order, OrderKind, difference};
use kerf_core::names::{GpuUuid, NodeName, PodUid, SliceId};
use kerf_core::units::{MemoryMib, SizeGb};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::interval;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{IntervalStream, UnboundedReceiverStream};
use tokio_tungstenite::tungstenite;
use tokio_util::sync::CancellationToken;

pub const EXTENDER: &str = "10.0.0.1:9445";

pub fn hello(node: &str) -> Hello {
    Hello {
        node: NodeName::new(node),
        node_uid: "u1".to_owned(),
        boot_id: "b1".to_owned(),
        version: "0.1.0".to_owned(),
        instance: "i1".to_owned(),
        epoch: 0,
        window: WINDOW,
    }
}

pub fn slice(id: &str, size: u32) -> SliceStatus {
    SliceStatus {
        id: Some(SliceId::new(id)),
        gpu: GpuUuid::new("GPU-0"),
        shape: Shape::mps(SizeGb(size)),
        state: SliceState::Idle,
        memory: MemoryMib(1024),
        device: None,
        resource: None,
        ready_for: None,
        holder: None,
        message: None,
        reservation: None,
        leaving: false,
    }
}

pub fn state(slices: Vec<SliceStatus>) -> NodeState {
    let mut state = NodeState::default();
    state.status.slices = slices;
    state
}

pub fn whole(state: &NodeState) -> Change {
    difference(&NodeState::default(), state)
}

pub fn mark(epoch: u64, attempt: u64) -> Order {
    Order { epoch, kind: OrderKind::Mark { uid: PodUid::new("p1"), attempt } }
}

pub fn done(seconds: u64) -> Done {
    Done { lifetime: Duration::from_secs(seconds) }
}

/// Connections in memory. Each passes a relay that can be ended or stopped.
pub struct Memory {
    listed: Mutex<BTreeSet<SocketAddr>>,
    dialled: mpsc::UnboundedSender<DuplexStream>,
    relays: Mutex<Vec<JoinHandle<()>>>,
    pub dials: Mutex<Vec<SocketAddr>>,
    is_frozen: watch::Sender<bool>,
}

impl Memory {
    /// The network of an extender with these routes.
    pub fn serving(routes: Router) -> Arc<Self> {
        let (dialled, mut accepted) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(stream) = accepted.recv().await {
                let service = TowerToHyperService::new(routes.clone());
                let http = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(http.with_upgrades());
            }
        });
        Self::sending(dialled)
    }

    /// A network without a listener.
    pub fn refusing() -> Arc<Self> {
        Self::sending(mpsc::unbounded_channel().0)
    }

    fn sending(dialled: mpsc::UnboundedSender<DuplexStream>) -> Arc<Self> {
        Arc::new(Self {
            listed: Mutex::new([EXTENDER.parse().unwrap()].into()),
            dialled,
            relays: Mutex::default(),
            dials: Mutex::default(),
            is_frozen: watch::Sender::new(false),
        })
    }

    pub fn list(&self, addresses: &[&str]) {
        *self.listed.lock().unwrap() = addresses.iter().map(|address| address.parse().unwrap()).collect();
    }

    pub fn cut(&self) {
        self.relays.lock().unwrap().drain(..).for_each(|relay| relay.abort());
    }

    /// From now on nothing arrives, and neither end notices it.
    pub fn freeze(&self) {
        self.is_frozen.send_replace(true);
    }
}

impl Network for Memory {
    type Stream = DuplexStream;

    async fn resolve(&self) -> io::Result<BTreeSet<SocketAddr>> {
        Ok(self.listed.lock().unwrap().clone())
    }

    async fn connect(&self, extender: SocketAddr) -> io::Result<DuplexStream> {
        self.dials.lock().unwrap().push(extender);
        let (agent, mut near) = duplex(1 << 14);
        let (mut far, server) = duplex(1 << 14);
        self.dialled.send(server).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        let mut frozen = self.is_frozen.subscribe();
        let relay = async move {
            let until_frozen = async { drop(frozen.wait_for(|is_frozen| *is_frozen).await) };
            let has_ended = tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => true,
                () = until_frozen => false,
            };
            // A frozen connection stays open.
            if !has_ended {
                std::future::pending::<()>().await;
            }
        };
        self.relays.lock().unwrap().push(tokio::spawn(relay));
        Ok(agent)
    }

    async fn token(&self) -> io::Result<Option<String>> {
        Ok(Some("secret".to_owned()))
    }
}

#[derive(Debug)]
pub enum Event {
    Connected(Connection, Hello, Result<Change, Unreadable>),
    Changed(Result<Change, Unreadable>),
    Disconnected(u64, String),
}

/// An extender that authenticates callers with the token `secret` as this one.
pub struct Recorder {
    caller: Caller,
    /// The most slices that a node may report in one change.
    most: usize,
    events: mpsc::UnboundedSender<Event>,
}

impl Agents for Recorder {
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Denied> {
        if headers.get("authorization").is_none_or(|token| token != "Bearer secret") {
            return Err(Denied::new(StatusCode::UNAUTHORIZED, "the token is unknown"));
        }
        Ok(self.caller.clone())
    }

    fn connected(&self, connection: &Connection, hello: &Hello, state: Result<Change, Unreadable>) {
        let _ = self.events.send(Event::Connected(connection.clone(), hello.clone(), state));
    }

    fn changed(&self, _: &Connection, change: Result<Change, Unreadable>) -> Result<(), Unreadable> {
        let slices = change.as_ref().map_or(0, |change| change.slices.len());
        let _ = self.events.send(Event::Changed(change));
        if slices > self.most {
            Err(Unreadable::over_limit("change.slices", slices, self.most))
        } else {
            Ok(())
        }
    }

    fn disconnected(&self, connection: &Connection, end: &End) {
        let _ = self.events.send(Event::Disconnected(connection.id(), end.to_string()));
    }
}

pub struct Extender {
    pub server: Server<Recorder>,
    pub network: Arc<Memory>,
    pub stop: CancellationToken,
    pub events: mpsc::UnboundedReceiver<Event>,
}

impl Extender {
    pub fn start(caller: Caller) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let recorder = Recorder { caller, most: 2, events: sender };
        let server = Server::new(Arc::new(recorder), "e1", stop.clone());
        let network = Memory::serving(server.routes());
        Self { server, network, stop, events }
    }

    pub async fn connected(&mut self) -> (Connection, Hello, Result<Change, Unreadable>) {
        match self.events.recv().await.unwrap() {
            Event::Connected(connection, hello, state) => (connection, hello, state),
            event => panic!("{event:?}"),
        }
    }

    pub async fn changed(&mut self) -> Change {
        match self.events.recv().await.unwrap() {
            Event::Changed(change) => change.unwrap(),
            event => panic!("{event:?}"),
        }
    }

    pub async fn disconnected(&mut self) -> (u64, String) {
        match self.events.recv().await.unwrap() {
            Event::Disconnected(id, end) => (id, end),
            event => panic!("{event:?}"),
        }
    }
}

pub struct Node {
    hello: Hello,
    pub state: watch::Sender<Arc<NodeState>>,
    orders: mpsc::UnboundedSender<(Order, oneshot::Sender<Answer>)>,
    roles: mpsc::UnboundedSender<Option<Role>>,
}

pub struct Received {
    pub orders: mpsc::UnboundedReceiver<(Order, oneshot::Sender<Answer>)>,
    pub roles: mpsc::UnboundedReceiver<Option<Role>>,
}

impl Node {
    pub fn new(hello: Hello) -> (Arc<Self>, Received) {
        let (order, orders) = mpsc::unbounded_channel();
        let (role, roles) = mpsc::unbounded_channel();
        let state = watch::Sender::new(Arc::new(state(vec![slice("s1", 1)])));
        (Arc::new(Self { hello, state, orders: order, roles: role }), Received { orders, roles })
    }

    pub fn show(&self, slices: Vec<SliceStatus>) {
        self.state.send_replace(Arc::new(state(slices)));
    }
}

impl Agent for Node {
    fn hello(&self) -> Hello {
        self.hello.clone()
    }

    fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.subscribe()
    }

    fn role(&self, _: SocketAddr, role: Option<&Role>) {
        let _ = self.roles.send(role.cloned());
    }

    fn order(&self, order: Order) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        let _ = self.orders.send((order, answer));
        receiver
    }
}

/// An agent that sends whatever a test asks for, valid or not.
pub struct RawAgent {
    messages: mpsc::UnboundedSender<FromAgent>,
    incoming: Incoming<DuplexStream, ToAgent>,
}

impl RawAgent {
    /// Fails with the status and the text of the extender's answer.
    pub async fn dial(network: &Arc<Memory>, token: &str) -> Result<Self, (StatusCode, String)> {
        let stream = network.connect(EXTENDER.parse().unwrap()).await.unwrap();
        let socket = match socket::open(stream, Some(token), TO_AGENT).await {
            Ok(socket) => socket,
            Err(tungstenite::Error::Http(answer)) => {
                let text = String::from_utf8(answer.body().clone().unwrap()).unwrap();
                return Err((answer.status(), text));
            }
            Err(error) => panic!("{error}"),
        };
        let (sink, incoming) = socket::split(socket);
        let (messages, outgoing) = mpsc::unbounded_channel::<FromAgent>();
        let frames = UnboundedReceiverStream::new(outgoing).map(|message| socket::frame(&message));
        let pings = IntervalStream::new(interval(PING_INTERVAL)).map(|_| socket::ping());
        tokio::spawn(socket::send_all(frames.merge(pings), sink));
        Ok(Self { messages, incoming })
    }

    pub fn send(&self, message: from_agent::Message) {
        // The result is ignored, because the connection may have ended.
        let _ = self.messages.send(FromAgent { message: Some(message) });
    }

    pub async fn message(&mut self) -> to_agent::Message {
        self.incoming.message().await.unwrap().unwrap().message.unwrap()
    }

    pub async fn refusal(mut self) -> String {
        loop {
            match self.incoming.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return "closed".to_owned(),
                Err(Broken::Closed(reason)) => return reason,
                Err(broken) => panic!("{broken}"),
            }
        }
    }
}
