//! Whether a Secret's content still serves what is wanted. Pure: the time is an argument.

use super::config::{certificates, private_key, provider, roots};
use super::{Content, Material, TlsError, Wanted, key};
use jiff::{SignedDuration, Timestamp};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate is renewed when less than this is left of it: a month is time enough for a cluster that was off.
pub(super) const MARGIN: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Why content does not serve.
#[derive(Debug, Error)]
pub enum Unfit {
    /// A key is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A text is not what its key says, or does not belong to its neighbour.
    #[error("{what} cannot be used: {source}")]
    Unusable {
        /// The key.
        what: &'static str,
        /// Why.
        source: Box<TlsError>,
    },
    /// The authority ends soon.
    #[error("ca.crt ends within 30 days")]
    AuthorityExpires,
    /// The server's certificate ends soon, lacks a name or has another authority.
    #[error("tls.crt does not serve {name} for 30 more days: {source}")]
    Server {
        /// A wanted name.
        name: String,
        /// What the verifier says.
        source: rustls::Error,
    },
    /// A wanted name is none.
    #[error("{0:?} is no DNS name and no IP address")]
    Name(String),
    /// The client's certificate ends soon or has another authority.
    #[error("client.crt does not serve for 30 more days: {0}")]
    Client(rustls::Error),
    /// The client's certificate is another's.
    #[error("client.crt does not name {0}")]
    ClientName(String),
}

fn unusable(what: &'static str) -> impl FnOnce(TlsError) -> Unfit {
    move |source| Unfit::Unusable { what, source: Box::new(source) }
}

/// The material in `content` if it serves `wanted` for the next 30 days.
pub(super) fn inspect(content: &Content, wanted: &Wanted, now: Timestamp) -> Result<Material, Unfit> {
    let text = |what| content.get(what).cloned().ok_or(Unfit::Missing(what));
    let (ca_pem, later) = (text(key::CA_CERT)?, now.saturating_add(MARGIN).unwrap_or(Timestamp::MAX));
    if authority_end(&ca_pem).map_err(unusable(key::CA_CERT))? < later {
        return Err(Unfit::AuthorityExpires);
    }
    let server = pair(content, key::SERVER_CERT, key::SERVER_KEY)?;
    check_server(&ca_pem, &server.cert, wanted, later)?;
    let client = match &wanted.client_name {
        Some(name) => Some(checked_client(content, &ca_pem, name, later)?),
        None => None,
    };
    Ok(Material {
        ca_pem,
        server_cert_pem: text(key::SERVER_CERT)?,
        server_key_pem: text(key::SERVER_KEY)?,
        client_cert_pem: client.as_ref().map(|_| text(key::CLIENT_CERT)).transpose()?,
        client_key_pem: client.as_ref().map(|_| text(key::CLIENT_KEY)).transpose()?,
    })
}

fn check_server(
    ca_pem: &str,
    chain: &[CertificateDer<'_>],
    wanted: &Wanted,
    at: Timestamp,
) -> Result<(), Unfit> {
    let roots = Arc::new(roots(ca_pem).map_err(unusable(key::CA_CERT))?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(TlsError::from).map_err(unusable(key::CA_CERT))?;
    let Some((leaf, rest)) = chain.split_first() else { return Err(Unfit::Missing(key::SERVER_CERT)) };
    for name in &wanted.server_names {
        let server = ServerName::try_from(name.as_str()).map_err(|_| Unfit::Name(name.clone()))?;
        verifier
            .verify_server_cert(leaf, rest, &server, &[], unix(at))
            .map_err(|source| Unfit::Server { name: name.clone(), source })?;
    }
    Ok(())
}

fn checked_client(content: &Content, ca_pem: &str, name: &str, at: Timestamp) -> Result<Pair, Unfit> {
    let client = pair(content, key::CLIENT_CERT, key::CLIENT_KEY)?;
    let roots = Arc::new(roots(ca_pem).map_err(unusable(key::CA_CERT))?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(TlsError::from).map_err(unusable(key::CA_CERT))?;
    let Some((leaf, rest)) = client.cert.split_first() else { return Err(Unfit::Missing(key::CLIENT_CERT)) };
    verifier.verify_client_cert(leaf, rest, unix(at)).map_err(Unfit::Client)?;
    if common_name(leaf).as_deref() == Some(name) {
        Ok(client)
    } else {
        Err(Unfit::ClientName(name.to_owned()))
    }
}

struct Pair {
    cert: Vec<CertificateDer<'static>>,
}

/// A certificate with the key that belongs to it.
fn pair(content: &Content, cert: &'static str, key: &'static str) -> Result<Pair, Unfit> {
    let text = |what| content.get(what).ok_or(Unfit::Missing(what));
    let chain = certificates(cert, text(cert)?).map_err(unusable(cert))?;
    let secret = private_key(key, text(key)?).map_err(unusable(key))?;
    CertifiedKey::from_der(chain.clone(), secret, &provider())
        .map_err(|source| unusable(key)(TlsError::Rustls { what: cert, source }))?;
    Ok(Pair { cert: chain })
}

/// When the first authority of `ca_pem` ends. Go refuses an authority that has ended, rustls does not look.
pub(super) fn authority_end(ca_pem: &str) -> Result<Timestamp, TlsError> {
    let certificates = certificates(key::CA_CERT, ca_pem)?;
    let end = certificates.first().and_then(|der| X509Certificate::from_der(der).ok());
    let end = end.and_then(|(_, cert)| Timestamp::from_second(cert.validity().not_after.timestamp()).ok());
    end.ok_or(TlsError::Rustls {
        what: key::CA_CERT,
        source: rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding),
    })
}

fn common_name(der: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

fn unix(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().try_into().unwrap_or(0)))
}
