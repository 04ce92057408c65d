//! The scheduler extender: its pods, its leader and its certificates.

use super::tls::{age, content};
use super::{Finding, Observed, Seen, pods, policies, unknown};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kerf_core::policy::Policy;
use kerf_runtime::tls;

const PROGRAM: &str = "kerf-extender";

/// The Secret with the extender's certificates, of which kube-scheduler has a copy.
pub const SECRET: &str = "kerf-extender-tls";

/// The name in kube-scheduler's client certificate.
const CLIENT: &str = "kerf-scheduler";

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let mut findings = vec![pods(seen, PROGRAM, 1), leader(seen)];
    findings.extend(certificates(seen));
    findings.extend(without_rights(seen));
    findings
}

/// Settings of policies that have no effect, because the extender runs without the rights for them.
fn without_rights(seen: &Observed) -> Vec<Finding> {
    let Ok(policies) = policies::policies(seen) else { return Vec::new() };
    let mut findings = Vec::new();
    if let Some(policy) = policies.layouts().next().filter(|_| !seen.extender_may("layouts")) {
        findings.push(Finding::failure(
            format!(
                "policy {} says spec.plugin, and the extender runs with --layouts=false: its nodes do not get the layout",
                policy.name
            ),
            "set extender.layouts=true in the chart's values, or with kustomize add the component deploy/components/extender-layouts",
        ));
    }
    let moves = |policy: &&Policy| policy.spec().preemption.movable_by_default;
    if let Some(policy) = policies.pods.iter().find(moves).filter(|_| !seen.extender_may("moves")) {
        findings.push(Finding::failure(
            format!(
                "policy {} says spec.preemption.movableByDefault: true, and the extender runs with --moves=false: no pod is moved for another",
                policy.name()
            ),
            "set extender.moves=true in the chart's values, or with kustomize leave out the component deploy/components/extender-no-moves",
        ));
    }
    findings
}

pub fn overdue(lease: &Lease, now: Timestamp) -> Option<u64> {
    let spec = lease.spec.as_ref()?;
    let valid = u64::try_from(spec.lease_duration_seconds?).ok()?;
    let renewed = spec.renew_time.as_ref()?.0;
    let age = now.duration_since(renewed).as_secs();
    (age > i64::try_from(valid).unwrap_or(i64::MAX)).then_some(valid)
}

fn leader(seen: &Observed) -> Finding {
    let namespace = &seen.namespace;
    let remedy = format!(
        "look at its log: kubectl -n {namespace} logs deploy/{PROGRAM}; pods that ask for slices stay Pending until one leads"
    );
    let lease = match &seen.lease {
        Seen::Found(lease) => lease,
        Seen::Absent => {
            return Finding::failure(format!("no replica has ever led: there is no Lease {PROGRAM}"), remedy);
        }
        Seen::Unknown(why) => return unknown(&format!("the Lease {PROGRAM}"), why),
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    // A leader that ends gives its Lease back, so an empty holder means that no other replica has taken it.
    let Some(holder) = holder else {
        return Finding::failure("no replica leads: the last leader gave its Lease back", remedy);
    };
    let Some(valid) = overdue(lease, seen.now) else {
        return Finding::fine(format!("{holder} leads"));
    };
    // An old Lease that was renewed in the meantime is no outage, because its holder's clock is only slow.
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    let later = seen.lease_later.as_ref().and_then(renewed);
    if later.is_some() && later != renewed(lease) {
        return Finding::warning(
            format!("{holder} leads, by a clock that is slow: its Lease seems older than {valid} s"),
            "keep the nodes' clocks by NTP or chrony",
        );
    }
    Finding::failure(
        format!("no replica leads: {holder} has not renewed its Lease for more than {valid} s"),
        remedy,
    )
}

fn certificates(seen: &Observed) -> Vec<Finding> {
    let namespace = &seen.namespace;
    let remedy = format!(
        "the extender makes and renews them by itself: look at its log, or let it make them anew: kubectl -n {namespace} delete secret {SECRET}, then kubectl -n {namespace} rollout restart deploy/{PROGRAM} deploy/kerf-scheduler"
    );
    let content = match content(seen, SECRET, &remedy) {
        Ok(content) => content,
        Err(finding) => return vec![finding],
    };
    let text = |key| content.get(key).map(String::as_str).unwrap_or_default();
    let mut findings = vec![age(tls::key::SERVER_CERT, text(tls::key::SERVER_CERT), seen.now, &remedy)];
    findings.push(age(tls::key::CLIENT_CERT, text(tls::key::CLIENT_CERT), seen.now, &remedy));
    if let Some(host) = super::scheduler::extender_host(seen) {
        let (authority, chain) = (text(tls::key::CA_CERT), text(tls::key::SERVER_CERT));
        findings.push(match tls::serves(authority, chain, &host, seen.now) {
            Ok(()) => Finding::fine(format!("its certificate serves {host}, by which the scheduler calls it")),
            Err(unfit) => Finding::failure(
                format!("its certificate does not serve {host}, by which the scheduler calls it: {unfit}"),
                format!("start the extender with --tls-name={host} beside its other names, or write one of its names into urlPrefix"),
            ),
        });
    }
    findings.push(match tls::serves_client(&content, CLIENT, seen.now) {
        Ok(()) => {
            Finding::fine(format!("the scheduler's certificate in Secret {SECRET} is of its authority"))
        }
        Err(unfit) => Finding::failure(
            format!("the scheduler's certificate in Secret {SECRET} does not serve: {unfit}"),
            remedy,
        ),
    });
    findings
}
