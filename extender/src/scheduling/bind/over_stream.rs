//! A bind on a managed node: the leader sends orders to the agent over its connection, and the Binding is the only API
//! write.
//!
//! [`BindProgress`] makes the decisions. This file provides its clock, its connection and its Binding.

use super::{BINDING_TIMEOUT, Bind, BindError};
use crate::term::Term;
use kerf_core::ledger::{
    Action, Answer, BindFailure, BindProgress, Input, Moment, Order, OrderKind, Posted, Proposal,
};
use kerf_protocol::server::{Connection, NotSent, Slot};
use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

impl Bind {
    /// Orders a reservation from the node's agent, waits until its slices are ready, marks it, and sends the Binding.
    pub(super) async fn run_over_stream(
        &self,
        term: &Arc<Term>,
        proposal: Proposal,
        connection: u64,
        gate: Instant,
    ) -> Result<(), BindError> {
        let unanswered = UnansweredProposal { bind: self.clone(), term: term.clone(), connection };
        // The proposal rests on the copy of this connection, so it must not be sent over a later one.
        let connection = term.cluster.agents.connection(&self.node).filter(|found| found.id() == connection);
        let connection = connection.ok_or(BindFailure::Disconnected)?;
        StreamBind::new(self, term, connection, proposal, unanswered, gate).run().await
    }
}

/// Counts the places of a proposal as taken until it is dropped.
struct UnansweredProposal {
    bind: Bind,
    term: Arc<Term>,
    connection: u64,
}

impl UnansweredProposal {
    fn end(self, answer: &Answer) {
        let Bind { uid, key, node } = &self.bind;
        match answer {
            Ok(_) => {
                tracing::info!(pod = %key, %uid, %node, "reserved");
                self.term
                    .with(|index| index.reserving().stages().set_accepted(uid, std::time::Instant::now()));
            }
            Err(rejection) => {
                tracing::info!(pod = %key, %uid, %node, %rejection, "agent rejected the reservation");
                let now = std::time::Instant::now();
                self.term.with(|index| index.reserving().reject(uid, node, self.connection, now));
            }
        }
    }
}

impl Drop for UnansweredProposal {
    fn drop(&mut self) {
        self.term
            .with(|index| index.nodes().agents().answer(&self.bind.uid, &self.bind.node, self.connection));
    }
}

/// The state of one bind over a stream.
struct StreamBind<'b> {
    bind: &'b Bind,
    term: &'b Arc<Term>,
    connection: Connection,
    progress: BindProgress,
    /// The start from which the moments of `progress` are counted.
    began: Instant,
    gate: Instant,
    changes: watch::Receiver<()>,
    /// `None` once the `Reserve` has been sent.
    unanswered: Option<UnansweredProposal>,
    /// Receives the answer to the last order that has one.
    answer: Option<oneshot::Receiver<Answer>>,
    /// True once the connection refuses orders because this replica no longer leads in the bind's epoch.
    is_deposed: bool,
}

impl<'b> StreamBind<'b> {
    fn new(
        bind: &'b Bind,
        term: &'b Arc<Term>,
        connection: Connection,
        proposal: Proposal,
        unanswered: UnansweredProposal,
        gate: Instant,
    ) -> Self {
        let began = Instant::now();
        let (epoch, limits) =
            term.with(|index| (index.leadership().epoch(), index.bindings().ledger_limits()));
        let moment = Moment(gate.saturating_duration_since(began));
        Self {
            bind,
            term,
            connection,
            progress: BindProgress::new(proposal, epoch, term.next_attempt(), moment, limits),
            began,
            gate,
            changes: term.watch_node(&bind.node),
            unanswered: Some(unanswered),
            answer: None,
            is_deposed: false,
        }
    }

    async fn run(mut self) -> Result<(), BindError> {
        let first = if self.term.closing.is_cancelled() { Input::Closing } else { Input::Opened };
        let mut actions = VecDeque::from(self.handle(&first));
        let mut posted = Ok(());
        loop {
            while let Some(action) = actions.pop_front() {
                match action {
                    Action::Send(order) => actions.extend(self.send(order).await),
                    Action::Post { .. } => {
                        posted = self.post().await;
                        actions.extend(self.handle(&Input::Posted(posted_outcome(&posted))));
                    }
                    Action::End(result) => return posted.and(result.map_err(BindError::from)),
                }
            }
            actions.extend(self.next().await);
        }
    }

    fn now(&self) -> Moment {
        Moment(self.began.elapsed())
    }

    /// The moment at which another replica may hold the Lease.
    fn lease(&self) -> Moment {
        if self.is_deposed {
            return Moment::default();
        }
        self.term.deadline().map_or(Moment(Duration::MAX), |deadline| {
            let at = deadline.instant().map(|at| at.saturating_duration_since(self.began));
            Moment(at.unwrap_or_default())
        })
    }

