//! Whether a node has room for a whole pod, and the best places on it. All or nothing per pod.

use super::{Cost, Fleet, instance, share};
use crate::contract::{ContainerRequest, RequestDocument, Shape};
use crate::inventory::{GpuInventory, NodeInventory, Occupancy, PlacedSlice};
use crate::kind::Kind;
use crate::names::{GpuUuid, SliceId};
use crate::resource::ResourceName;
use thiserror::Error;

/// The places of all of a pod's slices on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// In the order of the request.
    pub slices: Vec<Placed>,
    /// What they cost together.
    pub cost: Cost,
}

/// One slice's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The container that gets it.
    pub container: String,
    /// The name under which the container asks.
    pub resource: ResourceName,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The slice.
    pub shape: Shape,
    /// Where it comes from.
    pub source: Source,
}

/// Where a slice comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An idle slice is used again.
    Idle(SliceId),
    /// It is cut, after these idle slices are destroyed.
    Cut(Vec<SliceId>),
}

/// Why a node cannot serve a request. Texts are constant, so that the scheduler's event groups them over nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum Refusal {
    /// The pod has no request document.
    #[error("pod was not admitted by kerf's webhook: create it anew while the webhook runs")]
    NotAdmitted,
    /// The pod's request document cannot be read.
    #[error("pod's kerf.dev/request annotation cannot be read: create the pod anew")]
    UnreadableRequest,
    /// The node has no GpuNode.
    #[error("no kerf agent on the node")]
    NoAgent,
    /// The GpuNode's status cannot be read.
    #[error("GpuNode status cannot be read, the node counts as full: update its agent")]
    UnreadableStatus,
    /// The GpuNode's spec cannot be read.
    #[error(
        "GpuNode spec cannot be read, the node counts as full: update kerf's extender or correct the spec"
    )]
    UnreadableSpec,
    /// The agent does not serve the node.
    #[error("kerf agent not ready")]
    AgentNotReady,
    /// The pod has a reservation on another node.
    #[error("slice is reserved for the pod on another node")]
    ReservedElsewhere,
    /// No GPU of the node can ever serve it in its present mode.
    #[error("GPUs of another kind or too small for the request")]
    NeverFits,
    /// The pod wants more slices than the node could hold empty.
    #[error("more slices requested than the node can hold: ask for fewer")]
    CountNeverFits,
    /// What would fit is in use.
    #[error("GPU slices in use")]
    NoRoom,
}

/// The best places for `request` on `node`, a node of `fleet`.
pub fn fit(node: &NodeInventory, request: &RequestDocument, fleet: &Fleet) -> Result<Fit, Refusal> {
    place_all(node.clone(), request, fleet).map_err(|refusal| explain(node, request, refusal, fleet))
}

fn place_all(mut node: NodeInventory, request: &RequestDocument, fleet: &Fleet) -> Result<Fit, Refusal> {
    let mut result = Fit { slices: Vec::new(), cost: Cost::default() };
    for container in &request.containers {
        for _ in 0..container.count {
            let (index, candidate) = best(&node, container, fleet)?;
            let gpu = &mut node.gpus[index];
            occupy(gpu, &candidate);
            result.cost = result.cost + candidate.cost;
            result.slices.push(Placed {
                container: container.name.clone(),
                resource: container.resource,
                gpu: gpu.uuid.clone(),
                shape: candidate.shape,
                source: candidate.source,
            });
        }
    }
    Ok(result)
}

/// Tells a full node from one that could not serve the request even if it were empty.
fn explain(node: &NodeInventory, request: &RequestDocument, refusal: Refusal, fleet: &Fleet) -> Refusal {
    let mut empty = node.clone();
    empty.gpus.iter_mut().for_each(|gpu| gpu.slices.clear());
    if place_all(empty.clone(), request, fleet).is_ok() {
        return refusal;
    }
    let one_each = request.containers.iter().all(|c| best(&empty, c, fleet).is_ok());
    if one_each { Refusal::CountNeverFits } else { Refusal::NeverFits }
}

/// A place on one GPU.
pub(super) struct Candidate {
    pub(super) shape: Shape,
    pub(super) source: Source,
    pub(super) cost: Cost,
}

/// The cheapest place on the node; of equal ones that on the first GPU, then at the lowest start.
fn best(
    node: &NodeInventory,
    request: &ContainerRequest,
    fleet: &Fleet,
) -> Result<(usize, Candidate), Refusal> {
    let places = node.gpus.iter().enumerate().filter(|(_, gpu)| gpu.kinds.contains(&request.kind()));
    let places = places.filter_map(|(index, gpu)| {
        let candidate = match request.kind() {
            Kind::Mig => instance::candidate(gpu, request, fleet),
            kind @ (Kind::Mps | Kind::TimeSlicing) => share::candidate(gpu, kind, request.resource.size()),
        };
        Some((index, candidate?))
    });
    places.min_by_key(|(index, candidate)| (candidate.cost, *index)).ok_or(Refusal::NoRoom)
}

fn occupy(gpu: &mut GpuInventory, candidate: &Candidate) {
    let gone = |id: &SliceId| match &candidate.source {
        Source::Idle(used) => used == id,
        Source::Cut(destroyed) => destroyed.contains(id),
    };
    gpu.slices.retain(|s| !matches!(&s.occupancy, Occupancy::Idle(id) if gone(id)));
    gpu.slices.push(PlacedSlice { shape: candidate.shape, occupancy: Occupancy::Taken });
}

#[cfg(test)]
mod tests;
