//! A small Service: forwards TCP connections to ready replicas in turn. As with kube-proxy, open connections
//! stay with their replica when it is no longer ready.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::relay::relay;

/// How often the proxy probes a replica. The manifests probe every 2 s, which would make the tests slow.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Backend {
    address: SocketAddr,
    ready: Arc<AtomicBool>,
    probing: AbortHandle,
}

#[derive(Debug, Default)]
struct Shared {
    backends: Mutex<Vec<Backend>>,
    turn: AtomicUsize,
}

/// Dropping the proxy stops it.
#[derive(Debug)]
pub struct AdmissionProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

impl AdmissionProxy {
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, shared) = (listener.local_addr()?, Arc::new(Shared::default()));
        let serving = shared.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, serving.next()));
            }
        });
        Ok(Self { address, shared, accepting: accepting.abort_handle() })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a replica that serves at `address` and reports its readiness at `admin`.
    pub fn add(&self, address: SocketAddr, admin: SocketAddr) {
        let ready = Arc::new(AtomicBool::new(false));
        let reported = ready.clone();
        let probing = tokio::spawn(async move {
            loop {
                let is_ready = matches!(timeout(TIMEOUT, is_ready(admin)).await, Ok(Ok(true)));
                reported.store(is_ready, Ordering::Relaxed);
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
        });
        self.shared.backends().push(Backend { address, ready, probing: probing.abort_handle() });
    }

    /// The replicas that get new connections now.
    #[must_use]
    pub fn ready(&self) -> Vec<SocketAddr> {
        self.shared.ready()
    }
}

impl Drop for AdmissionProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        for backend in self.shared.backends().iter() {
            backend.probing.abort();
        }
    }
}

impl Shared {
    fn backends(&self) -> MutexGuard<'_, Vec<Backend>> {
        // No code panics while it holds the lock, so a poisoned lock is still consistent.
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> Vec<SocketAddr> {
        let backends = self.backends();
        backends.iter().filter(|b| b.ready.load(Ordering::Relaxed)).map(|b| b.address).collect()
    }

    fn next(&self) -> Option<SocketAddr> {
        let ready = self.ready();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        ready.get(turn.checked_rem(ready.len())?).copied()
    }
}

async fn is_ready(admin: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(admin).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: kerf\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
