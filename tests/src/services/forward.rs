//! Forwards one port of one Service to its pods.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::kubelet::locked;
use crate::relay::relay;

/// Open connections. They end with this set or when a pod ends them. As with kube-proxy, a change of the
/// Service or of a pod's readiness ends none.
pub(super) type Connections = Arc<Mutex<JoinSet<()>>>;

/// A port that listens until this is dropped. New connections go to the pods in turn.
#[derive(Debug)]
pub(super) struct Forward {
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    backends: Mutex<Vec<SocketAddr>>,
    turn: AtomicUsize,
}

impl Forward {
    pub(super) async fn listen(
        address: SocketAddr,
        backends: BTreeSet<SocketAddr>,
        connections: Connections,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let backends = Mutex::new(backends.into_iter().collect());
        let shared = Arc::new(Shared { backends, turn: AtomicUsize::new(0) });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared), connections));
        Ok(Self { shared, _accepting: accepting })
    }

    /// Sends new connections to these pods from now on.
    pub(super) fn lead_to(&self, backends: BTreeSet<SocketAddr>) {
        *locked(&self.shared.backends) = backends.into_iter().collect();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, connections: Connections) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            let mut connections = locked(&connections);
            // Ended connections are removed, so that the set does not grow.
            while connections.try_join_next().is_some() {}
            connections.spawn(relay(client, shared.next()));
        }
    }
}

impl Shared {
    fn next(&self) -> Option<SocketAddr> {
        let backends = locked(&self.backends);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        backends.get(turn.checked_rem(backends.len())?).copied()
    }
}
