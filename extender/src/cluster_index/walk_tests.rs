//! Random walks of pods over a small cluster. In any order of events: no reservation of a bound pod is taken back while
//! it lives, each pod gets the kinds that its filter chose, no namespace exceeds its quota, and at rest all parts agree
//! on what is true.
//!
//! The walk simulates the world around the index: agents that keep their ledgers, report late and lose their
//! connections, the kubelet that lets pods take what is ready, and leaders that follow each other. Core's tests check
//! that an agent accepts no overlap, and the explorer (`tests/explorer`) checks lost and late orders.

use super::scene::{Agent, filter};
use super::*;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use crate::objects::template::Template;
use crate::scheduling::filter::{Candidate, prioritize};
use kerf_core::contract::{Chosen, GpuNodeStatus, RequestDocument, Wanted};
use kerf_core::kind::Kind;
use kerf_core::ledger::{BoundPod, Moment, Order, OrderKind, Proposal, reserved};
use kerf_core::names::PodKey;
use kerf_core::packing::{KindPlan, Terms};
use kerf_core::policy::Policies;
use kerf_core::quota::{Cap, Charge};
use kerf_core::request::{PodFacts, SelectingFields};
use kerf_core::static_node::Devices;
use kerf_core::testing::{node_status, request};
use kerf_core::units::SizeGb;
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: [(&str, &[&str]); 3] =
    [("h100", &["H100-80GB", "H100-80GB"]), ("a100", &["A100-40GB"]), ("t4", &["T4-16GB"])];
const ASKS: [&str; 9] = [
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-1g.5gb",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/mig-7g.80gb",
    "nvidia.com/gpu-8gb",
    "nvidia.com/gpu-4gb.shared",
    "kerf.dev/gpu-4gb",
    "kerf.dev/gpu-5gb",
    "kerf.dev/gpu-16gb",
];
/// The kinds that may serve a neutral name, by the number of the pod.
const KINDS: [&[Kind]; 3] =
    [&[Kind::Mps, Kind::Mig], &[Kind::Mig, Kind::TimeSlicing], &[Kind::TimeSlicing, Kind::Mps, Kind::Whole]];

/// The namespace with a quota, its policy, and what it may hold. A single H100 has more than that.
const TEAM: &str = "team";
const POLICY: &str = "shared";
const QUOTA: Cap = Cap { memory_gb: Some(70), slices: Some(6) };

