//! Binds on a node whose agent keeps its ledger, over a real connection to an agent that is simulated.

use super::*;
use crate::agents;
use crate::api_stand_in::{ApiStandIn, Fault, pod_path};
use crate::args::AgentsArgs;
use crate::filter::tests::{pod, unbound};
use crate::in_force::InForce;
use crate::metrics::Metrics;
use http::Method;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, NodePolicy};
use kerf_core::keys;
use kerf_core::ledger::{Answer, Limits, Moment, NodeState, Order, OrderKind};
use kerf_core::packing::Terms;
use kerf_core::testing::SimulatedNode;
use kerf_protocol::client::{self, Agent, Plain};
use kerf_protocol::convert::{Hello, Role};
use kerf_protocol::limits::WINDOW;
use kerf_runtime::shutdown::CancellationToken;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use tokio::sync::{oneshot, watch};

const GATE: Duration = Duration::from_secs(4);
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const EPOCH: u64 = 3;

/// An agent that cuts at once, or when it is told to.
struct SimulatedAgent {
    node: Mutex<SimulatedNode>,
    state: watch::Sender<Arc<NodeState>>,
    cuts: bool,
    /// The orders that it has received.
    orders: Mutex<Vec<Order>>,
}

impl SimulatedAgent {
    fn new(cuts: bool) -> Arc<Self> {
        let node = SimulatedNode::new(&["H100-80GB"], NodePolicy::default(), Limits::default());
        let state = watch::Sender::new(Arc::new(node.state()));
        Arc::new(Self { node: Mutex::new(node), state, cuts, orders: Mutex::default() })
    }

    fn node(&self) -> MutexGuard<'_, SimulatedNode> {
        self.node.lock().unwrap()
    }

    fn cut(&self) {
        let mut node = self.node();
        node.cut();
        self.state.send_replace(Arc::new(node.state()));
    }

    /// What it was ordered, in words.
    fn ordered(&self) -> Vec<&'static str> {
        let word = |order: &Order| match &order.kind {
            OrderKind::Reserve(_) => "reserve",
            OrderKind::Mark { .. } => "mark",
            OrderKind::Outcome { bound: true, .. } => "bound",
            OrderKind::Outcome { bound: false, .. } => "not bound",
            OrderKind::Release { .. } => "release",
        };
        self.orders.lock().unwrap().iter().map(word).collect()
    }

    /// Waits until it has been ordered so much.
    async fn was_ordered(&self, orders: &[&str]) {
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
        sender.send(answer).unwrap();
        receiver
    }
}

/// A leader with one node, and its agent.
struct Scene {
    api: Arc<ApiStandIn>,
    term: Arc<Term>,
    agent: Arc<SimulatedAgent>,
    /// Ends the agent.
    stop: CancellationToken,
}

impl Scene {
    async fn start(cuts: bool) -> Self {
        let api = ApiStandIn::new();
        // What the GpuNode says is not asked for: its agent writes it late.
        api.put_node("n", &GpuNodeSpec::default(), &GpuNodeStatus::default());
        let metrics = Metrics::new(&Arc::default()).0;
        let stop = CancellationToken::new();
        let term =
            Term::new(api.client(), metrics, EPOCH, Terms::default(), InForce::default(), stop.clone());
        term.with(|index| {
            index.nodes_listing();
            index.show_node(&api.node("n"));
            index.nodes_listed();
            index.pods_listing();
            index.pods_listed();
        });
        let args = AgentsArgs { agents_address: Some(([127, 0, 0, 1], 0).into()), agents_address_file: None };
        let listening = agents::listen(&term, &args, "e1").await.unwrap().unwrap();
        listening.lead(EPOCH);
        let agent = SimulatedAgent::new(cuts);
        let network = Plain { extenders: vec![listening.address().to_string()] };
        let stop = CancellationToken::new();
        tokio::spawn(client::run(Arc::clone(&agent), Arc::new(network), stop.clone()));
        let scene = Self { api, term, agent, stop };
        scene.connected(true).await;
        scene
    }

    async fn connected(&self, is_connected: bool) {
        let mut changes = self.term.watch_node(&"n".into());
        while self.term.with(|index| index.connection_of(&"n".into()).is_some()) != is_connected {
            changes.changed().await.unwrap();
        }
    }

    fn put_pod(&self, name: &str) {
        self.api.put_pod(name, None);
        self.term.with(|index| index.show_pod(unbound(&pod(name, SMALL))));
    }

    async fn bind(&self, name: &str, gate: Duration) -> Result<(), BindError> {
        let (uid, key) = (PodUid::new(format!("uid-{name}")), PodKey::new("default", name));
        bind(&self.term, Bind { uid, key, node: "n".into() }, gate).await
    }

    /// The node that the API server has bound a pod to.
    fn node_of(&self, name: &str) -> Option<String> {
        let pod = self.api.get(&pod_path(name)).unwrap();
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    }
}

