//! Models the leaders: their terms, and their binds with core's [`BindProgress`].

use crate::agent::owner;
use crate::api::{Binding, Phase};
use crate::checks::{self, Rule, Violation};
use crate::copies::Copies;
use crate::network::Message;
use crate::setting::{BIND_TIMEOUT, LEADER_TIMEOUT, LEASE_TIMEOUT, POST_GRACE};
use crate::world::World;
use kerf_core::ledger::{
    Action, Answer, BindProgress, Input, Limits, Moment, Order, OrderKind, PodSlices, Posted,
};

/// A replica of the extender.
#[derive(Debug, Clone, Default)]
pub struct Leader {
    pub term: Option<Term>,
    pub frozen: bool,
    /// It was frozen beyond the end of its term, and has not noticed that yet.
    pub overslept: bool,
    pub copies: Copies,
    pub binds: Vec<Bind>,
    /// The number of binds in this term.
    attempts: u64,
}

/// A replica's time as the leader.
#[derive(Debug, Clone)]
pub struct Term {
    pub epoch: u64,
    /// Until when it relies on the Lease.
    pub until: Moment,
}

#[derive(Debug, Clone)]
pub struct Bind {
    pub pod: usize,
    pub node: usize,
    pub connection: u64,
    pub progress: BindProgress,
    pub gate: Moment,
    /// The number of the order whose answer it waits for.
    pub order: Option<u64>,
    /// The attempt whose Binding is under way.
    pub posted: Option<u64>,
}

impl Leader {
    /// Whether it leads and is not frozen.
    pub fn leads(&self) -> bool {
        self.term.is_some() && !self.frozen
    }

    /// When another replica may hold the Lease, by this replica's own term.
    fn lease(&self) -> Moment {
        self.term.as_ref().map_or(Moment::default(), |term| term.until)
    }

    /// Ends a freeze. The replica cannot measure how long it was frozen.
    pub fn wake(&mut self, now: Moment) {
        self.frozen = false;
        self.overslept = self.term.as_ref().is_some_and(|term| now >= term.until);
    }

    pub fn bind(&self, pod: usize) -> Option<&Bind> {
        self.binds.iter().find(|bind| bind.pod == pod)
    }

    /// When its timers are due.
    pub fn due(&self) -> impl Iterator<Item = Moment> {
        self.binds.iter().map(|bind| if bind.posted.is_some() { bind.gate + POST_GRACE } else { bind.gate })
    }
}

