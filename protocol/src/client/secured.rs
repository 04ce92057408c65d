//! TLS to replicas whose certificates share one name, and the token by which they authenticate the agent.

use super::Network;
use super::dialling::{dial, look_up};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio_rustls::rustls::{self, ClientConfig};

/// The least age of the authority before a certificate that it has not signed causes another read. Otherwise all agents
/// would read it at each dial while one replica has a wrong certificate.
const AUTHORITY_INTERVAL: Duration = Duration::from_secs(10);

/// Replicas that are dialled over TLS.
///
/// `authority` returns the authority that must have signed the replicas' certificates. It is called at the first dial,
/// and again after a certificate that the last authority has not signed. Its configuration must trust only this
/// authority, and offer `http/1.1`, because a WebSocket is opened by it.
pub struct Secured<A> {
    extenders: Vec<String>,
    name: ServerName<'static>,
    token: PathBuf,
    authority: A,
    trusted: Mutex<Option<Trusted>>,
}

struct Trusted {
    config: Arc<ClientConfig>,
    read: Instant,
}

impl<A> std::fmt::Debug for Secured<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secured")
            .field("extenders", &self.extenders)
            .field("name", &self.name)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl<A, F> Secured<A>
where
    A: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<Arc<ClientConfig>>> + Send,
{
    /// Replicas at each `HOST:PORT` of `extenders`. Their certificates have the DNS name `name`, whatever their
    /// addresses are. `token` is a file, which is read at each dial.
    pub fn new(
        extenders: Vec<String>,
        name: &str,
        token: PathBuf,
        authority: A,
    ) -> Result<Self, InvalidDnsNameError> {
        let name = ServerName::try_from(name.to_owned())?;
        Ok(Self { extenders, name, token, authority, trusted: Mutex::default() })
    }

    fn trusted(&self) -> MutexGuard<'_, Option<Trusted>> {
        // The lock is never poisoned, because no code panics while it holds it.
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn config(&self) -> io::Result<Arc<ClientConfig>> {
        if let Some(trusted) = &*self.trusted() {
            return Ok(Arc::clone(&trusted.config));
        }
        let read = Instant::now();
        // The lock is free while the authority is read, because it must not be held across an await.
        let config = (self.authority)().await?;
        *self.trusted() = Some(Trusted { config: Arc::clone(&config), read });
        Ok(config)
    }

    fn doubt_authority(&self) {
        self.trusted().take_if(|trusted| trusted.read.elapsed() >= AUTHORITY_INTERVAL);
    }
}

impl<A, F> Network for Secured<A>
where
    A: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<Arc<ClientConfig>>> + Send,
{
    type Stream = TlsStream<TcpStream>;

    async fn resolve(&self) -> io::Result<BTreeSet<SocketAddr>> {
        look_up(&self.extenders).await
    }

    async fn connect(&self, extender: SocketAddr) -> io::Result<Self::Stream> {
        // This comes before the dial, because a replica soon closes a connection that sends nothing.
        let connector = TlsConnector::from(self.config().await?);
        let connected = connector.connect(self.name.clone(), dial(extender).await?).await;
        connected.inspect_err(|error| {
            if is_of_certificate(error) {
                self.doubt_authority();
            }
        })
    }

    async fn token(&self) -> io::Result<Option<String>> {
        let token = tokio::fs::read_to_string(&self.token).await;
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.token.display()));
        Ok(Some(token.map_err(named)?.trim().to_owned()))
    }
}

fn is_of_certificate(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidCertificate(_)))
}

#[cfg(test)]
#[path = "secured_tests.rs"]
mod tests;
