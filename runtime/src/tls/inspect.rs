//! Checks whether certificates meet the requirements on them. The time is an argument.

use super::config::{certificates, private_key, provider, roots};
use super::lifetimes::Life;
use super::{Content, Rotation, TlsError, key};
use jiff::Timestamp;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a Secret's or folder's content is not usable.
#[derive(Debug, Error)]
pub enum Unfit {
    /// The content has no entry of this name.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A text is malformed, or certificate and key do not belong together.
    #[error("{what} cannot be used: {source}")]
    Unusable {
        /// The name of the entry.
        what: &'static str,
        /// The error of the parser.
        source: Box<TlsError>,
    },
    /// The server's certificate has ended or is from another authority.
    #[error("tls.crt does not serve: {0}")]
    Chain(rustls::Error),
    /// The server's certificate is not valid for a name.
    #[error("tls.crt does not serve {name}: {source}")]
    Server {
        /// The name that is missing.
        name: String,
        /// The error of the verifier.
        source: rustls::Error,
    },
    /// A required server name is neither a DNS name nor an IP address.
    #[error("{0:?} is no DNS name and no IP address")]
    Name(String),
    /// The client's certificate has ended or is from another authority.
    #[error("client.crt does not serve: {0}")]
    Client(rustls::Error),
    /// The client's certificate has a common name other than this.
    #[error("client.crt does not name {0}")]
    ClientName(String),
    /// A certificate is still usable, and its renewal is due.
    #[error("{what} ends at {end} and is renewed in time")]
    Due {
        /// The name of the entry.
        what: &'static str,
        /// The last moment at which it is valid.
        end: Timestamp,
    },
    /// A certificate is not valid now.
    #[error("{what} is valid from {begin} to {end} only")]
    Ended {
        /// The name of the entry.
        what: &'static str,
        /// The first moment at which it is valid.
        begin: Timestamp,
        /// The last moment at which it is valid.
        end: Timestamp,
    },
}

fn unusable(what: &'static str) -> impl FnOnce(TlsError) -> Unfit {
    move |source| Unfit::Unusable { what, source: Box::new(source) }
}

fn text<'c>(content: &'c Content, what: &'static str) -> Result<&'c str, Unfit> {
    content.get(what).map(String::as_str).ok_or(Unfit::Missing(what))
}

/// Whether the server's certificate in `content` is signed by `authority`, valid for all `names`, and not due for
/// renewal.
pub(super) fn server(
    content: &Content,
    authority: &str,
    names: &[String],
    rotation: &Rotation<'_>,
) -> Result<(), Unfit> {
    let leaf = pair(content, key::SERVER_CERT, key::SERVER_KEY)?;
    verify_server(authority, text(content, key::SERVER_CERT)?, names, rotation.now)?;
    in_time(key::SERVER_CERT, &leaf, rotation)
}

/// Whether the client's certificate in `content` is signed by `authority`, has the common name `name`, and is not due
/// for renewal.
pub(super) fn client(
    content: &Content,
    authority: &str,
    name: &str,
    rotation: &Rotation<'_>,
) -> Result<(), Unfit> {
    let leaf = pair(content, key::CLIENT_CERT, key::CLIENT_KEY)?;
    let roots = Arc::new(roots(authority).map_err(unusable(key::CA_CERT))?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(TlsError::from).map_err(unusable(key::CA_CERT))?;
    verifier.verify_client_cert(&leaf, &[], unix(rotation.now)).map_err(Unfit::Client)?;
    if common_name(&leaf).as_deref() != Some(name) {
        return Err(Unfit::ClientName(name.to_owned()));
    }
    in_time(key::CLIENT_CERT, &leaf, rotation)
}

fn in_time(what: &'static str, leaf: &CertificateDer<'_>, rotation: &Rotation<'_>) -> Result<(), Unfit> {
    let life = life_of(leaf).ok_or_else(|| unusable(what)(bad_encoding(what)))?;
    if rotation.ages.leaf_due(life) <= rotation.now {
        return Err(Unfit::Due { what, end: life.end });
    }
    Ok(())
}

/// Whether the chain `tls_crt` is valid for all `names` to a client that trusts `authorities`.
pub(super) fn verify_server(
    authorities: &str,
    tls_crt: &str,
    names: &[String],
    at: Timestamp,
) -> Result<(), Unfit> {
    let roots = roots(authorities).map_err(unusable(key::CA_CERT))?;
    let chain = certificates(key::SERVER_CERT, tls_crt).map_err(unusable(key::SERVER_CERT))?;
    let Some((leaf, rest)) = chain.split_first() else { return Err(Unfit::Missing(key::SERVER_CERT)) };
    let leaf = ParsedCertificate::try_from(leaf).map_err(Unfit::Chain)?;
    let algorithms = provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&leaf, &roots, rest, unix(at), algorithms)
        .map_err(Unfit::Chain)?;
    for name in names {
        let server = ServerName::try_from(name.as_str()).map_err(|_| Unfit::Name(name.clone()))?;
        verify_server_name(&leaf, &server).map_err(|source| Unfit::Server { name: name.clone(), source })?;
    }
    Ok(())
}

/// The first certificate of a chain, if it belongs to the key.
pub(super) fn pair(
    content: &Content,
    cert: &'static str,
    key: &'static str,
) -> Result<CertificateDer<'static>, Unfit> {
    let chain = certificates(cert, text(content, cert)?).map_err(unusable(cert))?;
    let secret = private_key(key, text(content, key)?).map_err(unusable(key))?;
    let leaf = chain.first().cloned().ok_or(Unfit::Missing(cert))?;
    CertifiedKey::from_der(chain, secret, &provider())
        .map_err(|source| unusable(key)(TlsError::Rustls { what: cert, source }))?;
    Ok(leaf)
}

pub(super) fn life_of(der: &CertificateDer<'_>) -> Option<Life> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    let validity = certificate.validity();
    Some(Life { begin: at(validity.not_before)?, end: at(validity.not_after)? })
}

/// The life of the first certificate in a text.
pub(super) fn life_of_pem(what: &'static str, pem: &str) -> Result<Life, TlsError> {
    let life = certificates(what, pem)?.first().and_then(life_of);
    life.ok_or_else(|| bad_encoding(what))
}

fn bad_encoding(what: &'static str) -> TlsError {
    TlsError::Rustls {
        what,
        source: rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding),
    }
}

fn common_name(der: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

fn unix(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().try_into().unwrap_or(0)))
}