    fn handle(&mut self, input: &Input<'_>) -> Vec<Action> {
        let (now, lease) = (self.now(), self.lease());
        self.progress.handle(input, now, lease)
    }

    /// Waits for the next input.
    async fn next(&mut self) -> Vec<Action> {
        let answer = async {
            match &mut self.answer {
                Some(answer) => answer.await,
                None => pending().await,
            }
        };
        tokio::select! {
            // The order matters: a closing term wins over an answer, and an answer wins over the gate's end.
            biased;
            () = self.term.closing.cancelled() => self.handle(&Input::Closing),
            answer = answer => {
                self.answer = None;
                let Ok(answer) = answer else { return self.handle(&Input::Disconnected) };
                let actions = self.handle(&Input::Answered(&answer));
                if actions.is_empty() { self.shown() } else { actions }
            }
            changed = self.changes.changed() => {
                if changed.is_ok() { self.shown() } else { self.handle(&Input::Disconnected) }
            }
            () = sleep_until(self.gate) => self.handle(&Input::GateOver),
        }
    }

    /// Feeds the progress what the node's copy shows.
    fn shown(&mut self) -> Vec<Action> {
        let (now, lease) = (self.now(), self.lease());
        let Self { bind: Bind { uid, node, .. }, connection, progress, .. } = self;
        self.term.with(|index| {
            if index.managed().connection_of(node) != Some(connection.id()) {
                return progress.handle(&Input::Disconnected, now, lease);
            }
            progress.handle(&Input::Shown(index.reserving().shown_slices(uid, node)), now, lease)
        })
    }

    /// Sends an order once the agent's window has room. Returns the actions that follow if it is not sent.
    async fn send(&mut self, order: Order) -> Vec<Action> {
        if let OrderKind::Mark { uid, .. } = &order.kind {
            self.term.with(|index| index.reserving().stages().set_ready(uid, std::time::Instant::now()));
        }
        // The bind waits for the answers to `Reserve` and `Mark` only.
        if !matches!(order.kind, OrderKind::Reserve(_) | OrderKind::Mark { .. }) {
            self.send_outcome(order);
            return Vec::new();
        }
        match timeout_at(self.gate, self.connection.slot()).await {
            Err(_) => self.handle(&Input::GateOver),
            Ok(Err(_)) => self.handle(&Input::Disconnected),
            Ok(Ok(slot)) => self.send_in(slot, &order),
        }
    }

    fn send_in(&mut self, slot: Slot, order: &Order) -> Vec<Action> {
        let reply = match slot.send(order) {
            Ok(reply) => reply,
            Err(NotSent::Disconnected(_)) => return self.handle(&Input::Disconnected),
            Err(NotSent::NotLeading(_)) => {
                self.is_deposed = true;
                return self.handle(&Input::GateOver);
            }
        };
        let (answered, answer) = oneshot::channel();
        self.answer = Some(answer);
        let unanswered = self.unanswered.take();
        // The answer is recorded even if the scheduler hangs up meanwhile.
        tokio::spawn(async move {
            let Ok(answer) = reply.await else { return };
            if let Some(unanswered) = unanswered {
                unanswered.end(&answer);
            }
            let _ = answered.send(answer);
        });
        Vec::new()
    }

    /// Sends an order whose answer the bind does not wait for.
    fn send_outcome(&self, order: Order) {
        let (term, node) = (self.term.clone(), self.bind.node.clone());
        tokio::spawn(async move { term.send_outcome(&node, &order).await });
    }

    async fn post(&self) -> Result<(), BindError> {
        let Bind { uid, node, .. } = self.bind;
        let assignment =
            self.term.with(|index| index.reserving().assignment_of(uid, node)).ok_or(BindError::Lost)?;
        self.bind.post(self.term, Some(assignment), self.gate + BINDING_TIMEOUT).await
    }
}

impl Drop for StreamBind<'_> {
    /// If the scheduler hung up after the mark, this sends the outcome to the agent: no Binding will come.
    fn drop(&mut self) {
        for action in self.handle(&Input::GateOver) {
            if let Action::Send(order) = action {
                self.send_outcome(order);
            }
        }
    }
}

/// Translates the result of a bind into the state of its Binding.
fn posted_outcome(posted: &Result<(), BindError>) -> Posted {
    match posted {
        Ok(()) => Posted::Bound,
        Err(BindError::Binding(error)) if !error.is_definite() => Posted::Unknown,
        // Some errors come before the Binding is sent, so no Binding was made either.
        Err(_) => Posted::Refused,
    }
}
