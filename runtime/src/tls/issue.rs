//! New content for a Secret: an authority where there is no good one, and certificates by it. Pure but for the keys.

use super::inspect::{MARGIN, authority_end};
use super::{Content, TlsError, Wanted, key};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

const DAY: SignedDuration = SignedDuration::from_hours(24);
/// A leaf's days. It is renewed a month before its end by any replica that runs.
const LEAF_DAYS: i32 = 365;
/// An authority's days.
const AUTHORITY_DAYS: i32 = 3650;

/// The content that serves `wanted`. An authority in `before` that outlives the new certificates is kept, and one that
/// does not is left behind the new one, so that what it signed is trusted until it is replaced.
pub(super) fn issue(before: &Content, wanted: &Wanted, now: Timestamp) -> Result<Content, TlsError> {
    let failed = |source| TlsError::Issue { names: wanted.server_names.clone(), source };
    let (authority, mut content) = match kept(before, now) {
        Some(kept) => kept,
        None => new_authority(before, now).map_err(failed)?,
    };
    let server = leaf("kerf", wanted.server_names.clone(), ExtendedKeyUsagePurpose::ServerAuth, now);
    let (cert, secret) = sign(&server.map_err(failed)?, &authority).map_err(failed)?;
    content.insert(key::SERVER_CERT.to_owned(), cert);
    content.insert(key::SERVER_KEY.to_owned(), secret);
    if let Some(name) = &wanted.client_name {
        let client = leaf(name, Vec::new(), ExtendedKeyUsagePurpose::ClientAuth, now);
        let (cert, secret) = sign(&client.map_err(failed)?, &authority).map_err(failed)?;
        content.insert(key::CLIENT_CERT.to_owned(), cert);
        content.insert(key::CLIENT_KEY.to_owned(), secret);
    }
    Ok(content)
}

type Authority = Issuer<'static, KeyPair>;

/// The authority of `before`, if it outlives a leaf that is made now.
fn kept(before: &Content, now: Timestamp) -> Option<(Authority, Content)> {
    let (cert, secret) = (before.get(key::CA_CERT)?, before.get(key::CA_KEY)?);
    let needed = now.saturating_add(DAY * LEAF_DAYS + MARGIN).ok()?;
    if authority_end(cert).ok()? < needed {
        return None;
    }
    let first = super::config::certificates(key::CA_CERT, cert).ok()?.into_iter().next()?;
    let authority = Issuer::from_ca_cert_der(&first, KeyPair::from_pem(secret).ok()?).ok()?;
    let content = [(key::CA_CERT, cert), (key::CA_KEY, secret)];
    Some((authority, content.map(|(name, text)| (name.to_owned(), text.clone())).into()))
}

fn new_authority(before: &Content, now: Timestamp) -> Result<(Authority, Content), rcgen::Error> {
    let mut params = CertificateParams::default();
    // Each authority has a name of its own, so that a verifier never tries one's key on another's signature.
    params.distinguished_name = named(&format!("kerf {}", now.as_second()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, AUTHORITY_DAYS);
    let secret = KeyPair::generate()?;
    let mut cert = params.self_signed(&secret)?.pem();
    let old = before.get(key::CA_CERT).filter(|old| authority_end(old).is_ok_and(|end| end > now));
    if let Some(old) = old.and_then(|old| first_pem(old)) {
        cert.push_str(&old);
    }
    let content = [(key::CA_CERT, cert), (key::CA_KEY, secret.serialize_pem())];
    Ok((Issuer::new(params, secret), content.map(|(name, text)| (name.to_owned(), text)).into()))
}

/// The first certificate of a PEM text: of older authorities one is enough.
fn first_pem(text: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----";
    text.split_once(END).map(|(first, _)| format!("{}{END}\n", first.trim_start()))
}

fn leaf(
    common_name: &str,
    names: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
    now: Timestamp,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = named(common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, LEAF_DAYS);
    Ok(params)
}

fn sign(params: &CertificateParams, authority: &Authority) -> Result<(String, String), rcgen::Error> {
    let secret = KeyPair::generate()?;
    Ok((params.signed_by(&secret, authority)?.pem(), secret.serialize_pem()))
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// From a day ago, which is early enough for clocks that disagree, for `days` days, both at midnight.
fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i32) {
    let midnight = |days: i32| {
        let at = now.saturating_add(DAY * days).unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC).date();
        let (month, day) = (at.month().unsigned_abs(), at.day().unsigned_abs());
        rcgen::date_time_ymd(i32::from(at.year()), month, day)
    };
    (params.not_before, params.not_after) = (midnight(-1), midnight(days));
}
