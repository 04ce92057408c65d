//! Mutating admission: its pods, its configuration, its certificate, and whether it answers.

use super::tls::{age, content};
use super::{Finding, Observed, Seen, match_condition, pods, unknown};
use crate::check::observed::{PROBED, Probe};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, WebhookClientConfig};
use kerf_runtime::tls;

const PROGRAM: &str = "kerf-webhook";

const SECRET: &str = "kerf-webhook-tls";

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let mut findings = vec![pods(seen, PROGRAM, 1)];
    match &seen.webhook {
        Seen::Found(configuration) => {
            let all = configuration.webhooks.as_deref().unwrap_or_default();
            findings.extend(entries(all));
            findings.extend(match_condition::judge(seen, all));
            if let Some(first) = all.first() {
                findings.extend(certificate(seen, first));
            }
        }
        Seen::Absent => findings.push(Finding::failure(
            "there is no MutatingWebhookConfiguration kerf: pods come past kerf",
            "install it anew: helm upgrade, or kubectl apply --server-side -k deploy/base",
        )),
        Seen::Unknown(why) => findings.push(unknown("the MutatingWebhookConfiguration kerf", why)),
    }
    findings.extend(answers(seen));
    findings
}

pub fn secret(seen: &Observed) -> String {
    let mounted = seen.volumes_of(PROGRAM).find_map(|volume| volume.secret.as_ref()?.secret_name.clone());
    mounted.unwrap_or_else(|| SECRET.to_owned())
}

fn entries(webhooks: &[MutatingWebhook]) -> Option<Finding> {
    let names = ["pods", "templates"].map(|name| format!("{name}.{}", kerf_core::keys::GROUP));
    let missing: Vec<&String> =
        names.iter().filter(|name| !webhooks.iter().any(|w| w.name == **name)).collect();
    let first = missing.first()?;
    Some(Finding::failure(
        format!("the MutatingWebhookConfiguration kerf has no entry {first}"),
        "install it anew: helm upgrade, or kubectl apply --server-side -k deploy/base",
    ))
}

fn name(client: &WebhookClientConfig) -> Option<String> {
    if let Some(service) = &client.service {
        return Some(format!("{}.{}.svc", service.name, service.namespace));
    }
    let url = client.url.as_deref()?.parse::<http::Uri>().ok()?;
    let host = url.host()?;
    Some(host.trim_matches(['[', ']']).to_owned())
}

fn certificate(seen: &Observed, webhook: &MutatingWebhook) -> Vec<Finding> {
    let namespace = &seen.namespace;
    let remedy = format!(
        "the webhook sets caBundle and renews its certificates by itself: look at its log, kubectl -n {namespace} logs deploy/{PROGRAM}; then restart it: kubectl -n {namespace} rollout restart deploy/{PROGRAM}"
    );
    let bundle =
        webhook.client_config.ca_bundle.as_ref().map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
    let Some(bundle) = bundle.filter(|bundle| !bundle.is_empty()) else {
        return vec![Finding::failure(
            "the configuration has no caBundle: the API server trusts no webhook",
            remedy,
        )];
    };
    let mut findings = vec![age("caBundle", &bundle, seen.now, &remedy)];
    let secret = secret(seen);
    let content = match content(seen, &secret, &remedy) {
        Ok(content) => content,
        Err(finding) => {
            findings.push(finding);
            return findings;
        }
    };
    let Some(chain) = content.get(tls::key::SERVER_CERT) else {
        findings.push(Finding::failure(format!("Secret {secret} has no {}", tls::key::SERVER_CERT), remedy));
        return findings;
    };
    findings.push(age(tls::key::SERVER_CERT, chain, seen.now, &remedy));
    let Some(name) = name(&webhook.client_config) else {
        findings.push(Finding::failure("the configuration names neither a Service nor a URL", remedy));
        return findings;
    };
    findings.push(match tls::serves(&bundle, chain, &name, seen.now) {
        Ok(()) => {
            Finding::fine(format!("the certificate in Secret {secret} serves {name} for who trusts caBundle"))
        }
        Err(unfit) => Finding::failure(
            format!(
                "the certificate in Secret {secret} does not serve {name} for who trusts caBundle: {unfit}"
            ),
            remedy,
        ),
    });
    findings
}

/// Whether the admin excludes the probe's namespace from the webhook. Then a pod that passes it is no fault.
fn is_excluded(seen: &Observed) -> bool {
    let Some(configuration) = seen.webhook.found() else { return false };
    let of_pods = |webhook: &&MutatingWebhook| webhook.name == format!("pods.{}", kerf_core::keys::GROUP);
    let webhook = configuration.webhooks.iter().flatten().find(of_pods);
    let selector = webhook.and_then(|webhook| webhook.namespace_selector.as_ref());
    let rules = selector.into_iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    rules.into_iter().filter(|rule| rule.key == "kubernetes.io/metadata.name").any(|rule| {
        let is_listed = rule.values.iter().flatten().any(|name| name == PROBED);
        rule.operator == "NotIn" && is_listed || rule.operator == "In" && !is_listed
    })
}

fn answers(seen: &Observed) -> Option<Finding> {
    let namespace = &seen.namespace;
    let log = format!("kubectl -n {namespace} logs deploy/{PROGRAM}");
    Some(match &seen.probe {
        Probe::NotTried => return None,
        Probe::Admitted => Finding::fine("it admits a pod that asks for GPU memory (tried by a dry run)"),
        // A denial by policy is no fault, because it proves that the webhook answers.
        Probe::Refused(why) => Finding::fine(format!(
            "it answers; a pod that asks for 1Gi in the namespace {PROBED} would be refused: {why}"
        )),
        Probe::PassedBy if is_excluded(seen) => Finding::fine(format!(
            "its namespaceSelector leaves the namespace {PROBED} out: whether it admits a pod was not tried"
        )),
        Probe::PassedBy => Finding::failure(
            "a pod that asks for GPU memory came past the webhook (tried by a dry run)",
            "compare the rules, namespaceSelector and matchConditions of MutatingWebhookConfiguration kerf with deploy/base/webhook/configuration.yaml, or install it anew",
        ),
        Probe::Unreachable(why) => Finding::failure(
            format!("the API server cannot reach it: {why}"),
            format!(
                "{log}; look whether a NetworkPolicy or a firewall keeps the API server from port 9443 of its pods"
            ),
        ),
        Probe::Hindered(why) => Finding::warning(
            format!("whether it answers could not be tried: {why}"),
            "run kerf check as a user who may create pods in the namespace default",
        ),
    })
}
