//! Whether a pod that carries a request document is as kerf left it: what it says must be what the document says.
//!
//! Limits that asked were replaced by the names that were chosen, and annotations stay. So the limits are compared with the
//! document one by one, and of the annotations those that kerf itself reads. What dialects' annotations asked for is in the
//! document only: it depends on the cluster's GPUs, and a document that a policy allows gains nothing by asking for more.

use super::annotations::{Notes, Only, only_container};
use super::errors::Field;
use super::known::refuse_unknown;
use super::read::refuse_unsafe;
use super::{AskError, PodView, Role, Want, limits};
use crate::contract::{ContainerRequest, RequestDocument};
use crate::keys;
use crate::policy::{DEFAULT_SIDECARS, NodeNameRule};
use crate::quantity::parse_count;
use crate::resource::ResourceName;

/// Whether a pod says what its document says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// It does.
    Full,
    /// All but this annotation does, which says how slices must be: another webhook may have set it since.
    AllBut(&'static str),
    /// What it asks for is something else.
    None,
}

/// Whether `pod` says what `document` says.
pub fn agreement(
    pod: &PodView,
    document: &RequestDocument,
    node_name: NodeNameRule,
) -> Result<Agreement, AskError> {
    refuse_unknown(pod)?;
    let Some(limits_agree) = limits_agree(pod, document) else {
        return Err(AskError::Reserved(Field::Annotation(keys::REQUEST.to_owned())));
    };
    let notes = Notes::of(pod, &only(pod, document))?;
    let of = |container: &str| document.containers.iter().find(|request| request.name == container);
    notes.refuse_idle_compute(|container| of(container).is_some())?;
    refuse_unsafe(pod, |container| of(container).is_some(), node_name)?;
    let asks_agree = notes.asks.iter().all(|(ask, _)| {
        of(&ask.name).is_some_and(|request| {
            let counted = !notes.counted.contains(&ask.name) || ask.count == request.count;
            counted && is_asked(request, ask.want)
        })
    });
    if !(limits_agree && asks_agree) {
        return Ok(Agreement::None);
    }
    Ok(differing(&notes, document).map_or(Agreement::Full, Agreement::AllBut))
}

/// The first annotation about how slices must be that says something else than the document.
fn differing(notes: &Notes, document: &RequestDocument) -> Option<&'static str> {
    let (said, chosen) = (&notes.gpus, &document.gpus);
    let of = |container: &str| document.containers.iter().find(|request| request.name == container);
    let memory_agrees = notes.asks.iter().all(|(ask, memory)| {
        of(&ask.name).is_some_and(|request| request.memory == memory.filter(|_| notes.strict))
    });
    let compute_agrees = || document.containers.iter().all(|request| compute_agrees(request, notes));
    let differs = [
        (keys::ISOLATION, notes.isolation.is_some_and(|class| class != document.isolation)),
        (keys::GPU_MODEL, said.models != chosen.models),
        (keys::GPU_MODEL_NOT, said.not_models != chosen.not_models),
        (keys::GPU_UUID, said.uuids != chosen.uuids),
        (keys::GPU_UUID_NOT, said.not_uuids != chosen.not_uuids),
        (keys::MEMORY_MATCH, !memory_agrees),
        (keys::COMPUTE, !compute_agrees()),
    ];
    differs.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
}

/// An annotation without a container's name is the pod's only app container's that asks: others may have been injected
/// since.
fn only<'p>(pod: &'p PodView, document: &RequestDocument) -> Box<Only<'p>> {
    let mut apps = document.containers.iter().filter(|request| request.role == Role::App);
    let asking = match (apps.next(), apps.next()) {
        (Some(only), None) => pod.spec.containers.iter().find(|container| container.name == only.name),
        _ => None,
    };
    Box::new(move |key| {
        asking.map_or_else(
            || only_container(pod, |name| DEFAULT_SIDECARS.contains(&name), key),
            |container| Ok(&container.name),
        )
    })
}

/// Whether the same containers ask, each by exactly the resource and the count of the document; `None` if none asks.
fn limits_agree(pod: &PodView, document: &RequestDocument) -> Option<bool> {
    let mut requests = document.containers.iter();
    let (mut agree, mut found) = (true, false);
    for (container, role) in pod.spec.in_order() {
        // A name of NVIDIA's device plugin that asks for nothing of kerf's may still have been given.
        let is_given =
            |name: &str| document.containers.iter().any(|given| given.resource.to_string() == name);
        let is_ours = |name: &str| limits::asks_by(name) || is_given(name);
        let asks = |(name, amount): &(&str, &str)| is_ours(name) && parse_count(amount) != Some(0);
        let mut entries = limits::entries(container).filter(asks).peekable();
        if entries.peek().is_none() {
            continue;
        }
        found = true;
        agree &= requests.next().is_some_and(|request| {
            let same = |(name, amount): (&str, &str)| {
                name == request.resource.to_string() && parse_count(amount) == Some(u64::from(request.count))
            };
            request.name == container.name && request.role == role && entries.all(same)
        });
    }
    found.then_some(agree && requests.next().is_none())
}

fn is_asked(request: &ContainerRequest, want: Want) -> bool {
    match want {
        // A policy's steps may have made it larger.
        Want::Size(size) => request.profile.is_none() && request.size_gb >= size,
        Want::Profile(profile) => request.profile == Some(profile),
        Want::Compute(profile) => request.resource == ResourceName::Compute(profile),
        Want::Share(..) | Want::Whole | Want::Replica => false,
    }
}

fn compute_agrees(request: &ContainerRequest, notes: &Notes) -> bool {
    let exact = request.profile.is_some() || matches!(request.resource, ResourceName::Compute(_));
    let whole = request.resource == ResourceName::Whole;
    match notes.compute_of(&request.name) {
        Some((_, percent)) if !exact => request.compute == Some(percent) || whole,
        _ => true,
    }
}