#[derive(Debug, Clone)]
enum Step {
    /// A pod is created and filtered.
    Create {
        ask: usize,
        count: u32,
        team: bool,
    },
    /// The scheduler binds a pod to the node that it chose: a proposal is made, and its order is under way.
    Bind {
        pod: usize,
    },
    /// An agent receives the oldest order that is under way to it.
    Deliver {
        node: usize,
    },
    /// An agent reports what has changed.
    Report {
        node: usize,
    },
    /// An agent cuts what it can.
    Cut {
        node: usize,
    },
    /// A pod whose slices are reported as ready is marked, bound, and gets them allocated.
    Look {
        pod: usize,
    },
    /// All orders and reports of a node are delivered, it cuts, and its ready pods are bound.
    Settle {
        node: usize,
    },
    /// A node's connection ends with everything that was under way, and another begins.
    Reconnect {
        node: usize,
    },
    /// A node's agent becomes late with an answer, or stops being late. The pods that were sent there are filtered
    /// again.
    Unresponsive {
        node: usize,
        is_unresponsive: bool,
    },
    /// The watch shows a pod.
    WatchPod {
        pod: usize,
    },
    /// A pod is deleted, and its kubelet releases the devices.
    Delete {
        pod: usize,
    },
    Wait,
    /// A new leader starts, and the agents connect to it.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (pod, node) = (0_usize..64, 0..NODES.len());
    prop_oneof![
        4 => (0..ASKS.len(), 1_u32..3, any::<bool>()).prop_map(|(ask, count, team)| Step::Create { ask, count, team }),
        10 => pod.clone().prop_map(|pod| Step::Bind { pod }),
        8 => node.clone().prop_map(|node| Step::Deliver { node }),
        6 => node.clone().prop_map(|node| Step::Report { node }),
        4 => node.clone().prop_map(|node| Step::Cut { node }),
        6 => pod.clone().prop_map(|pod| Step::Look { pod }),
        6 => node.clone().prop_map(|node| Step::Settle { node }),
        1 => node.clone().prop_map(|node| Step::Reconnect { node }),
        2 => (node, any::<bool>()).prop_map(|(node, is_unresponsive)| Step::Unresponsive { node, is_unresponsive }),
        3 => pod.clone().prop_map(|pod| Step::WatchPod { pod }),
        2 => pod.prop_map(|pod| Step::Delete { pod }),
        1 => Just(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

#[derive(Debug, Clone)]
struct Pod {
    candidate: Candidate,
    /// The node that the scheduler chose.
    sent: Option<NodeName>,
    bound: Option<NodeName>,
}

struct World {
    index: ClusterIndex,
    epoch: u64,
    now: Instant,
    agents: BTreeMap<NodeName, Agent>,
    unresponsive: BTreeSet<NodeName>,
    /// Pods whose release on a node was lost with its connection. They are released again once they are seen elsewhere.
    astray: BTreeSet<(PodUid, NodeName)>,
    /// Orders that are under way, by node.
    orders: BTreeMap<NodeName, Vec<Order>>,
    pods: BTreeMap<PodUid, Pod>,
    created: usize,
    bindings: u64,
}

fn name(node: usize) -> NodeName {
    NodeName::new(NODES[node].0)
}

impl World {
    fn new() -> Self {
        let status = |gpus| GpuNodeStatus { neutral_up_to: Some(SizeGb(80)), ..node_status(gpus) };
        let agents = NODES.map(|(name, gpus)| (name.into(), Agent::of(name, status(gpus))));
        let mut world = Self {
            index: ClusterIndex::default(),
            epoch: 0,
            now: Instant::now(),
            agents: agents.into(),
            unresponsive: BTreeSet::new(),
            astray: BTreeSet::new(),
            orders: BTreeMap::new(),
            pods: BTreeMap::new(),
            created: 0,
            bindings: 0,
        };
        world.restart();
        world
    }

    fn restart(&mut self) {
        self.epoch += 1;
        (0..NODES.len()).for_each(|node| self.lose_orders(&name(node)));
        self.unresponsive.clear();
        self.index = ClusterIndex::new(self.epoch, Terms::default());
        self.index.nodes().set_policies(&policies());
        for (name, agent) in &mut self.agents {
            self.index.nodes().show_gpu_node(&super::scene::gpu_node(name.as_str()));
            agent.reconnect(&mut self.index);
        }
        self.index.nodes().end_gpu_node_list();
        self.index.begin_pod_list();
        for pod in self.pods.values() {
            self.index.show_pod(known(pod));
        }
        self.index.end_pod_list();
        self.index.take_over();
        self.follow_up();
    }

    /// Sends the ordered releases, and looks up the pods that the index has not confirmed.
    fn follow_up(&mut self) {
        let mut effects = self.index.take_effects();
        for uid in effects.unconfirmed {
            match self.pods.get(&uid) {
                Some(pod) => self.index.show_stray(known(pod)),
                None => self.index.pod_gone(&uid),
            }
        }
        effects.orders.extend(self.index.take_effects().orders);
        for NodeOrder { node, order, .. } in effects.orders {
            self.orders.entry(node).or_default().push(order);
        }
    }

    fn pick(&self, pod: usize) -> Option<PodUid> {
        self.pods.keys().nth(pod % self.pods.len().max(1)).cloned()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Create { ask, count, team } => {
                self.create(ASKS[*ask], *count, if *team { TEAM } else { "default" });
            }
            Step::Bind { pod } => {
                let unbound: Vec<_> =
                    self.pods.iter().filter(|(_, p)| p.bound.is_none()).map(|(uid, _)| uid.clone()).collect();
                if let Some(uid) = unbound.get(*pod % unbound.len().max(1)) {
                    self.bind(uid);
                }
            }
            Step::Deliver { node } => self.deliver(&name(*node)),
            Step::Report { node } => self.report(&name(*node)),
            Step::Cut { node } => self.agents.get_mut(&name(*node)).unwrap().node.cut(),
            Step::Look { pod } => self.pick(*pod).into_iter().for_each(|uid| self.look(&uid)),
            Step::Settle { node } => self.settle(&name(*node)),
            Step::Reconnect { node } => {
                self.lose_orders(&name(*node));
                let agent = self.agents.get_mut(&name(*node)).unwrap();
                self.index.nodes().agents().disconnect(&name(*node), agent.connection);
                agent.reconnect(&mut self.index);
            }
            Step::Unresponsive { node, is_unresponsive } => {
                self.set_unresponsive(&name(*node), *is_unresponsive);
            }
            Step::WatchPod { pod } => {
                if let Some(uid) = self.pick(*pod) {
                    self.index.show_pod(known(&self.pods[&uid]));
                }
            }
            Step::Delete { pod } => self.pick(*pod).into_iter().for_each(|uid| self.delete(&uid)),
            Step::Wait => self.now += Duration::from_secs(1),
            Step::Restart => self.restart(),
        }
        self.follow_up();
    }

    fn set_unresponsive(&mut self, name: &NodeName, is_unresponsive: bool) {
        if is_unresponsive {
            self.unresponsive.insert(name.clone());
        } else {
            self.unresponsive.remove(name);
        }
        self.index.nodes().agents().set_unresponsive(&self.unresponsive);
        let sent = self.pods.iter().filter(|(_, pod)| pod.bound.is_none() && pod.sent.as_ref() == Some(name));
        for uid in sent.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            self.schedule(&uid);
        }
    }

    fn lose_orders(&mut self, node: &NodeName) {
        for order in self.orders.remove(node).into_iter().flatten() {
            if let OrderKind::Release { uid, .. } = order.kind {
                self.astray.insert((uid, node.clone()));
            }
        }
    }

    /// Whether the release of a pod's reservation on a node is under way, or was lost.
    fn is_leaving(&self, uid: &PodUid, node: &NodeName) -> bool {
        let is_its = |order: &Order| matches!(&order.kind, OrderKind::Release { uid: of, .. } if of == uid);
        let is_under_way = self.orders.get(node).is_some_and(|orders| orders.iter().any(is_its));
        is_under_way || self.astray.contains(&(uid.clone(), node.clone()))
    }

    fn settle(&mut self, name: &NodeName) {
        while self.orders.get(name).is_some_and(|orders| !orders.is_empty()) {
            self.deliver(name);
        }
        self.agents.get_mut(name).unwrap().node.cut();
        self.report(name);
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.look(&uid);
        }
    }

