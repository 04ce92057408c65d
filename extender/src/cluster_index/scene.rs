//! A cluster for tests: an index, and simulated agents of its nodes that report over connections.

use super::{ClusterIndex, Unreservable};
use crate::objects::ask::Ask;
use crate::scheduling::filter::{self, Candidate, Filtered, Unserved};
use kerf_core::contract::{GpuNodeStatus, NodePolicy, SliceStatus};
use kerf_core::ledger::{
    BoundPod, Change, Limits, Moment, NodeState, Order, OrderKind, Proposal, difference,
};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Terms;
use kerf_core::testing::{SimulatedNode, node_status};
use kerf_runtime::gpu_node::GpuNode;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// The agent of one node, with the id of its connection.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    name: NodeName,
    pub node: SimulatedNode,
    pub connection: u64,
    shown: NodeState,
}

impl Agent {
    /// The agent of a node with these GPUs, which is not connected yet.
    pub fn of(name: &str, status: GpuNodeStatus) -> Self {
        let node = SimulatedNode::from_status(status, NodePolicy::default(), Limits::default());
        Self { name: name.into(), node, connection: 1, shown: NodeState::default() }
    }

    /// The agent of a node with one H100. The index has its GpuNode and first report.
    pub fn connected(index: &mut ClusterIndex, name: &str) -> Self {
        let mut agent = Self::of(name, node_status(&["H100-80GB"]));
        index.nodes().show_gpu_node(&gpu_node(name));
        agent.report(index);
        agent
    }

    /// Reports what has changed since the last report over the connection.
    pub fn report(&mut self, index: &mut ClusterIndex) {
        let state = self.node.state();
        index.nodes().agents().report(&self.name, self.connection, difference(&self.shown, &state));
        self.shown = state;
    }

    /// Reports everything over a new connection.
    pub fn reconnect(&mut self, index: &mut ClusterIndex) {
        self.connection += 1;
        self.shown = NodeState::default();
        self.report(index);
    }

    /// Follows an order, reports, and answers.
    pub fn follow(&mut self, index: &mut ClusterIndex, order: &Order) {
        let answer = self.node.follow(order, Moment::default());
        self.report(index);
        if let OrderKind::Reserve(Proposal { owner, .. }) = &order.kind {
            answer.unwrap();
            index.nodes().agents().answer(&owner.uid, &self.name, self.connection);
        } else if let OrderKind::Release { uid, .. } = &order.kind {
            index.nodes().agents().answer_release(uid, &self.name, self.connection);
        }
    }

    /// Does what a bind does until the agent has accepted its proposal.
    pub fn reserve(
        &mut self,
        index: &mut ClusterIndex,
        uid: &PodUid,
        key: &PodKey,
        ask: Option<Ask>,
    ) -> Result<Proposal, Unreservable> {
        let proposal = index.reserving().propose(uid, key, &self.name, ask)?;
        let order = Order { epoch: index.leadership().epoch(), kind: OrderKind::Reserve(proposal.clone()) };
        self.follow(index, &order);
        Ok(proposal)
    }
}

/// The GpuNode of this name, as its agent has just created it.
pub(crate) fn gpu_node(name: &str) -> GpuNode {
    let mut node = GpuNode::new(&name.into());
    node.metadata.uid = Some(format!("object-{name}"));
    node
}

/// Filters for a pod and makes room for it, as the answer to a filter request does.
pub(crate) fn filter<'n>(
    index: &mut ClusterIndex,
    pod: &Candidate,
    offered: &[&'n str],
    now: Instant,
) -> Filtered<'n> {
    let filtered = filter::filter(index, pod, offered, now);
    if let Some(Unserved { owner, ask }) = &filtered.unserved {
        index.room_maker().make_room(owner, ask, offered, now);
    }
    filtered
}

/// An index and its nodes' agents. It dereferences to the index; its own methods are for steps that involve an agent.
#[derive(Debug)]
pub(crate) struct Scene {
    index: ClusterIndex,
    agents: BTreeMap<NodeName, Agent>,
}

impl Deref for Scene {
    type Target = ClusterIndex;

    fn deref(&self) -> &ClusterIndex {
        &self.index
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut ClusterIndex {
        &mut self.index
    }
}

impl Scene {
    /// A leader's cluster of these nodes with these GPUs, before anything was listed.
    pub fn new(nodes: &[(&str, &[&str])]) -> Self {
        let mut scene = Self { index: ClusterIndex::new(1, Terms::default()), agents: BTreeMap::new() };
        for (name, models) in nodes {
            scene.add(name, node_status(models));
        }
        scene
    }

    /// The same, listed: the leader answers.
    pub fn leading(nodes: &[(&str, &[&str])]) -> Self {
        let mut scene = Self::new(nodes);
        scene.begin();
        scene
    }

