//! A service's own TLS: a certificate authority and the service's certificates in a Secret.
//!
//! | module | what it decides |
//! |---|---|
//! | `ages` | how long certificates are valid, and when they are renewed |
//! | `authority` | the authorities of a Secret, and which of them signs |
//! | `inspect` | whether a Secret's content is still usable |
//! | `issue` | the next content of a Secret |
//! | `secret` | reading and writing it, and which of two writing replicas wins |
//! | `folder` | certificates from another issuer in a mounted folder |
//! | `config` | the TLS configuration of a server, and of a client |
//! | `published` | its authority, for clients that may not read the Secret |
//! | `expiry` | its end, as a metric |

mod authority;
mod config;
mod expiry;
mod folder;
mod inspect;
mod issue;
mod lifetimes;
mod published;
mod secret;

pub use config::{Clients, ServingCertificate, client_config, server_config};
pub use expiry::Expiry;
pub use folder::TlsFolder;
pub use inspect::Unfit;
pub use lifetimes::{InvalidLifetimes, Lifetimes};
pub use published::PublishedAuthority;
pub use secret::TlsSecret;

use jiff::Timestamp;
use std::collections::BTreeMap;
use std::path::PathBuf;
use thiserror::Error;

/// Requirements on a service's certificates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The DNS names and IP addresses by which clients reach the server.
    pub server_names: Vec<String>,
    /// The common name of the client certificate; `None` if clients present none.
    pub client_name: Option<String>,
}

/// The authorities that the server's clients trust by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust<'a> {
    /// All authorities of the Secret, because the clients read it themselves.
    AsRead,
    /// The authorities of this PEM text, which the clients have had for long enough.
    Only(&'a str),
}

/// Rules for the renewal of certificates.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// The ages of leaf and authority.
    pub ages: Lifetimes,
    /// The authorities that clients trust.
    pub trust: Trust<'a>,
    /// The present time, an argument so that tests can set it.
    pub now: Timestamp,
}

/// A service's certificates and keys, in PEM format.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The authorities that clients trust. During a replacement it contains the new one and then the old one.
    pub ca_pem: String,
    /// The certificate chain of the server.
    pub server_cert_pem: String,
    /// The private key of the server's certificate.
    pub server_key_pem: String,
    /// The client's certificate; `None` if clients present none.
    pub client_cert_pem: Option<String>,
    /// The private key of the client's certificate.
    pub client_key_pem: Option<String>,
}

impl std::fmt::Debug for Material {
    /// Omits the keys, because they must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material")
            .field("ca_pem", &self.ca_pem)
            .field("server_cert_pem", &self.server_cert_pem)
            .field("client_cert_pem", &self.client_cert_pem)
            .finish_non_exhaustive()
    }
}

impl Material {
    /// The entries of a Secret's content that `wanted` requires.
    fn from_content(content: &Content, wanted: &Wanted) -> Result<Self, Unfit> {
        let text = |what| content.get(what).cloned().ok_or(Unfit::Missing(what));
        let of_client = |what| wanted.client_name.as_ref().map(|_| text(what)).transpose();
        Ok(Self {
            ca_pem: text(key::CA_CERT)?,
            server_cert_pem: text(key::SERVER_CERT)?,
            server_key_pem: text(key::SERVER_KEY)?,
            client_cert_pem: of_client(key::CLIENT_CERT)?,
            client_key_pem: of_client(key::CLIENT_KEY)?,
        })
    }

    /// The moment at which the server's certificate ends.
    pub fn end(&self) -> Result<Timestamp, TlsError> {
        inspect::life_of_pem(key::SERVER_CERT, &self.server_cert_pem).map(|life| life.end)
    }

    /// Whether clients that trust the PEM text `bundle` accept the server's certificate at `now`.
    #[must_use]
    pub fn is_trusted_by(&self, bundle: &str, now: Timestamp) -> bool {
        inspect::verify_server(bundle, &self.server_cert_pem, &[], now).is_ok()
    }
}

type Content = BTreeMap<String, String>;

/// The names of a Secret's entries. The first four are those of `kubernetes.io/tls` and cert-manager.
pub mod key {
    /// The certificates of the authorities.
    pub const CA_CERT: &str = "ca.crt";
    /// The private keys of authorities that may sign.
    pub const CA_KEY: &str = "ca.key";
    /// The certificate chain of the server.
    pub const SERVER_CERT: &str = "tls.crt";
    /// The private key of the server.
    pub const SERVER_KEY: &str = "tls.key";
    /// The certificate that clients present.
    pub const CLIENT_CERT: &str = "client.crt";
    /// The private key of the client certificate.
    pub const CLIENT_KEY: &str = "client.key";
}

