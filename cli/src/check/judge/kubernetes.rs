//! The version of Kubernetes, and the APIs that kerf needs.

use super::{Finding, Observed, Seen, unknown};

/// The oldest minor version against which kerf's manifests are tested.
const OLDEST: u32 = 33;

/// The API, the resource of it without which kerf cannot work, and what kerf uses it for.
const NEEDED: [(&str, &str, &str); 4] = [
    ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "it guards what only kerf writes"),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions", "GpuNodes are defined by it"),
    ("coordination.k8s.io/v1", "leases", "the extender elects its leader by it"),
    ("events.k8s.io/v1", "events", "kerf reports to users by it"),
];

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let mut findings = vec![Finding::fine(format!("the API server {} answers", seen.url))];
    findings.push(version(&seen.version));
    for (api, resource, purpose) in NEEDED {
        findings.push(match seen.apis.get(api) {
            Some(Seen::Found(resources)) if resources.iter().any(|found| found == resource) => {
                Finding::fine(format!("{api} serves {resource}"))
            }
            Some(Seen::Unknown(why)) => unknown(&format!("the API {api}"), why),
            _ => Finding::failure(
                format!("{api} does not serve {resource}: {purpose}"),
                "turn it on by the API server's flag --runtime-config, or update Kubernetes",
            ),
        });
    }
    findings
}

fn version(version: &str) -> Finding {
    match minor(version) {
        Some(minor) if minor >= OLDEST => Finding::fine(format!("its version is {version}")),
        Some(_) => Finding::failure(
            format!("its version is {version}, and kerf needs v1.{OLDEST} or newer"),
            "update the cluster",
        ),
        None => Finding::warning(
            format!("its version {version:?} cannot be read"),
            format!("make sure that it is v1.{OLDEST} or newer"),
        ),
    }
}

/// The minor version of `v1.36.0-gke.1`. A major version above 1 counts as newer than all, so that it is not refused.
pub fn minor(version: &str) -> Option<u32> {
    let mut parts = version.strip_prefix('v')?.split('.');
    let major: u32 = parts.next()?.parse().ok()?;
    let digits: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
    let minor = digits.parse().ok()?;
    Some(if major > 1 { u32::MAX } else { minor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_refused_and_odd_ones_are_not() {
        for (text, failure, warning) in [
            ("v1.36.4", false, false),
            ("v1.33.0", false, false),
            ("v1.33+", false, false),
            ("v1.34.1-eks-1234", false, false),
            ("v2.0.0", false, false),
            ("v1.32.9+k3s1", true, false),
            ("1.36", false, true),
            ("", false, true),
        ] {
            let finding = version(text);
            assert_eq!((finding.is_failure(), finding.is_warning()), (failure, warning), "{text}");
        }
    }
}
