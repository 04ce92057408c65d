//! In tests, a leader with one node, whose simulated agent is connected over a real stream.

use crate::agents::{self, Access};
use crate::api_stand_in::ApiStandIn;
use crate::args::ExtenderArgs;
use crate::cluster_index::scene::gpu_node;
use crate::metrics::Metrics;
use crate::policy_source::PolicySource;
use crate::term::Term;
use clap::Parser;
use kerf_core::contract::{NodePolicy, SliceState};
use kerf_core::ledger::{Answer, Limits, Moment, NodeState, Order, OrderKind};
use kerf_core::packing::Terms;
use kerf_core::testing::SimulatedNode;
use kerf_protocol::client::{self, Agent, Plain};
use kerf_protocol::convert::{Hello, Role};
use kerf_protocol::limits::WINDOW;
use kerf_runtime::shutdown::CancellationToken;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

pub(crate) const EPOCH: u64 = 3;

/// An answer that is held back, and the channel for it.
type HeldAnswer = (oneshot::Sender<Answer>, Answer);

/// An agent that cuts at once, or when the test says so.
pub(crate) struct SimulatedAgent {
    node: Mutex<SimulatedNode>,
    state: watch::Sender<Arc<NodeState>>,
    cuts: bool,
    orders: Mutex<Vec<Order>>,
    /// The answers that it holds back; `None` while it answers at once.
    held: Mutex<Option<Vec<HeldAnswer>>>,
}

impl SimulatedAgent {
    fn new(cuts: bool) -> Arc<Self> {
        let node = SimulatedNode::new(&["H100-80GB"], NodePolicy::default(), Limits::default());
        let state = watch::Sender::new(Arc::new(node.state()));
        let (node, orders, held) = (Mutex::new(node), Mutex::default(), Mutex::default());
        Arc::new(Self { node, state, cuts, orders, held })
    }

    pub fn node(&self) -> MutexGuard<'_, SimulatedNode> {
        self.node.lock().unwrap()
    }

    pub fn cut(&self) {
        let mut node = self.node();
        node.cut();
        self.state.send_replace(Arc::new(node.state()));
    }

    /// Reports that it cannot make its slices.
    pub fn fail(&self, why: &str) {
        let mut state = self.node().state();
        for slice in &mut state.status.slices {
            (slice.state, slice.message) = (SliceState::Failed, Some(why.to_owned()));
        }
        self.state.send_replace(Arc::new(state));
    }

    /// Holds all answers back from now on.
    pub fn hold_answers(&self) {
        self.held.lock().unwrap().get_or_insert_default();
    }

    /// Sends the answers that it held back, and answers at once from now on.
    pub fn give_answers(&self) {
        let held = self.held.lock().unwrap().take();
        for (to, answer) in held.into_iter().flatten() {
            // The send fails if the connection has ended.
            let _ = to.send(answer);
        }
    }

    /// The received orders, as words.
    pub fn ordered(&self) -> Vec<&'static str> {
        let word = |order: &Order| match &order.kind {
            OrderKind::Reserve(_) => "reserve",
            OrderKind::Mark { .. } => "mark",
            OrderKind::Outcome { bound: true, .. } => "bound",
            OrderKind::Outcome { bound: false, .. } => "not bound",
            OrderKind::Release { .. } => "release",
        };
        self.orders.lock().unwrap().iter().map(word).collect()
    }

    /// Waits until it has received exactly these orders.
    pub async fn was_ordered(&self, orders: &[&str]) {
        for _ in 0..400 {
            if self.ordered() == orders {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.ordered(), orders);
    }
}

impl Agent for SimulatedAgent {
    fn hello(&self) -> Hello {
        let text = || "simulated".to_owned();
        Hello {
            node: "n".into(),
            node_uid: text(),
            boot_id: text(),
            version: text(),
            instance: text(),
            epoch: self.node().ledger.epoch(),
            window: WINDOW,
        }
    }

    fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.subscribe()
    }

    fn role(&self, _: SocketAddr, _: Option<&Role>) {}

    fn order(&self, order: Order) -> oneshot::Receiver<Answer> {
        let mut node = self.node();
        let answer = node.follow(&order, Moment::default());
        if self.cuts {
            node.cut();
        }
        self.state.send_replace(Arc::new(node.state()));
        self.orders.lock().unwrap().push(order);
        let (sender, receiver) = oneshot::channel();
        match &mut *self.held.lock().unwrap() {
            Some(held) => held.push((sender, answer)),
            None => sender.send(answer).unwrap(),
        }
        receiver
    }
}

/// A leader with one node `n`, which has an H100, and its agent.
pub(crate) struct Leader {
    pub api: Arc<ApiStandIn>,
    pub term: Arc<Term>,
    pub agent: Arc<SimulatedAgent>,
    pub stop: CancellationToken,
    address: SocketAddr,
}

impl Leader {
    /// Starts with an agent that cuts at once (`cuts`), or when the test says so.
    pub async fn start(metrics: Metrics, cuts: bool) -> Self {
        let api = ApiStandIn::new();
        let stop = CancellationToken::new();
        let term =
            Term::new(api.client(), metrics, EPOCH, Terms::default(), PolicySource::default(), stop.clone());
        term.with(|index| {
            index.nodes().show_gpu_node(&gpu_node("n"));
            index.nodes().end_gpu_node_list();
            index.end_pod_list();
            index.take_over();
        });
        let args = ["kerf-extender", "--agents-address=127.0.0.1:0", "--agents-unauthenticated"];
        let args = ExtenderArgs::parse_from(args).agents;
        let listening =
            agents::listen(&term.cluster, &args, &Arc::new(Access::Open), "e1", stop).await.unwrap().unwrap();
        listening.lead(EPOCH);
        let agent = SimulatedAgent::new(cuts);
        let (stop, address) = (CancellationToken::new(), listening.address());
        let mut scene = Self { api, term, agent, stop, address };
        scene.dial().await;
        scene
    }

    /// Connects the agent, for the first time or after its end.
    pub async fn dial(&mut self) {
        let network = Plain { extenders: vec![self.address.to_string()] };
        self.stop = CancellationToken::new();
        tokio::spawn(client::run(Arc::clone(&self.agent), Arc::new(network), self.stop.clone()));
        self.connected(true).await;
    }

    pub async fn connected(&self, is_connected: bool) {
        let mut changes = self.term.watch_node(&"n".into());
        while self.term.with(|index| index.managed().connection_of(&"n".into()).is_some()) != is_connected {
            changes.changed().await.unwrap();
        }
    }
}