    fn create(&mut self, resource: &str, count: u32, namespace: &str) {
        self.created += 1;
        let name = format!("p{:03}", self.created);
        // Other pods are charged by their facts, because their documents name no policy.
        let named = namespace == TEAM && count == 1;
        let chosen = named.then(|| Chosen { policy: POLICY.to_owned(), ..Chosen::default() });
        let mut document = RequestDocument { chosen, ..request(resource, count) };
        for container in document.containers.iter_mut().filter(|container| container.resource.is_neutral()) {
            container.kinds = KINDS[self.created % KINDS.len()].to_vec();
        }
        let facts = PodFacts::new(namespace, SelectingFields::default(), Vec::new());
        let ask = Ask::read(Some(&document.to_json())).map(|ask| ask.of(Arc::new(facts)));
        let candidate = Candidate {
            uid: PodUid::new(format!("uid-{name}")),
            key: PodKey::new(namespace, name),
            ask,
            devices: Devices::new(),
            tolerations: Vec::new(),
            nominated: None,
        };
        let uid = candidate.uid.clone();
        self.pods.insert(uid.clone(), Pod { candidate, sent: None, bound: None });
        self.schedule(&uid);
    }

    fn schedule(&mut self, uid: &PodUid) {
        let pod = self.pods[uid].candidate.clone();
        let names = NODES.map(|(name, _)| name);
        let fitting = filter(&mut self.index, &pod, &names, self.now).fitting;
        let scores = prioritize(&mut self.index, &pod, &fitting, self.now);
        let best = scores.into_iter().max_by_key(|(_, score)| *score).map(|(name, _)| NodeName::new(name));
        self.pods.get_mut(uid).unwrap().sent = best;
    }

    fn bind(&mut self, uid: &PodUid) {
        let pod = self.pods[uid].clone();
        let Some(node) = pod.sent.clone() else { return self.schedule(uid) };
        let expected = self.index.assumed.get(uid).map(|expected| expected.choice.plan.clone());
        let is_kept = self.index.place_of(uid).is_some();
        match self.index.reserving().propose(uid, &pod.candidate.key, &node, pod.candidate.ask.clone().ok()) {
            Ok(proposal) => {
                check_kinds(&pod, &proposal, expected.filter(|_| !is_kept));
                let order = Order { epoch: self.epoch, kind: OrderKind::Reserve(proposal) };
                self.orders.entry(node).or_default().push(order);
            }
            Err(_) => self.schedule(uid),
        }
    }