    /// Ends the lists, so that the leader answers.
    pub fn begin(&mut self) {
        self.index.nodes().end_gpu_node_list();
        self.index.end_pod_list();
        self.index.take_over();
        self.index.take_effects();
    }

    /// Another leader with the same agents, which have not connected to it yet.
    pub fn succeeded_by(self, index: ClusterIndex) -> Self {
        let mut scene = Self { index, ..self };
        for (name, agent) in &mut scene.agents {
            scene.index.nodes().show_gpu_node(&gpu_node(name.as_str()));
            agent.connection = 0;
        }
        scene
    }

    pub fn connect(&mut self) {
        self.agents.values_mut().for_each(|agent| agent.reconnect(&mut self.index));
    }

    /// Adds a node with these GPUs, on which nothing is cut. It replaces a node of the same name.
    pub fn add(&mut self, name: &str, status: GpuNodeStatus) {
        let connection = self.agents.get(name).map_or(0, |agent| agent.connection);
        let mut agent = Agent { connection, ..Agent::of(name, status) };
        self.index.nodes().show_gpu_node(&gpu_node(name));
        agent.reconnect(&mut self.index);
        self.agents.insert(name.into(), agent);
    }

    pub fn agent(&mut self, name: &str) -> &mut Agent {
        self.agents.get_mut(name).unwrap()
    }

    pub fn report(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).unwrap();
        agent.report(&mut self.index);
    }

    pub fn disconnect(&mut self, name: &str) {
        let connection = self.agent(name).connection;
        self.index.nodes().agents().disconnect(&name.into(), connection);
    }

    /// Makes the agent reject further reservations.
    pub fn close(&mut self, name: &str) {
        self.agent(name).node.closed = Some("closed".to_owned());
        self.report(name);
    }

    /// Changes the policy in force on a node.
    pub fn set_policy(&mut self, name: &str, policy: NodePolicy) {
        self.agent(name).node.follow_policy(policy, Moment::default());
        self.report(name);
    }

    /// Lets the agent cut what is reserved; with `held` the pods take it.
    pub fn cut(&mut self, name: &str, held: bool) {
        let agent = self.agent(name);
        agent.node.cut();
        if held {
            let slices = agent.node.ledger.desired().slices.clone();
            slices.iter().filter_map(|s| s.reservation.as_ref()).for_each(|r| agent.node.allocate(&r.uid));
        }
        self.report(name);
    }

    /// Makes the agent report a changed slice.
    pub fn show_slice(&mut self, name: &str, number: usize, change: impl FnOnce(&mut SliceStatus)) {
        let agent = self.agents.get_mut(name).unwrap();
        let mut slice = agent.node.state().status.slices[number].clone();
        change(&mut slice);
        self.index.nodes().agents().report(
            &name.into(),
            agent.connection,
            Change { slices: vec![slice], ..Change::default() },
        );
    }

    /// The slices that a node should have by its agent's ledger, each with its pod.
    pub fn desired(&self, name: &str) -> Vec<(String, Option<String>)> {
        let slices = &self.agents[name].node.ledger.desired().slices;
        let pod =
            |slice: &kerf_core::contract::WantedSlice| slice.reservation.as_ref().map(|r| r.pod.clone());
        slices.iter().map(|slice| (slice.id.to_string(), pod(slice))).collect()
    }

    /// Reserves places on a node for a pod, as a bind does: proposed, accepted, reported, answered.
    pub fn reserve(
        &mut self,
        uid: &PodUid,
        key: &PodKey,
        name: &NodeName,
        ask: Option<Ask>,
    ) -> Result<Proposal, Unreservable> {
        match self.agents.get_mut(name) {
            Some(agent) => agent.reserve(&mut self.index, uid, key, ask),
            None => self.index.reserving().propose(uid, key, name, ask),
        }
    }

    /// Lets the agents follow the orders that no bind waits for.
    pub fn obey(&mut self) {
        for super::NodeOrder { node, order, .. } in std::mem::take(&mut self.index.effects.orders) {
            self.agents.get_mut(&node).unwrap().follow(&mut self.index, &order);
        }
    }

    /// Removes a pod, and lets the agents report it.
    pub fn pod_gone(&mut self, uid: &PodUid) {
        let pod = self.index.reserving().reserved_pod(uid);
        self.index.pod_gone(uid);
        self.obey();
        for agent in self.agents.values_mut() {
            if let Some(pod) = &pod {
                agent.node.free(&pod.name);
            }
            agent.node.ledger.pods(&[(uid.clone(), BoundPod::Ended)].into(), Moment::default());
            agent.report(&mut self.index);
        }
    }
}
