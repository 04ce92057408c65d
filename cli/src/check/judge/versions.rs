//! The versions of the running programs, by the tags of their images, because a pod shows nothing else of them.

use super::kubernetes::minor;
use super::{Finding, Observed};
use crate::counted::counted;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use std::collections::BTreeMap;

const PROGRAMS: [&str; 4] = ["kerf-webhook", "kerf-extender", "kerf-node-agent", SCHEDULER];
const SCHEDULER: &str = "kerf-scheduler";

const OWN: &str = env!("CARGO_PKG_VERSION");

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let running = running(seen);
    programs(&running).into_iter().chain(scheduler(seen, &running)).collect()
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Running {
    pub program: &'static str,
    /// The version; `None` for an image that is named by its digest only.
    pub version: Option<String>,
    pub pods: usize,
}

pub fn running(seen: &Observed) -> Vec<Running> {
    let of = |program: &'static str| {
        let mut versions: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for pod in seen.pods_of(program) {
            *versions.entry(image(pod).and_then(tag)).or_default() += 1;
        }
        versions.into_iter().map(move |(version, pods)| Running { program, version, pods })
    };
    PROGRAMS.into_iter().flat_map(of).collect()
}

/// Compares kube-scheduler with its API server. It may be one minor version older, but never newer (Kubernetes' version
/// skew policy).
fn scheduler(seen: &Observed, running: &[Running]) -> Option<Finding> {
    let found = running.iter().find(|it| it.program == SCHEDULER)?.version.clone()?;
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

fn programs(running: &[Running]) -> Option<Finding> {
    let mut own = running.iter().filter(|it| it.program != SCHEDULER).peekable();
    // Without a program of kerf there is nothing to compare.
    own.peek()?;
    let strange: Vec<String> = own
        .filter_map(|it| Some((it.program, it.version.as_deref()?, it.pods)))
        .filter(|(_, version, _)| version.trim_start_matches('v') != OWN)
        .map(|(program, version, pods)| format!("{program} is {version} ({})", counted(pods, "pod")))
        .collect();
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

/// The tag of an image's name, like `registry:5000/kerf:0.1.0@sha256:…`.
fn tag(image: &str) -> Option<String> {
    let image = image.split('@').next()?;
    let (_, tag) = image.rsplit_once(':')?;
    (!tag.contains('/')).then(|| tag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_from_every_form_of_image_name() {
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
