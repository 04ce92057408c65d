//! The authorities in a Secret: the newest first, each with its key while it may sign.
//!
//! An authority passes through three states. New: clients are told to trust it, its elder still signs. Signing: leaves are
//! its own. Retired: its key is gone, and it is trusted until it ends, which no leaf of it outlives.

use super::ages::{Ages, Life};
use super::inspect::{life_of, life_of_pem, verify_server};
use super::{Content, Rotation, TlsError, Trust, key};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

const END_CERTIFICATE: &str = "-----END CERTIFICATE-----";
const END_KEY: &str = "-----END PRIVATE KEY-----";

/// An authority.
pub(super) struct Authority {
    /// Its certificate.
    pub pem: String,
    /// How long it is valid.
    pub life: Life,
    der: CertificateDer<'static>,
    key: Option<KeyPair>,
}

impl Authority {
    /// A new one. Each has a name of its own, so that a verifier never tries one's key on another's signature.
    fn new(ages: &Ages, now: Timestamp) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&format!("kerf {}", now.as_millisecond()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let life = ages.authority_from(now);
        set_life(&mut params, life);
        let key = KeyPair::generate()?;
        let cert = params.self_signed(&key)?;
        Ok(Self { pem: cert.pem(), life, der: cert.der().clone(), key: Some(key) })
    }

    fn read(pem: String, keys: &mut Vec<KeyPair>) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let life = life_of(&der)?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let public = &certificate.public_key().subject_public_key.data;
        let place = keys.iter().position(|key| key.public_key_raw() == public.as_ref());
        let key = place.map(|place| keys.swap_remove(place));
        Some(Self { pem, life, der, key })
    }

    /// What signs in its name; `None` once it is retired.
    pub fn issuer(&self) -> Option<Result<Issuer<'static, &KeyPair>, rcgen::Error>> {
        let key = self.key.as_ref()?;
        Some(Issuer::from_ca_cert_der(&self.der, key))
    }
}

/// All authorities of a Secret that have not ended, the newest first.
pub(super) struct Authorities(Vec<Authority>);

impl Authorities {
    /// Those in `content`, and a new one before them if it is time for one.
    pub fn of(content: &Content, ages: &Ages, now: Timestamp) -> Result<Self, rcgen::Error> {
        let keys = content.get(key::CA_KEY).map(String::as_str).unwrap_or_default();
        let mut keys: Vec<KeyPair> =
            blocks(keys, END_KEY).filter_map(|pem| KeyPair::from_pem(&pem).ok()).collect();
        let certificates = content.get(key::CA_CERT).map(String::as_str).unwrap_or_default();
        let read = blocks(certificates, END_CERTIFICATE).filter_map(|pem| Authority::read(pem, &mut keys));
        let mut all: Vec<Authority> = read.filter(|authority| authority.life.end > now).collect();
        let newest = all.first().filter(|newest| newest.key.is_some());
        if newest.is_none_or(|newest| ages.authority_due(newest.life) <= now) {
            all.insert(0, Authority::new(ages, now)?);
        }
        Ok(Self(all))
    }

    /// Who signs leaves: the newest that clients trust. While they trust none of those that can sign, that is who signed
    /// the leaf at hand, which then at least does not get worse; the newest if there is no such leaf.
    pub fn signer(&self, content: &Content, rotation: &Rotation<'_>) -> &Authority {
        let (trust, now) = (rotation.trust, rotation.now);
        let lives = |authority: &&Authority| rotation.ages.leaves_room(authority.life, now);
        let can_sign = || self.0.iter().filter(|authority| authority.key.is_some()).filter(lives);
        let trusted = can_sign().find(|authority| match trust {
            Trust::AsRead => true,
            Trust::Only(bundle) => bundle.contains(authority.pem.trim()),
        });
        let leaf = content.get(key::SERVER_CERT).map(String::as_str).unwrap_or_default();
        // At its end, for it may be over; an authority is valid at least as long.
        let end = life_of_pem(key::SERVER_CERT, leaf).map_or(now, |life| life.end);
        let signed = || can_sign().find(|authority| verify_server(&authority.pem, leaf, &[], end).is_ok());
        // The newest has a key: it would have got a younger one before it otherwise.
        trusted.or_else(signed).unwrap_or(&self.0[0])
    }

    /// What goes into the Secret once `signer` signs: the keys of its elders are gone.
    pub fn content(&self, signer: &Authority) -> [(&'static str, String); 2] {
        let certificates = self.0.iter().map(|authority| authority.pem.as_str()).collect();
        let young = self.0.iter().position(|authority| authority.pem == signer.pem).unwrap_or_default();
        let keys = self.0[..=young].iter().filter_map(|authority| authority.key.as_ref());
        [(key::CA_CERT, certificates), (key::CA_KEY, keys.map(KeyPair::serialize_pem).collect())]
    }
}

/// The PEM blocks of `text` that end so.
fn blocks<'t>(text: &'t str, end: &'static str) -> impl Iterator<Item = String> + 't {
    let whole = text.split_inclusive(end).filter(move |block| block.ends_with(end));
    whole.map(|block| format!("{}\n", block.trim_start()))
}

pub(super) fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

pub(super) fn set_life(params: &mut CertificateParams, life: Life) {
    let at = |at: Timestamp| {
        let since = at.duration_since(Timestamp::UNIX_EPOCH).max(SignedDuration::ZERO).as_secs();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(since.unsigned_abs())
    };
    (params.not_before, params.not_after) = (at(life.begin), at(life.end));
}

/// A certificate that cannot be made for these names.
pub(super) fn failed(names: &[String]) -> impl Fn(rcgen::Error) -> TlsError {
    let names = names.to_vec();
    move |source| TlsError::Issue { names: names.clone(), source }
}
