//! New content for a Secret: certificates, and an authority if one is due. Only the random keys make it impure.

use super::authority::{Authorities, Authority, failed, named, set_life};
use super::inspect::{Unfit, client, server};
use super::lifetimes::{Life, Lifetimes};
use super::{Content, Rotation, TlsError, Wanted, key};
use jiff::Timestamp;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

/// The next content of a Secret.
#[derive(Debug)]
pub(super) struct Step {
    pub content: Content,
    /// A reason for each change; empty if nothing changes.
    pub reasons: Vec<String>,
}

/// The next step of a Secret's life: it drops authorities that have ended, adds one that is due, and replaces each
/// certificate that is not usable. It keeps unknown entries.
pub(super) fn step(before: &Content, wanted: &Wanted, rotation: &Rotation<'_>) -> Result<Step, TlsError> {
    let (ages, now) = (&rotation.ages, rotation.now);
    let failed = failed(&wanted.server_names);
    let authorities = Authorities::from_content(before, ages, now).map_err(&failed)?;
    let signer = authorities.signer(before, rotation);
    let mut step = Step { content: before.clone(), reasons: Vec::new() };
    for (name, text) in authorities.content(signer) {
        if before.get(name) != Some(&text) {
            step.reasons.push(format!("{name} is renewed"));
            step.content.insert(name.to_owned(), text);
        }
    }
    if let Err(unfit) = server(before, &signer.pem, &wanted.server_names, rotation) {
        let names = wanted.server_names.clone();
        let leaf = leaf("kerf", names, ExtendedKeyUsagePurpose::ServerAuth).map_err(&failed)?;
        let (cert, secret) = sign(leaf, signer, ages, now).map_err(&failed)?;
        step.replace([(key::SERVER_CERT, cert), (key::SERVER_KEY, secret)], &unfit);
    }
    let Some(name) = &wanted.client_name else { return Ok(step) };
    if let Err(unfit) = client(before, &signer.pem, name, rotation) {
        let leaf = leaf(name, Vec::new(), ExtendedKeyUsagePurpose::ClientAuth).map_err(&failed)?;
        let (cert, secret) = sign(leaf, signer, ages, now).map_err(&failed)?;
        step.replace([(key::CLIENT_CERT, cert), (key::CLIENT_KEY, secret)], &unfit);
    }
    Ok(step)
}

impl Step {
    fn replace(&mut self, pair: [(&'static str, String); 2], unfit: &Unfit) {
        self.reasons.push(unfit.to_string());
        self.content.extend(pair.map(|(name, text)| (name.to_owned(), text)));
    }
}

fn leaf(
    common_name: &str,
    names: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = named(common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn sign(
    mut params: CertificateParams,
    authority: &Authority,
    ages: &Lifetimes,
    now: Timestamp,
) -> Result<(String, String), rcgen::Error> {
    let life: Life = ages.leaf_from(now, authority.life.end);
    set_life(&mut params, life);
    let secret = KeyPair::generate()?;
    // `signer` only chooses authorities with a key. If one had none, the certificate's own error would say so.
    let issuer = authority.issuer().ok_or(rcgen::Error::CouldNotParseKeyPair)??;
    Ok((params.signed_by(&secret, &issuer)?.pem(), secret.serialize_pem()))
}
