//! The world: its parts, and what each event does to them.

use crate::agent::{Agent, ReplyTo};
use crate::api::{Binding, Lease, Phase, Pod};
use crate::checks::{self, Violation};
use crate::event::Event;
use crate::leader::Leader;
use crate::network::Connection;
use crate::setting::{LEADER_TIMEOUT, LEASE_TIMEOUT, Setting};
use kerf_core::ledger::{Answer, Moment, Order};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A world. Cloning it is cheap, because the parts that do not change are shared.
#[derive(Debug, Clone)]
pub struct World<'s> {
    pub setting: &'s Setting,
    pub now: Moment,
    pub pods: Vec<Pod>,
    pub bindings: Vec<Binding>,
    pub lease: Lease,
    pub leaders: Vec<Arc<Leader>>,
    pub agents: Vec<Arc<Agent>>,
    pub connections: BTreeMap<(usize, usize), Connection>,
    /// Orders of connections that have ended. Their agent may have read them already, and executes them later.
    pub strays: Vec<(usize, Order)>,
    /// How many upsets there may still be.
    pub upsets: u32,
    dialled: u64,
    /// Whether the world is coming to rest.
    pub is_at_rest: bool,
    /// A line for each event, if a trace is printed.
    pub story: Option<Vec<String>>,
}

impl<'s> World<'s> {
    /// A world in which the first replica leads, and all agents are connected to all replicas.
    pub fn new(setting: &'s Setting) -> Self {
        let mut world = Self {
            setting,
            now: Moment::default(),
            pods: (0..setting.pods.len()).map(|place| Pod::new(place, place)).collect(),
            bindings: Vec::new(),
            lease: Lease { holder: 0, epoch: 0, renewed: Moment::default() },
            leaders: (0..setting.leaders).map(|_| Arc::default()).collect(),
            agents: (0..setting.nodes.len()).map(|node| Arc::new(Agent::new(node, setting))).collect(),
            connections: BTreeMap::new(),
            strays: Vec::new(),
            upsets: setting.upsets,
            dialled: 0,
            is_at_rest: false,
            story: None,
        };
        world.take_lease(0);
        for leader in 0..setting.leaders {
            for node in 0..setting.nodes.len() {
                world.connect(leader, node);
            }
        }
        world
    }

    pub fn leader(&mut self, leader: usize) -> &mut Leader {
        Arc::make_mut(&mut self.leaders[leader])
    }

    fn agent(&mut self, node: usize) -> &mut Agent {
        Arc::make_mut(&mut self.agents[node])
    }

