//! The certificates by which the extender is known, renewed while it runs, and their authority, published for agents.

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

/// The name in kube-scheduler's client certificate.
const SCHEDULER: &str = "kerf-scheduler";
/// How often the certificates are looked at, and whether their authority is published. They are renewed weeks before their end.
const INTERVAL: Duration = Duration::from_mins(5);
/// The pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The certificates of a replica.
pub struct Certificates {
    source: Source,
    serving: ServingCertificate,
    /// As it was at the start.
    material: Material,
    expiry: Expiry,
    /// Whether agents find the authority.
    is_published: bool,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("material", &self.material).finish_non_exhaustive()
    }
}

/// The Secret that has them, and the ConfigMap that has their authority.
struct Source {
    client: kube::Client,
    secret: NamespacedName,
    wanted: Wanted,
    /// Where agents read the authority, if there are any.
    authority: Option<PublishedAuthority>,
}

impl Source {
    /// The material, made or renewed if need be, and whether its authority is published.
    async fn ensure(&self) -> Result<(Material, bool), TlsError> {
        let before = match &self.authority {
            Some(authority) => Some((authority, authority.read().await)),
            None => None,
        };
        let NamespacedName { namespace, name } = &self.secret;
        let material = TlsSecret::ensure(&self.client, namespace, name, &self.wanted).await?;
        let Some((authority, before)) = before else { return Ok((material, true)) };
        let published = async { authority.write(before?, &material.ca_pem).await };
        // kube-scheduler is served without it.
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
    /// Those in the Secret, which is made if absent. Their authority is published if agents are served over TLS.
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

    /// For kube-scheduler, which shows a certificate too.
    ///
    /// No HTTP/2. There a request that is not answered in time leaves the connection open, and the scheduler goes on asking a leader whose
    /// machine is gone until its pings fail, 45 s later. In HTTP/1.1 it connects anew, to the leader of then.
    pub fn for_scheduler(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.server(Clients::Verified, "http/1.1")
    }

    /// For agents, which are known by their tokens.
    pub fn for_agents(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.server(Clients::Any, "h2")
    }

    fn server(&self, clients: Clients, protocol: &str) -> Result<Arc<ServerConfig>, TlsError> {
        let mut tls = Arc::unwrap_or_clone(self.serving.server_config(&self.material, clients)?);
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Ok(Arc::new(tls))
    }

    /// Renews them for ever. Servers show new ones from the next connection on.
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
