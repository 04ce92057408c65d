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
use crate::socket::{self, Broken};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, Request, StatusCode};
use kerf_core::ledger::Change;
use kerf_core::names::NodeName;
use registry::Registry;
use std::future::Future;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_util::sync::CancellationToken;

/// What the server needs of the extender.
pub trait Agents: Send + Sync + 'static {
    /// Authenticates a connection by the headers of its request, before its first message is read.
    fn authenticate(&self, headers: &HeaderMap) -> impl Future<Output = Result<Caller, Denied>> + Send;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The agent of this node. A Hello from another node is refused.
    Node(NodeName),
    /// An agent whose Hello is trusted. For tests and benchmarks on loopback.
    Anyone,
}

/// Why a connection is not accepted, as the agent is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    pub status: StatusCode,
    pub text: String,
}

impl Denied {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        (self.status, self.text).into_response()
    }
}

#[derive(Debug, Error)]
pub enum End {
    #[error("agent closed the connection")]
    Closed,
    #[error("connection failed: {0}")]
    Failed(#[from] Broken),
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
    fn frame(&self) -> Message {
        let code = match self {
            Self::Closed | Self::Failed(_) | Self::Aged | Self::Stopping => CloseCode::Away,
            Self::NoHello | Self::Replaced | Self::OtherNode { .. } => CloseCode::Policy,
            Self::Refused(_) => CloseCode::Protocol,
        };
        socket::close(code, &self.to_string())
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

    /// The route that agents dial, for a server with or without TLS.
    pub fn routes(&self) -> Router {
        Router::new().route(socket::PATH, get(connect::<A>)).with_state(self.clone())
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

async fn connect<A: Agents>(
    State(server): State<Server<A>>,
    request: Request<Body>,
) -> Result<Response, Denied> {
    // The place is taken before the review of the token, so that it also limits the reviews in flight.
    let place = Arc::clone(&server.not_greeted).try_acquire_owned().map_err(|_| {
        Denied::new(StatusCode::SERVICE_UNAVAILABLE, "too many agents have not said hello yet")
    })?;
    let caller = server.agents.authenticate(request.headers()).await?;
    socket::accept(request, limits::FROM_AGENT, |socket| session::run(server, caller, socket, place))
        .map_err(|error| Denied::new(StatusCode::BAD_REQUEST, error.to_string()))
}
