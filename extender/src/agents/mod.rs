//! Serves the connections of the nodes' agents, and feeds the index copies of their ledgers.
//!
//! Agents dial in and are served for the process's life, by followers too, so that a follower that becomes leader
//! already has every copy.

mod review;
mod session;

pub use review::{Access, Reviewer};

use crate::args::AgentsArgs;
use crate::cluster::Cluster;
use kerf_protocol::limits::{HELLO_TIMEOUT, NOT_GREETED};
use kerf_protocol::server::Server;
use kerf_runtime::serve::{self, UpgradeLimits, serve_upgrades};
use kerf_runtime::shutdown::CancellationToken;
use session::Sessions;
use std::sync::Arc;

/// Limits for connections on which no agent has sent its request. They equal the protocol's own limits for connections
/// without a Hello.
const LIMITS: UpgradeLimits = UpgradeLimits { connections: NOT_GREETED, timeout: HELLO_TIMEOUT };

/// The server that agents connect to.
pub struct Listening {
    server: Server<Sessions>,
    #[cfg(test)]
    address: std::net::SocketAddr,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

impl Listening {
    /// Starts sending orders, as the leader of `epoch`.
    pub fn lead(&self, epoch: u64) {
        self.server.lead(epoch);
    }

    /// Stops sending orders; the connections stay open.
    pub fn follow(&self) {
        self.server.follow();
    }

    /// The address that agents dial.
    #[cfg(test)]
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }
}

/// Starts to serve agents until `stop`, as a follower. Returns `None` if no address is configured.
pub async fn listen(
    cluster: &Arc<Cluster>,
    args: &AgentsArgs,
    access: &Arc<Access>,
    identity: &str,
    stop: CancellationToken,
) -> std::io::Result<Option<Listening>> {
    let Some(address) = args.agents_address else { return Ok(None) };
    let listener = serve::listen(address, args.agents_address_file.as_deref()).await?;
    #[cfg(test)]
    let address = listener.local_addr()?;
    let sessions = Sessions { cluster: cluster.clone(), access: Arc::clone(access) };
    let server = Server::new(Arc::new(sessions), identity, stop.clone());
    let serving = serve_upgrades(listener, access.tls(), LIMITS, server.routes(), stop);
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "failed to serve agents");
        }
    });
    Ok(Some(Listening {
        server,
        #[cfg(test)]
        address,
    }))
}
