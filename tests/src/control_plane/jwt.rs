//! Signs tokens with claims that the API server would not issue.

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::Value;

/// Length in bytes of each of the two numbers of a P-256 signature.
const NUMBER: usize = 32;

/// A copy of the token with changed claims, signed by this key with ES256.
pub(super) fn resigned(
    token: &str,
    key: &KeyPair,
    change: impl FnOnce(&mut Value),
) -> anyhow::Result<String> {
    let parts: Vec<&str> = token.split('.').collect();
    let [head, claims, _] = parts[..] else {
        anyhow::bail!("a token has three parts, this has {}", parts.len())
    };
    let mut claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims)?)?;
    change(&mut claims);
    let signed = format!("{head}.{}", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = plain(&key.sign(signed.as_bytes())?)?;
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// Converts a DER signature to the form of a token: both numbers concatenated, each with leading zeros.
fn plain(der: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut rest = der.get(2..).context("a signature is a sequence")?;
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let [0x02, length, tail @ ..] = rest else { anyhow::bail!("a signature is two integers") };
        let (number, tail) = tail.split_at_checked(usize::from(*length)).context("an integer is cut")?;
        let digits = number.iter().position(|byte| *byte != 0).map_or(&[][..], |first| &number[first..]);
        ensure!(digits.len() <= NUMBER, "an integer of {} bytes", digits.len());
        numbers.extend(std::iter::repeat_n(0, NUMBER - digits.len()).chain(digits.iter().copied()));
        rest = tail;
    }
    Ok(numbers)
}
