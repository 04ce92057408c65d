//! TLS of our own making: a certificate authority and the certificates of one service, kept in a Secret.
//!
//! | module | what it decides |
//! |---|---|
//! | `ages` | how long certificates live, and when they are renewed |
//! | `authority` | the authorities of a Secret, and which of them signs |
//! | `inspect` | whether a Secret's content still serves what is wanted |
//! | `issue` | the next step of a Secret's content |
//! | `secret` | reading and writing it, and who wins when two replicas write |
//! | `folder` | certificates that another has made, in a mounted folder |
//! | `config` | how a server uses it, and a client its authority |
//! | `published` | its authority, for clients that may not read the Secret |
//! | `expiry` | when it ends, as a metric |

mod ages;
mod authority;
mod config;
mod expiry;
mod folder;
mod inspect;
mod issue;
mod published;
mod secret;

pub use ages::{Ages, BadAges};
pub use config::{Clients, ServingCertificate, client_config, server_config};
pub use expiry::Expiry;
pub use folder::TlsFolder;
pub use inspect::Unfit;
pub use published::PublishedAuthority;
pub use secret::TlsSecret;

use jiff::Timestamp;
use std::collections::BTreeMap;
use std::path::PathBuf;
use thiserror::Error;

/// What a service's certificates must do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The DNS names and IP addresses that the server is called by.
    pub server_names: Vec<String>,
    /// The common name of a client certificate, where clients must show one.
    pub client_name: Option<String>,
}

/// Which authorities those who call the server trust by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust<'a> {
    /// Those of the Secret: they read it themselves.
    AsRead,
    /// Those of this PEM text, of which they have been told long enough ago.
    Only(&'a str),
}

/// When and how certificates are renewed.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// How long they live.
    pub ages: Ages,
    /// Whom clients trust.
    pub trust: Trust<'a>,
    /// The time.
    pub now: Timestamp,
}

/// A service's certificates and keys, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The authority that clients trust. While an authority is being replaced the old one follows the new.
    pub ca_pem: String,
    /// The server's certificate.
    pub server_cert_pem: String,
    /// Its key.
    pub server_key_pem: String,
    /// The client's certificate.
    pub client_cert_pem: Option<String>,
    /// Its key.
    pub client_key_pem: Option<String>,
}

impl std::fmt::Debug for Material {
    /// Without the keys, which must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material")
            .field("ca_pem", &self.ca_pem)
            .field("server_cert_pem", &self.server_cert_pem)
            .field("client_cert_pem", &self.client_cert_pem)
            .finish_non_exhaustive()
    }
}

impl Material {
    /// What `wanted` needs of a Secret's content.
    fn of(content: &Content, wanted: &Wanted) -> Result<Self, Unfit> {
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

    /// The last moment of the server's certificate.
    pub fn end(&self) -> Result<Timestamp, TlsError> {
        inspect::life_of_pem(key::SERVER_CERT, &self.server_cert_pem).map(|life| life.end)
    }

    /// Whether clients that trust the PEM text `bundle` take the server's certificate at `now`.
    #[must_use]
    pub fn is_trusted_by(&self, bundle: &str, now: Timestamp) -> bool {
        inspect::verify_server(bundle, &self.server_cert_pem, &[], now).is_ok()
    }
}

/// A Secret's content: texts by key.
type Content = BTreeMap<String, String>;

/// The keys of a Secret's content. The first four are those of `kubernetes.io/tls` and cert-manager.
pub mod key {
    /// The authority's certificate.
    pub const CA_CERT: &str = "ca.crt";
    /// Its key.
    pub const CA_KEY: &str = "ca.key";
    /// The server's certificate.
    pub const SERVER_CERT: &str = "tls.crt";
    /// Its key.
    pub const SERVER_KEY: &str = "tls.key";
    /// The client's certificate.
    pub const CLIENT_CERT: &str = "client.crt";
    /// Its key.
    pub const CLIENT_KEY: &str = "client.key";
}

/// The first and the last moment of the first certificate of a PEM text that is called `what` in errors.
pub fn life(what: &'static str, pem: &str) -> Result<(Timestamp, Timestamp), TlsError> {
    inspect::life_of_pem(what, pem).map(|life| (life.begin, life.end))
}

/// Whether the chain `tls_crt` serves the DNS name or IP address `name` at a time, for clients that trust the PEM text
/// `authorities`.
pub fn serves(authorities: &str, tls_crt: &str, name: &str, at: Timestamp) -> Result<(), Unfit> {
    inspect::verify_server(authorities, tls_crt, &[name.to_owned()], at)
}

/// Whether the certificate and key of a client in a Secret's content are of its authority, for a client called `name`.
pub fn serves_client(content: &BTreeMap<String, String>, name: &str, at: Timestamp) -> Result<(), Unfit> {
    let authority = content.get(key::CA_CERT).ok_or(Unfit::Missing(key::CA_CERT))?;
    let rotation = Rotation { ages: Ages::YEARS, trust: Trust::AsRead, now: at };
    match inspect::client(content, authority, name, &rotation) {
        Err(Unfit::Due { .. }) | Ok(()) => Ok(()),
        Err(unfit) => Err(unfit),
    }
}

/// Why there is no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A certificate cannot be made.
    #[error("failed to make a certificate for {}; the names must be DNS names or IP addresses", names.join(", "))]
    Issue {
        /// What it was to be called.
        names: Vec<String>,
        /// Why.
        source: rcgen::Error,
    },
    /// What was made does not serve what is wanted.
    #[error("the certificates just made do not serve: {0}")]
    Unserviceable(String),
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What another has made does not serve.
    #[error("the certificates in {} do not serve", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: Box<Unfit>,
    },
    /// The Secret cannot be read or written.
    #[error("failed to {verb} the secret {secret}")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// `namespace/name`.
        secret: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The ConfigMap of the authority cannot be read or written.
    #[error("failed to {verb} the config map {config_map}")]
    Published {
        /// What was tried.
        verb: &'static str,
        /// `namespace/name`.
        config_map: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The ConfigMap has no authority.
    #[error("the config map {0} has no ca.crt yet")]
    NotPublished(String),
    /// Others wrote the Secret each time that we did.
    #[error("the secret {0} changed at every attempt to write it")]
    Contended(String),
    /// PEM text is not what it should be.
    #[error("failed to read {what}")]
    Pem {
        /// Which text.
        what: &'static str,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// rustls refuses the material.
    #[error("failed to use {what}")]
    Rustls {
        /// Which part.
        what: &'static str,
        /// Why.
        source: rustls::Error,
    },
    /// The authority cannot vouch for clients.
    #[error("failed to verify clients by ca.crt")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Material for 127.0.0.1 by an authority of its own, as a Secret would hold it.
#[cfg(test)]
pub(crate) fn made_for_test() -> Material {
    let wanted =
        Wanted { server_names: vec!["127.0.0.1".into()], client_name: Some("kube-scheduler".into()) };
    let rotation = Rotation { ages: Ages::YEARS, trust: Trust::AsRead, now: Timestamp::now() };
    Material::of(&issue::step(&Content::new(), &wanted, &rotation).unwrap().content, &wanted).unwrap()
}

#[cfg(test)]
mod tests;
