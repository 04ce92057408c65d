//! From material to what rustls serves. The certificate can be exchanged while connections are open.

use super::{Material, TlsError};
use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

/// Which clients are let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// All.
    Any,
    /// Those with a certificate by the material's authority.
    Verified,
}

/// ring and nothing else: two providers in one program make rustls panic.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// How a server uses `material`, once and for all; [`ServingCertificate`] is for those that exchange it.
pub fn server_config(material: &Material, clients: Clients) -> Result<Arc<ServerConfig>, TlsError> {
    ServingCertificate::new(material)?.server_config(material, clients)
}

/// The certificate that new connections are shown. Clones share it.
#[derive(Debug, Clone)]
pub struct ServingCertificate(Arc<ArcSwap<CertifiedKey>>);

impl ServingCertificate {
    /// The server certificate of `material`.
    pub fn new(material: &Material) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(ArcSwap::new(certified_key(material)?))))
    }

    /// Shows the server certificate of `material` from the next connection on. A bad one changes nothing.
    pub fn replace(&self, material: &Material) -> Result<(), TlsError> {
        self.0.store(certified_key(material)?);
        Ok(())
    }

    /// A server that shows this certificate. Whom it lets in is decided by `material`'s authority, for good.
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

/// A client of HTTP/2 that trusts the authorities of the PEM text `ca_pem` and no others, and shows no certificate.
pub fn client_config(ca_pem: &str) -> Result<Arc<ClientConfig>, TlsError> {
    let protocols = |source| TlsError::Rustls { what: "the protocol versions", source };
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(protocols)?;
    let mut config = builder.with_root_certificates(roots(ca_pem)?).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
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