#[tokio::test]
async fn a_pod_is_bound_after_one_order_and_one_mark() {
    let scene = Scene::start(true).await;
    scene.put_pod("a");
    scene.bind("a", GATE).await.unwrap();
    assert_eq!(scene.node_of("a").as_deref(), Some("n"));
    scene.agent.was_ordered(&["reserve", "mark", "bound"]).await;
    let written = [Method::PUT, Method::PATCH].map(|method| scene.api.requests(&method));
    assert_eq!(written, [0, 0], "the Binding is the only write in the pod's way");
    let annotations = scene.api.get(&pod_path("a")).unwrap()["metadata"]["annotations"].clone();
    let assignment = annotations[keys::ASSIGNMENT].as_str().unwrap();
    let assignment: serde_json::Value = serde_json::from_str(assignment).unwrap();
    let slices = scene.agent.node().ledger.desired().slices.clone();
    let ids: Vec<_> = slices.iter().map(|slice| slice.id.as_str()).collect();
    assert_eq!(ids, [assignment["slices"][0]["id"].as_str().unwrap()]);
}

#[tokio::test]
async fn pods_that_are_bound_at_once_get_each_a_slice() {
    let scene = Scene::start(true).await;
    let names: Vec<String> = (0..7).map(|number| format!("p{number}")).collect();
    names.iter().for_each(|name| scene.put_pod(name));
    let bound = futures::future::join_all(names.iter().map(|name| scene.bind(name, GATE))).await;
    assert!(bound.iter().all(Result::is_ok), "{bound:?}");
    scene.put_pod("one-more");
    let refused = scene.bind("one-more", GATE).await;
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    assert!(!scene.agent.ordered().contains(&"release"));
}

#[tokio::test]
async fn a_slice_that_is_cut_late_is_found_by_the_next_bind() {
    let scene = Scene::start(false).await;
    scene.put_pod("a");
    let late = scene.bind("a", Duration::from_millis(200)).await;
    assert!(matches!(late, Err(BindError::Agent(BindFailure::NotReady))), "{late:?}");
    let bound = scene.bind("a", GATE);
    let cut = async {
        scene.agent.was_ordered(&["reserve", "reserve"]).await;
        scene.agent.cut();
    };
    tokio::join!(bound, cut).0.unwrap();
    assert_eq!(scene.node_of("a").as_deref(), Some("n"));
    assert_eq!(scene.agent.node().ledger.desired().slices.len(), 1, "the reservation was renewed");
}

#[tokio::test]
async fn a_pod_whose_place_is_taken_is_fitted_once_more() {
    let scene = Scene::start(true).await;
    // The agent has reserved the best place for another, and its report is still to come.
    let other = scene.term.with(|index| {
        let (uid, key) = (PodUid::new("uid-b"), PodKey::new("default", "b"));
        index.show_pod(unbound(&pod("b", SMALL)));
        let proposal = index.propose(&uid, &key, &"n".into(), None).unwrap();
        let connection = index.connection_of(&"n".into()).unwrap();
        index.answered(&uid, &"n".into(), connection);
        Order { epoch: EPOCH, kind: OrderKind::Reserve(proposal) }
    });
    scene.agent.node().follow(&other, Moment::default()).unwrap();
    scene.put_pod("a");
    scene.bind("a", GATE).await.unwrap();
    scene.agent.was_ordered(&["reserve", "reserve", "mark", "bound"]).await;
}

#[tokio::test]
async fn the_agent_hears_of_a_binding_that_was_refused_and_not_of_one_without_an_answer() {
    for (fault, orders) in [
        (Fault::Answer(422), &["reserve", "mark", "not bound"][..]),
        (Fault::Answer(503), &["reserve", "mark"]),
    ] {
        let scene = Scene::start(true).await;
        scene.put_pod("a");
        scene.api.fail([fault]);
        let failed = scene.bind("a", GATE).await;
        assert!(matches!(failed, Err(BindError::Binding(_))), "{failed:?}");
        scene.agent.was_ordered(orders).await;
        let node = scene.agent.node();
        let reservation = node.ledger.reservation(&node.ledger.desired().slices[0].id).unwrap();
        assert_eq!(reservation.binding, fault == Fault::Answer(503));
    }
}

#[tokio::test]
async fn a_node_whose_agent_is_not_connected_takes_no_pods() {
    let scene = Scene::start(false).await;
    for name in ["a", "b"] {
        scene.put_pod(name);
    }
    let (open, _) = tokio::join!(scene.bind("a", GATE), async {
        scene.agent.was_ordered(&["reserve"]).await;
        scene.stop.cancel();
    });
    assert!(matches!(open, Err(BindError::Agent(BindFailure::Disconnected))), "{open:?}");
    scene.connected(false).await;
    let refused = scene.bind("b", GATE).await;
    assert!(matches!(refused, Err(BindError::Refused(Refusal::AgentNotReady))), "{refused:?}");
    assert_eq!(scene.api.requests(&Method::PATCH), 0, "nothing is promised by the GpuNode");
}

#[tokio::test]
async fn a_term_that_is_closing_sends_no_binding() {
    let scene = Scene::start(false).await;
    scene.put_pod("a");
    let (open, ()) = tokio::join!(scene.bind("a", GATE), async {
        scene.agent.was_ordered(&["reserve"]).await;
        scene.term.closing.cancel();
        scene.agent.cut();
    });
    assert!(matches!(open, Err(BindError::Agent(BindFailure::Deposed))), "{open:?}");
    assert_eq!(scene.api.requests(&Method::POST), 0);
    assert_eq!(scene.agent.ordered(), ["reserve"]);
}
