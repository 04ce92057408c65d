//! Finds the replicas of the extender, and dials each of them again and again.

use super::Agent;
use super::session::{self, End};
use crate::random;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The shortest interval between two look-ups of the replicas' addresses. Up to half of it is added at random, so that
/// agents do not ask at the same time.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(4);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The backoff before an address is dialled again. The pause is random below a limit, which doubles from the first
/// value to the second.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// How the extender's replicas are found and reached.
pub trait Network: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    fn resolve(&self) -> impl Future<Output = io::Result<BTreeSet<SocketAddr>>> + Send;

    fn connect(&self, extender: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The token by which the extender authenticates the agent, read at each dial. `None` for an extender that trusts
    /// the Hello.
    fn token(&self) -> impl Future<Output = io::Result<Option<String>>> + Send;
}

/// TCP without TLS and without a token. For tests and benchmarks on loopback.
#[derive(Debug, Clone)]
pub struct Plain {
    /// The extenders as `HOST:PORT`.
    pub extenders: Vec<String>,
}

impl Network for Plain {
    type Stream = TcpStream;

    async fn resolve(&self) -> io::Result<BTreeSet<SocketAddr>> {
        look_up(&self.extenders).await
    }

    async fn connect(&self, extender: SocketAddr) -> io::Result<TcpStream> {
        dial(extender).await
    }

    async fn token(&self) -> io::Result<Option<String>> {
        Ok(None)
    }
}

pub(super) async fn look_up(extenders: &[String]) -> io::Result<BTreeSet<SocketAddr>> {
    let mut addresses = BTreeSet::new();
    for extender in extenders {
        addresses.extend(lookup_host(extender).await?);
    }
    Ok(addresses)
}

pub(super) async fn dial(extender: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(extender).await?;
    // Messages are small and written as a whole, so waiting for more to send would only delay them by up to 40 ms.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Keeps a connection to each replica until `stop`, because any of them may lead next.
pub async fn run<A: Agent, N: Network>(agent: Arc<A>, network: Arc<N>, stop: CancellationToken) {
    let listed = watch::Sender::new(BTreeSet::new());
    let mut dialled: BTreeMap<SocketAddr, JoinHandle<()>> = BTreeMap::new();
    loop {
        let resolved = tokio::select! {
            () = stop.cancelled() => return,
            resolved = timeout(RESOLVE_TIMEOUT, network.resolve()) => resolved,
        };
        // A failed look-up drops no replica, because an open connection needs no address.
        match resolved.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(addresses) => listed.send_replace(addresses),
            Err(error) => {
                tracing::warn!(%error, "failed to look up the extender's addresses");
                BTreeSet::new()
            }
        };
        // A task ends once its address is unlisted. Without its entry the address is dialled if it is listed again.
        dialled.retain(|_, task| !task.is_finished());
        for extender in &*listed.borrow() {
            dialled.entry(*extender).or_insert_with(|| {
                let replica = Replica {
                    extender: *extender,
                    agent: Arc::clone(&agent),
                    network: Arc::clone(&network),
                    listed: listed.subscribe(),
                };
                let stop = stop.clone();
                // A task is started per address, so that a replica that does not answer delays no other.
                tokio::spawn(async move {
                    stop.run_until_cancelled(replica.keep_connected()).await;
                })
            });
        }
        let pause = RESOLVE_INTERVAL + random::up_to(RESOLVE_INTERVAL / 2);
        if stop.run_until_cancelled(sleep(pause)).await.is_none() {
            return;
        }
    }
}

struct Replica<A, N> {
    extender: SocketAddr,
    agent: Arc<A>,
    network: Arc<N>,
    listed: watch::Receiver<BTreeSet<SocketAddr>>,
}

impl<A: Agent, N: Network> Replica<A, N> {
    /// Dials until the address is no longer listed. A connection that is open then lives on until it ends by itself.
    async fn keep_connected(self) {
        let [least, most] = BACKOFF;
        let mut limit = least;
        while self.listed.borrow().contains(&self.extender) {
            let dialled = Instant::now();
            let end = self.connection().await;
            tracing::info!(extender = %self.extender, %end, "connection to the extender ended");
            // A connection that ends at once does not reset the backoff.
            if dialled.elapsed() > most {
                limit = least;
            }
            sleep(random::up_to(limit)).await;
            limit = most.min(limit * 2);
        }
    }

    async fn connection(&self) -> End {
        // The guard also reports the end if this task is stopped.
        let _report = EndReport { agent: &*self.agent, extender: self.extender };
        session::run(&*self.agent, &*self.network, self.extender).await
    }
}

/// Reports the end of a connection when it is dropped, because a stopped task runs no further code.
struct EndReport<'a, A: Agent> {
    agent: &'a A,
    extender: SocketAddr,
}

impl<A: Agent> Drop for EndReport<'_, A> {
    fn drop(&mut self) {
        self.agent.role(self.extender, None);
    }
}
