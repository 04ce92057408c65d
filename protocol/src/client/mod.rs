//! The agent's end of the stream: keeps one connection to each replica of the extender.

mod dialling;
mod outgoing;
mod secured;
mod session;

pub use dialling::{Network, Plain, run};
pub use secured::Secured;
pub use session::End;

use crate::convert::{Hello, Role};
use kerf_core::ledger::{Answer, NodeState, Order};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// What the client needs of the agent.
pub trait Agent: Send + Sync + 'static {
    fn hello(&self) -> Hello;

    /// The node's state, now and at each change. The agent must write the change that an order causes here before it
    /// answers the order, because the change is sent before the answer.
    fn state(&self) -> watch::Receiver<Arc<NodeState>>;

    /// The replica at this address has reported its role; `None` when the connection has ended.
    fn role(&self, extender: SocketAddr, role: Option<&Role>);

    /// Takes an order and returns the future answer. Orders of a connection arrive in the order in which they were
    /// sent, and are answered in it. Dropping an answer ends the connection.
    fn order(&self, order: Order) -> oneshot::Receiver<Answer>;
}
