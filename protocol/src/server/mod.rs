//! The extender's end of the stream: accepts agents, receives their nodes' states, and sends orders.
//!
//! Each node has one connection, that of its newest Hello. The calls of [`Agents`] for a node never overlap: those of a
//! replaced connection have ended before its successor's begin.

mod connection;
mod registry;
mod session;

pub use connection::{Connection, Disconnected, NotSent, Reply, Slot};

use crate::convert::{Hello, Unreadable};
use crate::limits;
use crate::wire::ledger_server::{Ledger, LedgerServer};
use crate::wire::{FromAgent, ToAgent};
use kerf_core::ledger::Change;
use kerf_core::names::NodeName;
use registry::Registry;
use session::Session;
use std::future::Future;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// What the server needs of the extender.
pub trait Agents: Send + Sync + 'static {
    /// Authenticates a connection before its first message is read.
    fn authenticate(&self, metadata: &MetadataMap) -> impl Future<Output = Result<Caller, Status>> + Send;

    /// An agent has said hello. This replaces everything that was received from its node before.
    ///
    /// A state that cannot be parsed is passed as an error. The node then counts as full until the connection ends, and
    /// no change follows.
    fn connected(&self, connection: &Connection, hello: &Hello, state: Result<Change, Unreadable>);

    /// The agent has reported a change, or an error as with [`connected`](Self::connected). Returning an error ends the
    /// connection: the node would have more slices than [`limits::SLICES`] with this change.
    fn changed(&self, connection: &Connection, change: Result<Change, Unreadable>) -> Result<(), Unreadable>;

    /// The connection has ended. Its unanswered orders have failed already.
    fn disconnected(&self, connection: &Connection, end: &End);
}

/// The authenticated peer of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The agent of this node. A Hello from another node is refused.
    Node(NodeName),
    /// An agent whose Hello is trusted. For tests and benchmarks on loopback.
    Anyone,
}

/// Why a connection ended, from the extender's view.
#[derive(Debug, Error)]
pub enum End {
    #[error("agent closed the connection")]
    Closed,
    #[error("connection failed: {}", .0.message())]
    Failed(Status),
    #[error("agent sent no hello within {} s", limits::HELLO_TIMEOUT.as_secs())]
    NoHello,
    #[error("agent of the node has connected again")]
    Replaced,
    /// The connection was so old that the agent's token may have expired.
    #[error("connection reached its age limit")]
    Aged,
    #[error("extender stops")]
    Stopping,
    #[error("agent broke the protocol: {0}")]
    Refused(#[from] Unreadable),
    /// The Hello names another node than the agent's token.
    #[error("hello.node is {hello}, but the token is of the agent of {caller}")]
    OtherNode { hello: NodeName, caller: NodeName },
}

impl End {
    /// The status of the call that the agent receives.
    fn status(&self) -> Status {
        let text = self.to_string();
        match self {
            Self::Closed | Self::Failed(_) | Self::Aged | Self::Stopping => Status::unavailable(text),
            Self::NoHello => Status::deadline_exceeded(text),
            Self::Replaced => Status::aborted(text),
            Self::Refused(_) => Status::invalid_argument(text),
            Self::OtherNode { .. } => Status::permission_denied(text),
        }
    }
}

/// The service for agents. Clones share their connections.
#[derive(Debug)]
pub struct Server<A> {
    agents: Arc<A>,
    registry: Arc<Registry>,
    not_greeted: Arc<Semaphore>,
    stop: CancellationToken,
}

impl<A> Clone for Server<A> {
    fn clone(&self) -> Self {
        Self {
            agents: Arc::clone(&self.agents),
            registry: Arc::clone(&self.registry),
            not_greeted: Arc::clone(&self.not_greeted),
            stop: self.stop.clone(),
        }
    }
}

impl<A: Agents> Server<A> {
    /// A server that follows until [`lead`](Self::lead) is called, and ends with `stop`. `identity` is the replica's,
    /// for the agents' logs.
    pub fn new(agents: Arc<A>, identity: impl Into<String>, stop: CancellationToken) -> Self {
        Self {
            agents,
            registry: Arc::new(Registry::new(identity.into())),
            not_greeted: Arc::new(Semaphore::new(limits::NOT_GREETED)),
            stop,
        }
    }

    /// The gRPC service as routes, for a server with or without TLS.
    #[must_use]
    pub fn routes(&self) -> Routes {
        let service = LedgerServer::new(self.clone())
            .max_decoding_message_size(limits::FROM_AGENT)
            .max_encoding_message_size(limits::TO_AGENT);
        Routes::new(service)
    }

    /// Reports to all agents that this replica leads in `epoch`. From now on orders of this epoch can be sent.
    pub fn lead(&self, epoch: u64) {
        self.registry.set_role(true, epoch);
    }

    /// Reports to all agents that this replica no longer leads. From now on no order is sent.
    pub fn follow(&self) {
        self.registry.set_role(false, 0);
    }
}

#[tonic::async_trait]
impl<A: Agents> Ledger for Server<A> {
    type ConnectStream = UnboundedReceiverStream<Result<ToAgent, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<FromAgent>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let full = || Status::resource_exhausted("too many agents have not said hello yet");
        // The place is taken before the review of the token, so that it also limits the reviews in flight.
        let place = Arc::clone(&self.not_greeted).try_acquire_owned().map_err(|_| full())?;
        let caller = self.agents.authenticate(request.metadata()).await?;
        // The channel stays short: it holds at most one window of orders, and the roles.
        let (messages, outgoing) = mpsc::unbounded_channel();
        let session = Session { server: self.clone(), caller, incoming: request.into_inner(), messages };
        tokio::spawn(session.run(place));
        Ok(Response::new(UnboundedReceiverStream::new(outgoing)))
    }
}
