//! Reads a pod's request from its annotations and limits.

use super::annotations::{Annotations, only_container};
use super::dialects::{self, Foreign};
use super::known::refuse_unknown;
use super::{AskError, ContainerAsk, ContainerView, PodAsk, PodView, Reading, Role, Want, limits};
use crate::keys;
use crate::units::MemoryMib;

/// Reads what `pod` asks for, by the rules of its policy; `None` if it asks for no slice.
pub fn read(pod: &PodView, reading: &Reading) -> Result<Option<PodAsk>, AskError> {
    // This comes first, because a pod with a mistyped key may look like one that asks for nothing.
    refuse_unknown(pod)?;
    let mut foreign = Vec::new();
    for (container, role) in pod.spec.in_order() {
        foreign.push((container, role, dialects::ask(pod, container, role, reading)?));
    }
    if !asks_at_all(pod, reading) && foreign.iter().all(|(_, _, foreign)| foreign.is_none()) {
        return refuse_idle(pod, reading).map(|()| None);
    }
    let annotations =
        Annotations::read(pod, &|key| only_container(pod, |name| reading.is_sidecar(name), key))?;
    let mut containers = Vec::new();
    let mut dialect = None;
    for (container, role, foreign) in foreign {
        dialect = dialect.or(foreign.as_ref().map(|foreign| foreign.dialect));
        containers.extend(ask((container, role), foreign, &annotations, reading)?);
    }
    if containers.is_empty() {
        return refuse_idle(pod, reading).map(|()| None);
    }
    annotations.refuse_idle_compute(|container| containers.iter().any(|ask| ask.name == container))?;
    dialects::refuse_others(pod, reading)?;
    refuse_privileged(pod, |name| containers.iter().any(|ask| ask.name == name))?;
    Ok(Some(PodAsk {
        // kerf's own annotation has precedence over what a dialect's annotations imply.
        isolation: annotations.isolation.or(dialect.and_then(|dialect| dialects::isolation(pod, dialect))),
        containers,
        gpus: annotations.gpus,
        dialect,
        ignored: dialect.map(|dialect| dialects::ignored(pod, dialect)).unwrap_or_default(),
    }))
}

/// Whether the pod asks by kerf's keys, or has a key that only a pod that asks may have.
fn asks_at_all(pod: &PodView, reading: &Reading) -> bool {
    let asking = |key: &String| keys::PER_CONTAINER.iter().any(|base| is_key_of(key, base));
    let named = |container: &ContainerView| {
        limits::entries(container).any(|(name, amount)| {
            limits::asks_by(name) && !limits::is_nothing(name, amount) && dialects::is_kerfs(name, reading)
        })
    };
    pod.metadata.annotations.keys().any(asking) || pod.spec.in_order().any(|(container, _)| named(container))
}

/// Whether `key` is `base`, or `base` for one container.
fn is_key_of(key: &str, base: &str) -> bool {
    key.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Refuses a pod that states how its slices must be and asks for none. It would run without its GPU, or with one that
/// kerf does not choose. The annotation `kerf.dev/movable` is accepted, because it is not about slices and a cluster
/// may set it on all pods.
fn refuse_idle(pod: &PodView, reading: &Reading) -> Result<(), AskError> {
    let about_slices = || keys::ASKED.into_iter().filter(|base| *base != keys::MOVABLE);
    let idle = pod.metadata.annotations.keys().find(|key| about_slices().any(|base| is_key_of(key, base)));
    idle.map_or(Ok(()), |key| {
        let others = dialects::others(pod, reading).map(|(_, limit, dialect)| (limit.to_owned(), dialect));
        Err(AskError::Idle { key: key.clone(), others })
    })
}

/// The request of one container, from everything that is written about it.
fn ask(
    (container, role): (&ContainerView, Role),
    foreign: Option<Foreign>,
    annotations: &Annotations,
    reading: &Reading,
) -> Result<Option<ContainerAsk>, AskError> {
    let annotated = annotations.asks.iter().find(|(ask, _)| ask.name == container.name).cloned();
    let limit = limits::ask(container, role, reading)?;
    let ours = merge(annotated, limit, annotations.counted.contains(&container.name))?;
    let (mut ask, memory) = match (ours, foreign) {
        (Some((ours, _)), Some(foreign)) => return Err(ours.twice(&foreign.ask)),
        (Some(ours), None) => ours,
        (None, Some(foreign)) => (foreign.ask, foreign.memory),
        (None, None) => return Ok(None),
    };
    ask.memory = memory.filter(|_| annotations.strict);
    let Some((key, percent)) = annotations.compute_of(&container.name) else { return Ok(Some(ask)) };
    match ask.want {
        // A whole GPU has all of its compute, but a share may be given in its place.
        Want::Size(_)
        | Want::Share(..)
        | Want::Whole
        | Want::Replica
        | Want::MpsReplica
        | Want::MigReplica(_) => {
            ask.compute = Some(percent);
        }
        // A share that is written for all containers does not apply here, because the profile fixes the compute.
        Want::Profile(_) | Want::Compute(_) if key == keys::COMPUTE => {}
        Want::Profile(_) | Want::Compute(_) => {
            return Err(ask.twice(&ContainerAsk { by: format!("{key}: {}", percent.get()), ..ask.clone() }));
        }
    }
    Ok(Some(ask))
}

/// Merges a request by annotation with one by limit. Both may state the same; the count is then the limit's.
fn merge(
    noted: Option<(ContainerAsk, Option<MemoryMib>)>,
    limit: Option<ContainerAsk>,
    counted: bool,
) -> Result<Option<(ContainerAsk, Option<MemoryMib>)>, AskError> {
    let sized = |ask: &ContainerAsk| match ask.want {
        Want::Size(size) => Some(size.share_memory()),
        _ => None,
    };
    match (noted, limit) {
        (Some((noted, memory)), Some(limit)) => {
            let agree = noted.want == limit.want && (!counted || noted.count == limit.count);
            if agree { Ok(Some((limit, memory))) } else { Err(noted.twice(&limit)) }
        }
        (None, Some(limit)) => Ok(Some((limit.clone(), sized(&limit)))),
        (noted, None) => Ok(noted),
    }
}

/// Refuses a pod with a privileged container that asks, because it would see every GPU of its node.
fn refuse_privileged(pod: &PodView, asks: impl Fn(&str) -> bool) -> Result<(), AskError> {
    let privileged = |c: &&ContainerView| c.security_context.privileged == Some(true);
    let mut containers = pod.spec.in_order().map(|(container, _)| container).filter(|c| asks(&c.name));
    containers.find(privileged).map_or(Ok(()), |container| Err(AskError::Privileged(container.name.clone())))
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