    /// Adds a text to the line of the current event.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(line) = self.story.as_mut().and_then(|story| story.last_mut()) {
            line.push_str("; ");
            line.push_str(&text());
        }
    }

    /// Applies an event, and checks what must hold after it.
    pub fn apply(&mut self, event: Event) -> Result<(), Violation> {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>6.1} s  {event}", self.now.0.as_secs_f32()));
        }
        if event.is_upset() {
            self.upsets = self.upsets.saturating_sub(1);
        }
        self.happen(event)?;
        checks::after_each(self)
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        let now = self.now;
        match event {
            Event::Bind { leader, pod, node } => return self.bind(leader, pod, node),
            Event::Release { leader, pod, node } => self.release(leader, pod, node),
            Event::Read { leader, node } => return self.read(leader, node, false),
            Event::ReadTwo { leader, node } => return self.read(leader, node, true),
            Event::Timers { leader } => return self.run_timers(leader),
            Event::TakeLease { leader } => self.take_lease(leader),
            Event::Wake { leader } => self.leader(leader).wake(now),
            Event::Freeze { leader } => self.leader(leader).frozen = true,
            Event::CrashLeader { leader } => self.crash_leader(leader),
            Event::Dial { leader, node } => return self.dial(leader, node),
            Event::Cut { leader, node } => self.cut(leader, node, true),
            Event::Order { leader, node } => return self.order(leader, node, false),
            Event::Double { leader, node } => return self.order(leader, node, true),
            Event::Stray { order } => {
                let (node, order) = self.strays.remove(order);
                self.note(|| format!("N{node} reads {}", checks::name(&order)));
                return self.order_is_read(node, &order, None);
            }
            Event::CrashAgent { node } => self.crash_agent(node),
            Event::Sync { node } => {
                let answers = self.agent(node).sync();
                self.send_answers(node, answers);
            }
            Event::Land { binding } => self.land(binding, true),
            Event::Refuse { binding } => self.land(binding, false),
            Event::Answer { binding } => {
                let binding = self.bindings.remove(binding);
                return self.posted(&binding, binding.bound);
            }
            Event::LoseAnswer { binding } => {
                let lost = self.bindings[binding].clone();
                if lost.bound.is_some() {
                    self.bindings.remove(binding);
                }
                return self.posted(&lost, None);
            }
            Event::Create { pod } => {
                let (place, request) = (self.pods.len(), self.pods[pod].request);
                self.pods.push(Pod::new(place, request));
                self.note(|| format!("it is pod {place}"));
            }
            Event::Delete { pod } => self.pods[pod].phase = Phase::Gone,
            Event::Move { pod } => self.pods[pod].phase = Phase::Elsewhere,
            Event::Pass => return self.pass(None),
            on_node => self.happen_on_node(on_node),
        }
        Ok(())
    }

    /// Applies events that only a node's agent sees at once.
    fn happen_on_node(&mut self, event: Event) {
        let (now, pods) = (self.now, std::mem::take(&mut self.pods));
        match event {
            Event::Make { node } => self.agent(node).make(now, &pods),
            Event::MakeFails { node } => self.agent(node).fail_to_make(now, &pods),
            Event::Watch { node } => self.agent(node).watch(now, &pods),
            Event::LookedUp { node, look_up } => self.agent(node).looked_up(look_up, false, now, &pods),
            Event::LookUpFails { node, look_up } => self.agent(node).looked_up(look_up, true, now, &pods),
            Event::Acknowledge { node } => self.agent(node).set_kubelet(false, now, &pods),
            Event::RestartKubelet { node } => self.agent(node).set_kubelet(true, now, &pods),
            Event::Allocate { node, pod } => self.agent(node).start(pod, now, &pods),
            Event::Free { node, pod } => self.agent(node).end(pod, now, &pods),
            Event::DiskFails { node } => {
                let answers = self.agent(node).fail_sync(now, &pods);
                self.send_answers(node, answers);
            }
            _ => {}
        }
        self.pods = pods;
    }

    fn order(&mut self, leader: usize, node: usize, stays: bool) -> Result<(), Violation> {
        let Some(connection) = self.connections.get_mut(&(leader, node)) else { return Ok(()) };
        let Some((number, order)) = connection.to_agent.pop_front() else { return Ok(()) };
        let to = ReplyTo { leader, connection: connection.id, number };
        if stays {
            self.strays.push((node, order.clone()));
        }
        self.note(|| checks::name(&order));
        self.order_is_read(node, &order, Some(to))
    }

    fn order_is_read(&mut self, node: usize, order: &Order, to: Option<ReplyTo>) -> Result<(), Violation> {
        let (now, pods) = (self.now, std::mem::take(&mut self.pods));
        let answer = self.agent(node).read(order, to, now, &pods);
        self.pods = pods;
        let answer = answer?;
        match &answer {
            Some(answer) => self.note(|| format!("it answers {}", checks::said(order, answer))),
            None => self.note(|| "its answer waits for the disk".to_owned()),
        }
        self.send_answers(node, answer.into_iter().filter_map(|answer| Some((to?, answer))).collect());
        Ok(())
    }

    fn send_answers(&mut self, node: usize, answers: Vec<(ReplyTo, Answer)>) {
        let report = self.agents[node].report.clone();
        for (to, answer) in answers {
            if let Some(connection) = self.connections.get_mut(&(to.leader, node)) {
                connection.answer(to, answer, &report);
            }
        }
    }

    fn connect(&mut self, leader: usize, node: usize) {
        self.dialled += 1;
        let (id, agent) = (self.dialled, self.agents[node].clone());
        self.connections.insert((leader, node), Connection::new(id, &agent));
        let everything =
            kerf_core::ledger::difference(&kerf_core::ledger::NodeState::default(), &agent.report);
        self.leader(leader).copies.connected(node, id, everything);
    }

    /// An agent connects, and the leader receives the agent's epoch.
    fn dial(&mut self, leader: usize, node: usize) -> Result<(), Violation> {
        if self.connections.remove(&(leader, node)).is_some() {
            self.lose(leader, node)?;
        }
        self.connect(leader, node);
        let heard = self.agents[node].node.ledger.epoch();
        if self.leaders[leader].term.as_ref().is_some_and(|term| term.epoch < heard) {
            self.depose(leader)?;
        }
        Ok(())
    }

    /// Ends a connection on the agent's side. If the agent lives, it may still execute the orders in it.
    fn cut(&mut self, leader: usize, node: usize, agent_lives: bool) {
        if let Some(connection) = self.connections.get_mut(&(leader, node)) {
            let orders = connection.cut();
            if agent_lives {
                self.strays.extend(orders.into_iter().map(|order| (node, order)));
            }
        }
    }

    fn crash_agent(&mut self, node: usize) {
        let now = self.now;
        self.agent(node).crash(now);
        (0..self.leaders.len()).for_each(|leader| self.cut(leader, node, false));
    }

    fn crash_leader(&mut self, leader: usize) {
        for node in 0..self.agents.len() {
            self.cut(leader, node, true);
            self.connections.remove(&(leader, node));
        }
        *self.leader(leader) = Leader::default();
    }

    /// The API server executes a Binding, unless it refuses.
    fn land(&mut self, binding: usize, would: bool) {
        let Some(binding) = self.bindings.get_mut(binding) else { return };
        let pod = &mut self.pods[binding.pod];
        let bound = would && pod.phase == Phase::Pending;
        if bound {
            pod.phase = Phase::Bound(binding.node);
        }
        binding.bound = Some(bound);
        let (place, node) = (binding.pod, binding.node);
        self.note(|| {
            if bound { format!("pod {place} is bound to N{node}") } else { "it is refused".to_owned() }
        });
    }

    /// Lets time pass to what is due next, at most by `at_most`. Leaders that are awake run their timers.
    pub fn pass(&mut self, at_most: Option<Duration>) -> Result<(), Violation> {
        let limit = at_most.map(|rest| self.now + rest);
        let Some(next) = self.next_due().into_iter().chain(limit).min() else { return Ok(()) };
        self.now = next;
        if let Some(holder) = self.leaders.get(self.lease.holder).filter(|leader| leader.leads()) {
            let is_its = holder.term.as_ref().is_some_and(|term| term.epoch == self.lease.epoch);
            // A leader that woke too late takes no Lease back without a new epoch.
            if is_its && !holder.overslept {
                let holder = self.lease.holder;
                self.lease.renewed = next;
                if let Some(term) = &mut self.leader(holder).term {
                    term.until = next + LEADER_TIMEOUT;
                }
            }
        }
        self.bindings.retain(|binding| binding.bound.is_some() || binding.until > next);
        let pods = std::mem::take(&mut self.pods);
        for node in 0..self.agents.len() {
            self.agent(node).turn(next, &pods);
        }
        self.pods = pods;
        for leader in 0..self.leaders.len() {
            if !self.leaders[leader].frozen {
                self.run_timers(leader)?;
            }
        }
        Ok(())
    }

    /// When something is due next.
    pub fn next_due(&self) -> Option<Moment> {
        let agents = self.agents.iter().filter_map(|agent| agent.due);
        let unexecuted = self.bindings.iter().filter(|binding| binding.bound.is_none());
        let leaders = self.leaders.iter().filter(|leader| !leader.frozen).flat_map(|leader| leader.due());
        let frozen = self.leaders.iter().filter(|leader| leader.frozen);
        let terms = frozen.filter_map(|leader| Some(leader.term.as_ref()?.until));
        let is_free = !self.leaders[self.lease.holder].leads();
        let all = agents
            .chain(unexecuted.map(|binding| binding.until))
            .chain(leaders)
            .chain(terms)
            .chain(is_free.then(|| self.lease.renewed + LEASE_TIMEOUT));
        all.filter(|due| *due > self.now).min()
    }
}
