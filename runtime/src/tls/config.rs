//! From certificates and keys to rustls configurations. A server's certificate can be replaced while connections are
//! open.

use super::{Material, TlsError};
use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

/// The clients that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// Every client, with or without a certificate.
    Any,
    /// Only clients with a certificate by the material's authority.
    Verified,
}

/// ring alone, because rustls panics if a program has two providers.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A server with the fixed certificate of `material`; use [`ServingCertificate`] for one that is renewed.
pub fn server_config(material: &Material, clients: Clients) -> Result<Arc<ServerConfig>, TlsError> {
    ServingCertificate::new(material)?.server_config(material, clients)
}

/// The certificate that new connections get. Clones share it.
#[derive(Debug, Clone)]
pub struct ServingCertificate(Arc<ArcSwap<CertifiedKey>>);

impl ServingCertificate {
    /// Starts with the server certificate of `material`.
    pub fn new(material: &Material) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(ArcSwap::new(certified_key(material)?))))
    }

    /// Uses the server certificate of `material` from the next connection on. An unusable one is an error and changes
    /// nothing.
    pub fn replace(&self, material: &Material) -> Result<(), TlsError> {
        self.0.store(certified_key(material)?);
        Ok(())
    }

    /// A server that presents this certificate. The authority of `material` verifies clients, and a later
    /// [`Self::replace`] does not change that.
    pub fn server_config(
        &self,
        material: &Material,
        clients: Clients,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let protocols = |source| TlsError::Rustls { what: "the protocol versions", source };
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().map_err(protocols)?;
        let builder = match clients {
            Clients::Any => builder.with_no_client_auth(),
            Clients::Verified => {
                let roots = Arc::new(roots(&material.ca_pem)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// A client of HTTP/1.1 that trusts only the authorities of the PEM text `ca_pem` and presents no certificate.
pub fn client_config(ca_pem: &str) -> Result<Arc<ClientConfig>, TlsError> {
    let protocols = |source| TlsError::Rustls { what: "the protocol versions", source };
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(protocols)?;
    let mut config = builder.with_root_certificates(roots(ca_pem)?).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

fn certified_key(material: &Material) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates("tls.crt", &material.server_cert_pem)?;
    let key = private_key("tls.key", &material.server_key_pem)?;
    let key = CertifiedKey::from_der(chain, key, &provider());
    Ok(Arc::new(key.map_err(|source| TlsError::Rustls { what: "tls.crt with tls.key", source })?))
}

pub(super) fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates.map_err(|source| TlsError::Pem { what, source })? {
        none if none.is_empty() => {
            Err(TlsError::Pem { what, source: rustls::pki_types::pem::Error::NoItemsFound })
        }
        some => Ok(some),
    }
}

pub(super) fn private_key(what: &'static str, pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|source| TlsError::Pem { what, source })
}

pub(super) fn roots(ca_pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca.crt", ca_pem)? {
        roots.add(certificate).map_err(|source| TlsError::Rustls { what: "ca.crt", source })?;
    }
    Ok(roots)
}