impl World<'_> {
    /// The scheduler asks a leader to bind a pod to a node.
    pub fn bind(&mut self, leader: usize, pod: usize, node: usize) -> Result<(), Violation> {
        let setting = self.setting;
        let (request, fleet) = (&setting.pods[self.pods[pod].request], &setting.fleet);
        let (owner, gate) = (self.pods[pod].owner.clone(), self.now + BIND_TIMEOUT);
        let it = self.leader(leader);
        let (Some(term), Some(connection)) = (&it.term, it.copies.connection(node)) else { return Ok(()) };
        let epoch = term.epoch;
        let Some(proposal) = it.copies.propose(&owner, request, node, fleet) else {
            self.note(|| "there is no place".to_owned());
            return Ok(());
        };
        it.attempts += 1;
        let progress = BindProgress::new(proposal, epoch, it.attempts, gate, Limits::default());
        it.binds.push(Bind { pod, node, connection, progress, gate, order: None, posted: None });
        self.input(leader, pod, &Input::Opened)?;
        if self.leaders[leader].bind(pod).is_none_or(|bind| bind.order.is_none()) {
            // The proposal was never sent, so it will get no answer.
            self.leader(leader).copies.answered(&owner.uid, node);
        }
        Ok(())
    }

    /// A leader orders the release of a reservation.
    pub fn release(&mut self, leader: usize, pod: usize, node: usize) {
        let uid = self.pods[pod].owner.uid.clone();
        let it = self.leader(leader);
        let Some(term) = &it.term else { return };
        let kind = OrderKind::Release { uid: uid.clone(), why: String::new() };
        let order = Order { epoch: term.epoch, kind };
        let connection = it.copies.connection(node);
        it.copies.releasing(&uid, node);
        self.send(leader, node, connection, order);
    }

    /// Gives an input to a pod's bind, and carries out its actions. Returns whether there were any.
    fn input(&mut self, leader: usize, pod: usize, input: &Input<'_>) -> Result<bool, Violation> {
        let now = self.now;
        let it = self.leader(leader);
        let lease = it.lease();
        let Some(bind) = it.binds.iter_mut().find(|bind| bind.pod == pod) else { return Ok(false) };
        let actions = bind.progress.handle(input, now, lease);
        self.act(leader, pod, actions)
    }

    /// Shows a bind its slices in the copy of its node.
    fn show(&mut self, leader: usize, pod: usize) -> Result<bool, Violation> {
        let (now, uid) = (self.now, self.pods[pod].owner.uid.clone());
        let it = self.leader(leader);
        let lease = it.lease();
        let Some(bind) = it.binds.iter_mut().find(|bind| bind.pod == pod) else { return Ok(false) };
        let status = it.copies.status(bind.node);
        let is_its = it.copies.connection(bind.node) == Some(bind.connection);
        let actions = match status.filter(|_| is_its) {
            Some(status) => bind.progress.handle(&Input::Shown(PodSlices::for_pod(status, &uid)), now, lease),
            None => bind.progress.handle(&Input::Disconnected, now, lease),
        };
        self.act(leader, pod, actions)
    }

    fn show_all(&mut self, leader: usize, node: usize) -> Result<(), Violation> {
        for pod in self.binds_on(leader, node) {
            self.show(leader, pod)?;
        }
        Ok(())
    }

    fn binds_on(&self, leader: usize, node: usize) -> Vec<usize> {
        self.leaders[leader].binds.iter().filter(|bind| bind.node == node).map(|bind| bind.pod).collect()
    }

    fn act(&mut self, leader: usize, pod: usize, actions: Vec<Action>) -> Result<bool, Violation> {
        let acts = !actions.is_empty();
        for action in actions {
            match action {
                Action::Send(order) => self.send_for(leader, pod, order)?,
                Action::Post { attempt } => self.post(leader, pod, attempt)?,
                Action::End(result) => {
                    self.note(|| match result {
                        Ok(()) => format!("the bind of pod {pod} succeeds"),
                        Err(failure) => format!("the bind of pod {pod} fails: {failure}"),
                    });
                    self.leader(leader).binds.retain(|bind| bind.pod != pod);
                }
            }
        }
        Ok(acts)
    }

    /// Sends an order of a bind. If an order that needs an answer cannot be sent, the bind ends.
    fn send_for(&mut self, leader: usize, pod: usize, order: Order) -> Result<(), Violation> {
        let is_answered = matches!(order.kind, OrderKind::Reserve(_) | OrderKind::Mark { .. });
        self.check_lease(leader, order.epoch)?;
        let Some(bind) = self.leaders[leader].bind(pod) else { return Ok(()) };
        let number = self.send(leader, bind.node, Some(bind.connection), order);
        if !is_answered {
            return Ok(());
        }
        let Some(number) = number else { return self.input(leader, pod, &Input::Disconnected).map(drop) };
        if let Some(bind) = self.leader(leader).binds.iter_mut().find(|bind| bind.pod == pod) {
            bind.order = Some(number);
        }
        Ok(())
    }

    /// Sends an order over a connection. Returns its number there, or `None` if the connection has ended.
    fn send(&mut self, leader: usize, node: usize, connection: Option<u64>, order: Order) -> Option<u64> {
        self.note(|| format!("L{leader} sends {} to N{node}", checks::name(&order)));
        let there = self.connections.get_mut(&(leader, node));
        there.filter(|there| Some(there.id) == connection).map(|there| there.send(order))
    }

    /// Checks that no bind sends anything once another replica may hold the Lease.
    fn check_lease(&self, leader: usize, epoch: u64) -> Result<(), Violation> {
        let is_its = self.lease.epoch == epoch && self.lease.holder == leader;
        if is_its && self.now < self.lease.renewed + LEASE_TIMEOUT {
            return Ok(());
        }
        Err(Violation::new(Rule::Lease, format!("L{leader} sends in epoch {epoch} after its Lease")))
    }

    /// Sends a Binding. The pod must have its slices, and the node's agent must have the mark.
    fn post(&mut self, leader: usize, pod: usize, attempt: u64) -> Result<(), Violation> {
        let (now, it) = (self.now, self.leader(leader));
        let epoch = it.term.as_ref().map_or(0, |term| term.epoch);
        let Some(bind) = it.binds.iter_mut().find(|bind| bind.pod == pod) else { return Ok(()) };
        bind.posted = Some(attempt);
        let (node, gives_up) = (bind.node, bind.gate + POST_GRACE);
        self.note(|| format!("L{leader} sends the Binding of pod {pod} to N{node}"));
        self.check_lease(leader, epoch)?;
        let uid = &self.pods[pod].owner.uid;
        let (agent, slices) = (&self.agents[node], self.agents[node].slices(uid));
        let has_its_slices = !slices.is_empty() && slices.iter().all(|slice| agent.exists(&slice.id));
        // The agent may learn before the leader that the pod is gone or runs elsewhere. The API server then refuses the
        // Binding.
        if self.pods[pod].phase == Phase::Pending && !has_its_slices {
            return Err(Violation::new(
                Rule::Ready,
                format!("pod {pod} is bound to N{node}, which has not its slices"),
            ));
        }
        let until = now + Limits::default().request;
        self.bindings.push(Binding { pod, node, leader, attempt, until, gives_up, bound: None });
        Ok(())
    }

    /// Reads the next message of an agent. If `two`, the binds see its change after the answer that follows it.
    pub fn read(&mut self, leader: usize, node: usize, two: bool) -> Result<(), Violation> {
        let report = &self.agents[node].report;
        let Some(connection) = self.connections.get_mut(&(leader, node)) else { return Ok(()) };
        match connection.receive(report) {
            Some(Message::Change(change)) => {
                self.leader(leader).copies.changed(node, change);
                if two {
                    self.read(leader, node, false)?;
                }
                self.show_all(leader, node)
            }
            Some(Message::Answer { number, order, answer }) => {
                self.note(|| format!("N{node} has answered {}", checks::said(&order, &answer)));
                self.answered(leader, node, number, (&order, &answer))
            }
            None => Ok(()),
        }
    }

    fn answered(
        &mut self,
        leader: usize,
        node: usize,
        number: u64,
        (order, answer): (&Order, &Answer),
    ) -> Result<(), Violation> {
        if let OrderKind::Reserve(_) | OrderKind::Release { .. } = order.kind {
            self.leader(leader).copies.answered(owner(&order.kind), node);
        }
        let is_for = |bind: &&Bind| bind.node == node && bind.order == Some(number);
        let Some(pod) = self.leaders[leader].binds.iter().find(is_for).map(|bind| bind.pod) else {
            return Ok(());
        };
        if let Some(bind) = self.leader(leader).binds.iter_mut().find(|bind| bind.pod == pod) {
            bind.order = None;
        }
        if !self.input(leader, pod, &Input::Answered(answer))? {
            self.show(leader, pod)?;
        }
        Ok(())
    }

    /// A leader reads the outcome of a Binding; `None` if it never will.
    pub fn posted(&mut self, binding: &Binding, bound: Option<bool>) -> Result<(), Violation> {
        let &Binding { leader, pod, attempt, .. } = binding;
        let is_its = |bind: &Bind| bind.posted == Some(attempt) && bind.gate + POST_GRACE == binding.gives_up;
        if !self.leaders[leader].bind(pod).is_some_and(is_its) {
            return Ok(());
        }
        let posted = match bound {
            Some(true) => Posted::Bound,
            Some(false) => Posted::Refused,
            None => Posted::Unknown,
        };
        self.input(leader, pod, &Input::Posted(posted)).map(drop)
    }

    /// Runs what is due by a leader's clock: the ends of its term, of binds, and of the wait for answers to Bindings.
    pub fn run_timers(&mut self, leader: usize) -> Result<(), Violation> {
        let now = self.now;
        for Bind { pod, gate, posted, .. } in self.leaders[leader].binds.clone() {
            if posted.is_none() && now >= gate {
                self.input(leader, pod, &Input::GateOver)?;
            } else if now >= gate + POST_GRACE {
                self.input(leader, pod, &Input::Posted(Posted::Unknown))?;
            }
        }
        if self.leaders[leader].term.as_ref().is_some_and(|term| now >= term.until) {
            self.depose(leader)?;
        }
        Ok(())
    }

    /// Ends a leader's term. A Binding that is under way stays so.
    pub fn depose(&mut self, leader: usize) -> Result<(), Violation> {
        let it = self.leader(leader);
        (it.term, it.overslept) = (None, false);
        it.copies.forget_proposals();
        self.note(|| format!("the term of L{leader} ends"));
        for pod in self.leaders[leader].binds.iter().map(|bind| bind.pod).collect::<Vec<_>>() {
            self.input(leader, pod, &Input::GateOver)?;
        }
        Ok(())
    }

    pub fn take_lease(&mut self, leader: usize) {
        let (epoch, now) = (self.lease.epoch + 1, self.now);
        self.lease = crate::api::Lease { holder: leader, epoch, renewed: now };
        let it = self.leader(leader);
        it.term = Some(Term { epoch, until: now + LEADER_TIMEOUT });
        it.attempts = 0;
        it.copies.forget_proposals();
        self.note(|| format!("its epoch is {epoch}"));
    }

    /// A leader notices that an agent's connection has ended.
    pub fn lose(&mut self, leader: usize, node: usize) -> Result<(), Violation> {
        self.leader(leader).copies.disconnected(node);
        for pod in self.binds_on(leader, node) {
            self.input(leader, pod, &Input::Disconnected)?;
            let waits = |bind: &Bind| bind.posted.is_none();
            if self.leaders[leader].bind(pod).is_some_and(waits) {
                let text = format!("the bind of pod {pod} goes on waiting, though its connection has ended");
                return Err(Violation::new(Rule::Disconnected, text));
            }
        }
        Ok(())
    }
}
