//! The nodes' agents: they dial, and the index has a copy of what they report.
//!
//! They are served for the process's life, by followers too: one that comes to lead has their copies already.

mod review;
mod session;

pub use review::{Access, Reviewer};

use crate::args::AgentsArgs;
use crate::cluster::Cluster;
use hashbrown::HashMap;
use kerf_core::names::NodeName;
use kerf_protocol::limits::{HELLO_TIMEOUT, NOT_GREETED, PING_INTERVAL};
use kerf_protocol::server::{Connection, Server};
use kerf_runtime::serve::{self, Http2, IdleLimits};
use kerf_runtime::shutdown::CancellationToken;
use session::Sessions;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that an agent may send before they are read: an agent that is ahead reports the sum of its changes later.
const STREAM_WINDOW: u32 = 64 << 10;
/// Connections on which no agent calls: as many as may be about to say hello, and as long.
const IDLE: IdleLimits = IdleLimits { connections: NOT_GREETED, timeout: HELLO_TIMEOUT };

/// The agents' connections, by node.
#[derive(Debug, Default)]
pub struct Connections(Mutex<HashMap<NodeName, Connection>>);

impl Connections {
    /// The connection of a node's agent.
    #[must_use]
    pub fn connection(&self, node: &NodeName) -> Option<Connection> {
        self.lock().get(node).cloned()
    }

    /// The nodes whose agents have left an order without an answer for so long.
    #[must_use]
    pub fn silent(&self, since: Duration) -> BTreeSet<NodeName> {
        let connections = self.lock();
        let is_silent = |c: &&Connection| c.unanswered_since().is_some_and(|sent| sent.elapsed() >= since);
        connections.values().filter(is_silent).map(|connection| connection.node().clone()).collect()
    }

    fn insert(&self, connection: &Connection) {
        self.lock().insert(connection.node().clone(), connection.clone());
    }

    fn remove(&self, connection: &Connection) {
        let mut all = self.lock();
        if all.get(connection.node()).is_some_and(|known| known.id() == connection.id()) {
            all.remove(connection.node());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Connection>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Agents that are listened to.
pub struct Listening {
    server: Server<Sessions>,
    address: SocketAddr,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

impl Listening {
    /// This replica leads in `epoch`, and sends orders from now on.
    pub fn lead(&self, epoch: u64) {
        self.server.lead(epoch);
    }

    /// This replica sends no orders any more.
    pub fn follow(&self) {
        self.server.follow();
    }

    /// Where they dial.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens to agents until `stop`, and leads none of them yet; `None` without an address.
pub async fn listen(
    cluster: &Arc<Cluster>,
    args: &AgentsArgs,
    access: &Arc<Access>,
    identity: &str,
    stop: CancellationToken,
) -> std::io::Result<Option<Listening>> {
    let Some(address) = args.agents_address else { return Ok(None) };
    let listener = serve::listen(address, args.agents_address_file.as_deref()).await?;
    let address = listener.local_addr()?;
    let sessions = Sessions { cluster: cluster.clone(), access: Arc::clone(access) };
    let server = Server::new(Arc::new(sessions), identity, stop.clone());
    let http2 = Http2 {
        ping_interval: PING_INTERVAL,
        ping_timeout: PING_INTERVAL,
        stream_window: STREAM_WINDOW,
        idle: Some(IDLE),
    };
    let router = server.routes().into_axum_router();
    let serving = serve::serve_with(listener, access.tls(), http2, router, stop);
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "failed to serve agents");
        }
    });
    Ok(Some(Listening { server, address }))
}
