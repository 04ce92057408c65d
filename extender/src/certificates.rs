//! The extender's certificates, which are renewed while it runs, and their authority, which is published for agents.

use crate::args::ExtenderArgs;
use kerf_core::keys::EXTENDER_AUTHORITY;
use kerf_runtime::args::NamespacedName;
use kerf_runtime::tls::{
    Clients, Expiry, Material, PublishedAuthority, ServingCertificate, TlsError, TlsSecret, Wanted,
};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The common name in kube-scheduler's client certificate.
const SCHEDULER: &str = "kerf-scheduler";
/// How often the certificates and their published authority are checked. Certificates are renewed weeks before they
/// expire.
const INTERVAL: Duration = Duration::from_mins(5);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

pub struct Certificates {
    source: Source,
    serving: ServingCertificate,
    /// The material at the start of the process.
    material: Material,
    expiry: Expiry,
    /// Whether the authority was published at the start.
    is_published: bool,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("material", &self.material).finish_non_exhaustive()
    }
}

/// The Secret with the certificates, and the ConfigMap with their authority.
struct Source {
    client: kube::Client,
    secret: NamespacedName,
    wanted: Wanted,
    /// `None` if no agents are served over TLS.
    authority: Option<PublishedAuthority>,
}

impl Source {
    /// Reads the material, creates or renews it if needed, and publishes its authority. The flag says whether the
    /// authority is published.
    async fn ensure(&self) -> Result<(Material, bool), TlsError> {
        // The ConfigMap is read before the Secret, so that an older authority never replaces a newer one.
        let before = match &self.authority {
            Some(authority) => Some((authority, authority.read().await)),
            None => None,
        };
        let NamespacedName { namespace, name } = &self.secret;
        let material = TlsSecret::ensure(&self.client, namespace, name, &self.wanted).await?;
        let Some((authority, before)) = before else { return Ok((material, true)) };
        let published = async { authority.write(before?, &material.ca_pem).await };
        // A failure here is not an error of the caller, because kube-scheduler can be served without a published
        // authority.
        let is_published = published.await.unwrap_or_else(|error| {
            tracing::error!(
                error = kerf_runtime::telemetry::chain(&error),
                "failed to publish the authority"
            );
            false
        });
        Ok((material, is_published))
    }
}

impl Certificates {
    /// Reads the certificates from the Secret, which is created if absent. The authority is published if agents are
    /// served over TLS.
    pub async fn ensure(
        args: &ExtenderArgs,
        client: &kube::Client,
        expiry: Expiry,
    ) -> Result<Self, TlsError> {
        let secret = args.tls_secret.clone();
        let authority = PublishedAuthority::new(client, &secret.namespace, EXTENDER_AUTHORITY);
        let source = Source {
            client: client.clone(),
            wanted: Wanted { server_names: args.tls_name.clone(), client_name: Some(SCHEDULER.to_owned()) },
            authority: args.agents.are_reviewed().then_some(authority),
            secret,
        };
        let (material, is_published) = source.ensure().await?;
        expiry.set(&material);
        Ok(Self { serving: ServingCertificate::new(&material)?, source, material, expiry, is_published })
    }

    /// The TLS configuration for kube-scheduler, which presents a client certificate.
    ///
    /// HTTP/2 is not offered. There a request that times out leaves the connection open, and the scheduler goes on
    /// asking a leader whose machine is gone until its pings fail, 45 s later. With HTTP/1.1 it opens a new connection,
    /// which reaches the current leader.
    pub fn for_scheduler(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.server(Clients::Verified)
    }

    /// The TLS configuration for agents, which authenticate by tokens and open a WebSocket, which begins as HTTP/1.1.
    pub fn for_agents(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.server(Clients::Any)
    }

    fn server(&self, clients: Clients) -> Result<Arc<ServerConfig>, TlsError> {
        let mut tls = Arc::unwrap_or_clone(self.serving.server_config(&self.material, clients)?);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(tls))
    }

    /// Renews the certificates for ever. Servers present a new certificate from the next connection on.
    pub async fn renew(&self) -> Infallible {
        let mut is_done = self.is_published;
        loop {
            sleep(if is_done { INTERVAL } else { RETRY_INTERVAL }).await;
            let shown = self.source.ensure().await.and_then(|(material, is_published)| {
                self.serving.replace(&material)?;
                self.expiry.set(&material);
                Ok(is_published)
            });
            is_done = shown.unwrap_or_else(|error| {
                tracing::error!(%error, "failed to renew the certificates");
                false
            });
        }
    }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
