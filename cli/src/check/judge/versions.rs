//! The versions of the programs, by their images' tags.

use super::kubernetes::minor;
use super::{Finding, Observed};
use k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, BTreeSet};

const PROGRAMS: [&str; 3] = ["kerf-webhook", "kerf-extender", "kerf-node-agent"];

/// This program's.
const OWN: &str = env!("CARGO_PKG_VERSION");

pub fn judge(seen: &Observed) -> Vec<Finding> {
    programs(seen).into_iter().chain(scheduler(seen)).collect()
}

/// kube-scheduler may be one minor version older than its API server, and never newer (Kubernetes' version skew policy).
fn scheduler(seen: &Observed) -> Option<Finding> {
    let image = seen.pods_of("kerf-scheduler").find_map(image)?;
    let found = tag(image)?;
    let (own, servers) = (minor(&found)?, minor(&seen.version)?);
    if own <= servers && own + 1 >= servers {
        return Some(Finding::fine(format!(
            "kube-scheduler is {found}, for an API server of {}",
            seen.version
        )));
    }
    Some(Finding::warning(
        format!("kube-scheduler is {found}, and the API server is {}", seen.version),
        format!(
            "give the Deployment kerf-scheduler the image registry.k8s.io/kube-scheduler of v1.{servers}"
        ),
    ))
}

fn programs(seen: &Observed) -> Option<Finding> {
    let mut tags: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for program in PROGRAMS {
        let found = seen
            .pods_of(program)
            .filter_map(image)
            .map(|image| tag(image).unwrap_or_else(|| image.to_owned()));
        tags.insert(program, found.collect());
    }
    let strange: Vec<String> = tags
        .iter()
        .flat_map(|(program, tags)| tags.iter().map(move |tag| (program, tag)))
        .filter(|(_, tag)| tag.trim_start_matches('v') != OWN)
        .map(|(program, tag)| format!("{program} is {tag}"))
        .collect();
    if tags.values().all(BTreeSet::is_empty) {
        return None;
    }
    Some(if strange.is_empty() {
        Finding::fine(format!("all programs are of this kerf's version, {OWN}"))
    } else {
        Finding::warning(
            format!("this kerf is {OWN}, and {}", strange.join(", ")),
            format!(
                "update what is older: helm upgrade with image.tag={OWN}, or use the kerf of the cluster's version"
            ),
        )
    })
}

fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

/// The tag of an image's name: `registry:5000/kerf:0.1.0@sha256:…`.
fn tag(image: &str) -> Option<String> {
    let image = image.split('@').next()?;
    let (_, tag) = image.rsplit_once(':')?;
    (!tag.contains('/')).then(|| tag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_of_every_form_of_name() {
        for (image, expected) in [
            ("kerf-webhook:0.1.0", Some("0.1.0")),
            ("registry:5000/x/kerf-webhook:v0.1.0", Some("v0.1.0")),
            ("x/kerf:0.1.0@sha256:00", Some("0.1.0")),
            ("registry:5000/kerf", None),
            ("kerf@sha256:00", None),
        ] {
            assert_eq!(tag(image).as_deref(), expected, "{image}");
        }
    }
}
