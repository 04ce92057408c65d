//! HTTPS with an accept loop of its own, so that a slow handshake delays no other client, and a stop lets open requests finish.

use crate::listener;
use crate::serve::idle::{IdleConnections, Requests};
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
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

mod idle;

pub use idle::IdleLimits;

/// The timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The timeout for the head of an HTTP/1.1 request, also for the next one on an open connection. It is longer than the 90 s after which
/// Go's clients close an idle connection. Otherwise a request could meet a connection that is just being closed here, and Go does not
/// send a POST again (net/http's transport.go, `shouldRetryRequest`).
const HEADERS: Duration = Duration::from_mins(2);
/// The time for open requests after the stop. It is longer than an admission (5 s in the chart, 10 s by Kubernetes' default) and a bind
/// (the scheduler's `httpTimeout`, 5 s) may take.
const DRAIN: Duration = Duration::from_secs(12);
/// The time in which an idle connection beyond the limit may still send its last response.
const LINGER: Duration = Duration::from_secs(1);
/// The delay after a failed accept: file descriptors are short then, and an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens on `address`, whose port may be 0, and writes the chosen address into `address_file`.
///
/// The file appears complete, as `host:port`, once connections are accepted, so that the starter of the program can wait for it.
pub async fn listen(address: SocketAddr, address_file: Option<&Path>) -> std::io::Result<TcpListener> {
    let listener = listener::bind(address).await?;
    if let Some(path) = address_file {
        let unfinished = path.with_extension("unfinished");
        tokio::fs::write(&unfinished, listener.local_addr()?.to_string()).await?;
        tokio::fs::rename(&unfinished, path).await?;
    }
    Ok(listener)
}

/// Settings of a server's HTTP/2 connections.
#[derive(Debug, Clone, Copy)]
pub struct Http2 {
    /// The server pings a connection that has been quiet for this long.
    pub ping_interval: Duration,
    /// The server closes a connection whose ping stays unanswered for this long.
    pub ping_timeout: Duration,
    /// Bytes of one stream that a client may send ahead of the reader. With a small window an agent that is ahead combines its changes.
    pub stream_window: u32,
    /// The limits for connections without an open request; `None` lets clients keep theirs for the next request.
    pub idle: Option<IdleLimits>,
}

impl Default for Http2 {
    /// Suits servers of requests: client-go too pings its servers every 30 s.
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(20),
            stream_window: 1 << 20,
            idle: None,
        }
    }
}

/// Serves `router` over TLS until `stop`, then waits up to 12 s for open requests.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    serve_with(listener, Some(tls), Http2::default(), router, stop).await
}

/// Like [`serve`], with these settings of HTTP/2. Without TLS the server accepts HTTP/2 only.
pub async fn serve_with(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    http2: Http2,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, "serving");
    let server = Server {
        acceptor: tls.map(TlsAcceptor::from),
        http2,
        router,
        idle: http2.idle.map(IdleConnections::new),
    };
    let open = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(server.clone().connection(stream, open.watcher()));
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if timeout(DRAIN, open.shutdown()).await.is_err() {
        tracing::warn!(%address, "stopped with requests open");
    }
    Ok(())
}

/// Makes every response of `router` close its HTTP/1.1 connection once `leaving` is cancelled. Clients that keep connections open, as the
/// API server does, then connect elsewhere, and no request meets a connection that is being closed. HTTP/2 has GOAWAY for this.
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

/// The settings that all connections of a listener share.
#[derive(Clone)]
struct Server {
    acceptor: Option<TlsAcceptor>,
    http2: Http2,
    router: Router,
    idle: Option<IdleConnections>,
}

impl Server {
    async fn connection(mut self, stream: TcpStream, open: Watcher) {
        // Responses are small and written whole: Nagle's algorithm would delay them by up to 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let Some(idle) = self.idle.take() else { return self.served(stream, open).await };
        let requests = Requests::default();
        self.router = requests.counted(self.router);
        let mut served = pin!(self.served(stream, open));
        let last_answer = tokio::select! {
            () = &mut served => return,
            last_answer = idle.over(&requests) => last_answer,
        };
        tracing::debug!("idle connection ended");
        if let Some(last_answer) = last_answer {
            // The last response may still be on its way. The connection ends after LINGER in any case.
            let _ = timeout_at(last_answer + LINGER, served).await;
        }
    }

    async fn served(self, stream: TcpStream, open: Watcher) {
        let http2 = self.http2;
        let Some(acceptor) = self.acceptor else {
            return speak(stream, &builder(Some(http2)), self.router, open).await;
        };
        let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake timed out"),
        };
        // The protocol comes from ALPN and not from the first bytes, because a quiet client would never send those.
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        speak(stream, &builder(is_http2.then_some(http2)), self.router, open).await;
    }
}

async fn speak<S>(stream: S, builder: &Builder<TokioExecutor>, router: Router, open: Watcher)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    if let Err(error) = open.watch(connection).await {
        tracing::debug!(error = %error, "connection ended");
    }
}

/// Speaks HTTP/2 if it has settings for it, otherwise HTTP/1.1.
fn builder(http2: Option<Http2>) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let Some(Http2 { ping_interval, ping_timeout, stream_window, .. }) = http2 else {
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS);
        return builder.http1_only();
    };
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(ping_interval)
        .keep_alive_timeout(ping_timeout)
        .initial_stream_window_size(stream_window);
    builder.http2_only()
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
