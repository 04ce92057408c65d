//! One agent's connection, from the view of callers that send orders.

use crate::convert::write_order;
use crate::socket;
use crate::wire::{Role, ToAgent, to_agent::Message};
use futures::channel::mpsc;
use kerf_core::ledger::{Answer, Order};
use kerf_core::names::NodeName;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message as Frame;

/// The frames that are still to be sent. The channel stays short: it holds at most one window of orders, and the roles.
/// Tokio's channel would keep space for 32 frames on each of thousands of connections; this one has none while empty.
pub(super) type Frames = mpsc::UnboundedSender<Frame>;

/// A connection of an agent that has said hello. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    id: u64,
    node: NodeName,
    /// One permit for each order that may be unanswered.
    window: Arc<Semaphore>,
    outbox: Mutex<Outbox>,
}

/// The outgoing messages. One lock orders roles and orders, so that no order overtakes the role in whose epoch it is
/// sent.
#[derive(Debug)]
struct Outbox {
    /// `None` once the connection has ended.
    frames: Option<Frames>,
    /// The epoch of the last role that was sent, if it leads.
    leads_in: Option<u64>,
    number: u64,
    unanswered: BTreeMap<u64, Unanswered>,
}

#[derive(Debug)]
struct Unanswered {
    sent: Instant,
    reply: oneshot::Sender<Answer>,
    /// The order's place in the window. It is freed by the answer, even if the caller has stopped waiting, because the
    /// agent's window is still occupied until then.
    _permit: OwnedSemaphorePermit,
}

/// The connection has ended. The agent's next Hello shows whether it has carried out its unanswered orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the node's agent is not connected")]
pub struct Disconnected;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotSent {
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
    /// The agent has received another epoch in the meantime, or that this replica does not lead.
    #[error("this replica does not lead in epoch {0}")]
    NotLeading(u64),
}

impl Connection {
    pub(super) fn new(id: u64, node: NodeName, window: u32, frames: Frames) -> Self {
        let outbox = Outbox { frames: Some(frames), leads_in: None, number: 0, unanswered: BTreeMap::new() };
        let window = Arc::new(Semaphore::new(usize::try_from(window).unwrap_or(usize::MAX)));
        Self(Arc::new(Shared { id, node, window, outbox: Mutex::new(outbox) }))
    }

    /// A number that identifies the connection in this process. Later connections have higher numbers.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.0.node
    }

    /// Waits for a free place in the agent's window. Waiting callers are served in the order of their calls.
    pub async fn slot(&self) -> Result<Slot, Disconnected> {
        let permit = Arc::clone(&self.0.window).acquire_owned().await.map_err(|_| Disconnected)?;
        Ok(Slot { connection: self.clone(), permit })
    }

    /// Sends an order once the window has a free place, and waits for the agent's answer.
    pub async fn order(&self, order: &Order) -> Result<Answer, NotSent> {
        Ok(self.slot().await?.send(order)?.await?)
    }

    /// When the oldest unanswered order was sent. The agent answers orders in their order.
    #[must_use]
    pub fn unanswered_since(&self) -> Option<Instant> {
        self.outbox().unanswered.first_key_value().map(|(_, order)| order.sent)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        // The lock is never poisoned, because no code panics while it holds it.
        self.0.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send_role(&self, role: Role) {
        let mut outbox = self.outbox();
        outbox.leads_in = role.leads.then_some(role.epoch);
        outbox.push(Message::Role(role));
    }

    /// Delivers an answer to its caller; `false` if no order with this number is unanswered.
    pub(super) fn answered(&self, number: u64, answer: Answer) -> bool {
        let Some(order) = self.outbox().unanswered.remove(&number) else { return false };
        // The caller may have stopped waiting, because a bind has a timeout.
        let _ = order.reply.send(answer);
        true
    }

    /// Closes the connection unless an order is unanswered, and returns whether it did.
    /// The check and the end are one step, so that no order is sent between them.
    pub(super) fn close_if_answered(&self) -> bool {
        let mut outbox = self.outbox();
        let is_answered = outbox.unanswered.is_empty();
        if is_answered {
            outbox.frames = None;
        }
        is_answered
    }

    pub(super) fn close(&self) {
        let mut outbox = self.outbox();
        outbox.frames = None;
        outbox.unanswered.clear();
        // Otherwise callers would wait for a place in the window for ever.
        self.0.window.close();
    }
}

impl Outbox {
    fn push(&self, message: Message) {
        // The session notices a broken connection, and then the unanswered orders fail.
        let frame = socket::frame(&ToAgent { message: Some(message) });
        let _ = self.frames.as_ref().map(|frames| frames.unbounded_send(frame));
    }
}

#[derive(Debug)]
pub struct Slot {
    connection: Connection,
    permit: OwnedSemaphorePermit,
}

impl Slot {
    /// Sends an order, if the last role was that of its epoch's leader. Orders are sent in the order of these calls.
    pub fn send(self, order: &Order) -> Result<Reply, NotSent> {
        // The lock is held until the order is queued, so that no role can come between the check and the order.
        let mut outbox = self.connection.outbox();
        if outbox.frames.is_none() {
            return Err(Disconnected.into());
        }
        if outbox.leads_in != Some(order.epoch) {
            return Err(NotSent::NotLeading(order.epoch));
        }
        outbox.number += 1;
        let number = outbox.number;
        let (reply, answer) = oneshot::channel();
        let sent = Instant::now();
        outbox.unanswered.insert(number, Unanswered { sent, reply, _permit: self.permit });
        outbox.push(Message::Order(write_order(number, order)));
        Ok(Reply(answer))
    }
}

/// The agent's future answer to an order. Dropping it does not withdraw the order.
#[derive(Debug)]
pub struct Reply(oneshot::Receiver<Answer>);

impl Future for Reply {
    type Output = Result<Answer, Disconnected>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(|_| Disconnected)
    }
}
