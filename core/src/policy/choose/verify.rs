//! Whether a request document is one that a policy could have made.

use super::{Denied, check_count, check_pod, check_size, kinds, strongest_class};
use crate::contract::{ContainerRequest, RequestDocument};
use crate::kind::Kind;
use crate::policy::Policy;
use crate::resource::ResourceName;
use crate::units::SizeGb;

/// Whether `document` is one that `policy` could have made: for a pod that comes through admission a second time.
///
/// A forged document that passes gains nothing: it asks for what the policy gives anyway.
pub fn verify(policy: &Policy, document: &RequestDocument) -> Result<(), Denied> {
    let kinds = kinds(policy, document.isolation)?;
    for container in &document.containers {
        check_count(policy, &container.name, container.count)?;
        let isolates = strongest_class(container.resource) >= document.isolation;
        if policy.gpus_for(container.kind(), &document.gpus).as_ref() != Some(&document.gpus) {
            return Err(Denied::Forged);
        }
        if !kinds.contains(&container.kind()) || !isolates || !is_sound(policy, container) {
            return Err(Denied::Forged);
        }
        if container.size_gb != SizeGb::ANY {
            check_size(policy, &container.name, container.size_gb)?;
        }
    }
    // What is asked without a size was charged by the GPUs that there were: they may be others by now.
    check_pod(policy, document, |_| None)?;
    let named = document.chosen.as_ref().is_some_and(|chosen| chosen.policy == policy.name());
    let most = document.containers.len().saturating_mul(Kind::ALL.len());
    let passed =
        document.chosen.as_ref().map_or(0, |chosen| chosen.passed.len().saturating_add(chosen.waits.len()));
    let moves = document.moves_nobody || policy.spec().preemption.moves_others;
    if named && passed <= most && moves { Ok(()) } else { Err(Denied::Forged) }
}

/// Whether the parts of a container's request go together.
fn is_sound(policy: &Policy, container: &ContainerRequest) -> bool {
    let ContainerRequest { size_gb, profile, count, resource, compute, .. } = container;
    let promised = resource.size().is_none_or(|size| size >= *size_gb);
    let exact = profile.is_none_or(|profile| *resource == ResourceName::Mig(profile));
    let any = match resource {
        ResourceName::Whole | ResourceName::Plugin(..) => policy.spec().sizes.max_gb.is_none(),
        ResourceName::Replica => true,
        _ => false,
    };
    let fenced = compute.is_none() || resource.kind() != Kind::TimeSlicing;
    *count > 0 && promised && exact && fenced && (any || *size_gb != SizeGb::ANY)
}
