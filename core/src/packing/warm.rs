//! Idle slices that are cut ahead of demand. They go beside everything that exists, so that nothing is destroyed for
//! them.

use super::Fleet;
use super::fit::{best, occupy};
use super::mig::serving;
use crate::contract::{ContainerRequest, MigPart, Shape, WarmSlices};
use crate::inventory::{GpuInventory, NodeInventory, Occupancy};
use crate::kind::Kind;
use crate::names::GpuUuid;
use crate::resource::ResourceName;
use crate::units::SizeGb;
use std::collections::BTreeSet;

/// The slices to cut on `node` so that each name has its count of idle slices, or as many as there is room for. Each
/// idle slice counts for one name only. GPUs in `resting` are left out.
#[must_use]
pub fn warm(
    mut node: NodeInventory,
    wanted: &[WarmSlices],
    resting: &BTreeSet<GpuUuid>,
    fleet: &Fleet,
) -> Vec<(GpuUuid, Shape)> {
    let asked: Vec<_> = wanted.iter().map(|warm| (requests(&node, warm.resource), warm.count)).collect();
    let missing = missing(&node, &asked);
    for gpu in &mut node.gpus {
        // All slices count as taken, so that no idle slice is used or destroyed for a new one.
        gpu.slices.iter_mut().for_each(|slice| slice.occupancy = Occupancy::Taken);
        if resting.contains(&gpu.uuid) {
            gpu.kinds.clear();
        }
    }
    let mut new = Vec::new();
    for ((requests, _), count) in asked.iter().zip(missing) {
        for _ in 0..count {
            let mut places =
                requests.iter().filter_map(|request| best(&node, request, fleet, |_, _| true).ok());
            let Some((gpu, place)) = places.next() else { break };
            occupy(&mut node.gpus[gpu], &place);
            new.push((node.gpus[gpu].uuid.clone(), place.shape));
        }
    }
    new
}

/// The number of idle slices that each ask lacks. A slice that serves several asks counts for the one that leaves the
/// fewest missing, and for the first among equals. So a slice that was cut for one ask is never counted for another and
/// cut again.
fn missing(node: &NodeInventory, asked: &[(Vec<ContainerRequest>, u32)]) -> Vec<u32> {
    let idle: Vec<_> =
        node.gpus.iter().flat_map(|gpu| gpu.idle().map(move |(_, shape)| (gpu, shape))).collect();
    let serves = |ask: usize, slice: usize| {
        let (gpu, shape) = idle[slice];
        asked[ask].0.iter().any(|request| serves(gpu, shape, request))
    };
    let mut counted_for = vec![None; idle.len()];
    let count = |(ask, (_, wanted)): (usize, &(_, u32))| {
        let more = |_: &u32| count_one(ask, &serves, &mut counted_for, &mut vec![false; idle.len()]);
        (0..*wanted).take_while(more).fold(*wanted, |left, _| left - 1)
    };
    asked.iter().enumerate().map(count).collect()
}

/// Counts one more idle slice for an ask. Other asks may exchange theirs for another one (Kuhn's matching).
fn count_one(
    ask: usize,
    serves: &impl Fn(usize, usize) -> bool,
    counted_for: &mut [Option<usize>],
    seen: &mut [bool],
) -> bool {
    (0..counted_for.len()).any(|slice| {
        let is_new = serves(ask, slice) && !std::mem::replace(&mut seen[slice], true);
        let is_free =
            is_new && counted_for[slice].is_none_or(|other| count_one(other, serves, counted_for, seen));
        if is_free {
            counted_for[slice] = Some(ask);
        }
        is_free
    })
}

/// Whether a request could get an idle slice of this shape.
fn serves(gpu: &GpuInventory, shape: Shape, request: &ContainerRequest) -> bool {
    let Some(kind) = request.only_kind() else { return false };
    gpu.kinds.contains(&kind)
        && match (request.resource, shape) {
            (ResourceName::Mig(_), Shape::Mig { profile, part: MigPart::Whole, .. }) => {
                serving(&gpu.table, request).any(|serving| serving == profile)
            }
            (ResourceName::Replica | ResourceName::MpsReplica, shape) => gpu.replica(kind) == Some(shape),
            (ResourceName::TimeSlicing(_) | ResourceName::Mps(_), _) if gpu.rule.replicas(kind).is_some() => {
                false
            }
            (name, shape) => shape.keeps(name),
        }
}

/// The requests that pods may make under a name. A name with a profile is served by that profile if a GPU has it,
/// because then it also serves pods that ask for exactly this profile.
fn requests(node: &NodeInventory, name: ResourceName) -> Vec<ContainerRequest> {
    let has =
        |gpu: &GpuInventory, profile| gpu.kinds.contains(&Kind::Mig) && gpu.table.entry(profile).is_some();
    let profile = match name {
        ResourceName::Mig(profile) if node.gpus.iter().any(|gpu| has(gpu, profile)) => Some(profile),
        _ => None,
    };
    let sizes: BTreeSet<SizeGb> = match name {
        ResourceName::Whole => node.gpus.iter().map(|gpu| gpu.memory.nominal()).collect(),
        _ => BTreeSet::from([name.size().unwrap_or(SizeGb::ANY)]),
    };
    let request = |size_gb| ContainerRequest { profile, ..ContainerRequest::for_slice(name, size_gb) };
    sizes.into_iter().map(request).collect()
}
