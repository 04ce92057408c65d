//! The certificate authority of one control plane, and the certificates that it signs. Keys are ECDSA P-256;
//! no file is written here.

use std::time::Duration;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// A certificate and its private key, as PEM.
#[derive(Clone)]
pub struct KeyAndCertificate {
    pub certificate: String,
    /// The private key, as PKCS #8 in PEM.
    pub key: String,
}

/// A certificate authority for servers and clients.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?);
        let issuer = issuer.context("failed to make a certificate authority")?;
        let pem = issuer.pem();
        Ok(Self { issuer, pem })
    }

    /// The authority's own certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A server's certificate for DNS names and IP addresses. It outlives every test.
    pub fn server(&self, names: &[&str]) -> anyhow::Result<KeyAndCertificate> {
        self.sign(Self::of_server(names)?)
    }

    /// A server's certificate that expires at `end`, in seconds since 1970.
    pub fn server_until(&self, names: &[&str], end: Duration) -> anyhow::Result<KeyAndCertificate> {
        let mut params = Self::of_server(names)?;
        params.not_after = date_time_ymd(1970, 1, 1) + end;
        self.sign(params)
    }

    fn of_server(names: &[&str]) -> anyhow::Result<CertificateParams> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let common_name = names.first().cloned().context("a server's certificate needs a name")?;
        let mut params = CertificateParams::new(names).context("failed to read a server's names")?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok(params)
    }

    /// A client's certificate. Kubernetes reads the common name as the user and the organization as a group.
    pub fn client(&self, user: &str, group: Option<&str>) -> anyhow::Result<KeyAndCertificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> anyhow::Result<KeyAndCertificate> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("failed to make a key")?;
        let certificate = params.signed_by(&key, &self.issuer).context("failed to sign a certificate")?;
        Ok(KeyAndCertificate { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}
