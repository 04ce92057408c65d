//! Compares clocks with the API server's: this machine's, and by their Leases those of the nodes and of the extender's
//! leader. A Lease shows a clock, because its writer puts its own time into it and the API server records its time in
//! `managedFields`.

use super::{Finding, Observed};
use crate::check::observed::name_of;
use crate::check::read::written;
use crate::counted::counted;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;

/// A smaller difference is not reported, because `managedFields` has whole seconds, and a request may take one.
const WARNING_LIMIT: SignedDuration = SignedDuration::from_secs(5);

/// Certificates are valid from this long before they are made. A machine whose clock is off by more rejects them, so
/// that is a failure.
const FAILURE_LIMIT: SignedDuration = SignedDuration::from_hours(1);

const REMEDY: &str =
    "keep the clocks by NTP or chrony: chronyc tracking, or timedatectl status, shows how they stand";

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let leases = seen.node_leases.all().iter().chain(seen.lease.found());
    let of_leases = leases.filter_map(|lease| Some((format!("{}'s", holder(lease)), skew(lease)?)));
    let all: Vec<(String, SignedDuration)> =
        std::iter::once(("this machine's".to_owned(), seen.skew)).chain(of_leases).collect();
    let off: Vec<Finding> = all.iter().filter_map(|(whose, skew)| clock(whose, *skew)).collect();
    if off.is_empty() {
        let agree = if all.len() == 1 { "agrees" } else { "agree" };
        return vec![Finding::fine(format!(
            "{} {agree} with the API server's within {} s",
            counted(all.len(), "clock"),
            WARNING_LIMIT.as_secs()
        ))];
    }
    off
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_else(|| name_of(lease))
}

fn skew(lease: &Lease) -> Option<SignedDuration> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    Some(renewed.duration_since(written(lease)?))
}

fn clock(whose: &str, skew: SignedDuration) -> Option<Finding> {
    let size = skew.abs();
    if size < WARNING_LIMIT {
        return None;
    }
    let direction = if skew.is_negative() { "behind" } else { "before" };
    let what = format!("{whose} clock is {} s {direction} the API server's", size.as_secs());
    Some(if size >= FAILURE_LIMIT { Finding::failure(what, REMEDY) } else { Finding::warning(what, REMEDY) })
}
