//! HTTPS with an accept loop of its own, so that a slow handshake delays no other client, and a stop lets open requests
//! finish.

use crate::listener;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Version, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

mod upgrades;

pub use upgrades::{UpgradeLimits, serve_upgrades};

/// The timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for the head of an HTTP/1.1 request, also for the next one on an open connection. It is longer than the
/// 90 s after which Go's clients close an idle connection. Otherwise a request could meet a connection that is just
/// being closed here, and Go does not send a POST again (net/http's transport.go, `shouldRetryRequest`).
const HEADER_TIMEOUT: Duration = Duration::from_mins(2);
/// The time for open requests after the stop. It is longer than an admission (5 s in the chart, 10 s by Kubernetes'
/// default) and a bind (the scheduler's `httpTimeout`, 5 s) may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(12);
/// An HTTP/2 connection that has been quiet for this long is pinged, as client-go does with its servers.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// An HTTP/2 connection is closed whose ping stays unanswered for this long.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The delay after a failed accept. File descriptors are short then, so an immediate retry would spin.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Listens on `address`, whose port may be 0, and writes the chosen address into `address_file`.
///
/// The file appears complete, as `host:port`, once connections are accepted, so that the starter of the program can
/// wait for it.
pub async fn listen(address: SocketAddr, address_file: Option<&Path>) -> std::io::Result<TcpListener> {
    let listener = listener::bind(address).await?;
    if let Some(path) = address_file {
        let unfinished = path.with_extension("unfinished");
        tokio::fs::write(&unfinished, listener.local_addr()?.to_string()).await?;
        tokio::fs::rename(&unfinished, path).await?;
    }
    Ok(listener)
}

/// Serves `router` over TLS until `stop`, then waits up to 12 s for open requests.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let server = Server { acceptor: tls.into(), router };
    let address = listener.local_addr()?;
    let open = GracefulShutdown::new();
    accept(listener, &stop, |stream| {
        tokio::spawn(server.clone().connection(stream, open.watcher()));
    })
    .await?;
    if timeout(DRAIN_TIMEOUT, open.shutdown()).await.is_err() {
        tracing::warn!(%address, "stopped with requests open");
    }
    Ok(())
}

/// Passes each connection to `serve` until `stop`.
async fn accept(
    listener: TcpListener,
    stop: &CancellationToken,
    serve: impl Fn(TcpStream),
) -> std::io::Result<()> {
    tracing::info!(address = %listener.local_addr()?, "serving");
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                // Responses are small and written whole: Nagle's algorithm would delay them by up to 40 ms.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "failed to set TCP_NODELAY");
                }
                serve(stream);
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// `None` if the client does not complete its handshake. The limit matters, because a client that sends nothing would
/// keep its task for ever.
async fn shake_hands(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    limit: Duration,
) -> Option<TlsStream<TcpStream>> {
    let shaken = timeout(limit, acceptor.accept(stream)).await;
    match shaken.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
    }
}

/// Makes every response of `router` close its HTTP/1.1 connection once `leaving` is cancelled. Clients that keep
/// connections open, as the API server does, then connect elsewhere, and no request meets a connection that is being
/// closed. HTTP/2 has GOAWAY for this.
pub fn closing(router: Router, leaving: CancellationToken) -> Router {
    router.layer(middleware::from_fn_with_state(leaving, close))
}

async fn close(State(leaving): State<CancellationToken>, request: Request, next: Next) -> Response {
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut response = next.run(request).await;
    if is_http1 && leaving.is_cancelled() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[derive(Clone)]
struct Server {
    acceptor: TlsAcceptor,
    router: Router,
}

impl Server {
    async fn connection(self, stream: TcpStream, open: Watcher) {
        let Some(stream) = shake_hands(&self.acceptor, stream, HANDSHAKE_TIMEOUT).await else { return };
        // The protocol comes from ALPN and not from the first bytes, because a quiet client would never send those.
        let builder = builder(stream.get_ref().1.alpn_protocol() == Some(b"h2"));
        let service = TowerToHyperService::new(self.router);
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        if let Err(error) = open.watch(connection).await {
            tracing::debug!(error = %error, "connection ended");
        }
    }
}

fn builder(is_http2: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    if !is_http2 {
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        return builder.http1_only();
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder.http2_only()
}

#[cfg(test)]
mod tests;