/// The first and last moment of the first certificate in a PEM text, which errors call `what`.
pub fn life(what: &'static str, pem: &str) -> Result<(Timestamp, Timestamp), TlsError> {
    inspect::life_of_pem(what, pem).map(|life| (life.begin, life.end))
}

/// Whether the chain `tls_crt` is valid for the DNS name or IP address `name` at a time, to clients that trust the PEM
/// text `authorities`.
pub fn serves(authorities: &str, tls_crt: &str, name: &str, at: Timestamp) -> Result<(), Unfit> {
    inspect::verify_server(authorities, tls_crt, &[name.to_owned()], at)
}

/// Whether a Secret's client certificate and key are usable for a client called `name`. A renewal that is due does not
/// matter.
pub fn serves_client(content: &BTreeMap<String, String>, name: &str, at: Timestamp) -> Result<(), Unfit> {
    let authority = content.get(key::CA_CERT).ok_or(Unfit::Missing(key::CA_CERT))?;
    let rotation = Rotation { ages: Lifetimes::YEARS, trust: Trust::AsRead, now: at };
    match inspect::client(content, authority, name, &rotation) {
        Err(Unfit::Due { .. }) | Ok(()) => Ok(()),
        Err(unfit) => Err(unfit),
    }
}

/// Why no TLS configuration is available.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A certificate cannot be made for these names.
    #[error("failed to make a certificate for {}; the names must be DNS names or IP addresses", names.join(", "))]
    Issue {
        /// The names that the certificate should have.
        names: Vec<String>,
        /// The error of the certificate library.
        source: rcgen::Error,
    },
    /// The new certificates are not usable, for this reason.
    #[error("the certificates just made do not serve: {0}")]
    Unserviceable(String),
    /// A certificate file is unreadable.
    #[error("failed to read {}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The certificates in a folder are not usable.
    #[error("the certificates in {} do not serve", dir.display())]
    Folder {
        /// The path of the folder.
        dir: PathBuf,
        /// The reason why they are not usable.
        source: Box<Unfit>,
    },
    /// The API server did not read or write the Secret.
    #[error("failed to {verb} the secret {secret}")]
    Api {
        /// The action, `read` or `write`.
        verb: &'static str,
        /// The Secret, written as `namespace/name`.
        secret: String,
        /// The API server's or the client's error.
        source: Box<kube::Error>,
    },
    /// The API server did not read or write the authority's ConfigMap.
    #[error("failed to {verb} the config map {config_map}")]
    Published {
        /// The action, `read` or `write`.
        verb: &'static str,
        /// The ConfigMap, written as `namespace/name`.
        config_map: String,
        /// The API server's or the client's error.
        source: Box<kube::Error>,
    },
    /// The ConfigMap, as `namespace/name`, has no authority yet.
    #[error("the config map {0} has no ca.crt yet")]
    NotPublished(String),
    /// The Secret, as `namespace/name`, was changed by another client before every write.
    #[error("the secret {0} changed at every attempt to write it")]
    Contended(String),
    /// A text is not PEM of the expected type.
    #[error("failed to read {what}")]
    Pem {
        /// The name of the entry.
        what: &'static str,
        /// The error of the PEM parser.
        source: rustls::pki_types::pem::Error,
    },
    /// rustls rejects a certificate, key or setting.
    #[error("failed to use {what}")]
    Rustls {
        /// The part that it rejects.
        what: &'static str,
        /// The error that rustls returns.
        source: rustls::Error,
    },
    /// The authority is not usable to verify clients.
    #[error("failed to verify clients by ca.crt")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Material for 127.0.0.1 with a new authority, as a Secret would contain it.
#[cfg(test)]
pub(crate) fn made_for_test() -> Material {
    let wanted =
        Wanted { server_names: vec!["127.0.0.1".into()], client_name: Some("kube-scheduler".into()) };
    let rotation = Rotation { ages: Lifetimes::YEARS, trust: Trust::AsRead, now: Timestamp::now() };
    Material::from_content(&issue::step(&Content::new(), &wanted, &rotation).unwrap().content, &wanted)
        .unwrap()
}

#[cfg(test)]
mod tests;