    fn deliver(&mut self, name: &NodeName) {
        let Some(orders) = self.orders.get_mut(name).filter(|orders| !orders.is_empty()) else { return };
        let order = orders.remove(0);
        let agent = self.agents.get_mut(name).unwrap();
        let answer = agent.node.follow(&order, Moment::default());
        agent.report(&mut self.index);
        match &order.kind {
            OrderKind::Reserve(Proposal { owner, .. }) if answer.is_ok() => {
                self.index.nodes().agents().answer(&owner.uid, name, agent.connection);
            }
            OrderKind::Reserve(Proposal { owner, .. }) => {
                self.index.reserving().reject(&owner.uid, name, agent.connection, self.now);
            }
            OrderKind::Release { uid, .. } => {
                self.index.nodes().agents().answer_release(uid, name, agent.connection);
            }
            OrderKind::Mark { .. } | OrderKind::Outcome { .. } => {}
        }
    }

    fn report(&mut self, name: &NodeName) {
        self.agents.get_mut(name).unwrap().report(&mut self.index);
    }

    /// Completes a bind that waits: it marks, binds, and sends the outcome to the agent; the kubelet allocates.
    fn look(&mut self, uid: &PodUid) {
        let pod = self.pods[uid].clone();
        let (Some(node), None) = (pod.sent, pod.bound) else { return };
        self.index.reserving().shown_slices(uid, &node);
        let Some(shown) = self.index.managed().get(&node).map(IndexedNode::status) else { return };
        let mut own = shown.slices.iter().filter(|s| s.reservation.as_ref().is_some_and(|r| r.uid == *uid));
        let is_ready = own.clone().next().is_some() && own.all(|slice| slice.ready_for.as_ref() == Some(uid));
        let agent = self.agents.get_mut(&node).unwrap();
        let epoch = self.epoch;
        self.bindings += 1;
        let mark = OrderKind::Mark { uid: uid.clone(), attempt: self.bindings };
        if !is_ready || agent.node.follow(&Order { epoch, kind: mark }, Moment::default()).is_err() {
            self.bindings -= 1;
            return;
        }
        let outcome = OrderKind::Outcome { uid: uid.clone(), attempt: self.bindings, bound: true };
        agent.node.follow(&Order { epoch, kind: outcome }, Moment::default()).unwrap();
        agent.node.allocate(uid);
        let alive = [(uid.clone(), BoundPod::Alive)].into();
        agent.node.ledger.pods(&alive, Moment::default());
        self.pods.get_mut(uid).unwrap().bound = Some(node.clone());
        self.index.bound(uid, &pod.candidate.key, &node);
    }

    /// Deletes a pod whose kubelet has released the devices. Its agent may learn of it first or last.
    fn delete(&mut self, uid: &PodUid) {
        let pod = self.pods.remove(uid).unwrap();
        if let Some(node) = &pod.bound {
            let agent = self.agents.get_mut(node).unwrap();
            agent.node.free(&pod.candidate.key.name);
            agent.node.ledger.pods(&[(uid.clone(), BoundPod::Ended)].into(), Moment::default());
        }
        self.index.hide_pod(&KnownPod { deleting: true, ..known(&pod) });
    }

    /// What a namespace's pods have, by the agents' ledgers.
    fn has(&self, namespace: &str) -> Charge {
        let pods = self.pods.iter().filter(|(_, pod)| pod.candidate.key.namespace == namespace);
        let charge =
            |uid| self.agents.values().map(move |agent| Charge::for_pod(agent.node.ledger.desired(), uid));
        pods.flat_map(|(uid, _)| charge(uid)).sum()
    }

    fn check(&self) {
        assert!(QUOTA.admits(self.has(TEAM)), "{TEAM} has {:?}", self.has(TEAM));
        for (uid, pod) in &self.pods {
            let Some(node) = &pod.bound else { continue };
            let containers = &pod.candidate.ask.as_ref().unwrap().document.containers;
            let wanted: u32 = containers.iter().map(|c| c.count).sum();
            for (name, agent) in &self.agents {
                let has = reserved(agent.node.ledger.desired(), uid).count();
                let expected = if name == node { usize::try_from(wanted).unwrap() } else { 0 };
                let is_leaving = name != node && self.is_leaving(uid, name);
                let key = &pod.candidate.key;
                assert!(has == expected || is_leaving, "{key}, bound on {node}, has {has} slices on {name}");
            }
        }
    }
}

/// Checks that every slice is of a kind that may serve its name, and of the kind that the pod's filter chose.
#[expect(clippy::needless_pass_by_value, reason = "it is what was expected of this pod alone")]
fn check_kinds(pod: &Pod, proposal: &Proposal, expected: Option<KindPlan>) {
    let document = &pod.candidate.ask.as_ref().unwrap().document;
    for place in &proposal.places {
        let kind = place.shape.kind();
        let container = document.containers.iter().find(|c| c.name == place.container).unwrap();
        assert!(container.may_be(kind), "{} got {kind} for {}", pod.candidate.key, container.resource);
        let chosen = expected.as_ref().and_then(|plan| plan.kind(container.resource));
        assert!(chosen.is_none_or(|chosen| chosen == kind), "{}: {chosen:?}, not {kind}", pod.candidate.key);
    }
}

