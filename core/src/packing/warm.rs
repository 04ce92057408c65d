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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::GpuNodeSpec;
    use crate::inventory::PlacedSlice;
    use crate::names::SliceId;
    use crate::testing::{h100_shape, node_status};

    fn with(models: &[&str], shape: Shape, occupancy: Occupancy) -> NodeInventory {
        let mut node = NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(models));
        node.gpus[0].slices.push(PlacedSlice { shape, occupancy });
        node
    }

    /// The new slices if one idle slice of each of these names is wanted.
    fn cut(node: &NodeInventory, names: &[&str]) -> Vec<String> {
        let one = |name: &&str| WarmSlices { resource: name.parse().unwrap(), count: 1 };
        let wanted: Vec<_> = names.iter().map(one).collect();
        let new = warm(node.clone(), &wanted, &BTreeSet::new(), &Fleet::default());
        new.iter().map(|(gpu, shape)| format!("{shape} on {gpu}")).collect()
    }

    #[test]
    fn a_name_is_served_by_its_own_profile_if_some_gpu_has_it() {
        let mut node = with(&["H100-80GB", "H200-141GB"], h100_shape("7g.80gb", 0), Occupancy::Taken);
        assert_eq!(cut(&node, &["nvidia.com/mig-1g.10gb"]), [""; 0], "the GPU that has it is full");
        node.gpus.remove(0);
        assert_eq!(cut(&node, &["nvidia.com/mig-1g.10gb"]), ["1g.18gb at 6:1 on GPU-1"]);
    }

    #[test]
    fn each_profile_that_serves_a_name_counts_for_it() {
        for (profile, size, new) in [("1g.35gb", 2, 0), ("2g.35gb", 2, 0), ("3g.71gb", 4, 1)] {
            let profile = profile.parse().unwrap();
            let shape = Shape::Mig { profile, start: 4, size, part: MigPart::Whole };
            let node = with(&["H200-141GB"], shape, Occupancy::Idle(SliceId::new("s1")));
            assert_eq!(cut(&node, &["nvidia.com/mig-1g.20gb"]).len(), new, "{profile}");
        }
    }

    #[test]
    fn an_idle_share_counts_as_an_equal_share_only_if_it_is_one() {
        let beside = |size| {
            let idle = Occupancy::Idle(SliceId::new("s1"));
            let mut node = with(&["T4-16GB"], Shape::TimeSlicing { size_gb: SizeGb(size) }, idle);
            node.gpus[0].rule = serde_json::from_str(r#"{"timeSlicing": {"replicas": 3}}"#).unwrap();
            cut(&node, &["nvidia.com/gpu.shared"])
        };
        assert_eq!(beside(4), [""; 0]);
        assert_eq!(beside(2), ["4gb time slice on GPU-0"]);
    }

    #[test]
    fn an_idle_slice_does_not_count_for_a_name_without_a_kind() {
        let shape = Shape::TimeSlicing { size_gb: SizeGb(4) };
        let node = with(&["T4-16GB"], shape, Occupancy::Idle(SliceId::new("s1")));
        assert_eq!(cut(&node, &["kerf.dev/gpu-4gb", "nvidia.com/gpu-4gb.shared"]), [""; 0]);
    }
}
