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
use crate::policy::NodeNameRule;
use crate::quantity::parse_count;
use crate::resource::ResourceName;

/// Whether `pod` says what `document` says.
pub fn agrees(pod: &PodView, document: &RequestDocument, node_name: NodeNameRule) -> Result<bool, AskError> {
    refuse_unknown(pod)?;
    let Some(limits_agree) = limits_agree(pod, document) else {
        return Err(AskError::Reserved(Field::Annotation(keys::REQUEST.to_owned())));
    };
    let notes = Notes::of(pod, &only(pod, document))?;
    let of = |container: &str| document.containers.iter().find(|request| request.name == container);
    notes.refuse_idle_compute(|container| of(container).is_some())?;
    refuse_unsafe(pod, |container| of(container).is_some(), node_name)?;
    let asks_agree = notes.asks.iter().all(|(ask, memory)| {
        of(&ask.name).is_some_and(|request| {
            let counted = !notes.counted.contains(&ask.name) || ask.count == request.count;
            counted && is_asked(request, ask.want) && request.memory == memory.filter(|_| notes.strict)
        })
    });
    let class_agrees = notes.isolation.is_none_or(|class| class == document.isolation);
    Ok(limits_agree
        && asks_agree
        && class_agrees
        && notes.gpus == document.gpus
        && document.containers.iter().all(|request| compute_agrees(request, &notes)))
}

/// An annotation without a container's name is the pod's only app container's that asks: others may have been injected
/// since.
fn only<'p>(pod: &'p PodView, document: &RequestDocument) -> Box<Only<'p>> {
    let mut apps = document.containers.iter().filter(|request| request.role == Role::App);
    let asking = match (apps.next(), apps.next()) {
        (Some(only), None) => pod.spec.containers.iter().find(|container| container.name == only.name),
        _ => None,
    };
    Box::new(move |key| asking.map_or_else(|| only_container(pod, key), |container| Ok(&container.name)))
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