/// Checks, once everything is delivered, that the copies equal the ledgers and that no gone pod has a reservation.
fn check_at_rest(world: &mut World) {
    world.unresponsive.clear();
    world.index.nodes().agents().set_unresponsive(&world.unresponsive);
    for pod in world.pods.values() {
        world.index.show_pod(known(pod));
    }
    for _ in 0..4 {
        // A pod may be gone before its proposal was accepted, which only a resync finds.
        world.index.resync(world.now);
        world.follow_up();
        for node in 0..NODES.len() {
            world.take(&Step::Settle { node });
        }
    }
    for (name, agent) in &world.agents {
        let (ledger, shown) = (agent.node.ledger.desired(), world.index.managed().get(name).unwrap());
        for slice in &ledger.slices {
            let reservation = slice.reservation.as_ref();
            assert!(
                reservation.is_none_or(|r| world.pods.contains_key(&r.uid)),
                "a pod that is gone has {slice:?}"
            );
            let copied = shown.wanted().find(|copied| *copied.id == slice.id).unwrap();
            let uid = |slice: Wanted<'_>| slice.reservation.map(|reservation| reservation.uid.clone());
            assert_eq!((copied.shape, uid(copied)), (slice.shape, uid(slice.into())));
        }
        assert_eq!(shown.wanted().count(), ledger.slices.len());
        assert!(shown.left().is_empty(), "pods that left still have slices here");
    }
    world.astray.clear();
    world.check();
}

fn known(pod: &Pod) -> KnownPod {
    let Candidate { uid, key, ask, .. } = pod.candidate.clone();
    let ask = ask.ok();
    let policy = |ask: &Ask| Some(ask.document.chosen.as_ref()?.policy.as_str().into());
    let template = Template {
        request: ask.as_ref().map(|ask| ask.text.clone()),
        policy: ask.as_ref().and_then(policy),
        facts: ask.map(|ask| ask.facts).unwrap_or_default(),
        ..Template::default()
    };
    KnownPod { node: pod.bound.clone(), ..KnownPod::new(uid, key, template) }
}

/// A policy for the namespace [`TEAM`], and none for others.
fn policies() -> Arc<Policies> {
    let document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": POLICY},
        "spec": {
            "match": {"namespaces": [TEAM]}, "defaultIsolation": "none", "isolation": {"none": ["mig"]}, "quota": QUOTA,
        },
    });
    let document: kerf_core::policy::PolicyDocument = serde_json::from_value(document).unwrap();
    Arc::new(Policies { pods: vec![document.try_into().unwrap()], nodes: Vec::new() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bound_pod_loses_its_reservation_and_no_quota_is_exceeded(steps in prop::collection::vec(step(), 1..250)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.check();
        }
        check_at_rest(&mut world);
    }
}

#[test]
fn the_walks_do_bind_pods() {
    let mut world = World::new();
    for n in 0..12 {
        world.take(&Step::Create { ask: n % ASKS.len(), count: 1, team: false });
    }
    for round in 0..24 {
        for step in [Step::Bind { pod: round }, Step::Deliver { node: 0 }] {
            world.take(&step);
        }
        for node in 0..NODES.len() {
            world.take(&Step::Settle { node });
        }
        world.check();
    }
    // At least: one whole GPU or the small slices on it, and one of the two kinds of share, also for pods with a
    // neutral name.
    assert!(world.bindings >= 6, "{} bound", world.bindings);
}

#[test]
fn a_reservation_whose_release_was_lost_is_released_when_its_agent_is_back() {
    let mut world = World::new();
    world.take(&Step::Create { ask: 7, count: 1, team: false });
    let uid = world.pick(0).unwrap();
    let bind = |world: &mut World| {
        let chosen = world.pods[&uid].sent.clone().unwrap();
        let node = (0..NODES.len()).find(|node| name(*node) == chosen).unwrap();
        world.take(&Step::Bind { pod: 0 });
        world.take(&Step::Deliver { node });
        node
    };
    let first = bind(&mut world);
    world.take(&Step::Unresponsive { node: first, is_unresponsive: true });
    let second = bind(&mut world);
    assert_ne!(first, second);
    world.take(&Step::Reconnect { node: first });
    assert_eq!(world.index.place_of(&uid), Some(&name(second)));
    world.take(&Step::Delete { pod: 0 });
    check_at_rest(&mut world);
}
