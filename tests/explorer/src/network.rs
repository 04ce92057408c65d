//! Models the connections between agents and leaders. Each keeps the order of its messages, and loses what is in it
//! when it is cut.

use crate::agent::{Agent, ReplyTo};
use kerf_core::ledger::{Answer, Change, NodeState, Order, difference};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A connection of an agent to a leader.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Rises by one with each connection of the world.
    pub id: u64,
    /// The agent has hung up, or is gone, and the leader has not noticed it yet.
    pub is_cut: bool,
    pub to_agent: VecDeque<(u64, Order)>,
    to_leader: VecDeque<Message>,
    /// The leader's copy once it has read all messages.
    sent: Arc<NodeState>,
    orders: BTreeMap<u64, Order>,
    numbers: u64,
}

#[derive(Debug, Clone)]
pub enum Message {
    Change(Change),
    Answer { number: u64, order: Order, answer: Answer },
}

impl Connection {
    /// A connection whose first message, the agent's whole state, has been read.
    pub fn new(id: u64, agent: &Agent) -> Self {
        Self {
            id,
            is_cut: false,
            to_agent: VecDeque::new(),
            to_leader: VecDeque::new(),
            sent: agent.report.clone(),
            orders: BTreeMap::new(),
            numbers: 0,
        }
    }

    /// Sends an order, which is lost if the connection was cut.
    pub fn send(&mut self, order: Order) -> u64 {
        self.numbers += 1;
        if !self.is_cut {
            self.orders.insert(self.numbers, order.clone());
            self.to_agent.push_back((self.numbers, order));
        }
        self.numbers
    }

    /// Sends an answer, and before it what has changed.
    pub fn answer(&mut self, to: ReplyTo, answer: Answer, report: &Arc<NodeState>) {
        if self.is_cut || self.id != to.connection {
            return;
        }
        let change = self.change(report);
        self.to_leader.extend(change.map(Message::Change));
        if let Some(order) = self.orders.remove(&to.number) {
            self.to_leader.push_back(Message::Answer { number: to.number, order, answer });
        }
    }

    fn change(&mut self, report: &Arc<NodeState>) -> Option<Change> {
        if Arc::ptr_eq(&self.sent, report) {
            return None;
        }
        let change = difference(&self.sent, report);
        self.sent = report.clone();
        Some(change).filter(|change| !change.is_empty())
    }

    /// The next message. An agent sends a change when the stream accepts it, which is no sooner than the leader has
    /// read everything sent before.
    pub fn receive(&mut self, report: &Arc<NodeState>) -> Option<Message> {
        if let Some(message) = self.to_leader.pop_front() {
            return Some(message);
        }
        if self.is_cut { None } else { self.change(report).map(Message::Change) }
    }

    /// Whether there is something to read.
    pub fn has_news(&self, report: &Arc<NodeState>) -> bool {
        !self.to_leader.is_empty() || !self.is_cut && !Arc::ptr_eq(&self.sent, report)
    }

    /// Whether a change and an answer are the next messages.
    pub fn has_two(&self) -> bool {
        let mut messages = self.to_leader.iter();
        matches!((messages.next(), messages.next()), (Some(Message::Change(_)), Some(Message::Answer { .. })))
    }

    /// The agent hangs up. Returns the orders that it has not read.
    pub fn cut(&mut self) -> Vec<Order> {
        self.is_cut = true;
        self.orders.clear();
        self.to_agent.drain(..).map(|(_, order)| order).collect()
    }

    /// The parts that influence what can happen next.
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        (self.is_cut, &self.to_agent, &self.to_leader, &self.sent.status.slices, &self.sent.closed)
    }
}
