//! Certificates in Secrets: do they serve their purpose, and are they renewed in time?

use super::{Finding, Observed, Seen, unknown};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kerf_runtime::tls;
use std::collections::BTreeMap;

/// The part of its life after which a certificate counts as not renewed. It is later than two thirds, because kerf and
/// cert-manager renew then.
const RENEWED_BY: f64 = 0.9;

pub fn texts(secret: &Secret) -> BTreeMap<String, String> {
    let data = secret.data.iter().flatten();
    data.filter_map(|(key, bytes)| Some((key.clone(), String::from_utf8(bytes.0.clone()).ok()?))).collect()
}

pub fn content(seen: &Observed, name: &str, remedy: &str) -> Result<BTreeMap<String, String>, Finding> {
    match seen.secrets.get(name) {
        Some(Seen::Found(secret)) => Ok(texts(secret)),
        Some(Seen::Unknown(why)) => Err(unknown(&format!("Secret {name}"), why)),
        Some(Seen::Absent) | None => {
            Err(Finding::failure(format!("there is no Secret {name} in {}", seen.namespace), remedy))
        }
    }
}

pub fn age(what: &'static str, pem: &str, now: Timestamp, remedy: &str) -> Finding {
    let (begin, end) = match tls::life(what, pem) {
        Ok(life) => life,
        Err(error) => {
            return Finding::failure(
                format!("{what} cannot be read: {:#}", anyhow::Error::from(error)),
                remedy,
            );
        }
    };
    let part = now.duration_since(begin).as_secs_f64() / end.duration_since(begin).as_secs_f64();
    if now >= end || now < begin {
        Finding::failure(format!("{what} is valid from {begin} to {end} only"), remedy)
    } else if part > RENEWED_BY {
        Finding::warning(format!("{what} ends at {end} and should have been renewed before"), remedy)
    } else {
        Finding::fine(format!("{what} is valid until {end}"))
    }
}
