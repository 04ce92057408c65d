//! HTTPS: an accept loop of our own, so that a slow handshake holds up nobody and a stop lets open requests finish.

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

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a client of HTTP/1.1 may take to send a request's head, also the next one on an open connection: longer than
/// the 90 s after which Go's clients give up an idle connection themselves. Else a request could meet a connection that is
/// just being closed here, and a POST is not sent again (net/http's transport.go, `shouldRetryRequest`).
const HEADERS: Duration = Duration::from_mins(2);
/// How long open requests may go on after the stop: more than an admission (10 s) or a bind (5 s) may take.
const DRAIN: Duration = Duration::from_secs(12);
/// How long an idle connection that is one too many may take to send its last answer.
const LINGER: Duration = Duration::from_secs(1);
/// The pause after a failed accept, which means that file descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens on `address`, whose port may be 0, and tells the chosen address to `address_file`.
///
/// The file appears whole, as `host:port`, once connections are accepted: who started the program may wait for it.
pub async fn listen(address: SocketAddr, address_file: Option<&Path>) -> std::io::Result<TcpListener> {
    let listener = listener::bind(address).await?;
    if let Some(path) = address_file {
        let unfinished = path.with_extension("unfinished");
        tokio::fs::write(&unfinished, listener.local_addr()?.to_string()).await?;
        tokio::fs::rename(&unfinished, path).await?;
    }
    Ok(listener)
}

/// How HTTP/2 is spoken.
#[derive(Debug, Clone, Copy)]
pub struct Http2 {
    /// How often a silent connection is pinged.
    pub ping_interval: Duration,
    /// How long it may take to answer a ping.
    pub ping_timeout: Duration,
    /// Bytes that a client may send of one stream before they are read.
    pub stream_window: u32,
    /// Which connections without an open request are ended; `None` where clients keep theirs for the next request.
    pub idle: Option<IdleLimits>,
}

impl Default for Http2 {
    /// For requests: client-go pings its servers every 30 s as well.
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(20),
            stream_window: 1 << 20,
            idle: None,
        }
    }
}

/// Serves `router` over TLS until `stop`, then lets open requests finish.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    serve_with(listener, Some(tls), Http2::default(), router, stop).await
}

/// The same with these settings of HTTP/2. Without TLS nothing but HTTP/2 is spoken.
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

/// `router`, whose answers close their HTTP/1.1 connections once `leaving` is cancelled: clients that keep connections
/// open, as the API server does, then go elsewhere, and no request meets a connection that is being closed. HTTP/2 has
/// GOAWAY for it.
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

/// What all connections of a listener have.
#[derive(Clone)]
struct Server {
    acceptor: Option<TlsAcceptor>,
    http2: Http2,
    router: Router,
    idle: Option<IdleConnections>,
}

impl Server {
    async fn connection(mut self, stream: TcpStream, open: Watcher) {
        // Replies are small and written whole: waiting for more to send costs up to 40 ms.
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
            // It may not have been sent yet. Whether it was or not, the connection ends.
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
        // By ALPN and not by the first bytes, which a silent client would never send.
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

/// For HTTP/2 so, else for HTTP/1.1.
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
