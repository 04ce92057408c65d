//! The authorities in a Secret, the newest first, each with its key while it may sign.
//!
//! An authority has three states. New: clients learn to trust it, and the previous one still signs. Signing: it signs
//! the leaves. Retired: its key is deleted, and clients trust it until it ends. None of its leaves lives longer.

use super::inspect::{life_of, life_of_pem, verify_server};
use super::lifetimes::{Life, Lifetimes};
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

pub(super) struct Authority {
    pub pem: String,
    pub life: Life,
    der: CertificateDer<'static>,
    key: Option<KeyPair>,
}

impl Authority {
    /// Makes a new authority. Each has a different name, so that a verifier never tries the key of one on a signature
    /// of another.
    fn new(ages: &Lifetimes, now: Timestamp) -> Result<Self, rcgen::Error> {
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

    /// The signer in its name; `None` once it is retired.
    pub fn issuer(&self) -> Option<Result<Issuer<'static, &KeyPair>, rcgen::Error>> {
        let key = self.key.as_ref()?;
        Some(Issuer::from_ca_cert_der(&self.der, key))
    }
}

/// All authorities of a Secret that are still valid, the newest first.
pub(super) struct Authorities(Vec<Authority>);

impl Authorities {
    /// Reads the authorities in `content`, and puts a new one before them if renewal is due.
    pub fn from_content(content: &Content, ages: &Lifetimes, now: Timestamp) -> Result<Self, rcgen::Error> {
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

    /// The authority that signs leaves: the newest that clients trust. If they trust none that can sign, it is the one
    /// that signed the present leaf, because that changes nothing for the worse. Without such a leaf it is the newest.
    pub fn signer(&self, content: &Content, rotation: &Rotation<'_>) -> &Authority {
        let (trust, now) = (rotation.trust, rotation.now);
        let lives = |authority: &&Authority| rotation.ages.leaves_room(authority.life, now);
        let can_sign = || self.0.iter().filter(|authority| authority.key.is_some()).filter(lives);
        let trusted = can_sign().find(|authority| match trust {
            Trust::AsRead => true,
            Trust::Only(bundle) => bundle.contains(authority.pem.trim()),
        });
        let leaf = content.get(key::SERVER_CERT).map(String::as_str).unwrap_or_default();
        // The leaf is verified at its end, because it may be over now; its authority is valid at least as long.
        let end = life_of_pem(key::SERVER_CERT, leaf).map_or(now, |life| life.end);
        let signed = || can_sign().find(|authority| verify_server(&authority.pem, leaf, &[], end).is_ok());
        // The newest always has a key: otherwise `of` would have put a new one before it.
        trusted.or_else(signed).unwrap_or(&self.0[0])
    }

    /// The entries of the Secret once `signer` signs: the keys of older authorities are deleted.
    pub fn content(&self, signer: &Authority) -> [(&'static str, String); 2] {
        let certificates = self.0.iter().map(|authority| authority.pem.as_str()).collect();
        let young = self.0.iter().position(|authority| authority.pem == signer.pem).unwrap_or_default();
        let keys = self.0[..=young].iter().filter_map(|authority| authority.key.as_ref());
        [(key::CA_CERT, certificates), (key::CA_KEY, keys.map(KeyPair::serialize_pem).collect())]
    }
}

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

pub(super) fn failed(names: &[String]) -> impl Fn(rcgen::Error) -> TlsError {
    let names = names.to_vec();
    move |source| TlsError::Issue { names: names.clone(), source }
}
