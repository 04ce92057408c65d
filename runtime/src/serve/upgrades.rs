//! Serves connections that leave HTTP by an upgrade, so that no stranger can occupy the server before it.

use super::{accept, shake_hands};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::{Router, middleware};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Limits for connections before their upgrade. Such a connection has one request, by HTTP/1.1.
#[derive(Debug, Clone, Copy)]
pub struct UpgradeLimits {
    /// The number of connections that may wait for their upgrade at once. A further one is ended at once.
    pub connections: usize,
    /// The timeouts of the TLS handshake and of the request's head, each.
    pub timeout: Duration,
}

/// Serves `router` until `stop`, over TLS if there is a configuration. `router` upgrades the connections. Those that it
/// has upgraded are not waited for.
pub async fn serve_upgrades(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    limits: UpgradeLimits,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let places = Arc::new(Semaphore::new(limits.connections));
    let router = router.layer(middleware::map_response(close));
    let server = Server { acceptor: tls.map(TlsAcceptor::from), router, timeout: limits.timeout };
    accept(listener, &stop, |stream| {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            return tracing::debug!("too many connections wait for their upgrade");
        };
        let server = server.clone();
        tokio::spawn(async move {
            server.connection(stream).await;
            // The place is free now: the connection has been upgraded, or is over. An upgraded one must not count,
            // because agents stay connected for days.
            drop(place);
        });
    })
    .await
}

/// Ends the connection of a request that is not upgraded.
async fn close(mut response: Response) -> Response {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[derive(Clone)]
struct Server {
    /// `None` serves without TLS.
    acceptor: Option<TlsAcceptor>,
    router: Router,
    timeout: Duration,
}

impl Server {
    async fn connection(self, stream: TcpStream) {
        let Some(acceptor) = &self.acceptor else { return self.request(stream).await };
        if let Some(stream) = shake_hands(acceptor, stream, self.timeout).await {
            self.request(stream).await;
        }
    }

    async fn request<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.timeout);
        let service = TowerToHyperService::new(self.router);
        if let Err(error) = http.serve_connection(TokioIo::new(stream), service).with_upgrades().await {
            tracing::debug!(%error, "connection ended");
        }
    }
}
