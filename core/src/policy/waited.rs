//! Whether a pod that waits for a full kind of slice would be served by another, were it chosen for anew.
//!
//! A pod gets all of its slices or none. So it is counted by name, over all of its containers and as they run one after the
//! other, what it needs and what there is: of two containers that want the last slice of a name, each has room by itself.

use super::choose::{Way, needed};
use super::{Asked, Policy, Room, Supply, choose};
use crate::contract::{ContainerRequest, RequestDocument, RootProcesses};
use crate::kind::Kind;
use crate::request::{Claim, ContainerAsk, PodAsk, Want};
use crate::resource::ResourceName;
use crate::static_node::PluginName;
use crate::units::SizeGb;
use std::collections::BTreeSet;

/// What would serve a pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    /// The first container that waits for what is full, and for which another kind has room.
    pub container: String,
    /// What it waits for.
    pub full: ResourceName,
    /// What has room.
    pub other: ResourceName,
    /// For how many more.
    pub room: u32,
    /// Whether the pod would have to be written otherwise: the container names the kind itself.
    pub is_named: bool,
    /// What all of the pod would be given.
    pub document: RequestDocument,
}

/// What `policy` would give to a pod with this document instead, if some of what it waits for is full and there is room for
/// all of the other: as the pod is written, or else as it could be. What `supply` says is wanted, others want.
#[must_use]
pub fn alternative(policy: &Policy, supply: &Supply, document: &RequestDocument) -> Option<Alternative> {
    // On which nodes it may be the document does not say: it could be chosen for as before, again and again.
    if document.chosen.as_ref().is_some_and(|chosen| chosen.selects_nodes) {
        return None;
    }
    let without_mps = (document.root_processes == RootProcesses::KeptOut).then(|| policy.without(Kind::Mps));
    let policy = without_mps.as_ref().unwrap_or(policy);
    let full = short(supply, document, |room| room.room);
    let as_written = |request: &ContainerRequest| is_named(document, request);
    let by_size = |request: &ContainerRequest| is_named(document, request) && request.size_gb == SizeGb::ANY;
    let instead = |keeps: &dyn Fn(&ContainerRequest) -> bool, named: bool| {
        let anew = choose(policy, supply, &ask(document, keeps)).ok()?.document;
        if !short(supply, &anew, Room::left).is_empty() {
            return None;
        }
        let mut pairs = document.containers.iter().zip(&anew.containers);
        let (before, after) = pairs.find(|(before, after)| {
            let moves = full.contains(&before.resource) && before.resource != after.resource;
            moves && is_named(document, before) == named
        })?;
        Some(Alternative {
            container: before.name.clone(),
            full: before.resource,
            other: after.resource,
            room: supply.room_of(after.resource, &Asked::by(after), &anew.gpus).left(),
            is_named: named,
            document: anew.clone(),
        })
    };
    if full.is_empty() {
        return None;
    }
    instead(&as_written, false).or_else(|| instead(&by_size, true))
}

/// The names of which the pod needs more than there is, or than there is together.
fn short(
    supply: &Supply,
    document: &RequestDocument,
    there_is: impl Fn(Room) -> u32,
) -> BTreeSet<ResourceName> {
    let is_short = |(before, request): (usize, &ContainerRequest)| {
        let claim = Claim { role: request.role, resource: request.resource, count: request.count };
        let needed = needed(document.containers.iter().take(before), claim, request.distinct_gpus);
        let way = Way::of(supply, request.resource, &Asked::by(request), &document.gpus, needed);
        (!way.is_enough(&there_is)).then_some(request.resource)
    };
    document.containers.iter().enumerate().filter_map(is_short).collect()
}

/// Whether the pod names the kind that this container gets.
fn is_named(document: &RequestDocument, request: &ContainerRequest) -> bool {
    let named = document.chosen.as_ref().is_some_and(|chosen| chosen.named.contains(&request.name));
    named || request.profile.is_some()
}

/// What a pod with this document asks for, where some containers keep the name that they have and the others go by size.
fn ask(document: &RequestDocument, keeps: impl Fn(&ContainerRequest) -> bool) -> PodAsk {
    let ask = |request: &ContainerRequest| ContainerAsk {
        name: request.name.clone(),
        role: request.role,
        want: if keeps(request) { by_name(request) } else { Want::Size(request.size_gb) },
        count: request.count,
        by: String::new(),
        memory: request.memory,
        compute: request.compute,
        carried: None,
        distinct_gpus: request.distinct_gpus,
    };
    PodAsk {
        isolation: Some(document.isolation),
        containers: document.containers.iter().map(ask).collect(),
        gpus: document.gpus.clone(),
        dialect: None,
        ignored: Vec::new(),
    }
}

fn by_name(request: &ContainerRequest) -> Want {
    match request.resource {
        ResourceName::Mig(profile) => Want::Profile(profile),
        ResourceName::Compute(profile) => Want::Compute(profile),
        ResourceName::MigReplica(profile) => Want::MigReplica(profile),
        ResourceName::Whole | ResourceName::Plugin(PluginName::Gpu, _) => Want::Whole,
        ResourceName::Replica | ResourceName::Plugin(PluginName::Shared, _) => Want::Replica,
        ResourceName::MpsReplica => Want::MpsReplica,
        ResourceName::Plugin(PluginName::Mig(_) | PluginName::MigShared(_), _) => Want::Size(request.size_gb),
        ResourceName::Mps(size) => Want::Share(Kind::Mps, size),
        ResourceName::TimeSlicing(size) => Want::Share(Kind::TimeSlicing, size),
        ResourceName::Neutral(_) => Want::Size(request.size_gb),
    }
}

#[cfg(test)]
#[path = "waited_tests.rs"]
mod tests;
