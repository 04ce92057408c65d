//! The agent's end of the stream: keeps one connection to each replica of the extender.

mod dialling;
mod outgoing;
mod secured;
mod session;

pub use dialling::{Network, Plain, run};
pub use secured::Secured;
pub use session::End;
#[cfg(test)]
pub(crate) use session::{call, open};

use crate::convert::{Hello, Role};
use kerf_core::ledger::{Answer, NodeState, Order};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// What the agent does with its extenders.
pub trait Agent: Send + Sync + 'static {
    /// Introduces the agent; read once for each connection.
    fn hello(&self) -> Hello;

    /// What the node has, now and at each change. Who answers an order has written here first what it changed: the change is sent before
    /// the answer.
    fn state(&self) -> watch::Receiver<Arc<NodeState>>;

    /// The replica at this address has told its role; `None` if the connection has ended.
    fn role(&self, extender: SocketAddr, role: Option<&Role>);

    /// Takes an order; the answer follows. Orders of a connection come in the order in which they were sent, and are answered in it.
    /// A connection of which an answer is dropped ends.
    fn order(&self, order: Order) -> oneshot::Receiver<Answer>;
}
